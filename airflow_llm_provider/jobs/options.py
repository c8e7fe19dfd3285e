"""How jobs go about their work. None of it changes what is asked, so none of it re-asks a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_llm_provider.dataset.arrow.type_names import check_types
from airflow_llm_provider.engine.budget.config import BudgetConfig
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow.compute as pc

#: Bytes of input files that one task counts: tens of seconds of work.
SPLIT_BYTES = 64 << 20

#: Days for which plans, shards and answers are kept that no run uses.
KEEP_DAYS = 30
#: The largest number that plans, manifests and Arrow hold.
_MOST = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SplitOptions:
    """How a dataset is read and cut.

    :param shard_tokens: prompt tokens of one shard, system prompt and message overhead of every row included. A
        single row beyond it gets a shard of its own.
    :param max_rows_per_shard: most rows of one shard; ``None``: no bound.
    :param max_bytes_per_shard: most bytes of one shard's input rows, as they lie in memory; ``None``: no bound.
    :param max_shards: most shards, such as Airflow's ``core.max_map_length``; ``None``: no bound.
    :param max_shards_from: what sets ``max_shards``, as messages name it.
    :param fit_max_shards: whether shards grow beyond ``shard_tokens`` when there would be too many; otherwise that is
        an error that names the smallest ``shard_tokens`` that fits.
    :param order_by: ``"tokens"``: rows of like size share shards, as far as they are at most some hundred thousand rows
        apart; the output keeps the order of the input. ``None``: neighbours share shards.
    :param partition_by: columns of the output, the input's or the answer's, whose values name its folders, as
        ``ds=2026-01-31``. ``None``: one folder.
    :param split_by: ``"file"``: groups of neighbouring input files are counted and cut each by itself, in Airflow by
        many tasks; no shard holds rows of two groups. ``None``: the rows as one.
    :param split_bytes: most bytes of the files of one group; a larger file is a group of its own.
    :param columns: input columns that the output carries, in this order; those that only the prompt or ``where`` needs
        are read, but not carried. ``None``: all.
    :param where: which rows are taken: a condition such as ``"lang = 'de' AND score >= 3"``, or from Python a
        ``pyarrow.compute.Expression``. ``None``: all.
    :param format: ``parquet``, ``csv``, ``jsonl``, ``excel``, ``avro`` or ``orc``; ``None``: by the file name.
    :param encoding: text encoding of CSV and JSON lines; a byte-order mark wins over it.
    :param delimiter: column separator of CSV; ``None``: tab for ``.tsv``, else comma.
    :param types: types of columns of CSV files, where they are not text, such as ``{"score": "int64"}``; see
        :data:`~airflow_llm_provider.dataset.arrow.type_names.TYPE_NAMES`.
    :param sheet: sheet of Excel files; ``None``: the only one that is visible.
    :param limit: only the first rows that ``where`` takes, so many, for a trial; their answers are kept for the whole. ``None``: all rows.
    :param start_over: forget every stored answer of the destination first, and pay again.
    :param dry_run: estimate and write nothing.
    :param max_cost_usd: what the run may cost; refused here already when the model's price is unknown.
    """

    shard_tokens: int = 200_000
    max_rows_per_shard: int | None = None
    max_bytes_per_shard: int | None = None
    max_shards: int | None = None
    max_shards_from: str = "max_shards"
    fit_max_shards: bool = True
    order_by: str | None = None
    partition_by: Sequence[str] | None = None
    split_by: str | None = None
    split_bytes: int = SPLIT_BYTES
    columns: Sequence[str] | None = None
    where: str | pc.Expression | None = None
    format: str | None = None
    encoding: str = "utf-8"
    delimiter: str | None = None
    types: Mapping[str, str] | None = None
    sheet: str | None = None
    limit: int | None = None
    start_over: bool = False
    dry_run: bool = False
    max_cost_usd: float | None = None

    def __post_init__(self) -> None:
        for name in ("shard_tokens", "split_bytes"):
            _check_count(name, getattr(self, name))
        if self.order_by not in (None, "tokens"):
            raise LLMInputError(f"order_by is {self.order_by!r}: give 'tokens' or None")
        if self.split_by not in (None, "file"):
            raise LLMInputError(f"split_by is {self.split_by!r}: give 'file' or None")
        for name in ("max_rows_per_shard", "max_bytes_per_shard", "max_shards", "limit"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        BudgetConfig(max_cost_usd=self.max_cost_usd)
        _check_columns("columns", self.columns)
        check_types(self.types)
        _check_columns("partition_by", self.partition_by)


@dataclass(frozen=True, kw_only=True)
class CompleteOptions:
    """How a shard's requests are sent.

    :param concurrency: most requests in flight, over all accounts.
    :param timeout: seconds for one request.
    :param max_attempts: failed requests per row after which it ends as ``error``; waiting for a rate limit is none.
    :param max_output_attempts: completions per row, when the answer cannot be parsed and asking again may help. Every
        one is paid for.
    :param failure_threshold: largest share of rows, from 0 to 1, that may end without an answer before the task
        fails; blank rows do not count. ``None``: the task fails only when not a single row got one.
    :param progress_interval: seconds between two progress lines in the log.
    :param limiter_url: where the accounts' limits and the run's budget are shared, unless an account says otherwise:
        ``file://`` by all processes of this machine, ``redis://host:6379/0`` by all machines, ``memory://`` by nobody
        else. ``None``: ``file://``.
    :param max_tokens_total: tokens, prompt and answer, that the whole run may use over all its shards and tries.
        Reserved before a request goes out, so that it is not exceeded. Answers of this plan that are paid already
        count; to go on after it was reached, raise it and clear the task.
    :param max_cost_usd: the same in US dollars; refused when a price is unknown.
    :param fallback_model: cheaper model of the same endpoint, used from 95 % of the budget on and while the endpoint does
        not answer for the first model. A row that it answered is answered: it is not asked again.
    :param adaptive: whether to find out how many requests the endpoint takes at a time, ``concurrency`` at most.
        ``None``: when neither the account nor the endpoint states a limit.
    :param deduplicate: whether identical requests of a shard are asked once. ``None``: when temperature is 0.
    :param max_outage: seconds for which an endpoint that does not answer is waited for, before the task fails to be
        retried later. ``None``: for ever.
    :param max_limit_wait: seconds for which the account's limits may hold back a request, before the task fails to be
        retried later. ``None``: for ever.
    :param max_same_rejections: rows that the endpoint may reject from the very first one on, all with one code, before
        the shard stops as wrongly configured. ``None``: any number.
    """

    concurrency: int = 16
    timeout: float = 60.0
    max_attempts: int = 5
    max_output_attempts: int = 1
    failure_threshold: float | None = None
    progress_interval: float = 10.0
    limiter_url: str | None = field(default=None, repr=False)
    max_tokens_total: int | None = None
    max_cost_usd: float | None = None
    fallback_model: str | None = None
    adaptive: bool | None = None
    deduplicate: bool | None = None
    max_outage: float | None = 300.0
    max_limit_wait: float | None = 300.0
    max_same_rejections: int | None = 10

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_attempts", "max_output_attempts"):
            _check_count(name, getattr(self, name))
        for name in ("timeout", "progress_interval", "max_outage", "max_limit_wait"):
            value = getattr(self, name)
            if value is None and name.startswith("max_"):
                continue
            if not _is_number(value) or value <= 0:
                raise LLMInputError(f"{name} is {value!r}: give a number of seconds above 0")
        check_threshold(self.failure_threshold)
        BudgetConfig(max_tokens_total=self.max_tokens_total, max_cost_usd=self.max_cost_usd)
        if self.max_same_rejections is not None:
            _check_count("max_same_rejections", self.max_same_rejections)
        for name in ("adaptive", "deduplicate"):
            if getattr(self, name) not in (None, True, False):
                raise LLMInputError(f"{name} is {getattr(self, name)!r}: give True, False or None")
        for name in ("fallback_model", "limiter_url"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value.strip()):
                # Not the value itself: the URL may hold a password.
                raise LLMInputError(f"{name} is a blank or a {type(value).__name__}: give a text, or None")


def check_keep_days(value: object) -> None:
    """Refuse a time to keep things that is no whole number of days.

    :raises LLMInputError: naming value and bound.
    """
    if value is not None:
        _check_count("keep_days", value)


def check_threshold(value: object) -> None:
    """Refuse a failure threshold that is no share.

    :raises LLMInputError: naming value and bounds.
    """
    if value is not None and not (_is_number(value) and 0 <= value <= 1):  # type: ignore[operator]
        raise LLMInputError(
            f"failure_threshold is {value!r}: give a share from 0 to 1, such as 0.05, or None"
        )


def _check_columns(name: str, columns: object) -> None:
    if columns is None:
        return
    names = list(columns) if isinstance(columns, (list, tuple)) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise LLMInputError(
            f"{name} is {columns!r}: give a list of names, at least one and each once, or None"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise LLMInputError(f"{name} is {value!r}: give a whole number of at least 1, at most {_MOST:,}")
