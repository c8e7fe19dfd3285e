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

from airflow_llm_provider.dataset.journal import read_journal
from airflow_llm_provider.dataset.layout import JOURNALS, RESULTS, Layout
from airflow_llm_provider.dataset.record import is_answered
from airflow_llm_provider.dataset.results import latency_column
from airflow_llm_provider.dataset.storage import BrokenFileError, MissingFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_BUCKETS = 16
_BYTES_IN_MEMORY = 1 << 20
#: Older shards named per request, if the request does not need more: every one of them holds the answer.
_HOLDERS = 4
_READERS = 8
_ENTRY = np.dtype([("key", "<u8"), ("shard", "<i4"), ("mark", "<u8")])
Entries = np.ndarray[Any, np.dtype[Any]]
Numbers = np.ndarray[Any, np.dtype[Any]]


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

    def add(self, index: int, fingerprints: pa.Array) -> None:
        """Take requests of the new shard with this index."""
        if self._old:
            self._new.add(_keys(fingerprints), index)

    def look(self, shard_ids: Sequence[str]) -> Findings:
        """Find the older shards that can help each new one, and count the requests that are answered.

        :param shard_ids: ids of the new shards, in the order of their indexes.
        """
        if not self._old or not shard_ids:
            return Findings(donors=[() for _ in shard_ids], answered=0)
        # A shard with results of its own has been through all this before: only they count.
        own = {old: index for index, old in enumerate(self._old) if old in self._finished}
        sole = np.array([own.get(shard_id, -1) for shard_id in shard_ids], dtype=np.int64)
        old = self._read_old()
        pairs: set[tuple[int, int]] = set()
        answered = 0
        for bucket in range(_BUCKETS):
            requests, answers = self._new.read(bucket), old.read(bucket)
            answered += _count_answered(requests, answers, sole)
            pairs |= _matches(requests[sole[requests["shard"]] < 0], answers)
        old.close()
        found: list[list[str]] = [[] for _ in shard_ids]
        for new_index, old_index in sorted(pairs):
            donor = self._old[old_index]
            if donor != shard_ids[new_index]:
                found[new_index].append(donor)
        return Findings(donors=[tuple(donors) for donors in found], answered=answered)

    def _read_old(self) -> _Buckets:
        old = _Buckets()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="llm-donors") as pool:
            for index, arrays in enumerate(pool.map(self._answered, self._old)):
                for keys, marks in arrays:
                    old.add(keys, index, marks)
        return old

    def _answered(self, shard_id: str) -> list[tuple[Numbers, Numbers]]:
        """Return the keys of the requests that an older shard has an answer to, and the marks of the answers."""
        found = []
        if shard_id in self._finished:
            name = self._layout.results(shard_id)
            try:
                with self._layout.storage.open_parquet(name) as file:
                    latency = latency_column(file.schema_arrow)
                    with self._layout.storage.reading(name):
                        table = file.read(
                            columns=["_llm_fingerprint", "_llm_answered", latency], use_threads=False
                        )
                for batch in table.filter(table.column("_llm_answered")).to_batches():
                    marks = batch.column(latency).to_numpy(zero_copy_only=False)
                    found.append((_keys(batch.column("_llm_fingerprint")), marks.view("<u8")))
            except (BrokenFileError, MissingFileError):
                # Cut short by a power cut, or gone meanwhile: it helps nobody.
                pass
        records = [r for r in read_journal(self._layout, shard_id).records if is_answered(r.outcome)]
        keys = _keys(pa.array([record.fingerprint for record in records], pa.binary(16)))
        latencies = [record.outcome.latency_ms or 0.0 for record in records]
        found.append((keys, np.array(latencies, dtype="<f8").view("<u8")))
        return found

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


def _keys(fingerprints: pa.Array) -> Numbers:
    """Return the first 64 bits of each fingerprint: two different ones that share them only cost a look."""
    present = fingerprints.drop_null()
    if not len(present):
        return np.empty(0, dtype="<u8")
    words = np.frombuffer(present.buffers()[1], dtype="<u8").reshape(-1, 2)
    return words[present.offset : present.offset + len(present), 0]


def _matches(new: Entries, old: Entries) -> set[tuple[int, int]]:
    """Return pairs of new and old shards that share requests: enough old shards for every new one's needs."""
    if not len(new) or not len(old):
        return set()
    old = np.unique(old[["key", "shard"]])
    wanted, needs = np.unique(new[["key", "shard"]], return_counts=True)
    first = np.searchsorted(old["key"], wanted["key"], side="left")
    last = np.searchsorted(old["key"], wanted["key"], side="right")
    holders = np.minimum(last - first, np.maximum(needs, _HOLDERS))
    starts = np.repeat(first - np.cumsum(holders) + holders, holders)
    chosen = old["shard"][starts + np.arange(len(starts))]
    pairs = np.unique(np.stack([np.repeat(wanted["shard"], holders), chosen], axis=1), axis=0)
    return {(int(new_index), int(old_index)) for new_index, old_index in pairs}


def _count_answered(new: Entries, old: Entries, sole: Numbers) -> int:
    """Count the new requests that have an answer; the k-th identical request of a shard takes the k-th answer.

    :param sole: for each new shard the only older one whose answers count; -1: those of all.
    """
    if not len(new) or not len(old):
        return 0
    wanted, needs = np.unique(new[["key", "shard"]], return_counts=True)
    in_shard, counts = np.unique(old[["key", "shard"]], return_counts=True)
    # An answer that was reused lies in several shards, and is still one: told by its latency.
    distinct = np.unique(np.unique(old[["key", "mark"]])["key"], return_counts=True)
    most: dict[int, int] = dict(zip(distinct[0].tolist(), distinct[1].tolist(), strict=True))
    by_shard: dict[tuple[int, int], int] = {}
    for (key, shard), count in zip(in_shard.tolist(), counts.tolist(), strict=True):
        by_shard[key, shard] = count
        most[key] = max(most[key], count)
    only = sole[wanted["shard"]].tolist()
    return sum(
        min(need, most.get(key, 0) if shard < 0 else by_shard.get((key, shard), 0))
        for key, need, shard in zip(wanted["key"].tolist(), needs.tolist(), only, strict=True)
    )


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]
