"""Stored rows of a side: the columns of its state, and conversions between the fields of tuples and these columns.

Fields without a declared type are stored as text: a string as it is, another value as its tagged text. A string that
could be read as such a text is stored as tagged text, too, so that every value comes back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import CollectionState, arrow_type
from txstorm.errors import InputError
from txstorm.joins.rules.blocks import ARRIVAL, KEY, Hashes, Mask, Numbers, Rows
from txstorm.joins.side import Side
from txstorm.keys import groups_of, hash_rows, key_group, plain, row_text
from txstorm.misfits import Misfit
from txstorm.tagged import text_of, value_of
from txstorm.typed import column_of, converted
from txstorm.windows.aggregates.groups import numbered, whole
from txstorm.windows.intake import Chunk
from txstorm.windows.rules.event_time import UNITS

GROUP, TIME, INSTANT = "group", "time", "instant"
ID, PARTITION = "id", "partition"
_OWN = (GROUP, KEY, TIME, ID, PARTITION, ARRIVAL, INSTANT)
"""Columns that a side has whatever its fields are called."""
POSITION_BITS = 24
"""Number of low bits of an arrival: the position of a tuple in its transaction; the rest is the txid."""
_TAGGED = r'^([-0-9{\["]|(true|false|null|NaN|Infinity)$)'
"""Pattern of texts that are not strings as they are."""
_UTC = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class StoredField:
    """One column of the stored rows: its name, the field it holds, its type (None: text)."""

    column: str
    field: str
    kind: pa.DataType | None


@dataclass(frozen=True)
class SideForm:
    """Form of the stored rows of a side.

    Attributes:
        side: the declaration.
        fields: the fields of its tuples.
        grouped_by: the fields by which its tuples are distributed.
        key_kind: type of the column with the key; None: text.
        shift: the difference of its rows' times and their time field, in microseconds: see `InputPlan`.
    """

    side: Side
    fields: tuple[str, ...]
    grouped_by: tuple[str, ...]
    key_kind: pa.DataType | None = None
    shift: int = 0

    @cached_property
    def stored(self) -> tuple[StoredField, ...]:
        """The columns but group, time, arrival and, if there are several fields in the key, the key."""
        side, several = self.side, len(self.side.key) > 1
        roles = {} if several else {KEY: side.key[0]}
        roles.update({ID: side.id or "", PARTITION: side.partition or ""})
        given = [StoredField(column, field, self._kind(column, field)) for column, field in roles.items()]
        known = {side.time, *roles.values()}
        for field in self.fields:
            if field not in known:
                column = f"{field}_field" if field in _OWN else field
                given.append(StoredField(column, field, self._kind(column, field)))
        return tuple(given)

    def _kind(self, column: str, field: str) -> pa.DataType | None:
        if column == KEY:
            return self.key_kind
        return None if field not in (self.side.columns or {}) else arrow_type((self.side.columns or {})[field])

    @cached_property
    def time_kind(self) -> pa.DataType | None:
        """The declared type of the time field; None: each row says whether its time was an int or a datetime."""
        kind = (self.side.columns or {}).get(self.side.time)
        return None if kind is None else arrow_type(kind)

    @cached_property
    def plain(self) -> frozenset[str]:
        """The columns of key, id and partition that hold values as they are, and not texts of them."""
        kinds = {one.column: one.kind for one in self.stored if one.field}
        typed = {name for name, kind in {**kinds, KEY: self.key_kind}.items() if kind is not None}
        return frozenset(typed & {KEY, ID, PARTITION}) | ({ID} if self.side.id is None else set())

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that hold texts of values, which a column of strings does not show."""
        typed = {KEY: self.key_kind, **{one.column: one.kind for one in self.stored if one.field}}
        return tuple(name for name, kind in typed.items() if kind is None)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of stored rows, in their order."""
        columns = {GROUP: pa.int64(), KEY: self.key_kind or pa.string(), TIME: pa.int64()}
        columns.update({one.column: one.kind or pa.string() for one in self.stored})
        columns[ARRIVAL] = pa.int64()
        if self.time_kind is None:
            columns[INSTANT] = pa.bool_()
        return pa.schema(columns)

    def state(self, name: str) -> CollectionState:
        """Declare the state of the rows."""
        values = {one.name: one.type for one in self.schema if one.name not in (GROUP, TIME)}
        return CollectionState(name, {GROUP: int}, values, order={TIME: int})

    # -- from tuples to rows -------------------------------------------------------------------------------------------

    def check(self, chunk: Chunk) -> None:
        """Raise `InputError` for a value that does not fit the type that `Side.columns` declares.

        Raise `StateError` for a value that cannot be part of a key.
        """
        for one in self.stored:
            if one.kind is not None and one.field:
                self._converted(chunk, one)
        if self.time_kind is not None:
            self._typed(self._values(chunk, self.side.time), self.side.time, self.time_kind)
        columns = [self._values(chunk, field) for field in self.grouped_by]
        if any(isinstance(column, list) or pa.types.is_nested(column.type) for column in columns):
            self._groups(chunk)

    def rows_of(self, chunk: Chunk, txid: int, positions: Numbers, names: Sequence[str] | None = None) -> pa.Table:
        """Convert tuples to stored rows, or to the columns `names`; `positions`: those of the tuples in the txid."""
        held = {one.column: one for one in self.stored if one.field}
        fields = [self.schema.field(name) for name in names or self.schema.names]
        columns = [self._stored(chunk, held.get(one.name), one.name, txid, positions) for one in fields]
        return pa.table(columns, schema=pa.schema(fields))

    def _stored(self, chunk: Chunk, held: StoredField | None, name: str, txid: int, positions: Numbers) -> pa.Array:
        """Return one column of stored rows; `held`: the field that it holds, None for a column of a side's own."""
        if held is not None:
            return self._converted(chunk, held)
        if name == KEY:
            return self._key_texts(chunk)
        if name == GROUP:
            return pa.array(self._groups(chunk))
        if name == TIME:
            return pa.array(chunk.times)
        if name == ARRIVAL:
            return pa.array(arrivals_of(txid, positions))
        size = len(chunk)
        if name == INSTANT:
            return _instants(self._values(chunk, self.side.time), size)
        if name == ID and self.side.id is None:
            parts = [pa.repeat(str(txid), size), pa.array(positions).cast(pa.string()), "/"]
            return pc.binary_join_element_wise(*parts)
        return pa.nulls(size, pa.string())

    def rows(self, stored: pa.Table) -> Rows:
        """Return stored rows with the hashes of their keys."""
        key, times = whole(stored.column(KEY)), whole(stored.column(TIME))
        keyed = np.asarray(key.is_valid()) if key.null_count else None
        return Rows(self.hashes(key), np.asarray(times), stored, keyed)

    def hashes(self, key: pa.Array) -> Hashes:
        """Return the hashes of keys."""
        return hash_rows([key], len(key))

    def _values(self, chunk: Chunk, field: str) -> pa.Array | list[Any]:
        number = self.fields.index(field)
        if isinstance(chunk.values, list):
            return [row[number] for row in chunk.values]
        return chunk.values.column(number)

    def _converted(self, chunk: Chunk, one: StoredField) -> pa.Array:
        values = self._values(chunk, one.field)
        if one.kind is None:
            return texts_of(values, one.field, key=one.column == KEY)
        return self._typed(values, one.field, one.kind)

    def _typed(self, values: pa.Array | list[Any], field: str, kind: pa.DataType) -> pa.Array:
        try:
            return typed(values, kind)
        except Misfit as error:
            raise InputError(
                f"{self.side!r}: field {field!r} does not fit the type {kind} that columns declares ({error}); "
                "declare a type that holds all its values, or leave the field out of columns"
            ) from error.of(field, kind)

    def _key_texts(self, chunk: Chunk) -> pa.Array:
        """Return the keys of several fields as texts; None if one of the fields is None."""
        columns = [self._values(chunk, field) for field in self.side.key]
        arrays = [column for column in columns if isinstance(column, pa.Array)]
        if len(arrays) < len(columns):
            return _texts_of_keys(zip(*columns, strict=True))
        codes, _ = numbered(arrays, len(chunk))
        _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
        distinct = zip(*(column.take(pa.array(first)).to_pylist() for column in arrays), strict=True)
        return _texts_of_keys(distinct).take(pa.array(numbers.reshape(-1)))

    def _groups(self, chunk: Chunk) -> Numbers:
        columns = [self._values(chunk, field) for field in self.grouped_by]
        if any(isinstance(column, list) for column in columns):
            return np.array([key_group(row) for row in zip(*columns, strict=True)], np.int64)
        return groups_of(hash_rows(columns, len(chunk)))

    # -- from rows to tuples -------------------------------------------------------------------------------------------

    def columns_for(self, fields: Iterable[str]) -> list[str]:
        """Return the columns that hold `fields`."""
        held = {one.field: one.column for one in reversed(self.stored)}
        times = [TIME] if self.time_kind is not None else [TIME, INSTANT]
        names = [name for field in fields for name in (times if field == self.side.time else [held[field]])]
        return list(dict.fromkeys(names))

    def values(self, stored: pa.Table, field: str) -> pa.Array | list[Any]:
        """Return the values of a field; a list if they have no common Arrow type; None where the row is missing."""
        if field == self.side.time:
            return self._times(stored)
        one = next(one for one in self.stored if one.field == field)
        column = whole(stored.column(one.column))
        return column if one.kind is not None else values_of(column)

    def _times(self, stored: pa.Table) -> pa.Array | list[Any]:
        times = whole(stored.column(TIME))
        times = pc.subtract(times, self.shift) if self.shift else times
        numbers = pc.divide(times, UNITS[self.side.unit])
        kind = self.time_kind
        if kind is not None:
            return times.cast(_UTC).cast(kind) if pa.types.is_timestamp(kind) else numbers.cast(kind)
        instants = whole(stored.column(INSTANT))
        if instants.null_count == len(instants):
            return pa.nulls(len(instants))
        if not pc.any(instants).as_py():
            return numbers
        if pc.all(instants).as_py():
            return times.cast(_UTC)
        pairs = zip(instants.to_pylist(), numbers.to_pylist(), times.cast(_UTC).to_pylist(), strict=True)
        return [instant if flag else number for flag, number, instant in pairs]


def arrivals_of(txid: int, positions: Numbers) -> Numbers:
    """Return the arrivals of rows at these positions in a transaction, which are those of no other row.

    Raises:
        InputError: the transaction has more rows than there are arrivals.
    """
    if len(positions) and int(positions.max()) >> POSITION_BITS:
        raise InputError(
            f"transaction {txid} has too many rows for a join: expected at most {1 << POSITION_BITS:,}, evenly "
            "distributed over its tasks; lower the caps of the spout, such as max_batch_rows"
        )
    return positions + (txid << POSITION_BITS)


def taken(chunk: Chunk, which: Mask) -> Chunk:
    """Select tuples of a chunk."""
    if which.all():
        return chunk
    assert chunk.times is not None
    values: Any = chunk.values
    if isinstance(values, list):
        values = list(compress(values, which))
    else:
        values = values.filter(pa.array(which))
    return replace(chunk, values=values, times=chunk.times[which])


def texts_of(values: pa.Array | list[Any], name: str, *, key: bool = False) -> pa.Array:
    """Return values as texts that `values_of` converts back; None stays None.

    `key`: whether equal numbers, such as the decimals 1.5 and 1.50, have the same text.
    """
    if isinstance(values, list):
        return pa.array([_text(plain(value) if key else value, name) for value in values], pa.string())
    kind = values.type
    if pa.types.is_dictionary(kind):
        return texts_of(values.dictionary_decode(), name, key=key)
    if pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return values.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = values.cast(pa.string())
        tagged = pc.match_substring_regex(texts, _TAGGED)
        if not pc.any(tagged).as_py():
            return texts
        return pa.array([_text(value, name) for value in texts.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pa.array([_text(value, name) for value in values.to_pylist()], pa.string())
    encoded = values.dictionary_encode()
    return texts_of(encoded.dictionary.to_pylist(), name, key=key).take(encoded.indices)


def _texts_of_keys(rows: Iterable[Sequence[Any]]) -> pa.Array:
    """Return the texts of keys of several fields; None if one of the fields is None."""
    return pa.array([None if None in row else row_text(row) for row in map(list, rows)], pa.string())


def values_of(texts: pa.Array) -> pa.Array | list[Any]:
    """Return the values of texts made by `texts_of`; a list if they have no common type, nulls if all are None."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts))
    tagged = pc.match_substring_regex(texts, _TAGGED)
    if not pc.any(tagged).as_py():
        return texts
    if pc.all(pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")).as_py():
        return texts.cast(pa.int64())
    encoded = texts.dictionary_encode()
    distinct = [
        value_of(text) if special else text
        for text, special in zip(
            encoded.dictionary.to_pylist(),
            pc.match_substring_regex(encoded.dictionary, _TAGGED).to_pylist(),
            strict=True,
        )
    ]
    if len({type(value) for value in distinct}) == 1:
        try:
            return pa.array(distinct).take(encoded.indices)
        except (pa.ArrowException, OverflowError, TypeError):  # a decimal that is not finite
            pass
    return [None if code is None else distinct[code] for code in encoded.indices.to_pylist()]


def _text(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and not _may_be_tagged(value):
        return str.__str__(value)
    return text_of(value, name)


def _may_be_tagged(value: str) -> bool:
    return value[:1] in set('-0123456789{["') - {""} or value in ("true", "false", "null", "NaN", "Infinity")


def typed(values: pa.Array | Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column of a declared type; raise `Misfit` for one that does not fit."""
    return converted(values, kind) if isinstance(values, pa.Array) else column_of(values, kind)


def _instants(values: pa.Array | list[Any], size: int) -> pa.Array:
    """Return which times are datetimes."""
    if isinstance(values, list):
        return pa.array([not isinstance(value, int) for value in values], pa.bool_())
    return pa.repeat(pa.scalar(not pa.types.is_integer(values.type)), size)
