"""The connection `llm_default`, as the environment says."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_llm_provider.local.endpoint import yours
from airflow_llm_provider.local.home import CONNECTION

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["import_connection"]


def import_connection(environment: Mapping[str, str]) -> str:
    """Create the connection, or bring it up to date, and say so; leave it alone when no endpoint is given.

    :param environment: where LLM_BASE_URL, LLM_API_KEY and LLM_MODEL are looked up; also that of the command.
    :raises LocalError: when only a part of an endpoint is given.
    """
    endpoint = yours(environment)
    if endpoint is None:
        return (
            f"No endpoint is given: set LLM_BASE_URL or LLM_API_KEY, and LLM_MODEL, or make the connection {CONNECTION} in "
            "the UI. Until then the tasks say that it does not exist"
        )
    fields = {"conn_type": "llm", "host": endpoint.base_url, "password": endpoint.api_key}
    with tempfile.TemporaryDirectory() as folder:
        # A file, since every user of the machine can read the arguments of a command.
        file = Path(folder, "connections.json")
        file.touch(mode=0o600)
        file.write_text(json.dumps({CONNECTION: fields}), encoding="utf-8")
        command = [sys.executable, "-m", "airflow", "connections", "import", str(file), "--overwrite"]
        subprocess.run(command, env=dict(environment), check=True)  # noqa: S603 -- ours
    return f"The connection {CONNECTION} leads to {endpoint.base_url}"
