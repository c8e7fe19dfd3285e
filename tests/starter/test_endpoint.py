"""Which model is asked."""

from __future__ import annotations

import pytest

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.starter.endpoint import ModelEndpoint, yours


class TestYours:
    def test_without_settings_the_small_model_is_used(self) -> None:
        assert yours({}) is None

    def test_a_key_alone_spends_nothing(self) -> None:
        assert yours({"OPENAI_API_KEY": "sk-mine"}) is None

    def test_a_keyless_server_needs_no_key(self) -> None:
        assert yours({"LLM_BASE_URL": "http://127.0.0.1:8000/v1", "LLM_MODEL": "qwen"}) == ModelEndpoint(
            base_url="http://127.0.0.1:8000/v1", model="qwen"
        )

    def test_its_own_key_comes_before_openais(self) -> None:
        environment = {"LLM_MODEL": "gpt-4o-mini", "LLM_API_KEY": "own", "OPENAI_API_KEY": "other"}
        endpoint = yours(environment)
        assert endpoint == ModelEndpoint(
            base_url="https://api.openai.com/v1", model="gpt-4o-mini", api_key="own"
        )
        assert "own" not in repr(endpoint)

    @pytest.mark.parametrize(
        ("environment", "message"),
        [
            ({"LLM_BASE_URL": "http://a/v1"}, "name the model to ask"),
            ({"LLM_MODEL": "m"}, "neither LLM_BASE_URL nor a key"),
            ({"LLM_BASE_URL": "a:80", "LLM_MODEL": "m"}, "must begin with http:// or https://"),
        ],
    )
    def test_half_of_the_settings_is_refused(self, environment, message) -> None:
        with pytest.raises(LLMInputError, match=message):
            yours(environment)
