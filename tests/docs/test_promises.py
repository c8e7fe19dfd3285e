"""What the pages promise about requests, files and log lines is what happens."""

from __future__ import annotations

import json
import logging
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_llm_provider import CompletionSpec, errors, run_dataset
from airflow_llm_provider.dataset import read_results
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.jobs import SplitOptions
from airflow_llm_provider.testing.scripted_server import Rule

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.testing.scripted_server import ScriptedServer
    from airflow_llm_provider.xcom import RunSummary

SPEC: dict[str, Any] = {"model": "gpt-4o-mini", "prompt": "Sort: {{ body }}", "max_output_tokens": 32}
ROWS = [{"id": number, "body": f"ticket {number} of a customer"} for number in range(6)]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"label": {"type": "string"}},
    "required": ["label"],
}


class Job:
    """A dataset of six rows and its destination."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder = folder
        self.server = server

    def run(
        self, rows: list[dict[str, Any]] = ROWS, *, spec: dict[str, Any] | None = None, **arguments: Any
    ) -> RunSummary:
        """Run, with another spec or other arguments."""
        source = self.folder / "in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        defaults = {
            "destination": str(self.folder / "out"),
            "base_url": self.server.base_url,
            "max_attempts": 1,
            "prices": {"*": {"input_per_mtok": 0.15, "output_per_mtok": 0.6}},
        }
        arguments = defaults | arguments
        return run_dataset(CompletionSpec(**(SPEC | (spec or {}))), str(source), **arguments)


@pytest.fixture
def fresh(tmp_path: Path, scripted_server: ScriptedServer) -> Job:
    """A job whose rows were never asked."""
    return Job(tmp_path, scripted_server)


@pytest.fixture
def job(fresh: Job) -> Job:
    """A job whose rows were all asked once."""
    fresh.run()
    return fresh


class TestIdentity:
    @pytest.mark.parametrize(
        "change",
        [
            {"prompt": "Label: {{ body }}"},
            {"system": "Be brief."},
            {"model": "gpt-4o"},
            {"output_schema": SCHEMA},
            {"max_output_tokens": 33},
            {"temperature": 0},
            {"request_params": {"seed": 7}},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_I2_another_request_asks_all_rows(self, job: Job, change: dict[str, Any]) -> None:
        assert job.run(spec=change).requests == len(ROWS)

    @pytest.mark.parametrize(
        "change",
        [
            {"context_window": 4096},
            {"encoding": "cl100k_base"},
            {"output_column": "said"},
            {"metadata_prefix": "m_"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_I2_fields_that_are_no_part_of_the_request_ask_none(
        self, job: Job, change: dict[str, Any]
    ) -> None:
        summary = job.run(spec=change)
        assert (summary.requests, summary.succeeded) == (0, len(ROWS))

    @pytest.mark.parametrize(
        "change",
        [
            {"concurrency": 1},
            {"timeout": 5.0},
            {"max_attempts": 3},
            {"max_output_attempts": 3},
            {"failure_threshold": 0.5},
            {"shard_tokens": 20},
            {"split_options": SplitOptions(max_rows_per_shard=2)},
            {"api_key": "sk-another"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_I2_how_requests_are_sent_asks_none(self, job: Job, change: dict[str, Any]) -> None:
        assert job.run(**change).requests == 0

    def test_A3_only_new_and_changed_rows_are_asked(self, job: Job) -> None:
        assert job.run([{"id": 9, "body": "new"}, *ROWS]).requests == 1
        assert job.run([ROWS[0] | {"body": "changed"}, *ROWS[1:]]).requests == 1

    def test_moved_removed_and_renumbered_rows_ask_none(self, job: Job) -> None:
        assert job.run(ROWS[::-1]).requests == 0
        assert job.run(ROWS[2:]).requests == 0
        assert job.run([row | {"id": 100 + row["id"]} for row in ROWS]).requests == 0

    def test_another_destination_asks_all(self, job: Job) -> None:
        assert job.run(destination=str(job.folder / "elsewhere")).requests == len(ROWS)

    def test_start_over_asks_all(self, job: Job) -> None:
        assert job.run(split_options=SplitOptions(start_over=True)).requests == len(ROWS)


#: How a request is made to end in a status, and whether the row is asked again.
ENDINGS: dict[RowStatus, tuple[Rule, bool]] = {
    RowStatus.TRUNCATED: (Rule(contains="ticket 3", answer="half an", finish_reason="length"), False),
    RowStatus.EMPTY: (Rule(contains="ticket 3", answer=""), False),
    RowStatus.REFUSED: (Rule(contains="ticket 3", refusal="I can't", null_content=True), False),
    RowStatus.CONTENT_FILTER: (
        Rule(contains="ticket 3", status=400, body={"error": {"code": "content_filter", "message": "no"}}),
        True,
    ),
    RowStatus.CONTEXT_TOO_LONG: (
        Rule(
            contains="ticket 3",
            status=400,
            body={"error": {"code": "context_length_exceeded", "message": "no"}},
        ),
        True,
    ),
    RowStatus.REQUEST_TOO_LARGE: (
        Rule(contains="ticket 3", status=413, body={"error": {"code": "request_too_large", "message": "no"}}),
        True,
    ),
    RowStatus.REJECTED: (
        Rule(contains="ticket 3", status=400, body={"error": {"code": "invalid_request", "message": "no"}}),
        True,
    ),
    RowStatus.ERROR: (Rule(contains="ticket 3", status=500), True),
}


class TestStatuses:
    @pytest.mark.parametrize("status", ENDINGS)
    def test_are_asked_again_as_the_table_says(
        self, status: RowStatus, fresh: Job, pages: dict[str, Any]
    ) -> None:
        rule, again = ENDINGS[status]
        fresh.server.script(rule)
        fresh.run()
        column = read_results(str(fresh.folder / "out")).column("llm_status").to_pylist()
        assert column == ["success"] * 3 + [status] + ["success"] * 2
        fresh.server.script()
        assert fresh.run().requests == int(again)
        (cell,) = [row[3] for row in pages["docs/output.md"].table("Statuses") if row[0] == f"`{status}`"]
        assert ("yes" in cell) is again

    def test_blank_rows_are_never_sent(self, job: Job) -> None:
        summary = job.run([*ROWS, {"id": 7, "body": "  "}])
        assert (summary.requests, summary.rows_by_status["empty_input"]) == (0, 1)

    def test_invalid_output_keeps_the_models_words(self, fresh: Job) -> None:
        import pyarrow.parquet as pq

        fresh.server.script(Rule(contains="ticket 3", answer='{"label": 5}'))
        summary = fresh.run(spec={"output_schema": SCHEMA})
        assert summary.rejects is not None
        rejects = pq.read_table(fresh.folder / "out" / "_rejects.parquet")
        assert rejects.column("llm_text").to_pylist() == ['{"label": 5}']
        assert rejects.column("label").to_pylist() == [None]


def error(status: int, code: str, **more: Any) -> Rule:
    """Return a rule that refuses every request."""
    return Rule(status=status, body={"error": {"code": code, "message": f"about {code}", **more}})


class TestFailures:
    @pytest.mark.parametrize(
        ("rule", "raised"),
        [
            (error(401, "invalid_api_key"), errors.LLMAuthenticationError),
            (error(429, "insufficient_quota"), errors.LLMQuotaError),
            (error(404, "model_not_found"), errors.LLMConfigurationError),
            (error(400, "unsupported_value", param="temperature"), errors.LLMConfigurationError),
        ],
        ids=["key", "credit", "model", "parameter"],
    )
    def test_that_every_row_would_meet_cost_one_request(
        self, fresh: Job, rule: Rule, raised: type[Exception]
    ) -> None:
        fresh.server.script(rule)
        with pytest.raises(raised):
            fresh.run()
        assert fresh.server.stats()["requests"] == 1

    def test_of_the_endpoint_are_tried_again_by_airflow(self, fresh: Job) -> None:
        fresh.server.script(Rule(status=503))
        with pytest.raises(errors.LLMRetryableError, match="none of the 6 rows asked got an answer"):
            fresh.run()

    def test_429_uses_up_no_attempt(self, fresh: Job) -> None:
        fresh.server.script(Rule(status=429, times=3, headers={"retry-after-ms": "20"}))
        assert fresh.run(max_attempts=1).succeeded == len(ROWS)
        assert fresh.server.stats()["answered"] == len(ROWS)

    def test_that_are_too_long_a_wait_give_the_slots_back(self, fresh: Job) -> None:
        fresh.server.script(Rule(status=429, headers={"retry-after": "301"}))
        with pytest.raises(errors.LLMRetryableError, match="longer than the 300 s that are waited for"):
            fresh.run()

    @pytest.mark.parametrize(
        ("threshold", "fails"), [(None, False), (0, True), (0.1, True), (0.2, False), (1, False)]
    )
    def test_above_the_threshold_fail_the_shard(
        self, fresh: Job, threshold: float | None, fails: bool
    ) -> None:
        fresh.server.script(Rule(contains="ticket 3", answer=""))
        if fails:
            with pytest.raises(errors.LLMFailureThresholdError):
                fresh.run(failure_threshold=threshold)
        else:
            assert fresh.run(failure_threshold=threshold).succeeded == 5

    @pytest.mark.parametrize(("threshold", "fails"), [(None, True), (1, False)])
    def test_of_all_rows_are_no_matter_of_rows(
        self, fresh: Job, threshold: float | None, fails: bool
    ) -> None:
        fresh.server.script(Rule(answer=""))
        if fails:
            with pytest.raises(
                errors.LLMFailureThresholdError, match="none of the 6 rows has a usable answer"
            ):
                fresh.run()
        else:
            assert fresh.run(failure_threshold=threshold).rows_by_status == {"empty": 6}


class TestFiles:
    def test_manifest_has_the_keys_of_the_table(self, job: Job, pages: dict[str, Any]) -> None:
        manifest = json.loads((job.folder / "out" / "_manifest.json").read_text(encoding="utf-8"))
        assert [row[0].strip("`") for row in pages["docs/output.md"].table("Manifest")] == list(manifest)

    def test_layout_is_the_one_drawn(self, job: Job) -> None:
        files = {path.relative_to(job.folder / "out").parts for path in (job.folder / "out").rglob("*.*")}
        assert {name[0] for name in files} == {"part-00000.parquet", "_manifest.json", "_llm"}
        assert {name[1] for name in files if name[0] == "_llm"} == {
            "output.json",
            "plans",
            "results",
            "shards",
        }


def shape(line: str) -> str:
    """Return a log line without what differs from run to run: numbers, times, prices, places, and how rows ended."""
    line = re.sub(r"(?:\S*/)\S+", "PATH", line)
    line = re.sub(r"PATH rows without an answer: PATH", "PATH", line)
    line = re.sub(r"\((?:[\d,]+ [a-z_]+(?:, )?)+\)", "STATUSES", line)
    line = re.sub(
        r"cost unknown(?: \(no price for this model at this endpoint\))?|(?:cost )?\$[\d.]*\d(?: to \$[\d.]*\d)?",
        "COST",
        line,
    )
    line = re.sub(r"\d+ min \d+ s left|\d+ s left|\? left", "TIME", line)
    return re.sub(r"\d[\d,.]*[kMG]?", "N", line).removesuffix(".")


class TestLogs:
    def test_are_such_as_a_run_writes(
        self, fresh: Job, pages: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        fresh.server.script(Rule(contains="ticket 3", answer="half an", finish_reason="length"))
        fresh.run(split_options=SplitOptions(max_rows_per_shard=3))
        for path in (fresh.folder / "out" / "_llm").rglob("*.*"):
            os.utime(path, (0, 0))
        fresh.run([ROWS[0] | {"body": "another ticket"}])
        known = {shape(message) for message in caplog.messages}
        quoted = [
            line
            for page in pages.values()
            for block in page.blocks
            if block.role == "log"
            for line in block.code.splitlines()
            if line
        ]
        assert len(quoted) > 5
        assert [line for line in quoted if shape(line) not in known] == []
