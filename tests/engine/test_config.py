"""Settings outside their bounds are refused before anything is spent."""

from __future__ import annotations

import math

import pytest

from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.errors import LLMInputError


class TestEngineConfig:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("concurrency", 0),
            ("concurrency", True),
            ("concurrency", 1.5),
            ("timeout", 0),
            ("timeout", math.inf),
            ("stop_grace", -1),
            ("drain_grace", math.nan),
            ("probe_window", None),
            ("max_limit_wait", "5"),
        ],
    )
    def test_a_value_outside_its_bounds_is_named(self, name, value):
        with pytest.raises(LLMInputError, match=rf"EngineConfig\.{name} is .*: give a"):
            EngineConfig(**{name: value})

    def test_no_bound_on_limit_waits_is_allowed(self):
        assert EngineConfig(max_limit_wait=None).max_limit_wait is None
