import pytest

from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.limits.backend import LocalBackend, MemoryStore
from airflow_llm_provider.testing.limiter_contract import LimiterContract


class TestMemoryLimiter(LimiterContract):
    @pytest.fixture(autouse=True)
    def _account(self):
        self.store = None

    def open(self, limits, clock, scope=""):
        if self.store is None:
            self.store = MemoryStore(window=limits.window, now=clock.monotonic())
        return AccountLimiter(LocalBackend(self.store, clock=clock), limits=limits, clock=clock, scope=scope)
