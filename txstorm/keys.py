"""Keys: canonical bytes, a stable hash, key groups, and the assignment of key groups to tasks.

Every value has canonical bytes, a type tag and its content, so that ``1``, ``"1"`` and ``True`` differ. The hash
of a value is a polynomial over its content bytes (strings, bytes) or its 64 bits (numbers, times), finished with
splitmix64 (Steele, Lea & Flood, OOPSLA 2014); hashes of several columns are chained. The hash is defined only here,
works on whole Arrow columns, and never changes: stored key groups depend on it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txstorm.errors import StateError

KEY_GROUPS = 32768
_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_CHUNK_BYTES = 1 << 20
Hashes = npt.NDArray[np.uint64]


def task_of(key_group: int, parallelism: int) -> int:
    """Return the index of the task, among `parallelism` tasks, that `key_group` is assigned to."""
    return key_group * parallelism // KEY_GROUPS


def tasks_of(key_groups: npt.NDArray[np.int64], parallelism: int) -> npt.NDArray[np.int64]:
    """Return `task_of` for each of many key groups."""
    return key_groups * parallelism // KEY_GROUPS


# -- one value -------------------------------------------------------------------------------------------------


def canonical_value(value: Any) -> tuple[bytes, bytes]:
    """Return type tag and content bytes of one value; raise `StateError` for a type that cannot be a key."""
    encode = _ENCODERS.get(type(value))
    if encode is None:
        msg = f"{type(value).__name__} {value!r} cannot be part of a key; use str, int, bool, bytes, datetime or date"
        raise StateError(msg)
    return encode(value)


def canonical(values: Sequence[Any]) -> bytes:
    """Return the canonical bytes of a key with several columns: tag, length and content of each part."""
    parts = (canonical_value(value) for value in values)
    return b"".join(tag + struct.pack("<I", len(content)) + content for tag, content in parts)


def _int_bytes(value: int) -> bytes:
    try:
        return struct.pack("<q", value)
    except struct.error:
        msg = f"int {value} does not fit in 64 bits and cannot be part of a key; use a string"
        raise StateError(msg) from None


def _micros(value: datetime) -> int:
    if value.tzinfo is None:
        msg = f"datetime {value!r} has no time zone; times are UTC: give it one"
        raise StateError(msg)
    delta = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds


def _float_bytes(value: float) -> bytes:
    return struct.pack("<d", float("nan") if value != value else value + 0.0)  # noqa: PLR0124 - NaN is unequal to itself


_ENCODERS: dict[type, Callable[[Any], tuple[bytes, bytes]]] = {
    type(None): lambda _: (b"N", b""),
    bool: lambda v: (b"t", _int_bytes(int(v))),
    int: lambda v: (b"i", _int_bytes(v)),
    float: lambda v: (b"f", _float_bytes(v)),
    str: lambda v: (b"s", v.encode()),
    bytes: lambda v: (b"b", v),
    datetime: lambda v: (b"T", _int_bytes(_micros(v))),
    date: lambda v: (b"d", _int_bytes(v.toordinal() - date(1970, 1, 1).toordinal())),
    Decimal: lambda v: (b"D", decimal_text(v).encode()),
}
_TEXTUAL = (b"s", b"b", b"D")


_LONGEST = 400
"""Maximum number of digits of a whole number that is written without an exponent."""


def plain_decimal(value: Decimal) -> Decimal:
    """Return the canonical form of `value` among equal decimals, exactly: ``1.5`` for ``1.50``, ``0`` for ``-0``."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return value  # NaN or infinity, which have only one form
    kept = len(digits)
    while kept and not digits[kept - 1]:
        kept -= 1
    if not kept:
        return Decimal(0)
    exponent += len(digits) - kept
    zeros = exponent if 0 < exponent <= _LONGEST - kept else 0
    return Decimal((sign, digits[:kept] + (0,) * zeros, exponent - zeros))


def plain_number(value: Any) -> Any:
    """Return the canonical form of a float or decimal among equal ones: ``0.0`` for ``-0.0``; others as they are."""
    if isinstance(value, float):
        return value + 0.0
    return plain_decimal(value) if isinstance(value, Decimal) else value


def decimal_text(value: Decimal) -> str:
    """Return the canonical text of a decimal, which makes ``1.50`` and ``1.5`` the same key."""
    return format(plain_decimal(value), "f")


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def hash_value(value: Any) -> int:
    """Return the stable 64-bit hash of one value."""
    tag, content = canonical_value(value)
    if tag in _TEXTUAL:
        power, total = 1, 0
        for byte in content:
            total = (total + (byte + 1) * power) & _MASK
            power = power * _MULTIPLIER & _MASK
        bits = total
    else:
        bits = int.from_bytes(content, "little")
    return _mix((bits + tag[0] * _MULTIPLIER) & _MASK)


def hash_values(values: Sequence[Any]) -> int:
    """Return the stable 64-bit hash of a key with several columns."""
    result = 0
    for value in values:
        result = _mix((result * 31 + hash_value(value)) & _MASK)
    return result


def key_group(values: Sequence[Any]) -> int:
    """Return the key group, 0 … 32767, of a key."""
    return (hash_values(values) >> 32) % KEY_GROUPS


# -- whole columns ---------------------------------------------------------------------------------------------


def hash_rows(columns: Sequence[Any], rows: int) -> Hashes:
    """Return `hash_values` of every row of Arrow `columns` (all of length `rows`)."""
    return chained([hash_column(column) for column in columns], rows)


def chained(hashes: Sequence[Hashes], rows: int) -> Hashes:
    """Combine hashes of single columns (all of length `rows`) into `hash_values` of every row."""
    result = np.zeros(rows, dtype=np.uint64)
    for column in hashes:
        result = _mix_array(result * np.uint64(31) + column)
    return result


def key_groups(columns: Sequence[Any], rows: int | None = None) -> npt.NDArray[np.int64]:
    """Return `key_group` of every row of Arrow `columns`."""
    return groups_of(hash_rows(columns, len(columns[0]) if rows is None else rows))


def groups_of(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return the key group of each of the `hashes` of keys."""
    return ((hashes >> np.uint64(32)) % np.uint64(KEY_GROUPS)).astype(np.int64)


def hash_column(column: Any) -> Hashes:
    """Return `hash_value` of every value of an Arrow array or chunked array."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if isinstance(column, pa.ChunkedArray):  # combine_chunks of several chunks may stay chunked
        return np.concatenate([hash_column(chunk) for chunk in column.chunks])
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    hashes = _hash_array(column)
    if column.null_count:
        nulls = np.asarray(column.is_null())
        hashes[nulls] = np.uint64(hash_value(None))
    return hashes


def _hash_array(column: Any) -> Hashes:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _hash_bytes(column, b"s" if pa.types.is_string(kind) else b"b")
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        small = pa.string() if pa.types.is_large_string(kind) else pa.binary()
        return _hash_bytes(column.cast(small), b"s" if pa.types.is_large_string(kind) else b"b")
    words = _words(column)
    if words is None:
        return np.array([hash_value(value) for value in column.to_pylist()], dtype=np.uint64)
    tag, bits = words
    return _mix_array(bits + np.uint64(tag[0] * _MULTIPLIER & _MASK))


def _words(column: Any) -> tuple[bytes, Hashes] | None:
    """Return the type tag and 64 bits per value of a fixed-width column; None for types hashed value by value."""
    kind = column.type
    if pa.types.is_integer(kind):
        return b"i", _bits(column.cast(pa.int64()))
    if pa.types.is_boolean(kind):
        return b"t", _bits(column.cast(pa.int64()))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return b"T", _bits(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
    if pa.types.is_date32(kind):
        return b"d", _bits(column.cast(pa.int32()).cast(pa.int64()))
    if pa.types.is_floating(kind):
        values = np.asarray(filled(column.cast(pa.float64()), 0.0)) + 0.0
        values[np.isnan(values)] = np.nan
        return b"f", values.view(np.uint64)
    return None


def _bits(column: Any) -> Hashes:
    return np.asarray(filled(column, 0)).view(np.uint64)


def filled(column: Any, value: Any) -> Any:
    """Return an Arrow array with `value` in place of nulls; the array itself, not a copy, if there are none."""
    return column.fill_null(value) if column.null_count else column


class _Powers:
    """Powers of the multiplier and of its inverse, grown on demand to the longest run of bytes seen."""

    def __init__(self) -> None:
        one = np.ones(1, dtype=np.uint64)
        self._tables = (one, one)

    def upto(self, count: int) -> tuple[Hashes, Hashes]:
        tables = self._tables
        if len(tables[0]) < count:
            size = 1 << (count - 1).bit_length()
            # A single assignment: other threads see both new tables or neither.
            tables = self._tables = (_powers(_MULTIPLIER, size), _powers(_INVERSE, size))
        return tables


def _powers(base: int, size: int) -> Hashes:
    factors = np.full(size, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


_POWERS = _Powers()


def _hash_bytes(column: Any, tag: bytes) -> Hashes:
    _, offset_buffer, data_buffer = column.buffers()
    count = len(column)
    if count == 0:
        return np.empty(0, dtype=np.uint64)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8) if data_buffer is not None else np.empty(0, dtype=np.uint8)
    sums = np.empty(count, dtype=np.uint64)
    start = 0
    while start < count:
        # Whole rows, about _CHUNK_BYTES at a time, so that the table of powers stays small.
        end = int(np.searchsorted(offsets, offsets[start] + _CHUNK_BYTES, side="right")) - 1
        end = min(max(end, start + 1), count)
        sums[start:end] = _polynomials(data, offsets[start : end + 1])
        start = end
    return _mix_array(sums + np.uint64(tag[0] * _MULTIPLIER & _MASK))


def _polynomials(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Return the sum of (byte + 1) · multiplier^position of every row, from one running sum and inverse powers."""
    base = int(offsets[0])
    size = int(offsets[-1]) - base
    if size == 0:
        return np.zeros(len(offsets) - 1, dtype=np.uint64)
    up, down = _POWERS.upto(size + 1)
    running = np.zeros(size + 1, dtype=np.uint64)
    terms = (data[base : base + size].astype(np.uint64) + np.uint64(1)) * up[:size]
    np.cumsum(terms, out=running[1:])
    starts = offsets[:-1] - base
    return (running[offsets[1:] - base] - running[starts]) * down[starts]


def _mix_array(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
