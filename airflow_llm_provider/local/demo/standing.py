"""The same Airflow left running, with its UI: `up`, `down` and `status`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.local.airflow.local_airflow import LocalAirflow
from airflow_llm_provider.local.demo.display import say
from airflow_llm_provider.local.demo.home import Home, prepare_airflow
from airflow_llm_provider.local.demo.model_server import ModelServer
from airflow_llm_provider.local.services.ports import port_or_free
from airflow_llm_provider.local.services.service_set import ServiceSet
from airflow_llm_provider.starter.tickets import write_sample_tickets

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.starter.endpoint import ModelEndpoint

__all__ = ["bring_down", "bring_up", "tell_status"]

_USUAL_PORT = 8080
_DAGS = ("catalog_packages", "nightly_tickets")


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """What `status` tells about a running set-up."""

    url: str
    model: str
    base_url: str


def bring_up(home: Home, dags: Path, given: ModelEndpoint | None) -> None:
    """Start Airflow, and the small model unless another is given, and leave them running.

    :param home: folder of everything; kept from one `up` to the next.
    :param dags: folder of the DAG files.
    :param given: endpoint to ask instead of the small model.
    """
    if _airflow_set(home).alive:
        say("Airflow is already running.")
        tell_status(home)
        return
    home.create(empty=False)
    with ExitStack() as started:
        endpoint = given
        if endpoint is None:
            say("Starting the model …")
            server = ModelServer(home.model, keep=True)
            started.callback(server.stop)
            endpoint = server.start().endpoint
        airflow = LocalAirflow(
            home.airflow,
            dags,
            port=port_or_free(_USUAL_PORT),
            env=home.environment(endpoint),
            triggerer=True,
            keep=True,
        )
        started.callback(airflow.stop)
        say(
            "Starting Airflow: API server, scheduler, DAG processor, triggerer. This takes most of a minute …"
        )
        airflow.start()
        say("Adding the connection, the pool and sample tickets; waiting for the DAGs to be read …")
        write_sample_tickets(home.data / "tickets")
        with airflow.client() as client:
            prepare_airflow(client, endpoint)
            for dag_id in _DAGS:
                client.wait_for_dag(dag_id)
        # Only now is it all there: what fails or is interrupted before leaves nothing running.
        started.pop_all()
    standing = _Standing(url=airflow.url, model=endpoint.model, base_url=endpoint.base_url)
    _file(home).write_text(json.dumps(asdict(standing)), encoding="utf-8")
    tell_status(home)


def bring_down(home: Home) -> None:
    """Stop what `up` started; twice is harmless.

    :param home: folder given to `up`.
    """
    running = _airflow_set(home).alive
    _airflow_set(home).stop()
    ServiceSet(home.model / "run").stop()
    _file(home).unlink(missing_ok=True)
    say("Stopped." if running else "Nothing was running.")


def tell_status(home: Home) -> bool:
    """Say what is running, and where.

    :param home: folder given to `up`.
    """
    if not _airflow_set(home).alive or not _file(home).exists():
        say(f"Nothing is running in {home.root}.")
        return False
    standing = _Standing(**json.loads(_file(home).read_text(encoding="utf-8")))
    say(f"  Airflow  {standing.url} (no login needed)")
    say(f"  model    {standing.model} at {standing.base_url}")
    say(f"  data     {home.data}")
    say(f"  logs     {home.airflow / 'logs'}")
    say("Trigger catalog_packages or nightly_tickets there; `make down` stops everything.")
    return True


def _airflow_set(home: Home) -> ServiceSet:
    return ServiceSet(home.airflow / "run")


def _file(home: Home) -> Path:
    return home.root / "standing.json"
