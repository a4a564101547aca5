"""Functions and casts of expressions, on operands that are bound to types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.names import counted, near
from txstorm.bolts.operators import (
    BOOL,
    DATE,
    DIGITS,
    FLOAT,
    INT,
    NULL,
    PLACES,
    STR,
    TIME,
    Bound,
    as_type,
    by_row,
    coalesced,
    computed,
    decimal_type,
    is_decimal,
    is_number,
    mapped,
    refused,
    rounded,
    words,
)
from txstorm.errors import InputError
from txstorm.keys import decimal_text
from txstorm.misfits import shown
from txstorm.typed import converted, decimals_of, nearest

_SPACE = "".join(one for one in map(chr, range(0x3001)) if one.isspace())
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT = re.compile(r"([0-9-]{10})[Tt ]([0-9:]{5,8}(\.[0-9]{1,6})?) ?([Zz]|[+-][0-9]{2}:?[0-9]{2})?")
_TYPES = {"str": STR, "int": INT, "float": FLOAT, "bool": BOOL, "date": DATE, "datetime": TIME}


# -- texts of dates, times and numbers ---------------------------------------------------------------------------------


def day_of(text: str) -> date:
    """Return the date that a text is, such as ``2026-05-01``; raise `ValueError` if it is none."""
    if _DAY.fullmatch(text):
        return date.fromisoformat(text)
    raise ValueError(f"expected a date such as 2026-05-01, got {shown(text)}")


def instant_of(text: str) -> datetime:
    """Return the time that a text is, such as ``2026-05-01T12:00:00Z``; raise `ValueError` if it is none."""
    found = _INSTANT.fullmatch(text)
    if found is None or found[4] is None:
        missing = " with a time zone" if found else ""
        raise ValueError(f"expected a time{missing} such as 2026-05-01T12:00:00Z, got {shown(text)}")
    try:
        return datetime.fromisoformat(f"{found[1]}T{found[2]}{found[4].upper()}").astimezone(UTC)
    except OverflowError:
        raise ValueError(f"expected a time of the years 1 to 9999 in UTC, got {shown(text)}") from None


def _number_text(text: str) -> str:
    if _NUMBER.fullmatch(text := text.strip()):
        return text
    raise ValueError(f"expected a number, got {shown(text)}")


def _int_of(text: str) -> int:
    value = Decimal(_number_text(text))
    if abs(value.adjusted()) < DIGITS and value == int(value):
        return int(value)
    raise ValueError(f"expected a whole number of at most 64 bits, got {shown(text)}")


def _bool_of(text: str) -> bool:
    if (word := text.strip().lower()) in ("true", "false"):
        return word == "true"
    raise ValueError(f"expected true or false, got {shown(text)}")


# -- casts -------------------------------------------------------------------------------------------------------------

Slow = Callable[[Any], Any]
_CASTS: dict[tuple[str, str], Slow] = {
    ("text", "int"): _int_of,
    ("text", "float"): lambda text: float(_number_text(text)),
    ("text", "bool"): _bool_of,
    ("text", "decimal"): lambda text: Decimal(_number_text(text)),
    ("text", "date"): lambda text: day_of(text.strip()),
    ("text", "datetime"): lambda text: instant_of(text.strip()),
    ("int", "text"): str,
    ("int", "bool"): bool,
    ("int", "float"): float,
    ("int", "decimal"): Decimal,
    ("float", "text"): repr,
    ("float", "int"): int,
    ("float", "decimal"): lambda value: Decimal(repr(value)),
    ("decimal", "text"): decimal_text,
    ("decimal", "int"): int,
    ("decimal", "float"): float,
    ("decimal", "decimal"): lambda value: value,
    ("bool", "text"): lambda value: "true" if value else "false",
    ("bool", "int"): int,
    ("date", "text"): str,
    ("date", "datetime"): lambda day: datetime(day.year, day.month, day.day, tzinfo=UTC),
    ("datetime", "text"): lambda instant: instant.isoformat().replace("+00:00", "Z"),
    ("datetime", "date"): lambda instant: instant.date(),
}


def _if_all_match(pattern: str, then: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    """Return `then` for columns of texts of a plain form, which Arrow parses as Python does."""

    def run(column: pa.Array) -> pa.Array:
        if pc.all(pc.match_substring_regex(column, rf"\A{pattern}\z")).as_py() is False:
            raise ValueError
        return then(column)

    return run


_QUICK: dict[tuple[str, str], Callable[[pa.Array], pa.Array]] = {
    ("text", "int"): _if_all_match("-?[0-9]{1,18}", lambda column: column.cast(pa.int64())),
    ("text", "float"): _if_all_match(r"-?[0-9]+(\.[0-9]+)?", lambda column: column.cast(pa.float64())),
    ("int", "text"): lambda column: column.cast(pa.string()),
    ("int", "float"): lambda column: column.cast(pa.float64(), safe=False),
    ("float", "int"): lambda column: pc.trunc(column).cast(pa.int64()),
    ("date", "datetime"): lambda column: column.cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC")),
    ("datetime", "date"): lambda column: column.cast(pa.timestamp("us")).cast(pa.date32()),
}


def type_named(name: str, numbers: Sequence[int], text: str) -> pa.DataType:
    """Return the type with a name in a cast: ``int``, ``decimal(12, 2)`` and so on."""
    known = name.lower()
    if known == "decimal":
        if not numbers:
            return decimal_type(PLACES)
        digits, places = (*numbers, 0)[:2]
        if len(numbers) < 3 and 0 < digits <= DIGITS and 0 <= places <= min(digits, PLACES):
            return pa.decimal128(digits, places)
        msg = f"{text}: expected decimal(p, s) of at most {DIGITS} digits, at most {PLACES} of them after the point"
        raise InputError(msg)
    if known not in _TYPES or numbers:
        names = [*_TYPES, "decimal"]
        got = f"{name}(…)" if numbers else f"{name}{near(known, names)}"
        raise InputError(f"{text}: expected one of the types {', '.join(names)} or decimal(p, s), got {got}")
    return _TYPES[known]


def cast(one: Bound, kind: pa.DataType, text: str) -> Bound:
    """Convert values to another type; a value that has none of that type is an error of its row."""
    if one.kind in (kind, NULL):
        return as_type(one, kind)
    pair = (words(one.kind), words(kind))
    slow = _CASTS.get(pair)
    if slow is None:
        names = [source for source, target in _CASTS if target == pair[1]]
        raise refused(text, f"a value that can become a {pair[1]}, one of the types {', '.join(names)}", one)
    if not is_decimal(kind):
        return computed(text, _QUICK.get(pair), slow, kind, one)
    quick: Callable[[pa.Array], pa.Array] | None = None
    if pair[0] == "text":
        places = rf"(\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
        quick = _if_all_match(f"-?[0-9]{{1,{kind.precision}}}{places}", lambda column: decimals_of(column, kind))
    elif pair[0] == "decimal":
        quick = partial(nearest, kind=kind)
    elif pair[0] == "int":
        quick = partial(converted, kind=kind)
    return computed(text, quick, lambda value: rounded(slow(value), kind.scale), kind, one)


# -- functions ---------------------------------------------------------------------------------------------------------


def _expected(one: Bound, kind: pa.DataType, text: str) -> Bound:
    if one.kind not in (kind, NULL):
        raise refused(text, f"a {words(kind)}", one)
    return as_type(one, kind)


def _of_text(kind: pa.DataType, function: Callable[[pa.Array], pa.Array], slow: Slow | None = None) -> Any:
    """Return a function of a text; `slow` computes what is not ASCII, as Python does."""

    def bind(text: str, one: Bound) -> Bound:
        def run(column: pa.Array) -> pa.Array:
            if slow is None or pc.all(pc.string_is_ascii(column)).as_py() is not False:
                return function(column)
            return by_row(text, slow, kind, column)

        return mapped(text, run, kind, _expected(one, STR, text))

    return bind


def _of_pattern(quick: Callable[[pa.Array, str], pa.Array], slow: Callable[[str, str], bool]) -> Any:
    def bind(text: str, one: Bound, pattern: Bound) -> Bound:
        operands = [_expected(part, STR, text) for part in (one, pattern)]
        if pattern.constant is not None and isinstance(known := pattern.constant[0], str):
            return mapped(text, lambda column: quick(column, known), BOOL, operands[0])
        return mapped(text, lambda *columns: by_row(text, slow, BOOL, *columns), BOOL, *operands)

    return bind


def _replaced(text: str, *parts: Bound) -> Bound:
    one, old, new = (_expected(part, STR, text) for part in parts)
    if old.constant is not None and new.constant is not None and old.constant[0]:
        quick = (old.constant[0], new.constant[0])
        return mapped(text, lambda column: pc.replace_substring(column, *quick), STR, one)

    def by_value(value: str, before: str, after: str) -> str:
        return value.replace(before, after) if before else value

    return mapped(text, lambda *columns: by_row(text, by_value, STR, *columns), STR, one, old, new)


def _substring(text: str, one: Bound, first: Bound, length: Bound | None = None) -> Bound:
    numbers = [_expected(part, INT, text) for part in (first, length) if part is not None]

    def by_value(value: str, start: int, size: int | None = None) -> str:
        if start < 1 or (size is not None and size < 0):
            raise ValueError(f"expected a start of at least 1 and a length of at least 0, got {start} and {size}")
        return value[start - 1 :] if size is None else value[start - 1 : start - 1 + size]

    quick = None
    known = [part.constant[0] for part in numbers if part.constant is not None]
    if len(known) == len(numbers) and known[0] > 0 and known[-1] >= 0:
        start, stop = known[0] - 1, known[0] - 1 + known[1] if len(known) > 1 else None

        def quick(column: pa.Array, *_: pa.Array) -> pa.Array:
            return pc.utf8_slice_codeunits(column, start, stop)

    return computed(text, quick, by_value, STR, _expected(one, STR, text), *numbers)


def _concat(text: str, *parts: Bound) -> Bound:
    texts = [_expected(part, STR, text) for part in parts]
    return mapped(text, lambda *columns: pc.binary_join_element_wise(*columns, pa.scalar("", STR)), STR, *texts)


def _number(one: Bound, text: str) -> Bound:
    if not is_number(one.kind):
        raise refused(text, "a number", one)
    return as_type(one, INT) if one.kind == NULL else one


def _abs(text: str, one: Bound) -> Bound:
    one = _number(one, text)
    slow = Decimal.copy_abs if is_decimal(one.kind) else abs
    return computed(text, pc.abs_checked, slow, one.kind, one)


def _round(text: str, one: Bound, digits: Bound | None = None) -> Bound:
    one, places = _number(one, text), 0
    if digits is not None:
        if digits.constant is None or digits.kind != INT or abs(places := digits.constant[0]) > DIGITS:
            msg = f"{text}: expected a constant from -{DIGITS} to {DIGITS} as the number of digits, got {digits.text}"
            raise InputError(msg)
    if one.kind == INT:
        if places >= 0:
            return one
        return computed(text, None, lambda value: int(rounded(Decimal(value), places)), INT, one)
    if one.kind == FLOAT:
        return computed(
            text,
            None if places else lambda column: pc.round(column, 0, "half_towards_infinity"),
            lambda value: float(rounded(Decimal(repr(value)), places)) if math.isfinite(value) else value,
            FLOAT,
            one,
        )
    if places >= one.kind.scale:
        return one
    kind = pa.decimal128(DIGITS, max(0, places))

    quick = partial(nearest, kind=kind) if places >= 0 else None
    return computed(text, quick, lambda value: rounded(value, places), kind, one)


def _whole(quick: Callable[[pa.Array], pa.Array], slow: Slow) -> Any:
    def bind(text: str, one: Bound) -> Bound:
        one = _number(one, text)
        if one.kind == INT:
            return one
        return computed(text, None if is_decimal(one.kind) else lambda c: quick(c).cast(pa.int64()), slow, INT, one)

    return bind


def _part(name: str, *kinds: pa.DataType) -> Any:
    """Return a function for one part of a date or of a time in UTC."""
    function = getattr(pc, name)

    def bind(text: str, one: Bound) -> Bound:
        if one.kind == NULL:
            return as_type(one, INT)
        if one.kind not in kinds:
            raise refused(text, f"a {' or '.join(map(words, kinds))}; use cast(… as datetime) for texts", one)
        # As times without a zone, so that none is looked up.
        return mapped(text, lambda column: function(column.cast(pa.timestamp("us"))).cast(pa.int64()), INT, one)

    return bind


def _date(text: str, one: Bound) -> Bound:
    if one.kind not in (TIME, DATE, NULL):
        raise refused(text, "a datetime; use cast(… as date) for texts", one)
    return cast(one, DATE, text)


FUNCTIONS: Mapping[str, tuple[int, int, pa.DataType | None, Callable[..., Bound]]] = {
    "abs": (1, 1, None, _abs),
    "ceil": (1, 1, INT, _whole(pc.ceil, math.ceil)),
    "coalesce": (1, 1000, None, lambda text, *values: coalesced(values, text)),
    "concat": (1, 1000, STR, _concat),
    "contains": (2, 2, BOOL, _of_pattern(pc.match_substring, lambda text, part: part in text)),
    "date": (1, 1, DATE, _date),
    "day": (1, 1, INT, _part("day", DATE, TIME)),
    "ends_with": (2, 2, BOOL, _of_pattern(pc.ends_with, str.endswith)),
    "floor": (1, 1, INT, _whole(pc.floor, math.floor)),
    "hour": (1, 1, INT, _part("hour", TIME)),
    "length": (1, 1, INT, _of_text(INT, lambda column: pc.utf8_length(column).cast(pa.int64()))),
    "lower": (1, 1, STR, _of_text(STR, pc.ascii_lower, str.lower)),
    "minute": (1, 1, INT, _part("minute", TIME)),
    "month": (1, 1, INT, _part("month", DATE, TIME)),
    "replace": (3, 3, STR, _replaced),
    "round": (1, 2, None, _round),
    "starts_with": (2, 2, BOOL, _of_pattern(pc.starts_with, str.startswith)),
    "substring": (2, 3, STR, _substring),
    "trim": (1, 1, STR, _of_text(STR, lambda column: pc.utf8_trim(column, _SPACE))),
    "upper": (1, 1, STR, _of_text(STR, pc.ascii_upper, str.upper)),
    "year": (1, 1, INT, _part("year", DATE, TIME)),
}
"""Function → least and most arguments, the type of the result if it is always the same, and how to bind it."""


def check_call(name: str, given: int) -> None:
    """Raise `InputError` if there is no function of this name with that number of arguments."""
    if name not in FUNCTIONS:
        msg = f"there is no function {name!r}{near(name, list(FUNCTIONS))}; expected one of {', '.join(FUNCTIONS)}"
        raise InputError(msg)
    least, most, *_ = FUNCTIONS[name]
    if not least <= given <= most:
        number = counted(least, "argument") if least == most else f"{least} or {counted(most, 'argument')}"
        number = f"at least {counted(least, 'argument')}" if most > 3 else number
        raise InputError(f"{name}: expected {number}, got {given}")
