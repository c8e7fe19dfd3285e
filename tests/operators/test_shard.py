from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from airflow.sdk import XComArg

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.plans.plan import Plan, read_plan
from airflow_llm_provider.errors import LLMInputError, LLMSourceNotFoundError, LLMStateError
from airflow_llm_provider.hooks.compat import AirflowFailException
from airflow_llm_provider.xcom import MAX_REFERENCE_BYTES, ShardReference

if TYPE_CHECKING:
    from pathlib import Path


def plan_of(night: Any) -> Plan:
    layout, plan_id = Layout.of_plan(night.plan)
    return read_plan(layout, plan_id)


class TestExecute:
    def test_returns_one_reference_per_shard_and_pushes_plan_and_estimate(self, night: Any) -> None:
        references = [ShardReference.from_json(item) for item in night.split()]
        assert [reference.rows for reference in references] == [2, 2, 1]
        assert [reference.index for reference in references] == [0, 1, 2]
        assert night.plan.startswith(str(night.destination))
        assert night.ti.xcoms["estimate"]["rows"] == 5
        assert night.ti.xcoms["estimate"]["shards"] == 3

    def test_A2_without_rows_there_are_no_shards_and_still_a_plan(self, night: Any) -> None:
        night.write()
        assert night.split() == []
        assert night.plan

    def test_A18_no_row_text_crosses_xcom_and_little_else(self, night: Any) -> None:
        night.write(*(f"SECRET-ROW-{i}" for i in range(1024)))
        pushed = json.dumps([night.split(max_rows_per_shard=1), night.ti.xcoms])
        assert "SECRET-ROW" not in pushed
        assert len(pushed) < 1024 * MAX_REFERENCE_BYTES

    def test_a_trial_takes_only_the_first_rows(self, night: Any) -> None:
        night.split(limit="3")
        assert plan_of(night).rows == 3

    def test_columns_and_rows_can_be_chosen_per_run(self, night: Any) -> None:
        night.source.write_text("id,subject\n1,a\n2,b\n3,c\n")
        night.split(columns="id", where="id <> '2'")
        assert plan_of(night).rows == 2
        assert plan_of(night).carried_schema.names == ["id"]
        night.split(columns="", where="")
        assert plan_of(night).rows == 3
        assert plan_of(night).carried is None

    def test_columns_of_csv_have_the_types_that_are_declared(self, night: Any) -> None:
        night.source.write_text("n,subject\n007,a\n12,b\n")
        night.split(types={"n": "int64"}, where="n >= 8")
        assert plan_of(night).rows == 1
        assert str(plan_of(night).input_schema.field("n").type) == "int64"
        with pytest.raises(LLMInputError, match=r"types\['n'\] is 'int': give one of text, int64"):
            night.splitter(types={"n": "int"})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"columns": ["nosuch"]}, "columns names 'nosuch'.*its columns are 'subject'"),
            ({"where": "id = '5'"}, "where, character 1: there is no column 'id'.*'subject'"),
        ],
    )
    def test_columns_that_are_not_there_fail_before_anything_is_written(
        self, night: Any, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(AirflowFailException, match=message):
            night.split(**changes)
        assert not night.destination.exists()

    def test_is_the_same_every_time(self, night: Any) -> None:
        assert night.split() == night.split()

    def test_do_xcom_push_false_is_honoured(self, night: Any) -> None:
        assert len(night.split(do_xcom_push=False)) == 3
        assert night.ti.xcoms == {}

    def test_the_model_can_be_chosen_per_run(self, night: Any) -> None:
        night.split(
            model="my-other-model",
            spec=CompletionSpec(model="m", prompt="{{ subject }}", encoding="o200k_base"),
        )
        assert plan_of(night).spec.model == "my-other-model"

    def test_an_empty_model_is_the_specs(self, night: Any) -> None:
        night.split(model="")
        assert plan_of(night).spec.model == "gpt-4o-mini"

    def test_plan_is_what_the_merge_takes(self, night: Any) -> None:
        split = night.splitter()
        assert split.plan == XComArg(split, key="plan")


class TestMapLength:
    def test_A1_too_many_shards_fail_before_anything_is_written(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
        with pytest.raises(AirflowFailException, match=r"core\.max_map_length") as caught:
            night.split(max_rows_per_shard=None, shard_tokens=1, fit_max_shards=False)
        assert "5 shards" in str(caught.value)
        assert "fit_max_shards=True" in str(caught.value)
        assert not night.destination.exists()

    def test_A1_or_the_shards_grow_to_fit(self, night: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
        assert len(night.split(max_rows_per_shard=None, shard_tokens=1)) <= 2

    def test_the_callers_bound_counts_when_it_is_lower(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="5 shards .* and max_shards allows 4") as caught:
            night.split(max_rows_per_shard=None, shard_tokens=1, max_shards=4, fit_max_shards=False)
        assert "max_map_length" not in str(caught.value)

    def test_a_bound_on_rows_is_named_when_no_tokens_help(self, night: Any) -> None:
        with pytest.raises(
            AirflowFailException, match="raise max_rows_per_shard from 1 to at least 2, or max_shards"
        ):
            night.split(max_rows_per_shard=1, max_shards=4)

    def test_a_bound_on_bytes_is_named_when_no_tokens_help(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="raise max_bytes_per_shard from 1 to at least"):
            night.split(max_rows_per_shard=None, max_bytes_per_shard="1", max_shards=4)

    def test_airflows_bound_counts_when_it_is_lower(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
        with pytest.raises(AirflowFailException, match=r"5 shards .* core\.max_map_length allows 2"):
            night.split(max_rows_per_shard=None, shard_tokens=1, max_shards=4000, fit_max_shards=False)


class TestDryRun:
    def test_I6_estimates_and_leaves_no_trace(self, night: Any) -> None:
        assert night.split(dry_run=True) == []
        assert night.ti.xcoms["estimate"]["rows"] == 5
        assert night.ti.xcoms["plan"] == ""
        assert not night.destination.exists()

    def test_needs_no_connection_but_tells_that_a_real_run_does(self, night: Any, caplog: Any) -> None:
        assert night.split(dry_run=True, conn_id="nobody") == []
        assert night.ti.xcoms["estimate"]["shards"] == 3


class TestTemplates:
    def render(self, night: Any, params: dict[str, Any], **changes: Any) -> list[dict[str, Any]]:
        split = night.splitter(**changes)
        context = night.context | {"params": params}
        split.render_template_fields(context)
        return split.execute(context)

    def test_params_of_the_ui_are_read_strictly(self, night: Any) -> None:
        self.render(
            night,
            {"model": "", "rows": 1, "dry_run": False, "day": "labels"},
            model="{{ params.model }}",
            max_rows_per_shard="{{ params.rows }}",
            dry_run="{{ params.dry_run }}",
            destination=str(night.destination.parent) + "/{{ params.day }}",
        )
        assert len(plan_of(night).shards) == 5
        assert night.destination.exists()

    @pytest.mark.parametrize(
        ("argument", "value", "message"),
        [
            ("dry_run", "perhaps", "dry_run is 'perhaps': give true or false"),
            ("dry_run", None, "dry_run is 'None': give true or false"),
            ("shard_tokens", "lots", "shard_tokens is 'lots'"),
            ("shard_tokens", -5, "shard_tokens is '-5'"),
            ("model", None, "model is 'None'"),
            ("source", "", "source is ''"),
        ],
    )
    def test_A23_a_wrong_param_fails_at_once_with_its_name(
        self, night: Any, argument: str, value: Any, message: str
    ) -> None:
        with pytest.raises(AirflowFailException) as caught:
            self.render(night, {"given": value}, **{argument: "{{ params.given }}"})
        assert message in str(caught.value)
        assert not night.destination.exists()

    def test_the_prompt_is_never_rendered_by_airflow(self, night: Any) -> None:
        self.render(night, {})
        assert plan_of(night).spec.prompt == "Ticket: {{ subject }}"


class TestSeveralConnections:
    def add(self, monkeypatch: pytest.MonkeyPatch, conn_id: str, **fields: Any) -> None:
        value = json.dumps({"conn_type": "llm", "host": "http://127.0.0.1:1/v1", **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)

    def test_C20_each_is_checked_before_anything_is_counted(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.add(monkeypatch, "first")
        self.add(monkeypatch, "second", extra={"rate_limits": {"*": {"rpm": 5}}})
        assert len(night.split(conn_ids=["first", "llm_default"])) == 3
        with pytest.raises(AirflowFailException, match="connection 'second': .*unknown fields rpm"):
            night.split(conn_ids={"first": 3, "second": 1})
        with pytest.raises(AirflowFailException, match="connection 'third' does not exist"):
            night.split(conn_ids=["first", "third"])

    def test_one_price_that_is_not_known_makes_the_cost_unknown(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prices = {"prices": {"gpt-4o-mini": {"input_per_mtok": 1, "output_per_mtok": 1}}}
        self.add(monkeypatch, "priced", extra=prices)
        night.split(conn_ids=["priced"])
        assert night.ti.xcoms["estimate"]["cost_high_usd"] > 0
        night.split(conn_ids=["priced", "llm_default"])
        assert night.ti.xcoms["estimate"]["cost_high_usd"] is None

    def test_the_option_of_the_limiter_is_checked_as_well(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW__LLM__LIMITER_URL", "nowhere")
        with pytest.raises(AirflowFailException, match=r"the option \[llm\] limiter_url"):
            night.split()


class TestCap:
    PRICES: ClassVar[dict[str, Any]] = {"gpt-4o-mini": {"input_per_mtok": 1, "output_per_mtok": 1}}

    def connect(self, monkeypatch: pytest.MonkeyPatch, prices: dict[str, Any]) -> None:
        fields = {"conn_type": "llm", "host": "http://127.0.0.1:1/v1", "extra": {"prices": prices}}
        monkeypatch.setenv("AIRFLOW_CONN_LLM_DEFAULT", json.dumps(fields))

    def test_B12_money_without_a_price_is_refused_before_anything_is_counted(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="max_cost_usd is set, but the price of gpt-4o-mini"):
            night.split(max_cost_usd="2.50", source="/no/such/file.csv")

    def test_the_price_of_the_fallback_must_be_known_too(
        self, night: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.connect(monkeypatch, self.PRICES)
        assert len(night.split(max_cost_usd=2.5)) == 3
        with pytest.raises(AirflowFailException, match="the price of small"):
            night.split(max_cost_usd=2.5, fallback_model="small")

    def test_a_fallback_that_is_the_model_itself_is_refused(self, night: Any) -> None:
        with pytest.raises(LLMInputError, match=r"fallback_model is 'gpt-4o-mini', the model itself"):
            night.split(fallback_model="gpt-4o-mini")
        splitter = night.splitter(
            model="{{ params.model }}", fallback_model="small", source="/no/such/file.csv"
        )
        splitter.model = "small"
        with pytest.raises(AirflowFailException, match=r"fallback_model is 'small', the model itself"):
            splitter.execute(night.context)

    def test_a_dry_run_only_warns(self, night: Any, capsys: pytest.CaptureFixture[str]) -> None:
        assert night.split(max_cost_usd=2.5, dry_run=True) == []
        assert "A real run would fail: max_cost_usd" in capsys.readouterr().out
        assert night.ti.xcoms["estimate"]["cost_high_usd"] is None


class TestFailures:
    def test_a_missing_connection_fails_before_anything_is_counted(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="connection 'nobody' does not exist"):
            night.split(conn_id="nobody", source="/no/such/file.csv")
        assert not night.destination.exists()

    def test_no_connection_is_needed_when_none_is_named(self, night: Any) -> None:
        assert len(night.split(conn_id=None)) == 3

    def test_an_unknown_column_is_not_retried(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="subjekt"):
            night.split(spec=CompletionSpec(model="gpt-4o-mini", prompt="{{ subjekt }}"))

    @pytest.mark.parametrize("name", ["late.csv", "ds=2026-01-01/*.csv"])
    def test_a_source_that_is_not_there_yet_is_retried(self, night: Any, tmp_path: Path, name: str) -> None:
        with pytest.raises(LLMSourceNotFoundError, match="nothing matches"):
            night.split(source=str(tmp_path / name))

    def test_storage_that_cannot_be_written_is_retried(self, night: Any, tmp_path: Path) -> None:
        blocked = tmp_path / "blocked"
        blocked.write_text("a file where a folder should be")
        with pytest.raises(LLMStateError):
            night.split(destination=str(blocked / "labels"))

    def test_a_missing_storage_connection_is_not_retried(self, night: Any) -> None:
        with pytest.raises(AirflowFailException, match="storage connection 'my_aws' does not exist"):
            night.split(destination="s3://my_aws@bucket/labels")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"shard_tokens": 0}, "shard_tokens"),
            ({"spec": "prompt"}, "spec is a str"),
            ({"dry_run": 1}, "dry_run"),
            ({"max_cost_usd": 0}, "max_cost_usd is 0"),
            ({"conn_id": "a", "conn_ids": ["b"]}, "give one of them"),
        ],
    )
    def test_literals_are_checked_when_the_dag_is_parsed(
        self, night: Any, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(LLMInputError, match=message):
            night.splitter(**changes)
