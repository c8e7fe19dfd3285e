"""More shards than there may be: what a person is told, and what would fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from airflow_llm_provider.dataset.plans.plan import SplitSettings


def check_fit(
    settings: SplitSettings, *, rows: int, size: int, shards: int, fitting: int | None, bound: str
) -> None:
    """Refuse more shards than there may be, unless they may grow to fit.

    :param size: bytes of all rows.
    :param shards: what the settings make of them.
    :param fitting: smallest token budget that makes few enough; ``None``: none does.
    :param bound: what sets ``settings.max_shards``, as a person knows it.
    :raises LLMInputError: naming the numbers and the remedy.
    """
    most, asked = settings.max_shards or shards, settings.shard_tokens
    if fitting is None:
        totals = (
            ("max_rows_per_shard", settings.max_rows, rows),
            ("max_bytes_per_shard", settings.max_bytes, size),
        )
        kept_small = " and ".join(
            f"{name} from {most_of_one:,} to at least {-(-total // most):,}"
            for name, most_of_one, total in totals
            if most_of_one is not None
        )
        raise LLMInputError(
            f"{rows:,} rows make {shards:,} shards, and {bound} allows {most:,}; no larger "
            f"shard_tokens helps: raise {kept_small}, or {bound}; nothing was written"
        )
    if not settings.enlarge:
        raise LLMInputError(
            f"{rows:,} rows make {shards:,} shards of up to {asked:,} tokens, and {bound} allows "
            f"{most:,}: set shard_tokens to {fitting} or more, leave fit_max_shards=True to let shards grow, or raise "
            f"{bound}; nothing was written"
        )


def enlarged(*, shards: tuple[int, int], tokens: tuple[int, int], most: int, bound: str) -> str:
    """Say that shards grew.

    :param shards: how many there would have been, and are.
    :param tokens: the token budget that was asked for, and the one in use.
    """
    return (
        f"{shards[0]:,} shards of up to {tokens[0]:,} tokens are more than {bound} ({most:,}): enlarged "
        f"shard_tokens from {tokens[0]:,} to {tokens[1]:,}, which makes {shards[1]:,} shards"
    )
