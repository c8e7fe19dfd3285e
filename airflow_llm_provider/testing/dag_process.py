"""The process behind :class:`~airflow_llm_provider.testing.dag_runs.AirflowProcess`.

One order a line comes in on standard input, one reply a line goes out on what was standard output; whatever Airflow, the
DAG file and its tasks print goes to standard error. It ends when its input does.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

# As in Airflow's own `dag.test()`, everything is one process here, and the database is its own.
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.models.xcom import XComModel  # noqa: TID251
from airflow.utils.session import create_session  # noqa: TID251

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow.sdk import DAG

__all__ = ["main"]

# Airflow 3.1 has it elsewhere.
_bags = importlib.import_module(
    "airflow.dag_processing.dagbag"
    if importlib.util.find_spec("airflow.dag_processing.dagbag")
    else "airflow.models.dagbag"
)


def main(orders: TextIO, replies: TextIO) -> None:
    """Run one DAG after the other."""
    manager = DagBundlesManager()  # type: ignore[no-untyped-call]
    manager.sync_bundles_to_db()
    (bundle,) = manager.get_all_dag_bundles()
    for line in orders:
        order = json.loads(line)
        with _surroundings(Path(order["file"]).parent, order["environment"]):
            reply = _reply(order, bundle.name)
        print(json.dumps(reply), file=replies, flush=True)


def _reply(order: Mapping[str, Any], bundle: str) -> dict[str, Any]:
    file = Path(order["file"])
    bag = _bags.DagBag(file, safe_mode=False)
    if bag.import_errors:
        return {"error": f"{file} does not import: {'; '.join(bag.import_errors.values())}"}
    dag_id = order["dag_id"] or next(iter(bag.dags), None)
    if dag_id not in bag.dags or (order["dag_id"] is None and len(bag.dags) > 1):
        return {"error": f"{file} has the DAGs {', '.join(sorted(bag.dags)) or 'none'}: give one as dag_id"}
    # Airflow looks for a version of the DAG; in its bundle's folder, which is empty here, if there is none.
    _bags.sync_bag_to_db(bag, bundle, None)
    return _run(bag.dags[dag_id], order)


def _run(dag: DAG, order: Mapping[str, Any]) -> dict[str, Any]:
    if order["retries"] is not None:
        for task in dag.tasks:
            task.retries = order["retries"]
    at = order["logical_date"]
    given: dict[str, Any] = {} if at is None else {"logical_date": datetime.fromisoformat(at)}
    run = dag.test(run_conf=order["params"], **given)
    with create_session() as session:
        found: Iterable[Any] = session.scalars(XComModel.get_many(run_id=run.run_id, dag_ids=[dag.dag_id]))
        xcoms = [
            (each.task_id, each.map_index, each.key, XComModel.deserialize_value(each)) for each in found
        ]
    return {
        "dag_id": dag.dag_id,
        "state": str(run.state),
        "states": [(ti.task_id, ti.map_index, ti.state) for ti in run.get_task_instances()],
        "xcoms": [xcom for xcom in xcoms if _is_json(xcom[-1])],
    }


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


@contextmanager
def _surroundings(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Be where the DAG file expects to be, and nowhere special afterwards."""
    before = dict(os.environ)
    os.environ.update(environment)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main(sys.stdin, own)
