"""The hash of a table's content: the same however the rows are split into batches."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGEST_BYTES = 16


class ContentHash:
    """Hashes rows as they come.

    Only values count: not batch borders, buffer layout, or what lies in the memory of a null.

    :param schema: columns of the batches.
    :param salt: what else makes the content what it is.
    """

    def __init__(self, schema: pa.Schema, salt: bytes) -> None:
        self._salt = salt
        self._columns = [_ColumnHash() for _ in schema]

    def update(self, batch: pa.RecordBatch) -> None:
        """Take the next rows."""
        for column, array in zip(self._columns, batch.columns, strict=True):
            column.update(array)

    def hexdigest(self) -> str:
        """Return the hash of all rows so far, 32 hexadecimal digits."""
        total = hashlib.blake2b(self._salt, digest_size=_DIGEST_BYTES)
        for column in self._columns:
            total.update(column.digest())
        return total.hexdigest()


class _ColumnHash:
    """One array of a type tree: which values are there, how long they are, their bytes, and its children."""

    def __init__(self) -> None:
        self._validity = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._lengths = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._data = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._children: list[_ColumnHash] = []

    def update(self, array: pa.Array) -> None:
        array = _plain(array)
        self._validity.update(np.asarray(pc.is_valid(array).cast(pa.uint8())).tobytes())
        if array.null_count:
            array = array.drop_null()
        kind = array.type
        if pa.types.is_null(kind):
            return
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            self._update_text(array)
        elif pa.types.is_struct(kind):
            self._update_children(array.flatten())
        elif pa.types.is_nested(kind):
            self._update_lists(array)
        else:
            self._update_fixed(array)

    def _update_text(self, array: pa.Array) -> None:
        self._lengths.update(np.asarray(pc.binary_length(array)).tobytes())
        _, offsets, data = array.buffers()
        ends = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
        if len(array) and data is not None:
            self._data.update(memoryview(data)[int(ends[0]) : int(ends[-1])])

    def _update_lists(self, array: pa.Array) -> None:
        if isinstance(array, pa.MapArray):
            array = array.cast(
                pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)]))
            )
        self._lengths.update(np.asarray(pc.list_value_length(array).cast(pa.int64())).tobytes())
        self._update_children([array.flatten()])

    def _update_children(self, arrays: list[pa.Array]) -> None:
        while len(self._children) < len(arrays):
            self._children.append(_ColumnHash())
        for child, array in zip(self._children, arrays, strict=True):
            child.update(array)

    def _update_fixed(self, array: pa.Array) -> None:
        width = array.type.bit_width // 8
        data = array.buffers()[1]
        if len(array) and data is not None:
            self._data.update(memoryview(data)[array.offset * width : (array.offset + len(array)) * width])

    def digest(self) -> bytes:
        total = hashlib.blake2b(self._validity.digest(), digest_size=_DIGEST_BYTES)
        total.update(self._lengths.digest())
        total.update(self._data.digest())
        for child in self._children:
            total.update(child.digest())
        return total.digest()


def _plain(array: pa.Array) -> pa.Array:
    """Reduce the many ways to store the same values to one."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_run_end_encoded(kind):
        array = pc.run_end_decode(array)
    elif pa.types.is_string(kind) or pa.types.is_string_view(kind):
        array = array.cast(pa.large_string())
    elif pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    elif pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    return array
