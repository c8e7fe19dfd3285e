"""An engine with everything that holds requests back: limits, breakers, adaptive concurrency, budget."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_llm_provider.engine.adaptive import AdaptiveConfig, AdaptiveGate
from airflow_llm_provider.engine.breaker import Breaker, BreakerConfig, BreakerGate
from airflow_llm_provider.engine.budget.config import BudgetConfig
from airflow_llm_provider.engine.budget.gate import BudgetGate
from airflow_llm_provider.engine.config import EngineConfig
from airflow_llm_provider.engine.events import BudgetUntold, BudgetUsed
from airflow_llm_provider.engine.limits.rate_limits import limits_for
from airflow_llm_provider.engine.retry import RetryConfig
from airflow_llm_provider.engine.route import Route
from airflow_llm_provider.engine.runner import Engine
from airflow_llm_provider.errors import LLMError, LLMInputError
from airflow_llm_provider.jobs.price_check import check_price

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from airflow_llm_provider.engine.budget.book import Holder
    from airflow_llm_provider.engine.budget.spent import Spent
    from airflow_llm_provider.engine.call import Judge
    from airflow_llm_provider.engine.clock import Clock
    from airflow_llm_provider.engine.events import Observer
    from airflow_llm_provider.engine.gate import Gate
    from airflow_llm_provider.engine.usage import Usage
    from airflow_llm_provider.jobs.completing.accounts import Account, OpenAccounts
    from airflow_llm_provider.jobs.options import CompleteOptions

#: The longest time for which the first request goes out alone.
PROBE_SECONDS = 0.25
#: Dropped requests in a row that open a breaker, where rows have more attempts than that.
_CONSECUTIVE_FAILURES = 4


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """What the engines of a run have in common.

    :param model: model that the requests name.
    :param scope: names what shapes the requests.
    :param accounts: what to send on.
    :param options: how to send.
    """

    model: str
    scope: str
    accounts: OpenAccounts
    options: CompleteOptions
    clock: Clock
    rng: random.Random

    def check(self) -> None:
        """Refuse what cannot be kept, before anything is sent.

        :raises LLMInputError: a money cap without a price, a fallback that is none.
        """
        options = self.options
        if options.fallback_model == self.model:
            raise LLMInputError(
                f"fallback_model is {self.model!r}, the model itself: name another, cheaper one"
            )
        if options.max_cost_usd is None:
            return
        for account in self.accounts.accounts:
            for model in self._models():
                check_price(account.pricer.estimate(model, prompt_tokens=1, completion_tokens=1), model)

    def engine(
        self,
        judge: Judge,
        *,
        gates: Sequence[Gate],
        budget: BudgetGate | None,
        observer: Observer,
        probe: bool,
        watch_rejections: bool,
    ) -> Engine:
        """Make an engine.

        :param gates: asked before each request, before the budget.
        :param budget: of the whole run.
        :param probe: whether the first request goes out alone, unless one like it was answered a moment ago.
        :param watch_rejections: whether rows that are all rejected alike stop the shard.
        """
        options = self.options
        return Engine(
            [
                self._route(account, model, fallback=model != self.model)
                for model in self._models()
                for account in self.accounts.accounts
            ],
            judge,
            config=EngineConfig(
                concurrency=options.concurrency,
                timeout=options.timeout,
                probe_window=PROBE_SECONDS if probe else 0.0,
                max_limit_wait=options.max_limit_wait,
                max_same_rejections=options.max_same_rejections if watch_rejections else None,
                retry=RetryConfig(
                    max_attempts=options.max_attempts, max_output_attempts=options.max_output_attempts
                ),
            ),
            clock=self.clock,
            rng=self.rng,
            observer=observer,
            gates=gates,
            budget=budget,
        )

    @contextlib.asynccontextmanager
    async def budget(
        self,
        run: str,
        *,
        holder: Holder,
        known: Callable[[], Spent],
        paid: Mapping[str, Spent],
        shared: bool,
        observer: Observer,
    ) -> AsyncIterator[BudgetGate | None]:
        """Open what keeps the run within its budget; ``None``: it has none.

        :param run: names the run.
        :param holder: in whose name is reserved. Nobody else may speak for it, since what is reserved in it so far, by a
            process that has died, comes free.
        :param known: what the run's stored answers have cost; asked for when the account book is empty, which is so
            at first, and when it was lost, also at the end.
        :param paid: what the answers of the holder's former tries have cost, by session.
        :param shared: whether other tasks spend as well, so that what they hold back may come free.
        """
        options = self.options
        if options.max_tokens_total is None and options.max_cost_usd is None:
            yield None
            return
        gate = BudgetGate(
            BudgetConfig(max_tokens_total=options.max_tokens_total, max_cost_usd=options.max_cost_usd),
            self.accounts.book(run),
            clock=self.clock,
            price=self.dearest,
            holder=holder,
            patience=options.timeout if shared else 0.0,
            on_share=lambda share: observer.on_event(BudgetUsed(share=share)),
        )
        await gate.open(known, paid)
        try:
            yield gate
        except BaseException:
            # What went wrong first is what is told, and soon; the next try frees what stays reserved.
            with contextlib.suppress(LLMError):
                await gate.aclose(patience=0.0)
            raise
        try:
            await gate.aclose()
        except LLMError as error:
            # The answers are there, and nobody can spend again what they have cost: it stays reserved, and where the book is
            # damaged it is counted anew from the answers.
            untold = gate.untold
            if untold.tokens:
                observer.on_event(
                    BudgetUntold(tokens=untold.tokens, cost_usd=untold.cost_usd, reason=str(error))
                )

    def _models(self) -> tuple[str, ...]:
        fallback = self.options.fallback_model
        return (self.model,) if fallback is None else (self.model, fallback)

    def _route(self, account: Account, model: str, *, fallback: bool) -> Route:
        return Route(
            client=self.accounts.client(account, model),
            name=account.name or None,
            limiter=self.accounts.limiter(account, model, self.scope),
            gates=self._gates(account, model),
            price=account.pricer.of(model),
            weight=account.weight,
            model=model if fallback else None,
            fallback=fallback,
        )

    def _gates(self, account: Account, model: str) -> tuple[Gate, ...]:
        options = self.options
        breaker = BreakerConfig(
            max_open=options.max_outage,
            # No more than a row's attempts, or an outage would use up rows.
            consecutive_failures=max(2, min(_CONSECUTIVE_FAILURES, options.max_attempts)),
        )
        gates: tuple[Gate, ...] = (BreakerGate(Breaker(breaker)),)
        known = limits_for(model, account.limits)
        unknown = known.requests_per_minute is None and known.tokens_per_minute is None
        if options.adaptive or (options.adaptive is None and unknown):
            gates += (
                AdaptiveGate(AdaptiveConfig(ceiling=options.concurrency), auto=options.adaptive is None),
            )
        return gates

    def dearest(self, model: str | None, usage: Usage) -> float | None:
        """Return what a request costs on the dearest account, since none is chosen yet; ``None``: unknown."""
        costs = [account.pricer.cost(model, usage) for account in self.accounts.accounts]
        known = [cost for cost in costs if cost is not None]
        return max(known) if len(known) == len(costs) else None
