"""The folders of the demo and of `up`, and what Airflow needs to know to run our DAGs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_llm_provider
from airflow_llm_provider.local.errors import LocalError
from airflow_llm_provider.starter.endpoint import CONNECTION
from airflow_llm_provider.starter.pools import pools

if TYPE_CHECKING:
    from airflow_llm_provider.local.rest import AirflowClient
    from airflow_llm_provider.starter.endpoint import ModelEndpoint

__all__ = ["Home", "default_dags", "prepare_airflow"]

_MARKER = ".airflow-llm-provider"


@dataclass(frozen=True)
class Home:
    """One folder for everything that a demo reads and writes.

    :param root: the folder.
    """

    root: Path

    @property
    def airflow(self) -> Path:
        """Airflow's own home."""
        return self.root / "airflow"

    @property
    def model(self) -> Path:
        """The model server's folder."""
        return self.root / "model"

    @property
    def data(self) -> Path:
        """Datasets and outputs."""
        return self.root / "data"

    def create(self, *, empty: bool) -> None:
        """Create the folder.

        :param empty: remove what an earlier run left there.
        """
        marker = self.root / _MARKER
        if empty and self.root.exists() and any(self.root.iterdir()):
            # Never empty a folder that someone named by mistake.
            if not marker.exists():
                raise LocalError(
                    f"{self.root} has files that no demo made: choose another folder with --home"
                )
            shutil.rmtree(self.root)
        self.root.mkdir(parents=True, exist_ok=True)
        marker.touch()

    def environment(self, endpoint: ModelEndpoint) -> dict[str, str]:
        """Return the options that the example DAGs read.

        :param endpoint: the model to ask.
        """
        return {
            "AIRFLOW__LLM_EXAMPLES__DATA": f"file://{self.data}",
            "AIRFLOW__LLM_EXAMPLES__MODEL": endpoint.model,
        }


def default_dags() -> Path:
    """Return the folder of the example DAGs, which lies beside the package in the repository."""
    return Path(airflow_llm_provider.__file__).resolve().parents[1] / "dags"


def prepare_airflow(client: AirflowClient, endpoint: ModelEndpoint) -> None:
    """Create the pools and the connection, or bring them up to date.

    :param client: calls the Airflow.
    :param endpoint: the model to ask.
    """
    for name, fields in pools().items():
        client.put_pool(name, **fields)
    client.put_connection(CONNECTION, conn_type="llm", host=endpoint.base_url, password=endpoint.api_key)
