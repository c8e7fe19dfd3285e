import asyncio
import json
import struct
import uuid
from array import array

import pytest
import redis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.call import RateHint
from airflow_llm_provider.engine.limiter import Cost
from airflow_llm_provider.engine.limits import bucket, hints
from airflow_llm_provider.engine.limits.account import AccountLimiter
from airflow_llm_provider.engine.limits.bucket import Grant, Later, Terms, TooLarge
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.engine.limits.state import (
    BOOT,
    FIELDS,
    LENGTH,
    PAUSED_UNTIL,
    TOUCHED,
    TOUCHED_EPOCH,
    initialise,
)
from airflow_llm_provider.errors import LLMInputError, LLMRetryableError, LLMStateError
from airflow_llm_provider.limiters.redis import RedisBackend, script
from airflow_llm_provider.limiters.redis_url import redact
from airflow_llm_provider.testing.limiter_contract import LimiterContract
from tests.valkey import Valkey


class TestRedisLimiter(LimiterContract):
    """On virtual time, which must not pass while a real server works: so its answers are waited for without yielding."""

    @pytest.fixture(autouse=True)
    def _account(self, redis_url, client):
        self.url, self.name, self.client = redis_url, uuid.uuid4().hex, client

    def open(self, limits, clock, scope=""):
        backend = RedisBackend(self.url, self.name, window=limits.window, now=clock.monotonic)
        call = self.client.register_script(script())

        async def call_at_once(key, arguments):
            return call(keys=[key], args=arguments)

        backend._run = call_at_once
        return AccountLimiter(backend, limits=limits, clock=clock, scope=scope)

    def test_one_that_lost_its_data_makes_its_senders_wait_a_window(self):
        async def test(clock):
            limits = RateLimits(requests_per_minute=60)
            one, other = (self.open(limits, clock) for _ in range(2))
            await one.reserve(Cost())
            await other.reserve(Cost())
            self.client.delete(*self.client.keys(f"*{self.name}*"))
            new = self.open(limits, clock)
            assert (await new.reserve(Cost())).wait == 0
            assert (await one.reserve(Cost())).wait == pytest.approx(60, abs=1)
            assert (await new.reserve(Cost())).wait == pytest.approx(60, abs=1)

        self.run(test)


class Twins:
    """One state here and one in Redis, which every step is taken on."""

    def __init__(self, client, terms):
        self.client, self.terms = client, terms
        self.script = client.register_script(script())
        self.key = uuid.uuid4().hex
        self.now = self.start = 1_000_000.0
        self.grants = []
        self.state = array("d", bytes(8 * LENGTH))
        self.interrupted = None
        self.call("halt", 0)
        initialise(self.state, window=60.0, now=self.now)
        bucket.halt(self.state, 0, self.now)

    def call(self, *op):
        call = {"window": 60.0, "now": self.now, "seen": 0, "ops": [op]}
        _, interrupted, answer = self.script(keys=[self.key], args=[json.dumps(call)])
        self.interrupted = float(interrupted)
        return answer

    def wait(self, share, grant):
        self.now += share**4 * 90

    def take(self, share, grant):
        tokens, horizon = int(share * 800), 1e15 if share > 0.8 else 0.25
        terms = self.terms
        ours = bucket.take(
            self.state,
            terms,
            tokens=tokens,
            least=tokens // 2,
            horizon=horizon,
            since=self.start + 1,
            now=self.now,
        )
        known = (terms.max_requests, terms.max_tokens, terms.burst, terms.learns)
        (theirs,) = self.call("take", *known, [[tokens, tokens // 2]], horizon, self.start + 1)
        assert_same_answer(ours, theirs)
        if isinstance(ours, Grant):
            self.grants.append(ours)

    def refuse(self, share, grant):
        granted = grant.at if grant else self.now
        terms = self.terms
        bucket.refuse(self.state, terms, granted_at=granted, seconds=share * 9, now=self.now)
        self.call("refuse", terms.max_requests, terms.max_tokens, terms.learns, granted, share * 9)

    def halt(self, share, grant):
        if share > 0.9:
            bucket.halt(self.state, 1, self.now)
            self.call("halt", 1)

    def trust(self, share, grant):
        scope = 1 + int(share * 2)
        made = grant.made if grant else self.now
        bucket.trust(self.state, scope, made, self.now)
        self.call("trust", scope, made)

    def is_trusted(self, share, grant):
        scope = 1 + int(share * 2)
        assert self.call("is_trusted", scope) == [bucket.is_trusted(self.state, scope, self.now)]

    def settle(self, share, grant):
        tokens = int((share - 0.8) * 500)
        bucket.settle(self.state, grant.slot, 0.0, tokens)
        self.call("settle", grant.slot, 0, tokens)

    def give_back(self, share, grant):
        bucket.give_back(self.state, grant.slot, grant.tokens, grant.made)
        self.call("give_back", grant.slot, grant.tokens, grant.made)

    def delay(self, share, grant):
        late = grant.at + share * 3
        self.now = max(self.now, late)
        delayed = bucket.delay(self.state, grant, window=60.0, now=late)
        if delayed.slot > grant.slot:
            self.call("delay", grant.slot, delayed.slot, grant.tokens)
            self.grants[self.grants.index(grant)] = delayed

    def overtaken(self, share, grant):
        assert (self.interrupted >= grant.made) == bucket.is_overtaken(self.state, grant.made)

    def observe(self, share, grant):
        left = int(share * 40)
        hints.observe(
            self.state,
            grant.slot,
            RateHint(
                limit_requests=40, remaining_requests=left, limit_tokens=8000, remaining_tokens=left * 100
            ),
        )
        self.call("observe", grant.slot, 40, 8000, left, left * 100)


class TestLua:
    """The Lua text does what the Python text does, to the last bit."""

    @settings(max_examples=30, phases=[Phase.explicit, Phase.generate])
    @given(
        max_requests=st.sampled_from([5.0, 40.0, 600.0, 1e15]),
        max_tokens=st.sampled_from([500.0, 9000.0, 1e15]),
        burst=st.sampled_from([0.0, 4.0]),
        learns=st.booleans(),
        steps=st.lists(
            st.tuples(
                st.sampled_from(
                    ["take"] * 5
                    + ["settle", "give_back", "refuse", "observe", "wait", "halt", "overtaken", "delay"]
                    + ["trust", "is_trusted"]
                ),
                st.floats(0, 1, width=32),
            ),
            min_size=20,
            max_size=80,
        ),
    )
    def test_steps_and_state_are_those_of_the_bucket(
        self, *, client, max_requests, max_tokens, burst, learns, steps
    ):
        twins = Twins(
            client, Terms(max_requests=max_requests, max_tokens=max_tokens, burst=burst, learns=learns)
        )
        for step, share in steps:
            grant = twins.grants[int(share * (len(twins.grants) - 1))] if twins.grants else None
            if grant is not None or step in {"wait", "take", "refuse", "halt"}:
                getattr(twins, step)(share, grant)
                assert_same_state(twins.state, client.get(twins.key))
        client.delete(twins.key)


def assert_same_answer(ours, theirs):
    if isinstance(ours, Grant):
        assert theirs[0] == b"grant"
        assert [float(value) for value in theirs[1:]] == [ours.at, ours.slot, ours.tokens]
    elif isinstance(ours, Later):
        assert (theirs[0], float(theirs[1]), theirs[2] == b"1") == (b"later", ours.at, ours.paused)
    elif isinstance(ours, TooLarge):
        assert (theirs[0], float(theirs[1])) == (b"too_large", ours.max_tokens)
    else:
        assert (theirs[0], *map(float, theirs[1:])) == (b"halted", ours.kind, ours.at)


def assert_same_state(ours, theirs):
    theirs = list(struct.unpack(f"<{LENGTH}d", theirs))
    ours = list(ours)
    for index in (TOUCHED, TOUCHED_EPOCH, BOOT):
        theirs[index] = ours[index] = 0.0
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        # pow() of Python and of Lua may differ in the last bit.
        if other != mine:
            assert other == pytest.approx(mine, rel=1e-12), FIELDS[index] if index < len(FIELDS) else index


def new_limiter(url, name=None, *, patience=0.0, now=None, **limits):
    backend = RedisBackend(url, name or uuid.uuid4().hex, patience=patience, now=now)
    return AccountLimiter(backend, limits=RateLimits(**limits))


class TestServerTime:
    def test_the_servers_clock_counts_and_keys_expire(self, redis_url, client):
        name = uuid.uuid4().hex

        async def test():
            limiter = new_limiter(redis_url, name, requests_per_minute=60)
            before, _ = client.time()
            reservation = await limiter.reserve(Cost())
            assert before <= reservation.token.grant.made <= client.time()[0] + 1
            (key,) = client.keys(f"*{name}*")
            assert 60 < client.ttl(key) <= 86_400
            await limiter.aclose()

        asyncio.run(test())

    def test_the_script_is_loaded_again_after_it_was_flushed(self, redis_url, client):
        async def test():
            limiter = new_limiter(redis_url)
            await limiter.reserve(Cost())
            client.script_flush()
            await limiter.reserve(Cost())
            await limiter.aclose()

        asyncio.run(test())


class TestLoops:
    def test_one_limiter_serves_one_loop_after_the_other(self, redis_url):
        limiter = new_limiter(redis_url, requests_per_minute=6000)

        async def test():
            await limiter.settle(await limiter.reserve(Cost()), Cost())
            await limiter.aclose()

        for _ in range(3):
            asyncio.run(test())

    def test_many_callers_share_few_calls_and_one_connection(self, redis_url, client):
        before = client.info("clients")["connected_clients"]

        async def test():
            limiter = new_limiter(redis_url, requests_per_minute=6_000_000, burst=1000)
            await limiter.reserve(Cost())
            calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            await asyncio.gather(*(limiter.reserve(Cost()) for _ in range(100)))
            assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls <= 10
            assert client.info("clients")["connected_clients"] <= before + 1
            await limiter.aclose()

        asyncio.run(test())


class TestLostRedis:
    def test_is_an_error_that_passes_and_never_no_limit(self):
        async def test():
            limiter = new_limiter("redis://user:geheim@127.0.0.1:9/0")
            with pytest.raises(LLMRetryableError) as caught:
                await limiter.reserve(Cost())
            assert caught.value.retry_after == 60.0
            assert "127.0.0.1:9" in str(caught.value)
            assert "geheim" not in str(caught.value)
            await limiter.aclose()

        asyncio.run(test())

    def test_is_waited_for_while_it_restarts_with_its_data(self, tmp_path):
        server = Valkey(tmp_path)
        backend = RedisBackend(server.connection_url, "account", patience=60)
        run, heard = backend._run, asyncio.Queue()

        async def run_and_tell(key, arguments):
            try:
                answer = await run(key, arguments)
            except Exception as error:
                heard.put_nowait(error)
                raise
            heard.put_nowait(answer)
            return answer

        async def test():
            limiter = AccountLimiter(backend, limits=RateLimits(tokens_per_minute=1000))
            with server:
                await limiter.reserve(Cost(tokens=1000))
            backend._run = run_and_tell
            waiting = asyncio.create_task(limiter.reserve(Cost(tokens=100)))
            assert [type(await heard.get()) for _ in range(2)] == [redis.exceptions.ConnectionError] * 2
            with server:
                while isinstance(answer := await heard.get(), Exception):
                    pass
                now, _, [[_, at, *_]] = answer
                # The limit is still used up, or, if the server lost its last second, may be.
                assert float(at) - float(now) > 50
                waiting.cancel()
                await asyncio.wait([waiting])
                await limiter.aclose()

        asyncio.run(test())

    def test_that_refuses_the_password_says_so(self):
        async def test(url):
            limiter = new_limiter(url)
            with pytest.raises(LLMStateError, match="password") as caught:
                await limiter.reserve(Cost())
            assert "falsch" not in str(caught.value)
            await limiter.aclose()

        with Valkey() as server:
            with redis.Redis.from_url(server.connection_url) as client:
                client.config_set("requirepass", "richtig")
            asyncio.run(test(server.connection_url.replace("//", "//:falsch@")))


class TestForeignState:
    @pytest.mark.parametrize("content", [b"x", b"x" * 8 * LENGTH, bytes(8 * LENGTH)])
    def test_counts_as_used_up(self, redis_url, client, content):
        name = uuid.uuid4().hex
        client.set(f"airflow-llm-limits:{{{name}}}", content)

        async def test():
            limiter = new_limiter(redis_url, name, now=lambda: 1000.0, requests_per_minute=60)
            assert (await limiter.reserve(Cost())).wait == pytest.approx(60, abs=1)
            await limiter.aclose()

        asyncio.run(test())
        assert struct.unpack(f"<{LENGTH}d", client.get(f"airflow-llm-limits:{{{name}}}"))[PAUSED_UNTIL] > 0


class TestUrl:
    def test_may_name_valkey(self, redis_url):
        async def test():
            limiter = new_limiter(redis_url.replace("redis://", "valkey://"))
            assert (await limiter.reserve(Cost())).wait == 0
            await limiter.aclose()

        asyncio.run(test())

    def test_is_shown_without_its_secrets(self):
        assert redact("rediss://me:secret@cache.example:6380/2?password=x") == "rediss://cache.example:6380/2"

    def test_that_makes_no_sense_is_refused_without_quoting_its_secrets(self):
        with pytest.raises(LLMInputError) as caught:
            RedisBackend("redis://:secret@host:notaport/0", "name")
        assert "secret" not in str(caught.value)
