"""Fixtures that play all scenarios at once, so that their waiting overlaps.

A test class names its scenario, a function from a :class:`~tests.system.stage.Stage` to whatever its tests look at::

    class TestSomething:
        scene = staticmethod(something)

        def test_it_holds(self, facts: Facts) -> None: ...
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow import sdk

from tests.system.stage import staged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from airflow_llm_provider.local import AirflowClient, LocalAirflow
    from tests.system.stage import Scene

_SECONDS = 1300.0
_JOBS = Path(__file__).parent / "dags" / "dataset_jobs.py"
_DATES = Path(__file__).parent / "dags" / "dates.py"
_NIGHTLY = Path(__file__).parents[2] / "dags" / "nightly_tickets.py"
_PARTITIONS = Path(__file__).parent / "dags" / "partitions.py"
#: Whether this Airflow has runs of partitions.
PARTITIONS = hasattr(sdk, "CronPartitionTimetable")


@pytest.fixture(scope="session")
def scenes(
    request: pytest.FixtureRequest,
    airflow: LocalAirflow,
    client: AirflowClient,
    system_home: Path,
    dags_folder: Path,
) -> Iterator[dict[Scene, Future[Any]]]:
    """Begin every scenario that a selected test looks at."""
    wanted: dict[Scene, None] = dict.fromkeys(
        item.cls.scene for item in request.session.items if hasattr(getattr(item, "cls", None), "scene")
    )
    for file in (_JOBS, _DATES, _NIGHTLY, *([_PARTITIONS] if PARTITIONS else [])):
        (dags_folder / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    for dag_id in ("strict", "patient", "careful", "crowded", "by_file", "poolless", "cramped"):
        client.wait_for_dag(dag_id, timeout=_SECONDS)
        client.unpause(dag_id)
    client.wait_for_dag("nightly_tickets", timeout=_SECONDS)
    for scene in wanted:
        getattr(scene, "prologue", lambda _: None)(airflow)

    def play(scene: Scene) -> Any:
        with staged(scene.__name__, airflow, system_home) as stage:
            return scene(stage)

    pool = ThreadPoolExecutor(max(1, len(wanted)), thread_name_prefix="scene")
    yield {scene: pool.submit(play, scene) for scene in wanted}
    # A scenario that still waits sees Airflow go, and ends.
    pool.shutdown(wait=False, cancel_futures=True)


@pytest.fixture(scope="class")
def facts(request: pytest.FixtureRequest, scenes: dict[Scene, Future[Any]]) -> Any:
    """What the scenario of the test's class found out."""
    return scenes[request.cls.scene].result(timeout=_SECONDS)
