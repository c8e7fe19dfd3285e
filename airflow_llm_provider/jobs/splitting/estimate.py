"""What a split has found out, before anything is sent: what the run will spend at most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.jobs.amounts import counted, dollars

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence

    from airflow_llm_provider.prices import Pricer
    from airflow_llm_provider.spec import CompletionSpec
    from airflow_llm_provider.xcom import ShardReference


class Split(Protocol):
    """Rows that are counted and cut."""

    rows: int
    requests: int
    rows_by_status: Counter[str]
    first_error: str | None

    @property
    def shards(self) -> Sequence[object]:
        """The shards."""
        ...

    @property
    def tokens(self) -> int:
        """Prompt tokens of the rows that will be sent."""
        ...

    @property
    def answered(self) -> int:
        """Rows that will not be sent because their answers are stored."""
        ...


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan will spend at most.

    :param rows: rows of the input.
    :param shards: shards of the plan.
    :param requests: rows that are sent, or whose answers are there.
    :param answered: those of them whose answers are stored under the destination, so that they are not sent again.
    :param prompt_tokens: tokens read by all requests.
    :param max_completion_tokens: tokens written by all requests if every answer hits the cap.
    :param cost_low_usd: US dollars for what is not answered if every answer is empty; ``None``: unknown price.
    :param cost_high_usd: US dollars for what is not answered if every answer hits the cap; ``None``: unknown price.
    :param set_aside: rows by status that will not be sent.
    """

    rows: int
    shards: int
    requests: int
    answered: int
    prompt_tokens: int
    max_completion_tokens: int
    cost_low_usd: float | None
    cost_high_usd: float | None
    set_aside: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as plain JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.cost_low_usd is None or self.cost_high_usd is None:
            cost = "cost unknown (no price for this model at this endpoint)"
        else:
            left = f" for the other {self.requests - self.answered:,}" if self.answered else ""
            cost = f"cost{left} {dollars(self.cost_low_usd)} to {dollars(self.cost_high_usd)}"
        aside = ", ".join(f"{count:,} {status}" for status, count in self.set_aside.items())
        answered = f", of them {self.answered:,} answered already" if self.answered else ""
        return (
            f"{counted(self.rows, 'row')} in {counted(self.shards, 'shard')}: {counted(self.requests, 'request')}"
            f"{answered}, {self.prompt_tokens:,} tokens in, at most {self.max_completion_tokens:,} tokens out, {cost}"
            + (f"; not sent: {aside}" if aside else "")
        )


@dataclass(frozen=True, kw_only=True)
class SplitResult:
    """A plan, or in a dry run what it would be.

    :param plan_uri: URI of the plan; ``None`` in a dry run.
    :param plan_id: hash of the plan; ``None`` in a dry run.
    :param references: one per shard, in row order; none in a dry run.
    :param estimate: what the plan will spend.
    """

    plan_uri: str | None
    plan_id: str | None
    references: tuple[ShardReference, ...]
    estimate: Estimate


def refuse_if_none_can_be_sent(draft: Split) -> None:
    """Stop when the prompt fits no row at all: that is a mistake in the prompt, not in the rows.

    :raises LLMInputError: with the first reason.
    """
    rejected = draft.rows_by_status.get("rejected", 0)
    if draft.rows and rejected == draft.rows:
        raise LLMInputError(
            f"the prompt cannot be rendered for any of the {draft.rows:,} rows, the first time because: "
            f"{draft.first_error}; mend the prompt. Nothing was written or sent"
        )


def estimate_of(spec: CompletionSpec, draft: Split, pricer: Pricer, *, start_over: bool) -> Estimate:
    """Say what a split will spend at most.

    :param start_over: whether stored answers are forgotten.
    """
    answered = 0 if start_over else draft.answered
    unanswered = draft.requests - answered
    # The average request: prices with tiers depend on the size of one request, not on their sum.
    average = round(draft.tokens / max(draft.requests, 1))

    def cost(completion_tokens: int) -> float | None:
        of_one = pricer.estimate(spec.model, prompt_tokens=average, completion_tokens=completion_tokens)
        return None if of_one is None else of_one * unanswered

    return Estimate(
        rows=draft.rows,
        shards=len(draft.shards),
        requests=draft.requests,
        answered=answered,
        prompt_tokens=draft.tokens,
        max_completion_tokens=draft.requests * spec.max_output_tokens,
        cost_low_usd=cost(0),
        cost_high_usd=cost(spec.max_output_tokens),
        set_aside=dict(draft.rows_by_status),
    )
