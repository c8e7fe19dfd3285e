"""The file `airflow.cfg` of a home: for `airflow` commands in a shell that has `AIRFLOW_HOME` and nothing else.

Without it Airflow writes one of its own, with another key, other DAGs and a database that fails after 5 s of waiting.
"""

from __future__ import annotations

import os
from configparser import Error, RawConfigParser
from typing import TYPE_CHECKING

from airflow_llm_provider.local.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_config"]

_PREFIX = "AIRFLOW__"


def write_config(path: Path, environment: Mapping[str, str]) -> None:
    """Write the options of an environment into a file; what else the file sets stays.

    :param path: the file.
    :param environment: variables; those named `AIRFLOW__SECTION__OPTION` are options.
    :raises StartError: when the file is there and is no configuration.
    """
    # Airflow's own reader expands %, so text is written as it stands, and % of ours twice.
    config = RawConfigParser(strict=False)
    try:
        config.read(path, encoding="utf-8")
    except (Error, UnicodeDecodeError) as error:
        raise StartError(
            f"{path} is not a configuration file of Airflow: mend or delete it ({error})"
        ) from error
    for name, value in environment.items():
        section, separator, option = name.removeprefix(_PREFIX).lower().partition("__")
        if not name.startswith(_PREFIX) or not separator:
            continue
        if not config.has_section(section):
            config.add_section(section)
        config.set(section, option, value.replace("%", "%%"))
    # It holds keys. The new file takes the old one's place whole: a command may be reading it.
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.touch(mode=0o600)
    with fresh.open("w", encoding="utf-8") as file:
        config.write(file)
    fresh.replace(path)
