"""One schema for many files, decided before the first row and without losing a value."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_llm_provider.dataset.files.urls import public_uri
from airflow_llm_provider.errors import LLMInputError

_INTEGERS = (pa.types.is_signed_integer, pa.types.is_unsigned_integer)
_LISTS = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_list_view, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_large_list_view, pa.large_list),
)
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
_LARGE_KINDS = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class MergedSchema:
    """Gathers the schemas of files; columns keep the order of the first file that has them."""

    def __init__(self) -> None:
        self._fields: dict[str, pa.Field] = {}
        self._origin: dict[str, str] = {}
        self._present: dict[str, int] = {}
        self._files = 0

    def add(self, schema: pa.Schema, uri: str) -> None:
        """Add the schema of one more file.

        :raises LLMInputError: naming column, types and files, when it does not agree with the others.
        """
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise LLMInputError(
                f"{public_uri(uri)} has more than one column named {', '.join(map(repr, repeated))}"
            )
        self._files += 1
        for field in schema:
            known = self._fields.get(field.name)
            self._present[field.name] = self._present.get(field.name, 0) + 1
            if known is None:
                self._fields[field.name] = _without_id(field)
                self._origin[field.name] = uri
                continue
            kind = unify(known.type, field.type)
            if kind is None:
                raise LLMInputError(
                    f"column {field.name!r} is {known.type} in {public_uri(self._origin[field.name])} and {field.type} "
                    f"in {public_uri(uri)}: write the files with one type, or take one of them alone"
                )
            if kind != known.type:
                self._origin[field.name] = uri
            nullable = known.nullable or field.nullable
            self._fields[field.name] = known.with_type(kind).with_nullable(nullable)

    def schema(self) -> pa.Schema:
        """Return the schema that holds every file's values. A column that is null everywhere becomes text."""
        return pa.schema(
            field.with_nullable(field.nullable or self._present[field.name] < self._files).with_type(
                storable(field.type)
            )
            for field in self._fields.values()
        )

    def notes(self) -> list[str]:
        """Say which columns some files lack."""
        return [
            f"column {name!r} is missing in {self._files - count} of {self._files} input files: it is null there"
            for name, count in self._present.items()
            if count < self._files
        ]


def unify(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both exactly; ``None`` when there is none.

    Units, time zones, precision and the step from integer to float are never changed: that would be another value.
    """
    if one == other:
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_null(other):
        return one
    return _unify_numbers(one, other) or _unify_text(one, other) or _unify_nested(one, other)


def _unify_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    for is_kind in (*_INTEGERS, pa.types.is_floating):
        if is_kind(one) and is_kind(other):
            return one if one.bit_width > other.bit_width else other
    return None


def _unify_text(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Unify types that differ only in how the same texts are stored."""
    if pa.types.is_dictionary(one) and pa.types.is_dictionary(other):
        value = unify(one.value_type, other.value_type)
        same = value is not None and one.ordered == other.ordered
        return pa.dictionary(pa.int32(), value, ordered=one.ordered) if same else None
    for kind, values in ((one, other), (other, one)):
        if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(values):
            return unify(kind.value_type, values)
        if _LARGE_KINDS.get(kind) == values:
            return values
    return None


def _unify_nested(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    for is_kind, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(one) and is_kind(other):
            value = unify(one.value_type, other.value_type)
            return None if value is None else make(one.value_field.with_type(value))
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        if [field.name for field in one] != [field.name for field in other]:
            return None
        parts = [unify(a.type, b.type) for a, b in zip(one, other, strict=True)]
        if None in parts:
            return None
        return pa.struct(
            a.with_type(part).with_nullable(a.nullable or b.nullable)
            for a, b, part in zip(one, other, parts, strict=True)
        )
    return None


def storable(kind: pa.DataType, *, nested: bool = False) -> pa.DataType:
    """Return the type that holds the same values in a file that every reader of Parquet can read.

    Columns without any value have a type that few readers know, and Arrow itself cannot read dictionaries inside lists
    and structs that lie in several row groups: they become text, and the plain values. So do types that are only another
    way to lay values out in memory.
    """
    plain = _plain(kind)
    if pa.types.is_dictionary(plain) and (nested or plain.value_type in _VIEWS):
        return storable(plain.value_type, nested=nested)
    if pa.types.is_fixed_size_list(plain):
        return pa.list_(_inner(plain.value_field), plain.list_size)
    make = next((make for is_kind, make in _LISTS if is_kind(plain)), None)
    if make is not None:
        return make(_inner(plain.value_field))
    if pa.types.is_map(plain):
        return pa.map_(_inner(plain.key_field), _inner(plain.item_field), keys_sorted=plain.keys_sorted)
    if pa.types.is_struct(plain):
        return pa.struct(_inner(field) for field in plain)
    return plain


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    return _VIEWS.get(kind, kind)


def _inner(field: pa.Field) -> pa.Field:
    return field.with_type(storable(field.type, nested=True))


def align(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of one file as the columns that all files have; what the file lacks is null."""
    arrays = []
    for field in schema:
        position = batch.schema.get_field_index(field.name)
        if position < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        arrays.append(as_type(batch.column(position), field.type))
    return batch_of(arrays, schema, batch.num_rows)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the same values as another type.

    :raises pyarrow.ArrowException: when that type cannot hold one of them exactly.
    """
    if array.type == kind:
        return array
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        array = _list_of_view(array)
    return array if array.type == kind else array.cast(kind)


def _list_of_view(array: pa.Array) -> pa.Array:
    """Lay lists out one after the other. Arrow's own cast of views with nulls makes broken lists."""
    lengths = pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), mask=array.is_null())


def batch_of(arrays: list[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Make a batch of so many rows, also of no column."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
    empty = pa.StructArray.from_arrays([], fields=[], mask=pa.array([False] * rows, pa.bool_()))
    return pa.RecordBatch.from_struct_array(empty)


def _without_id(field: pa.Field) -> pa.Field:
    """Drop the column number of the file that a field came from."""
    metadata = {k: v for k, v in (field.metadata or {}).items() if k != b"PARQUET:field_id"}
    return field.with_metadata(metadata or None)
