"""Which older shards of a destination hold answers to a new shard's requests.

Old and new fingerprints are spread over temporary files by their value and compared file by file, so that memory does
not grow with the dataset. A shard named in error costs a look into its results; a shard missed costs money, hence
none is.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from airflow_llm_provider.dataset.journal import read_journal
from airflow_llm_provider.dataset.layout import JOURNALS, RESULTS, Layout
from airflow_llm_provider.dataset.record import is_answered
from airflow_llm_provider.dataset.storage import BrokenFileError, MissingFileError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_BUCKETS = 16
_BYTES_IN_MEMORY = 1 << 20
#: Older shards named per request, if the request does not need more: every one of them holds the answer.
_HOLDERS = 4
_READERS = 8
_ENTRY = np.dtype([("key", "<u8"), ("shard", "<i4")])
Entries = np.ndarray[Any, np.dtype[Any]]


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

    def donors(self, shard_ids: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the older shards that can help each new one.

        :param shard_ids: ids of the new shards, in the order of their indexes.
        """
        # A shard with results of its own has been through all this before.
        needy = [shard_id not in self._finished for shard_id in shard_ids]
        if not self._old or not any(needy):
            return [() for _ in shard_ids]
        old = self._read_old()
        pairs: set[tuple[int, int]] = set()
        for bucket in range(_BUCKETS):
            pairs |= _matches(self._new.read(bucket), old.read(bucket))
        old.close()
        found: list[list[str]] = [[] for _ in shard_ids]
        for new_index, old_index in sorted(pairs):
            donor = self._old[old_index]
            if needy[new_index] and donor != shard_ids[new_index]:
                found[new_index].append(donor)
        return [tuple(donors) for donors in found]

    def _read_old(self) -> _Buckets:
        old = _Buckets()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="llm-donors") as pool:
            for index, arrays in enumerate(pool.map(self._answered, self._old)):
                for keys in arrays:
                    old.add(keys, index)
        return old

    def _answered(self, shard_id: str) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Return the keys of the requests that an older shard has an answer to."""
        keys: list[np.ndarray[Any, np.dtype[Any]]] = []
        if shard_id in self._finished:
            try:
                with self._layout.storage.open_parquet(self._layout.results(shard_id)) as file:
                    with self._layout.storage.reading(self._layout.results(shard_id)):
                        table = file.read(columns=["_llm_fingerprint", "_llm_answered"], use_threads=False)
                    keys.extend(_keys(c) for c in table.filter(table.column(1)).column(0).chunks)
            except (BrokenFileError, MissingFileError):
                # Cut short by a power cut, or gone meanwhile: it helps nobody.
                pass
        records = read_journal(self._layout, shard_id).records
        paid = [record.fingerprint for record in records if is_answered(record.outcome)]
        keys.append(_keys(pa.array(paid, pa.binary(16))))
        return keys

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._new.close()


class _Buckets:
    """Entries spread over temporary files without names, in memory while they are few."""

    def __init__(self) -> None:
        self._files: list[Any] = [
            tempfile.SpooledTemporaryFile(max_size=_BYTES_IN_MEMORY)  # noqa: SIM115 -- closed by close()
            for _ in range(_BUCKETS)
        ]

    def add(self, keys: np.ndarray[Any, np.dtype[Any]], shard: int) -> None:
        entries = np.empty(len(keys), dtype=_ENTRY)
        entries["key"] = keys
        entries["shard"] = shard
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


def _keys(fingerprints: pa.Array) -> np.ndarray[Any, np.dtype[Any]]:
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
    old = np.unique(old)
    wanted, needs = np.unique(new, return_counts=True)
    first = np.searchsorted(old["key"], wanted["key"], side="left")
    last = np.searchsorted(old["key"], wanted["key"], side="right")
    holders = np.minimum(last - first, np.maximum(needs, _HOLDERS))
    starts = np.repeat(first - np.cumsum(holders) + holders, holders)
    chosen = old["shard"][starts + np.arange(len(starts))]
    pairs = np.unique(np.stack([np.repeat(wanted["shard"], holders), chosen], axis=1), axis=0)
    return {(int(new_index), int(old_index)) for new_index, old_index in pairs}


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]
