import math

import pytest

from airflow_llm_provider.engine.limits.bucket import Terms
from airflow_llm_provider.engine.limits.rate_limits import RateLimits, limits_for
from airflow_llm_provider.engine.limits.state import UNLIMITED
from airflow_llm_provider.errors import LLMInputError


class TestRateLimits:
    @pytest.mark.parametrize(
        "fields",
        [
            {"requests_per_minute": 0},
            {"requests_per_minute": -1},
            {"requests_per_minute": math.inf},
            {"requests_per_minute": True},
            {"tokens_per_minute": "1000"},
            {"tokens_per_minute": math.nan},
            {"burst": 0},
            {"burst": 1.5},
            {"window": 0},
            {"window": 61},
            {"auto": "yes"},
            {"reserve": "none"},
            {"requests_per_minute": 20, "window": 2.0},
        ],
    )
    def test_refuses_what_makes_no_sense_naming_field_and_value(self, fields):
        with pytest.raises(LLMInputError, match=f"RateLimits.{next(iter(fields))} is") as caught:
            RateLimits(**fields)
        assert "give" in str(caught.value)

    def test_becomes_what_may_be_sent_in_a_window(self):
        limits = RateLimits(requests_per_minute=600, tokens_per_minute=90_000, burst=3, window=2.0)
        assert limits.terms == Terms(window=2.0, max_requests=20, max_tokens=3000, burst=3)

    def test_what_is_not_known_does_not_limit(self):
        assert RateLimits(auto=False).terms == Terms(
            max_requests=UNLIMITED, max_tokens=UNLIMITED, learns=False
        )

    def test_names_unknown_fields_and_the_known_ones(self):
        with pytest.raises(LLMInputError, match="rpm.*requests_per_minute"):
            RateLimits.from_mapping({"rpm": 60})


class TestLimitsFor:
    def test_prefers_the_models_own(self):
        limits = {"gpt-4o": {"requests_per_minute": 10}, "*": {"requests_per_minute": 20}}
        assert limits_for("gpt-4o", limits).requests_per_minute == 10
        assert limits_for("gpt-4o-mini", limits).requests_per_minute == 20

    @pytest.mark.parametrize("limits", [None, {}, {"other": {"requests_per_minute": 10}}])
    def test_is_unknown_without_any(self, limits):
        assert limits_for("gpt-4o", limits) == RateLimits()

    def test_takes_one_set_for_every_model(self):
        assert limits_for("any", {"tokens_per_minute": 1000}).tokens_per_minute == 1000

    def test_takes_objects(self):
        assert limits_for("any", {"*": RateLimits(burst=2)}).burst == 2

    @pytest.mark.parametrize(
        "limits", [{"*": {"rpm": 1}}, {"rpm": 1}, {"*": {}, "requests_per_minute": 3}, {"*": None}, "500"]
    )
    def test_refuses_what_it_does_not_understand(self, limits):
        with pytest.raises(LLMInputError):
            limits_for("any", limits)
