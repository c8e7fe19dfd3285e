import asyncio

import pytest

from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.limiters import account_key, limiter_from_url

NOT_UNDERSTOOD = ["http://x", "file://host/path", "redis://[", "redis://h:port", "whatever"]


class TestAccountKey:
    def test_tells_nothing_of_the_key(self):
        key = account_key("https://api.example/v1", "sk-secret")
        assert len(key) == 32
        assert "secret" not in key

    def test_is_one_for_one_account_and_differs_for_others(self):
        same = {account_key(url, "k", None, "") for url in ("https://a/v1", "https://a/v1/", "HTTPS://A/v1")}
        others = {
            account_key("https://b/v1", "k"),
            account_key("https://a/v1", "l"),
            account_key("https://a/v1", "k", "org"),
            account_key("https://a/v1", "k", None, "org"),
            account_key("https://a/v1", "ko", "rg"),
        }
        assert len(same) == 1
        assert len(others | same) == 6


class TestLimiterFromUrl:
    @pytest.mark.parametrize("url", NOT_UNDERSTOOD)
    def test_refuses_what_it_does_not_understand(self, url):
        with pytest.raises(LLMInputError, match="limiter_url"):
            limiter_from_url(url, "account", "model")

    def test_shares_by_account_and_model_and_by_nothing_else(self, tmp_path):
        url = f"file://{tmp_path}"

        async def waits():
            limits = {"requests_per_minute": 1}
            for account, model in (("a", "m"), ("a", "n"), ("b", "m")):
                limiter = limiter_from_url(url, account, model, limits)
                assert (await limiter.reserve(Cost())).wait == 0
                await limiter.aclose()
            again = limiter_from_url(url, "a", "m", limits)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(again.reserve(Cost()), 0.1)
            await again.aclose()

        asyncio.run(waits())
        assert len(list(tmp_path.iterdir())) == 3

    def test_memory_is_shared_by_the_object_alone(self):
        async def test():
            for _ in range(2):
                limiter = limiter_from_url("memory://", "a", "m", RateLimits(requests_per_minute=1))
                assert (await limiter.reserve(Cost())).wait == 0

        asyncio.run(test())
