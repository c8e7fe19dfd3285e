import importlib
import json
import logging

import pytest

from benchmarks import child, report
from benchmarks.__main__ import NAMES


@pytest.fixture
def _threads(monkeypatch):
    """Undo what --quick does to the process; and keep the lines on the jobs off an Airflow that logs to stdout."""
    monkeypatch.setattr(child, "_in_threads", False)
    monkeypatch.setattr(logging.getLogger("airflow_llm_provider"), "propagate", False)


#: Starts Airflow, which takes longer than all the others together.
STARTS_AIRFLOW = {"overhead"}


@pytest.mark.usefixtures("_threads")
class TestEveryBenchmark:
    @pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=pytest.mark.soak if name in STARTS_AIRFLOW else ()) for name in NAMES],
    )
    def test_its_smallest_size_runs_to_the_end_and_prints_one_line_of_json(self, name, capfd):
        importlib.import_module(f"benchmarks.{name}").main(["--quick"])

        (line,) = capfd.readouterr().out.splitlines()
        found = json.loads(line)
        assert found["name"] == name.replace("_", "-")
        assert isinstance(found["value"], (int, float, type(None)))
        assert isinstance(found["ok"], bool)
        assert found["target"]
        assert found["unit"]
        assert found["baseline"]["what"]
        assert {"cores", "python"} <= set(found["machine"])

    @pytest.mark.parametrize("name", NAMES)
    def test_it_says_what_it_measures(self, name):
        module = importlib.import_module(f"benchmarks.{name}")

        assert module.__doc__


class TestReport:
    def test_numbers_keep_four_digits(self):
        assert report.rounded(0.951234) == 0.9512
        assert report.rounded(123456.0) == 123500


class TestChild:
    def test_a_function_runs_in_a_process_of_its_own(self):
        found = child.Child("benchmarks.report:machine", {}).result()

        assert found["cores"] >= 1

    def test_a_failure_in_it_is_no_result(self, capfd):
        with pytest.raises(RuntimeError, match="exit code 1"):
            child.Child("benchmarks.report:nothing", {}).result()

        assert "AttributeError" in capfd.readouterr().err
