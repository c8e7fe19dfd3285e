"""Whatever the endpoint does, and whenever somebody stops us: every row ends at most once, none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_llm_provider.engine.call import CallError, FailureKind, Reply
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.errors import LLMTerminalError
from airflow_llm_provider.testing.scripted_client import Delayed

MAX_ATTEMPTS = 3
MAX_OUTPUTS = 2
FAILURES = {
    "503": (FailureKind.OVERLOADED, "http_503", None),
    "503 later": (FailureKind.OVERLOADED, "http_503", 4.0),
    "429": (FailureKind.RATE_LIMITED, "http_429", None),
    "429 later": (FailureKind.RATE_LIMITED, "http_429", 7.0),
    "timeout": (FailureKind.TIMEOUT, "timeout", None),
    "reset": (FailureKind.CONNECTION, "reset", None),
    "html": (FailureKind.BAD_RESPONSE, "html", None),
    "400": (FailureKind.ROW, "invalid_request", None),
    "401": (FailureKind.AUTHENTICATION, "invalid_api_key", None),
}
WORDS = ("ok", "bad", "wrong")
STEPS = st.tuples(
    st.sampled_from([word for word in (*WORDS, *FAILURES) if word != "401"]),
    st.sampled_from([0.0, 0.1, 1.0, 3.0]),
)
ROWS = st.lists(st.lists(STEPS, max_size=6), min_size=0, max_size=12)
SETTINGS = settings(max_examples=150)


def answer(step):
    word, seconds = step
    if word in WORDS:
        return Delayed(answer=word, seconds=seconds)
    kind, code, retry_after = FAILURES[word]
    return Delayed(answer=CallError(kind, code, word, retry_after=retry_after), seconds=seconds)


def script(rows):
    def respond(call):
        steps = rows[call.body["row"]]
        return answer(steps[call.nth - 1] if call.nth <= len(steps) else ("ok", 0.1))

    return respond


def expected(steps):
    """How a row must end when nobody stops it, and after how many requests: the rules, told plainly."""
    failures = outputs = 0
    for attempt, (word, _) in enumerate([*steps, ("ok", 0)], start=1):
        if word == "ok":
            return RowStatus.SUCCESS, attempt
        if word == "wrong":
            return RowStatus.INVALID_OUTPUT, attempt
        if word == "400":
            return (RowStatus.INVALID_OUTPUT if outputs else RowStatus.REJECTED), attempt
        if word == "bad":
            outputs += 1
            if outputs == MAX_OUTPUTS:
                return RowStatus.INVALID_OUTPUT, attempt
        elif not word.startswith("429"):
            failures += 1
            if failures == MAX_ATTEMPTS:
                return (RowStatus.INVALID_OUTPUT if outputs else RowStatus.ERROR), attempt
    raise AssertionError("unreachable")


def build(rig, rows, concurrency, seed=0):
    rig.build(
        script(rows),
        concurrency=concurrency,
        seed=seed,
        stop_grace=2,
        drain_grace=2,
        probe_window=0.25,
        retry={"max_attempts": MAX_ATTEMPTS, "max_output_attempts": MAX_OUTPUTS},
        parts={"price": lambda model, usage: usage.total_tokens / 1000},
    )


def check_books(rig, rows, concurrency):
    """What must hold after every run, however it ended."""
    report = rig.engine.report
    indexes = [outcome.index for outcome in rig.outcomes]
    assert len(indexes) == len(set(indexes))
    assert set(indexes) <= set(range(len(rows)))
    assert report.rows == len(rig.outcomes)
    assert report.rows + report.pending == len(rows)
    assert report.rows_by_status == Counter(outcome.status.value for outcome in rig.outcomes)
    assert report.requests == len(rig.client.calls)
    assert report.retries == sum(call.nth > 1 for call in rig.client.calls)
    assert rig.client.max_in_flight <= concurrency
    assert rig.client.in_flight == 0
    replies = [call.result for call in rig.client.calls if isinstance(call.result, Reply)]
    assert report.usage.total_tokens <= sum(reply.usage.total_tokens for reply in replies)
    assert rig.leftover_tasks == set()
    assert rig.clock.sleepers == 0
    for outcome in rig.outcomes:
        assert outcome.attempts == sum(call.body["row"] == outcome.index for call in rig.client.calls)
        assert (outcome.answer is not None) == (outcome.status is RowStatus.SUCCESS)


class TestEveryRowEndsExactlyOnce:
    @SETTINGS
    @given(rows=ROWS, concurrency=st.integers(1, 6), seed=st.integers(0, 9))
    def test_when_nobody_stops_it_each_row_ends_as_the_rules_say(self, new_rig, rows, concurrency, seed):
        rig = new_rig()
        build(rig, rows, concurrency, seed)
        report = rig.run(len(rows), total=len(rows))
        check_books(rig, rows, concurrency)
        assert report.pending == 0
        assert not report.interrupted
        ended = {outcome.index: (outcome.status, outcome.attempts) for outcome in rig.outcomes}
        assert ended == {index: expected(steps) for index, steps in enumerate(rows)}
        replies = [call.result for call in rig.client.calls if isinstance(call.result, Reply)]
        assert report.usage.total_tokens == sum(reply.usage.total_tokens for reply in replies)
        assert report.usage.total_tokens == sum(outcome.usage.total_tokens for outcome in rig.outcomes)

    @SETTINGS
    @given(rows=ROWS, concurrency=st.integers(1, 6), at=st.floats(0, 30), again=st.booleans())
    @example(rows=[[("503", 1.0)], [("ok", 1.0)]], concurrency=2, at=1.0, again=False)
    @example(rows=[[("bad", 1.0)]], concurrency=1, at=1.0, again=False)
    def test_stopped_at_any_moment_the_rest_is_pending(self, new_rig, rows, concurrency, at, again):
        rig = new_rig()
        build(rig, rows, concurrency)

        async def stop():
            await rig.clock.sleep(at)
            rig.engine.stop("SIGTERM")
            await rig.clock.sleep(0.5)
            if again:
                rig.engine.stop("SIGTERM")

        report = rig.run(len(rows), total=len(rows), meanwhile=stop)
        check_books(rig, rows, concurrency)
        assert report.interrupted == (report.pending > 0)
        assert all(call.started <= at for call in rig.client.calls if report.interrupted)
        if report.interrupted:
            assert rig.clock.monotonic() <= at + 2 + 1e-6
        # Nothing that was paid for was lost.
        replies = [call.result for call in rig.client.calls if isinstance(call.result, Reply)]
        assert report.usage.total_tokens == sum(outcome.usage.total_tokens for outcome in rig.outcomes)
        assert report.usage.total_tokens == sum(reply.usage.total_tokens for reply in replies)
        for index, steps in enumerate(rows):
            status, attempts = expected(steps)
            finished = [c for c in rig.client.calls if c.body["row"] == index and c.result is not None]
            if len(finished) == attempts:
                assert rig.statuses[index] is status

    @SETTINGS
    @given(rows=ROWS.filter(len), concurrency=st.integers(1, 6), data=st.data())
    def test_with_a_refused_key_nothing_goes_out_after_it_is_known(self, new_rig, rows, concurrency, data):
        rows = [list(steps) for steps in rows]
        row = data.draw(st.integers(0, len(rows) - 1))
        rows[row] = [
            *rows[row][: data.draw(st.integers(0, 2))],
            ("401", data.draw(st.sampled_from([0.0, 1.0]))),
        ]
        rig = new_rig()
        build(rig, rows, concurrency)
        try:
            rig.run(len(rows), total=len(rows))
        except LLMTerminalError:
            known = min(c.ended for c in rig.client.calls if "401" in str(c.result))
            assert max(call.started for call in rig.client.calls) <= known
        else:
            assert not any("401" in str(call.result) for call in rig.client.calls)
        check_books(rig, rows, concurrency)

    @SETTINGS
    @given(rows=ROWS, concurrency=st.integers(1, 6), kept=st.integers(0, 8))
    def test_when_outcomes_cannot_be_kept_any_more_the_books_still_balance(
        self, new_rig, rows, concurrency, kept
    ):
        rig = new_rig()
        build(rig, rows, concurrency)

        def keep(outcome):
            if len(rig.outcomes) == kept:
                raise OSError("disk full")
            rig.outcomes.append(outcome)

        try:
            rig.run(len(rows), keep, total=len(rows))
        except OSError:
            assert len(rig.outcomes) == kept
        check_books(rig, rows, concurrency)

    @SETTINGS
    @given(rows=ROWS, concurrency=st.integers(1, 6), at=st.floats(0, 20))
    def test_cancelled_at_any_moment_nothing_is_left_behind(self, new_rig, rows, concurrency, at):
        rig = new_rig()
        build(rig, rows, concurrency)

        async def main():
            run = asyncio.create_task(rig.arun(len(rows), total=len(rows)))
            await rig.clock.sleep(at)
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            return rig.clock.monotonic()

        assert asyncio.run(main()) == at
        check_books(rig, rows, concurrency)

    @SETTINGS
    @given(rows=ROWS, first=st.floats(0, 10), concurrency=st.integers(1, 6))
    def test_a_second_run_over_what_was_pending_completes_the_dataset(
        self, new_rig, make_requests, rows, first, concurrency
    ):
        rig = new_rig()
        build(rig, rows, concurrency)

        async def stop():
            await rig.clock.sleep(first)
            rig.engine.stop("SIGTERM")

        rig.run(len(rows), total=len(rows), meanwhile=stop)
        done = set(rig.statuses)
        again = new_rig()
        build(again, rows, concurrency)
        again.run([request for request in make_requests(len(rows)) if request.index not in done])
        assert done | set(again.statuses) == set(range(len(rows)))
        assert not done & set(again.statuses)
