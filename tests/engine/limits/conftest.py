import pytest

pytest.register_assert_rewrite(
    "airflow_llm_provider.testing.limiter_contract", "airflow_llm_provider.testing.refusal_contract"
)
