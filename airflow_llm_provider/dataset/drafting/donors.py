"""Which older shards of a destination hold answers to a new shard's requests.

Old and new fingerprints are spread over temporary files by their value and compared file by file, so that memory does
not grow with the dataset. A shard named in error costs a look into its results; a shard missed costs money, hence
none is.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from airflow_llm_provider.dataset.files.layout import JOURNALS, RESULTS, Layout
from airflow_llm_provider.dataset.files.storage import BrokenFileError, MissingFileError
from airflow_llm_provider.dataset.outcomes.journal import read_journal
from airflow_llm_provider.dataset.outcomes.record import is_answered
from airflow_llm_provider.dataset.outcomes.results import latency_column

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_BUCKETS = 16
_BYTES_IN_MEMORY = 1 << 20
_READERS = 8
_KEY_NAMES = ("_llm_fingerprint", "_llm_occurrence")
_LATENCY = "latency"
_ENTRY = np.dtype([("key", "<u8"), ("shard", "<i4"), ("mark", "<u8")])
Entries = np.ndarray[Any, np.dtype[Any]]
Numbers = np.ndarray[Any, np.dtype[Any]]
_NO_NUMBERS: Numbers = np.empty(0, dtype="<u8")


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What older shards hold for new ones.

    :param donors: the older shards that can help each new one.
    :param answered: requests that need not be asked, because their answers are there.
    """

    donors: list[tuple[str, ...]]
    answered: int


class DonorSearch:
    """Compares the requests of new shards with the answers of older ones.

    :param layout: the destination.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        finished = (_last(name).removesuffix(".parquet") for name in layout.storage.files(RESULTS))
        self._finished = set(finished)
        begun = {_last(name) for name in layout.storage.folders(JOURNALS)}
        self._old = sorted(self._finished | begun)
        self._new = _Buckets()

    @property
    def needed(self) -> bool:
        """Whether there are older shards at all."""
        return bool(self._old)

    def add(self, index: int, fingerprints: pa.Array | pa.ChunkedArray) -> None:
        """Take requests of the new shard with this index."""
        if self._old:
            self._new.add(_keys(fingerprints), index)

    def look(self, shard_ids: Sequence[str]) -> Findings:
        """Find the older shards that can help each new one, and count the requests that are answered.

        :param shard_ids: ids of the new shards, in the order of their indexes.
        """
        if not self._old or not shard_ids:
            return Findings(donors=[() for _ in shard_ids], answered=0)
        old, complete = self._read_old()
        # Whose results answer every request needs nobody. One open row, and the others may have its answer by now.
        open_shards = np.array([shard_id not in complete for shard_id in shard_ids], dtype=np.bool_)
        pairs: set[tuple[int, int]] = set()
        answered = 0
        for bucket in range(_BUCKETS):
            requests, answers = self._new.read(bucket), _distinct(old.read(bucket))
            needy = open_shards[requests["shard"]]
            answered += int(np.count_nonzero(~needy)) + _count_answered(requests[needy], answers)
            pairs |= _matches(requests[needy], answers)
        old.close()
        found: list[list[str]] = [[] for _ in shard_ids]
        for new_index, old_index in sorted(pairs):
            donor = self._old[old_index]
            if donor != shard_ids[new_index]:
                found[new_index].append(donor)
        return Findings(donors=[tuple(donors) for donors in found], answered=answered)

    def _read_old(self) -> tuple[_Buckets, set[str]]:
        old, complete = _Buckets(), set()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="llm-donors") as pool:
            for index, (keys, marks, whole) in enumerate(pool.map(self._answered, self._old)):
                old.add(keys, index, marks)
                if whole:
                    complete.add(self._old[index])
        return old, complete

    def _answered(self, shard_id: str) -> tuple[Numbers, Numbers, bool]:
        """Return the keys of the requests that an older shard has an answer to, and the marks of the answers.

        The last value tells whether its results answer every request.
        """
        results = self._finished_requests(shard_id) if shard_id in self._finished else None
        keys, marks, known = _NO_NUMBERS, _NO_NUMBERS, set()
        if results is not None:
            answered = results.filter(results.column("_llm_answered"))
            keys = _keys(answered.column("_llm_fingerprint"))
            marks = answered.column(_LATENCY).to_numpy().view("<u8")
            if len(answered) == len(results):
                return keys, marks, True
            known = set(zip(*(answered.column(name).to_pylist() for name in _KEY_NAMES), strict=True))
        records = {
            (record.key, record.outcome.latency_ms): record
            for record in read_journal(self._layout, shard_id).records
            if is_answered(record.outcome) and record.key not in known
        }
        journal_keys = _keys(pa.array([record.fingerprint for record in records.values()], pa.binary(16)))
        latencies = pa.array([record.outcome.latency_ms for record in records.values()], pa.float64())
        journal_marks = latencies.to_numpy(zero_copy_only=False).view("<u8")
        return np.concatenate([keys, journal_keys]), np.concatenate([marks, journal_marks]), False

    def _finished_requests(self, shard_id: str) -> pa.Table | None:
        """Read which requests of a finished shard were answered; ``None``: the file is cut short, or gone meanwhile."""
        name = self._layout.results(shard_id)
        try:
            with self._layout.storage.open_parquet(name) as file:
                columns = [*_KEY_NAMES, "_llm_answered", latency_column(file.schema_arrow)]
                with self._layout.storage.reading(name):
                    table = file.read(columns=columns, use_threads=False).select(columns)
        except (BrokenFileError, MissingFileError):
            return None
        table = table.rename_columns([*_KEY_NAMES, "_llm_answered", _LATENCY])
        return table.filter(table.column("_llm_fingerprint").is_valid()).combine_chunks()

    def close(self) -> None:
        """Let go of the temporary files."""
        self._new.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Buckets:
    """Entries spread over temporary files without names, in memory while they are few."""

    def __init__(self) -> None:
        self._files: list[Any] = [
            tempfile.SpooledTemporaryFile(max_size=_BYTES_IN_MEMORY)  # noqa: SIM115 -- closed by close()
            for _ in range(_BUCKETS)
        ]

    def add(self, keys: Numbers, shard: int, marks: Numbers | None = None) -> None:
        entries = np.zeros(len(keys), dtype=_ENTRY)
        entries["key"] = keys
        entries["shard"] = shard
        if marks is not None:
            entries["mark"] = marks
        bucket_of = keys % _BUCKETS
        for bucket in range(_BUCKETS):
            chosen = entries[bucket_of == bucket]
            if len(chosen):
                self._files[bucket].write(chosen.tobytes())

    def read(self, bucket: int) -> Entries:
        self._files[bucket].seek(0)
        return np.frombuffer(self._files[bucket].read(), dtype=_ENTRY)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _keys(fingerprints: pa.Array | pa.ChunkedArray) -> Numbers:
    """Return the first 64 bits of each fingerprint: two different ones that share them only cost a look."""
    if isinstance(fingerprints, pa.ChunkedArray):
        return np.concatenate([_NO_NUMBERS, *(_keys(chunk) for chunk in fingerprints.chunks)])
    present = fingerprints.drop_null()
    if not len(present):
        return _NO_NUMBERS
    words = np.frombuffer(present.buffers()[1], dtype="<u8").reshape(-1, 2)
    return words[present.offset : present.offset + len(present), 0]


def _distinct(old: Entries) -> Entries:
    """Return each stored answer once, with the first shard that holds it, by key and shard.

    An answer that was reused lies in several shards, and is still one: told by its mark. Answers of one shard that
    share a mark are different ones.
    """
    if not len(old):
        return old
    old = old[np.lexsort((old["shard"], old["mark"], old["key"]))]
    first = _changes(old["key"], old["mark"], old["shard"])
    starts = np.flatnonzero(first)
    number = np.arange(len(old)) - np.repeat(starts, np.diff(starts, append=len(old)))
    order = np.lexsort((old["shard"], number, old["mark"], old["key"]))
    old, number = old[order], number[order]
    answers = old[_changes(old["key"], old["mark"], number)]
    return answers[np.lexsort((answers["shard"], answers["key"]))]


def _changes(*columns: Numbers) -> Numbers:
    """Tell for each row of sorted columns whether it differs from the one before."""
    changed = np.ones(len(columns[0]), dtype=np.bool_)
    changed[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return changed


def _matches(new: Entries, answers: Entries) -> set[tuple[int, int]]:
    """Return pairs of new and old shards: for every request as many different answers as there are rows with it.

    :param answers: each answer once, by key and shard.
    """
    if not len(new) or not len(answers):
        return set()
    wanted, needs = np.unique(new[["key", "shard"]], return_counts=True)
    first = np.searchsorted(answers["key"], wanted["key"], side="left")
    last = np.searchsorted(answers["key"], wanted["key"], side="right")
    taken = np.minimum(last - first, needs)
    starts = np.repeat(first - np.cumsum(taken) + taken, taken)
    holders = answers["shard"][starts + np.arange(len(starts))]
    pairs = np.unique(np.stack([np.repeat(wanted["shard"], taken), holders], axis=1), axis=0)
    return {(int(new_index), int(old_index)) for new_index, old_index in pairs}


def _count_answered(new: Entries, answers: Entries) -> int:
    """Count the new requests that have an answer; identical requests of a shard need one each.

    :param answers: each answer once, by key and shard.
    """
    if not len(new) or not len(answers):
        return 0
    wanted, needs = np.unique(new[["key", "shard"]], return_counts=True)
    first = np.searchsorted(answers["key"], wanted["key"], side="left")
    last = np.searchsorted(answers["key"], wanted["key"], side="right")
    return int(np.minimum(last - first, needs).sum())


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]
