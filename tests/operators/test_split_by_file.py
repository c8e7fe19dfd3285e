from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llm_provider import (
    CompletionSpec,
    CountFilesOperator,
    ListFilesOperator,
    PlanShardsOperator,
)
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.plans.plan import read_plan
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.compat import AirflowFailException
from airflow_llm_provider.jobs.options import SPLIT_BYTES
from airflow_llm_provider.operators.split_by_file import DEFAULT_SPLIT_BYTES

if TYPE_CHECKING:
    from pathlib import Path

SPEC = CompletionSpec(model="gpt-4o-mini", prompt="Ticket: {{ subject }}", max_output_tokens=16)


class ManyFiles:
    """A night's dataset of several files, and the operators that split it, without Airflow around them."""

    def __init__(self, night: Any, folder: Path) -> None:
        self.night = night
        self.source = folder / "many"
        self.source.mkdir()
        for number, subjects in enumerate((["fire", "flood", "frost"], ["refund"], ["login", "logout"])):
            text = "subject\n" + "".join(f"{subject}\n" for subject in subjects)
            (self.source / f"{number}.csv").write_text(text)

    def list(self, **changes: Any) -> list[dict[str, Any]]:
        arguments: dict[str, Any] = {
            "task_id": "list",
            "spec": SPEC,
            "source": str(self.source),
            "destination": str(self.night.destination),
            "max_rows_per_shard": 2,
            "split_bytes": 1,
        }
        return ListFilesOperator(**(arguments | changes)).execute(self.night.context)

    def count(self, files: dict[str, Any]) -> dict[str, Any]:
        operator = CountFilesOperator(task_id="count", files=files, destination=str(self.night.destination))
        return operator.execute(self.night.context)

    def plan(self, **changes: Any) -> list[dict[str, Any]]:
        arguments = {
            "task_id": "plan",
            "listing": self.night.ti.xcoms["listing"],
            "destination": str(self.night.destination),
        }
        return PlanShardsOperator(**(arguments | changes)).execute(self.night.context)


@pytest.fixture
def many(night: Any, tmp_path: Path) -> ManyFiles:
    return ManyFiles(night, tmp_path)


class TestThreeTasks:
    def test_make_one_plan(self, many: ManyFiles) -> None:
        groups = json.loads(json.dumps(many.list()))
        assert [group["label"] for group in groups] == [f"file {n} · 0.0 MB" for n in range(3)]
        counted = [many.count(group) for group in groups]
        assert counted[0] == {
            "index": 0,
            "rows": 3,
            "requests": 3,
            "tokens": counted[0]["tokens"],
            "shards": 2,
        }
        references = many.plan()
        assert [reference["rows"] for reference in references] == [2, 1, 1, 2]
        assert many.night.ti.xcoms["estimate"]["rows"] == 6
        layout, plan_id = Layout.of_plan(many.night.plan)
        assert read_plan(layout, plan_id).settings.split_by == "file"

    def test_A18_let_no_row_text_cross_xcom(self, many: ManyFiles) -> None:
        pushed = [many.list(), [many.count(group) for group in many.list()], many.plan(), many.night.ti.xcoms]
        assert not any(word in json.dumps(pushed) for word in ("fire", "refund", "logout"))

    def test_know_the_price_at_every_endpoint(self, many: ManyFiles, monkeypatch: Any) -> None:
        for name, price in (("dear", 10), ("unknown", None)):
            prices = {} if price is None else {"x": {"input_per_mtok": price, "output_per_mtok": price}}
            value = {"conn_type": "llm", "host": "http://127.0.0.1:1/v1", "extra": {"prices": prices}}
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(value))
        for group in many.list(model="x"):
            many.count(group)
        many.plan(conn_id="dear")
        assert many.night.ti.xcoms["estimate"]["cost_low_usd"] > 0
        many.plan(conn_id=None, conn_ids=["dear", "unknown"])
        assert many.night.ti.xcoms["estimate"]["cost_low_usd"] is None

    def test_count_as_many_bytes_by_default_as_without_airflow(self) -> None:
        assert DEFAULT_SPLIT_BYTES == SPLIT_BYTES


class TestDryRun:
    def test_I6_is_done_by_the_first_task_and_leaves_no_trace(self, many: ManyFiles) -> None:
        assert many.list(dry_run=True) == []
        assert many.night.ti.xcoms["estimate"]["rows"] == 6
        assert many.plan() == []
        assert many.night.plan == ""
        assert not many.night.destination.exists()


class TestMistakes:
    def test_A1_too_many_shards_fail_without_a_retry(
        self, many: ManyFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "3")
        for group in many.list(max_rows_per_shard=None, shard_tokens=1, fit_max_shards=False):
            many.count(group)
        with pytest.raises(AirflowFailException, match=r"6 shards .* core\.max_map_length allows 3"):
            many.plan()

    def test_A1_there_are_never_more_groups_than_airflow_maps(
        self, many: ManyFiles, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
        assert len(many.list()) == 2

    def test_a_changed_file_fails_without_a_retry(self, many: ManyFiles) -> None:
        groups = many.list()
        (many.source / "1.csv").write_text("subject\nanother\n")
        with pytest.raises(AirflowFailException, match=r"changed since it was listed .*1\.csv"):
            many.count(groups[1])

    def test_what_no_group_is_says_so(self, many: ManyFiles) -> None:
        with pytest.raises(AirflowFailException, match="expected a group of files"):
            many.count("x")  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("operator", "wrong"),
        [
            (CountFilesOperator, {"files": {}, "destination": ""}),
            (PlanShardsOperator, {"listing": "x", "destination": "/out", "start_over": "maybe"}),
            (ListFilesOperator, {"spec": SPEC, "source": "/in", "destination": "/out", "split_bytes": 0}),
        ],
    )
    def test_are_found_while_the_dag_is_parsed(self, operator: Any, wrong: dict[str, Any]) -> None:
        with pytest.raises(LLMInputError, match=next(reversed(wrong))):
            operator(task_id="x", **wrong)

    def test_are_found_in_a_mapped_task_too(self) -> None:
        with pytest.raises(LLMInputError, match="destination is ''"):
            CountFilesOperator.partial(task_id="x", destination="")
