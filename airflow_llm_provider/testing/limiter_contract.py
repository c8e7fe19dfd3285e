"""What every limiter backend must do. Inherit :class:`LimiterContract`, say how to open one, and run pytest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.engine.call import FailureKind
from airflow_llm_provider.engine.limiter import Cost, CostExceedsLimitError
from airflow_llm_provider.engine.limits.bucket import TRUST
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.testing.refusal_contract import RefusalContract
from airflow_llm_provider.testing.sender import Sender, close, most_in_a_window

if TYPE_CHECKING:
    from airflow_llm_provider.testing.clock import ManualClock

_ASKED, _ANSWERED = Cost(tokens=100, output_cap=50), Cost(tokens=60)


class LimiterContract(RefusalContract):
    """Tests that hold for every backend.

    ``open(limits, clock)`` must return a new sender's limiter on one account that a test has for itself.
    """

    def test_lets_the_first_request_go_at_once(self) -> None:
        async def test(clock: ManualClock) -> None:
            limiter = self.open(RateLimits(requests_per_minute=60), clock)
            assert (await limiter.reserve(Cost(tokens=100))).wait == 0
            await limiter.aclose()

        self.run(test)

    def test_A13_senders_share_the_request_limit(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=30)
            senders = [Sender(self.open(limits, clock), clock) for _ in range(3)]
            end = clock.monotonic() + 150
            await asyncio.gather(*(sender.send_until(end, Cost(), 0, in_flight=4) for sender in senders))
            sent = [(at, 1) for sender in senders for at, _ in sender.sent]
            assert most_in_a_window(sent, 60) == 30
            assert len([at for at, _ in sent if at < end]) >= 0.97 * 30 * 2.5
            assert min(len(sender.sent) for sender in senders) > 0
            await close(senders)

        self.run(test)

    def test_C4_senders_share_the_token_limit(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(tokens_per_minute=3000)
            senders = [Sender(self.open(limits, clock), clock) for _ in range(3)]
            end = clock.monotonic() + 150
            cost = Cost(tokens=100, output_cap=0)
            await asyncio.gather(*(sender.send_until(end, cost, 100, in_flight=2) for sender in senders))
            sent = [pair for sender in senders for pair in sender.sent]
            assert most_in_a_window(sent, 60) == 3000
            assert sum(tokens for at, tokens in sent if at < end) >= 0.97 * 3000 * 2.5
            await close(senders)

        self.run(test)

    def test_a_generous_cap_does_not_starve_the_token_limit(self) -> None:
        async def test(clock: ManualClock) -> None:
            sender = Sender(self.open(RateLimits(tokens_per_minute=6000), clock), clock)
            start = clock.monotonic()
            await sender.send_until(start + 130, Cost(tokens=1050, output_cap=1000), 100, in_flight=8)
            assert most_in_a_window(sender.sent, 60) <= 6000
            assert sum(tokens for at, tokens in sender.sent if at > start + 60) >= 0.9 * 6000 * 70 / 60
            await close([sender])

        self.run(test)

    def test_C7_an_endpoint_that_counts_the_cap_gets_no_more_than_fit_by_their_caps(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(tokens_per_minute=5000, reserve="cap")
            sender = Sender(self.open(limits, clock), clock)
            await sender.send_until(
                clock.monotonic() + 130, Cost(tokens=1020, output_cap=1000), 30, in_flight=8
            )
            assert most_in_a_window([(at, 1) for at, _ in sender.sent], 60) == 4
            await close([sender])

        self.run(test)

    def test_C6_a_request_larger_than_the_limit_is_refused_and_takes_nothing(self) -> None:
        async def test(clock: ManualClock) -> None:
            limiter = self.open(RateLimits(tokens_per_minute=500), clock)
            with pytest.raises(CostExceedsLimitError) as caught:
                await limiter.reserve(Cost(tokens=900, output_cap=100))
            assert caught.value.code == "request_exceeds_tpm"
            assert "800" in caught.value.message
            assert (await limiter.reserve(Cost(tokens=500))).wait == 0
            await limiter.aclose()

        self.run(test)

    def test_what_was_reserved_too_much_is_given_back(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(tokens_per_minute=1000)
            first, second = self.open(limits, clock), self.open(limits, clock)
            reservation = await first.reserve(Cost(tokens=1000))
            await first.settle(reservation, Cost(tokens=100))
            await first.aclose()
            start = clock.monotonic()
            await Sender(second, clock).admit(Cost(tokens=900))
            assert clock.monotonic() - start < 10
            await second.aclose()

        self.run(test)

    def test_what_was_never_sent_is_given_back(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=1)
            first, second = self.open(limits, clock), self.open(limits, clock)
            await first.cancel(await first.reserve(Cost()))
            await first.aclose()
            assert (await second.reserve(Cost())).wait == 0
            await second.aclose()

        self.run(test)

    def test_an_answer_longer_than_reserved_counts(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(tokens_per_minute=1000)
            first, second = self.open(limits, clock), self.open(limits, clock)
            await first.settle(await first.reserve(Cost(tokens=100)), Cost(tokens=1000))
            await first.aclose()
            start = clock.monotonic()
            await Sender(second, clock).admit(Cost(tokens=100))
            assert clock.monotonic() - start >= 60
            await second.aclose()

        self.run(test)

    def test_unknown_use_stays_reserved(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(tokens_per_minute=1000)
            limiter = self.open(limits, clock)
            cost = Cost(tokens=1000, output_cap=500)
            await limiter.settle(await limiter.reserve(cost), cost)
            start = clock.monotonic()
            await Sender(limiter, clock).admit(Cost(tokens=1000))
            assert clock.monotonic() - start >= 60
            await limiter.aclose()

        self.run(test)

    def test_a_sender_that_dies_blocks_nobody_for_longer_than_a_window(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=2)
            dying, living = self.open(limits, clock), self.open(limits, clock)
            await dying.reserve(Cost())
            start = clock.monotonic()
            sender = Sender(living, clock)
            await sender.admit(Cost())
            await sender.admit(Cost())
            assert 60 <= clock.monotonic() - start < 92
            await living.aclose()
            await dying.aclose()

        self.run(test)

    def test_callers_of_one_sender_are_served_in_their_order(self) -> None:
        async def test(clock: ManualClock) -> None:
            sender = Sender(self.open(RateLimits(requests_per_minute=30), clock), clock)
            order: list[int] = []

            async def caller(number: int) -> None:
                await sender.admit(Cost())
                order.append(number)

            await asyncio.gather(*(caller(number) for number in range(12)))
            assert order == list(range(12))
            await close([sender])

        self.run(test)

    def test_an_answer_vouches_for_the_next_requests_of_its_kind_for_a_while(self) -> None:
        async def test(clock: ManualClock) -> None:
            one, alike, other = (self.open(RateLimits(), clock, scope) for scope in ("mine", "mine", "other"))
            assert not await alike.is_trusted()
            await one.settle(await one.reserve(_ASKED), _ANSWERED)
            await one.reserve(Cost())  # what was put off goes with the next step
            assert await alike.is_trusted()
            assert not await other.is_trusted()
            clock.jump(TRUST + 1.0)
            assert not await alike.is_trusted()
            await one.settle(await one.reserve(_ASKED), _ANSWERED)
            await one.reserve(Cost())
            assert await alike.is_trusted()
            await other.halt(FailureKind.QUOTA)
            assert not await alike.is_trusted()
            await close([Sender(limiter, clock) for limiter in (one, alike, other)])

        self.run(test)

    def test_an_answer_that_comes_after_a_halt_vouches_for_nobody(self) -> None:
        async def test(clock: ManualClock) -> None:
            one, alike = self.open(RateLimits(), clock, "mine"), self.open(RateLimits(), clock, "mine")
            in_flight = await one.reserve(_ASKED)
            clock.jump(1.0)
            await alike.halt(FailureKind.QUOTA)
            await one.settle(in_flight, _ANSWERED)
            await one.aclose()
            assert not await alike.is_trusted()
            await alike.aclose()

        self.run(test)

    @pytest.mark.parametrize(
        "used",
        [
            _ASKED,
            Cost(),
            Cost(requests=2, tokens=60),
            Cost(requests=2, tokens=_ASKED.tokens, output_cap=_ASKED.output_cap),
        ],
    )
    def test_nothing_vouches_but_an_answer_at_the_first_request(self, used: Cost) -> None:
        # A refusal, an answer of which nobody knows what it took, a parameter that had to be named another way.
        async def test(clock: ManualClock) -> None:
            one, alike = self.open(RateLimits(), clock), self.open(RateLimits(), clock)
            await one.settle(await one.reserve(_ASKED), used)
            clock.jump(TRUST)
            if used.requests > 1:
                await one.settle(await one.reserve(_ASKED), _ANSWERED)
            await one.reserve(Cost())
            assert not await alike.is_trusted()
            await close([Sender(limiter, clock) for limiter in (one, alike)])

        self.run(test)
