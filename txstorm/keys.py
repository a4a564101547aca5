"""Keys: the one form of equal values, its text and its bytes, a stable hash, key groups, and their tasks.

Equal values of a type are one key, and values of different types are different keys: ``1``, ``"1"``, ``1.0`` and
``True`` differ. Whatever compares, stores or distributes keys takes their text, bytes or hash from here. The cost is
bounded by the length of a value as it is written: an exponent is not written out.

The bytes are a type tag and the content. The hash of a value is a polynomial over its content bytes (strings, bytes) or
its 64 bits (numbers, times), finished with splitmix64 (Steele, Lea & Flood, OOPSLA 2014); hashes of several columns are
chained. The hash works on whole Arrow columns and never changes: stored key groups depend on it.

It is one module, since text, bytes and hash of a key must agree on which values are equal.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import EmitError, StateError
from txstorm.misfits import LONGEST, decimal_digits, shown
from txstorm.tagged import text_of, value_of

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


# -- one form of equal values ----------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return the form that stands for all values equal to `value`, also within tuples, lists, dicts and sets.

    It is of a base type: that of a subclass, or of a number of NumPy. Decimals have no trailing zeros, zero has no
    sign, there is one NaN, and times are in UTC. A value without such a form is returned as it is.
    """
    kind = type(value)
    if kind in _AS_GIVEN:
        return value
    make = _PLAIN.get(kind)
    if make is None:
        if isinstance(value, np.generic) and value.dtype.kind in "biuf" and not isinstance(value, float):
            item = value.item()
            return value if isinstance(item, np.generic) else plain(item)
        make = next((make for base, make in _PLAIN.items() if isinstance(value, base)), None)
    return value if make is None else make(value)


def plain_values(values: Iterable[Any]) -> list[Any]:
    """Return the `plain` form of each of the values, or of each value of an Arrow column."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        listed: list[Any] = values.to_pylist()
        return listed if any(fits(values.type) for fits in _PLAIN_COLUMNS) else list(map(plain, listed))
    return list(map(plain, values))


def plain_decimal(value: Decimal) -> Decimal:
    """Return the canonical form of `value` among equal decimals, exactly: ``1.5`` for ``1.50``, ``0`` for ``-0``."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return Decimal("-Infinity" if sign else "Infinity") if exponent == "F" else _DECIMAL_NAN
    kept = len(digits)
    while kept and not digits[kept - 1]:
        kept -= 1
    if not kept:
        return Decimal(0)
    exponent += len(digits) - kept
    zeros = exponent if 0 < exponent <= LONGEST - kept else 0
    return Decimal((sign, digits[:kept] + (0,) * zeros, exponent - zeros))


def decimal_text(value: Decimal) -> str:
    """Return the canonical text of a decimal: its digits or, if they are more than `LONGEST`, with an exponent."""
    return decimal_digits(plain_decimal(value))


def _plain_float(value: float) -> float:
    value = float.__float__(value) + 0.0
    return math.nan if math.isnan(value) else value


def _plain_time(value: datetime) -> datetime:
    # Columns of Arrow may have nanoseconds, which Python's times have not.
    if value.utcoffset() is None or getattr(value, "nanosecond", False):
        return value
    try:
        return _EPOCH + timedelta(microseconds=(value - _EPOCH) // timedelta(microseconds=1))
    except OverflowError:
        return value


def _plain_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    parts = {plain(key): plain(part) for key, part in value.items()}
    return dict(sorted(parts.items(), key=lambda item: any_text(item[0])))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECIMAL_NAN = Decimal("NaN")
_PLAIN_COLUMNS = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_binary)
_AS_GIVEN = frozenset({str, int, bool, bytes, type(None)})
_PLAIN: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: _plain_float,
    bytes: bytes.__bytes__,
    datetime: _plain_time,
    date: lambda value: date(value.year, value.month, value.day),
    Decimal: plain_decimal,
    dict: _plain_dict,
    tuple: lambda value: tuple(map(plain, value)),
    list: lambda value: list(map(plain, value)),
    frozenset: lambda value: frozenset(map(plain, value)),
    set: lambda value: set(map(plain, value)),
}


# -- texts of keys -----------------------------------------------------------------------------------------------------

WRITTEN, EQUAL = 1, 2
"""Forms of the texts of keys in tables: of each value as it is written, or of the one form of equal values."""
_MOST_BITS = 14_000
"""Size of an int up to which Python writes it out."""


def text(value: Any, form: int = EQUAL) -> str:
    """Return the text of a key, a value or a tuple of values, as tagged JSON.

    Raises:
        StateError: the value cannot be part of a key.
    """
    return _text(value if form == WRITTEN else _parts(value), value)


def row_text(values: Iterable[Any], form: int = EQUAL) -> str:
    """Return the text of a key of several fields, a JSON list of the texts of its values; raise as `canonical` does."""
    values = list(values)
    return _text(values if form == WRITTEN else [_part(value, 63) for value in values], values)


_COMPACT = json.JSONEncoder(separators=(",", ":"))


def row_texts(columns: Sequence[pa.Array], form: int = EQUAL) -> pa.Array:
    """Return the `row_text` of every row of Arrow `columns`; each distinct key is converted once."""
    codes, values = [], []
    for column in columns:
        try:
            encoded = column.dictionary_encode(null_encoding="encode")
        except pa.ArrowNotImplementedError:  # lists, which only tables of an older txstorm have as keys
            listed = zip(*(one.to_pylist() for one in columns), strict=True)
            return pa.array([row_text(row, form) for row in listed], pa.string())
        codes.append(encoded.indices)
        values.append(encoded.dictionary.to_pylist())
    rows, keys = codes[0], [(value,) for value in values[0]]
    if len(columns) > 1:
        distinct, numbers = np.unique(np.stack(codes), axis=1, return_inverse=True)
        picked = (map(some.__getitem__, row) for some, row in zip(values, distinct.tolist(), strict=True))
        rows, keys = pa.array(numbers.reshape(-1)), list(zip(*picked, strict=True))
    if all((pa.types.is_string(one.type) or pa.types.is_int64(one.type)) and not one.null_count for one in columns):
        texts = list(map(_COMPACT.encode, keys))  # what `row_text` gives for such values, in a third of the time
    else:
        texts = [row_text(key, form) for key in keys]
    return pa.array(texts, pa.string()).take(rows)


def id_text(values: Iterable[Any], form: int = EQUAL) -> str | None:
    """Return the text of an id with these parts; None if a part is None.

    A string is its own text, except that one which begins with ``=`` gets another ``=``; any other value is ``=`` and
    its `text`. Parts are joined by commas, with commas and backslashes in them escaped.
    """
    texts = []
    for value in values:
        if value is None:
            return None
        if isinstance(value, str):
            value = str.__str__(value)
            texts.append(f"={value}" if value.startswith("=") else value)
        else:
            texts.append(f"={text(value, form)}")
    if len(texts) == 1:
        return texts[0]
    return ",".join(one.replace("\\", "\\\\").replace(",", "\\,") for one in texts)


def id_texts(columns: Sequence[pa.Array], form: int = EQUAL) -> pa.Array:
    """Return the `id_text` of every row of Arrow `columns`; strings and ints without a Python object per row."""
    texts = [_id_column(column, form) for column in columns]
    if len(texts) == 1:
        return texts[0]
    escaped = (pc.replace_substring(pc.replace_substring(one, "\\", "\\\\"), ",", "\\,") for one in texts)
    return pc.binary_join_element_wise(*escaped, ",")


def _id_column(column: pa.Array, form: int) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts = column.cast(pa.string())
        marked = pc.starts_with(texts, "=")
        if not pc.any(marked).as_py():
            return texts
        return pc.if_else(marked, pc.binary_join_element_wise("=", texts, ""), texts)
    if pa.types.is_integer(column.type):
        return pc.binary_join_element_wise("=", column.cast(pa.string()), "")
    if pa.types.is_nested(column.type):
        return pa.array([id_text([value], form) for value in column.to_pylist()], pa.string())
    encoded = column.dictionary_encode()
    texts = pa.array([id_text([value], form) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


class Name(str):
    """Name of a value of a type whose values had other names in older versions, one for each spelling.

    Attributes:
        kind: the type.
    """

    __slots__ = ("kind",)
    kind: type

    @classmethod
    def of(cls, name: str, kind: type) -> Name:
        """Return the name of a value of the type `kind`."""
        made = cls(name)
        made.kind = kind
        return made

    def others(self, known: Iterable[str]) -> list[str]:
        """Return those of the `known` names that an older version gave to the same value."""
        value = _READ[self.kind](self)
        return [one for one in known if one != self and _is_named(value, one)]


def name_of(value: Any) -> str:
    """Return the name of a value that stands for a partition; equal values have one, and 7 has the same as ``"7"``."""
    found = plain(value)
    return Name.of(str(found), type(found)) if type(found) in _READ else str(found)


def are_named(parts: Sequence[Any], given: Sequence[Any]) -> bool:
    """Return whether the parts of a key are the given ones: equal values, or their names in any spelling."""
    return len(parts) == len(given) and all(map(_is_named, map(plain, parts), given))


def _is_named(part: Any, given: Any) -> bool:
    try:
        if not isinstance(given, str) or isinstance(part, str):
            return text(part) == text(given)
        return given == name_of(part) or (type(part) in _READ and text(_READ[type(part)](given)) == text(part))
    except (ValueError, ArithmeticError, StateError):
        return False


_READ: dict[type, Callable[[str], Any]] = {Decimal: Decimal, float: float, datetime: datetime.fromisoformat}
SPELLED = tuple(_READ)
"""Types whose values have several spellings."""


def equal_text(stored: str) -> str:
    """Return the text, in the form `EQUAL`, of a key of which a table has the `text` or `row_text` of either form."""
    value = value_of(stored)
    return row_text(value) if isinstance(value, list) else text(value)


def equal_id(stored: str, parts: int) -> str:
    """Return the text, in the form `EQUAL`, of an id with a number of `parts`, of which a table has the text."""
    texts = [stored] if parts == 1 else [re.sub(r"\\(.)", r"\1", one) for one in _SEPARATED.findall(stored + ",")]
    return str(id_text([one[1:] if one[:2] == "==" else value_of(one[1:]) if one[:1] == "=" else one for one in texts]))


_SEPARATED = re.compile(r"((?:[^,\\]|\\.)*),", re.DOTALL)


def any_text(value: Any) -> str:
    """Return a text of a value that cannot be a key, by which it is distributed; equal values have equal texts."""
    try:
        return text_of(plain(value), "")
    except EmitError:
        return repr(value)


def _parts(value: Any) -> Any:
    """Return the form of a value that can be part of a key, or of a tuple of such; raise `StateError` for another."""
    return tuple(map(_parts, value)) if isinstance(value, tuple) else _part(value, _MOST_BITS)


def _part(value: Any, bits: int) -> Any:
    """Return the form of a value that can be part of a key; `bits`: size of the largest int."""
    value = plain(value)
    kind = type(value)
    if kind not in _ENCODERS or kind is datetime or (kind is int and value.bit_length() > bits):
        canonical_value(value)  # the error says what is wrong
    elif kind is str and not value.isascii():
        _str_bytes(value)
    return value


def _text(value: Any, given: Any) -> str:
    try:
        return text_of(value, "key")
    except (EmitError, ValueError) as error:
        raise StateError(f"{type(given).__name__} {shown(given)} cannot be part of a key: {error}") from None


# -- bytes of keys -----------------------------------------------------------------------------------------------------


def canonical_value(value: Any) -> tuple[bytes, bytes]:
    """Return type tag and content bytes of one value; raise `StateError` for one that cannot be a key."""
    encode = _ENCODERS.get(type(value))
    if encode is None:
        value = plain(value)
        encode = _ENCODERS.get(type(value))
    if encode is None:
        whole = "" if not isinstance(value, datetime) else ", in whole microseconds"
        raise StateError(f"{type(value).__name__} {shown(value)} cannot be part of a key; use {KEY_TYPES}{whole}")
    return encode(value)


def is_key(value: Any) -> bool:
    """Return whether a value is of a type that can be part of a key."""
    return type(plain(value)) in _ENCODERS


def canonical(values: Sequence[Any]) -> bytes:
    """Return the canonical bytes of a key with several columns: tag, length and content of each part."""
    parts = (canonical_value(value) for value in values)
    return b"".join(tag + struct.pack("<I", len(content)) + content for tag, content in parts)


def _int_bytes(value: int) -> bytes:
    try:
        return struct.pack("<q", value)
    except struct.error:
        msg = f"int {shown(value)} does not fit in 64 bits and cannot be part of a key; use a string"
        raise StateError(msg) from None


def _str_bytes(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        msg = f"str {shown(value)} is no valid Unicode text and cannot be part of a key; replace its lone surrogates"
        raise StateError(msg) from None


def _micros(value: datetime) -> int:
    if value.utcoffset() is None:
        raise StateError(f"datetime {value!r} has no time zone; times are UTC: give it one")
    return (value - _EPOCH) // timedelta(microseconds=1)


KEY_TYPES = "str, int, float, bool, bytes, datetime with a time zone, date, Decimal or None"
_ENCODERS: dict[type, Callable[[Any], tuple[bytes, bytes]]] = {
    type(None): lambda _: (b"N", b""),
    bool: lambda v: (b"t", _int_bytes(int(v))),
    int: lambda v: (b"i", _int_bytes(v)),
    float: lambda v: (b"f", struct.pack("<d", _plain_float(v))),
    str: lambda v: (b"s", _str_bytes(v)),
    bytes: lambda v: (b"b", v),
    datetime: lambda v: (b"T", _int_bytes(_micros(v))),
    date: lambda v: (b"d", _int_bytes(v.toordinal() - date(1970, 1, 1).toordinal())),
    Decimal: lambda v: (b"D", decimal_text(v).encode()),
}
_TEXTUAL = (b"s", b"b", b"D")


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
    try:
        words = _words(column)
    except pa.ArrowInvalid:  # nanoseconds, or beyond 64 bits: the error names the value
        words = None
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
