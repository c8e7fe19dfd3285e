"""What every limiter backend must do when the endpoint refuses, or says what its limits are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from airflow_llm_provider.engine.call import FailureKind, RateHint
from airflow_llm_provider.engine.limiter import AccountHaltedError, Cost
from airflow_llm_provider.engine.limits.rate_limits import RateLimits
from airflow_llm_provider.testing.sender import Sender, SharedAccount, close

if TYPE_CHECKING:
    from airflow_llm_provider.testing.clock import ManualClock

#: A pause that ends is noticed within this, in seconds.
_SOON = 0.5


class RefusalContract(SharedAccount):
    """The part of :class:`~airflow_llm_provider.testing.limiter_contract.LimiterContract` about the endpoint's words."""

    def test_C8_a_refusal_holds_back_everyone_until_its_pause_is_over(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=600)
            refused, other = self.open(limits, clock), self.open(limits, clock)
            reservation = await refused.reserve(Cost())
            await refused.pause(10.0, reservation=reservation)
            start = clock.monotonic()
            assert (await other.reserve(Cost())).wait == pytest.approx(10.0, abs=0.01)
            sender = Sender(other, clock)
            await asyncio.gather(*(sender.admit(Cost()) for _ in range(3)))
            assert 10.0 <= clock.monotonic() - start < 10.0 + 3.0
            await close([Sender(refused, clock), sender])

        self.run(test)

    def test_a_pause_overtakes_whoever_waits_already(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=60, burst=1)
            limiter, other = self.open(limits, clock), self.open(limits, clock)
            first = await limiter.reserve(Cost())
            clock.jump(0.9)
            waiting = await other.reserve(Cost())
            assert 0 < waiting.wait < _SOON
            await limiter.pause(5.0, reservation=first)
            await clock.sleep(waiting.wait)
            assert await other.recheck(waiting) > 4
            await close([Sender(limiter, clock), Sender(other, clock)])

        self.run(test)

    def test_C8_refusals_of_one_episode_pause_once(self) -> None:
        async def test(clock: ManualClock) -> None:
            limiter = self.open(RateLimits(requests_per_minute=6000, burst=100), clock)
            reservations = [await limiter.reserve(Cost()) for _ in range(5)]
            for reservation in reservations:
                await limiter.pause(2.0, reservation=reservation)
                clock.jump(0.1)
            start = clock.monotonic()
            await Sender(limiter, clock).admit(Cost())
            assert clock.monotonic() - start == pytest.approx(1.9, abs=_SOON)
            await limiter.aclose()

        self.run(test)

    def test_nobody_rushes_in_when_a_pause_ends(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=600)
            senders = [Sender(self.open(limits, clock), clock) for _ in range(2)]
            first = await senders[0].limiter.reserve(Cost())
            await senders[0].limiter.pause(5.0, reservation=first)
            await asyncio.gather(*(sender.send(Cost(), 0) for sender in senders for _ in range(20)))
            times = sorted(at for sender in senders for at, _ in sender.sent)
            assert len([at for at in times if at < times[0] + 1.0]) <= 12
            await close(senders)

        self.run(test)

    def test_an_unknown_rate_is_learned_from_a_refusal(self) -> None:
        async def test(clock: ManualClock) -> None:
            limiter = self.open(RateLimits(), clock)
            sender = Sender(limiter, clock, latency=0.0)
            reservations = [await sender.admit(Cost()) for _ in range(60)]
            for reservation in reservations[50:]:
                await limiter.pause(1.0, reservation=reservation)
            await sender.admit(Cost())
            start = clock.monotonic()
            for _ in range(100):
                await sender.admit(Cost())
            assert 1.9 < clock.monotonic() - start < 2.2
            await limiter.aclose()

        self.run(test)

    def test_limits_that_the_endpoint_states_hold_for_everyone(self) -> None:
        async def test(clock: ManualClock) -> None:
            one, other = self.open(RateLimits(), clock), self.open(RateLimits(), clock)
            reservation = await one.reserve(Cost(tokens=10))
            await one.observe(RateHint(limit_requests=6000, limit_tokens=500), reservation=reservation)
            await one.aclose()
            start = clock.monotonic()
            # No row ends for what only a header says: it goes out when all of that limit is free.
            late = await other.reserve(Cost(tokens=501))
            assert 59 < clock.monotonic() + late.wait - start < 62
            await other.aclose()

        self.run(test)

    @pytest.mark.parametrize(
        "nonsense",
        [RateHint(limit_tokens=1, remaining_tokens=0), RateHint(limit_requests=1), RateHint(limit_tokens=0)],
    )
    def test_stated_limits_that_the_endpoint_does_not_keep_to_are_not_heard(self, nonsense: RateHint) -> None:
        async def test(clock: ManualClock) -> None:
            limiter = self.open(RateLimits(), clock)
            sent = [await limiter.reserve(Cost(tokens=10)) for _ in range(3)]
            for reservation in sent:
                await limiter.settle(reservation, Cost(tokens=15))
                await limiter.observe(nonsense, reservation=reservation)
            start = clock.monotonic()
            late = await limiter.reserve(Cost(tokens=1000))
            assert clock.monotonic() + late.wait - start < 1
            await limiter.aclose()

        self.run(test)

    def test_stated_limits_are_not_heard_when_told_so(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(auto=False)
            limiter = self.open(limits, clock)
            reservation = await limiter.reserve(Cost())
            await limiter.observe(RateHint(limit_tokens=500), reservation=reservation)
            await limiter.reserve(Cost(tokens=501))
            await limiter.aclose()

        self.run(test)

    def test_what_others_take_of_the_account_is_made_room_for(self) -> None:
        async def test(clock: ManualClock) -> None:
            limits = RateLimits(requests_per_minute=100)
            limiter = self.open(limits, clock)
            reservation = await limiter.reserve(Cost())
            hint = RateHint(limit_requests=100, remaining_requests=4)
            await limiter.observe(hint, reservation=reservation)
            sender, start = Sender(limiter, clock), clock.monotonic()
            for _ in range(6):
                await sender.send(Cost(), 0)
            assert len([at for at, _ in sender.sent if at < start + 59]) == 4
            await limiter.aclose()

        self.run(test)

    def test_a_halt_stops_who_sends_now_and_not_who_begins_later(self) -> None:
        async def test(clock: ManualClock) -> None:
            one, other = self.open(RateLimits(), clock), self.open(RateLimits(), clock)
            await one.reserve(Cost())
            await other.reserve(Cost())
            clock.jump(1.0)
            await one.halt(FailureKind.QUOTA)
            with pytest.raises(AccountHaltedError) as caught:
                await other.reserve(Cost())
            assert caught.value.kind is FailureKind.QUOTA
            clock.jump(1.0)
            later = self.open(RateLimits(), clock)
            assert (await later.reserve(Cost())).wait == 0
            await close([Sender(one, clock), Sender(other, clock), Sender(later, clock)])

        self.run(test)

    def test_a_halt_for_a_parameter_stops_only_those_who_send_it(self) -> None:
        async def test(clock: ManualClock) -> None:
            scopes = ("mine", "mine", "other")
            one, alike, other = (self.open(RateLimits(), clock, scope) for scope in scopes)
            for limiter in (one, alike, other):
                await limiter.reserve(Cost())
            held = await other.reserve(Cost())
            clock.jump(1.0)
            await one.halt(FailureKind.CONFIGURATION, own=True)
            with pytest.raises(AccountHaltedError) as caught:
                await alike.reserve(Cost())
            assert caught.value.kind is FailureKind.CONFIGURATION
            assert await other.recheck(held) == 0
            assert (await other.reserve(Cost())).wait == 0
            clock.jump(1.0)
            await one.halt(FailureKind.QUOTA)
            with pytest.raises(AccountHaltedError):
                await other.reserve(Cost())
            await close([Sender(limiter, clock) for limiter in (one, alike, other)])

        self.run(test)

    def test_a_halt_for_a_parameter_does_not_hide_one_for_everybody(self) -> None:
        async def test(clock: ManualClock) -> None:
            one, other = self.open(RateLimits(), clock, "mine"), self.open(RateLimits(), clock, "other")
            for limiter in (one, other):
                await limiter.reserve(Cost())
            clock.jump(1.0)
            await one.halt(FailureKind.QUOTA)
            clock.jump(1.0)
            await one.halt(FailureKind.CONFIGURATION, own=True)
            with pytest.raises(AccountHaltedError) as caught:
                await other.reserve(Cost())
            assert caught.value.kind is FailureKind.QUOTA
            await close([Sender(limiter, clock) for limiter in (one, other)])

        self.run(test)
