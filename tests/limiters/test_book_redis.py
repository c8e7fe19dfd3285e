import asyncio
import uuid

import pytest
import redis

from airflow_llm_provider.engine.budget.book import BookAwayError, SessionLostError
from airflow_llm_provider.engine.budget.spent import Spent
from airflow_llm_provider.errors import LLMStateError
from airflow_llm_provider.limiters.books import RedisBook
from tests.limiters.book_contract import ONE, BookContract, in_loop, wants
from tests.valkey import Valkey


class TestRedisBook(BookContract):
    @pytest.fixture(autouse=True)
    def _book(self, redis_url):
        self.name = uuid.uuid4().hex
        self.make = lambda: RedisBook(redis_url, self.name)

    @in_loop
    async def test_is_kept_for_a_month(self, client):
        await self.book().raise_to(Spent(tokens=1))
        (key,) = client.keys(f"*{self.name}*")
        assert 29 * 86_400 < client.ttl(key) <= 30 * 86_400

    @in_loop
    async def test_one_that_was_flushed_is_not_taken_for_nothing_spent(self, client):
        await self.begin(ONE)
        (key,) = client.keys(f"*{self.name}*")
        client.delete(key)
        with pytest.raises(SessionLostError, match="was lost"):
            await self.state(ONE, wants(1))

    @in_loop
    async def test_a_lost_redis_is_an_error_that_passes(self):
        book = RedisBook("redis://:geheim@127.0.0.1:9/0", "name")
        with pytest.raises(BookAwayError) as caught:
            await book.raise_to(Spent())
        assert "geheim" not in str(caught.value)

    @in_loop
    async def test_a_wrong_password_is_none_that_passes(self):
        with Valkey() as server:
            with redis.Redis.from_url(server.connection_url) as client:
                client.config_set("requirepass", "richtig")
            book = RedisBook(server.connection_url.replace("//", "//:falsch@"), "name")
            with pytest.raises(LLMStateError, match="refuses our user or password") as caught:
                await book.raise_to(Spent())
        assert "falsch" not in str(caught.value)

    @in_loop
    async def test_goes_on_after_redis_has_closed_the_connection(self, client):
        book = await self.begin(ONE)
        client.client_kill_filter(_type="normal", skipme=True)
        assert (await book.raise_to(Spent(tokens=1))).spent.tokens == 1

    def test_serves_one_loop_after_the_other(self):
        book = self.make()

        async def raise_to(tokens):
            try:
                return await book.raise_to(Spent(tokens=tokens))
            finally:
                await book.aclose()

        assert [asyncio.run(raise_to(tokens)).spent.tokens for tokens in (1, 2)] == [1, 2]
