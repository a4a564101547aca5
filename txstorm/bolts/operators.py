"""Operators of expressions on Arrow columns: conversion, arithmetic, comparison, three-valued logic, and choice by row.

Each function takes operands that are bound to types, checks these, and returns the bound result. Columns of fields are
converted to a few types first: bool, int64, float64, string, date32, UTC timestamps in microseconds, and decimals with
at most 18 digits after the point. An operand that may fail is evaluated for those rows only whose result needs it. They
are one module, as they are bound, combined and evaluated in the same way.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import ROUND_05UP, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.errors import InputError
from txstorm.misfits import Misfit, shown
from txstorm.typed import ARROW_ERRORS, column_of, converted, nearest, python_type, python_values

NULL, BOOL, INT, FLOAT, STR, DATE = pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string(), pa.date32()
TIME = pa.timestamp("us", tz="UTC")
DIGITS, PLACES = 38, 18
"""Most digits of a decimal, and most of them after the point."""
_INNER = {bool: BOOL, int: INT, float: FLOAT, str: STR, date: DATE, datetime: TIME}
_WIDE = pa.decimal256(76, PLACES)
"""Type in which decimals are compared: it holds each of them."""
_CONTEXT = Context(prec=160)
_QUOTIENT = Context(prec=64, rounding=ROUND_05UP)
"""Context whose quotients may be rounded again, to the digits that a result has."""
_WORDS = {NULL: "null", BOOL: "bool", INT: "int", FLOAT: "float", STR: "text", DATE: "date", TIME: "datetime"}


def decimal_type(places: int) -> pa.DataType:
    """Return the type of decimals with `places` digits after the point, at most `PLACES`."""
    return pa.decimal128(DIGITS, min(PLACES, places))


def is_decimal(kind: pa.DataType) -> bool:
    """Return whether a type is one of decimals."""
    return bool(pa.types.is_decimal(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether values of a type can be calculated with; null counts as a number."""
    return kind in (NULL, INT, FLOAT) or is_decimal(kind)


def inner_type(given: pa.DataType) -> pa.DataType:
    """Return the type to which a column of the type `given` is converted before anything is computed."""
    if pa.types.is_dictionary(given):
        given = given.value_type
    exact = python_type(given)
    if exact is Decimal:
        fits = pa.types.is_decimal128(given) and 0 <= given.scale <= PLACES
        return given if fits else decimal_type(max(0, given.scale))
    return _INNER.get(exact, given)


def words(kind: pa.DataType) -> str:
    """Return the name of a type for messages."""
    return "decimal" if is_decimal(kind) else _WORDS.get(kind, str(kind))


class Frame:
    """Rows for which an expression is evaluated: the columns that it reads, converted when first used."""

    def __init__(self, columns: Mapping[str, Any], size: int) -> None:
        self._columns, self.size = columns, size
        self._converted: dict[str, pa.Array] = {}

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the values of a field, of its inner type `kind`."""
        if name not in self._converted:
            try:
                self._converted[name] = converted(self._columns[name], kind)
            except Misfit as error:
                raise Misfit(f"field {name!r}: {error}", error.row) from None
        return self._converted[name]

    def taken(self, rows: Any) -> Frame:
        """Return the rows with these indices."""
        chosen = pa.array(rows, pa.int64())
        return Frame({name: column.take(chosen) for name, column in self._columns.items()}, len(rows))


@dataclass(frozen=True)
class Bound:
    """An expression whose fields have known types.

    Attributes:
        kind: the type of its values.
        text: the expression as it was written, for messages.
        run: computes its values for the rows of a frame.
        fails: whether `run` may raise `Misfit` for a row.
        constant: the value of a literal, as a tuple; None for anything else.
    """

    kind: pa.DataType
    text: str
    run: Callable[[Frame], pa.Array]
    fails: bool = False
    constant: tuple[Any] | None = None


def literal(value: Any, kind: pa.DataType, text: str) -> Bound:
    """Return a constant."""
    one = pa.scalar(value, kind)
    return Bound(kind, text, lambda frame: pa.repeat(one, frame.size), constant=(value,))


def field(name: str, given: pa.DataType, text: str) -> Bound:
    """Return the values of a field whose columns have the type `given`."""
    kind = inner_type(given)
    return Bound(kind, text, lambda frame: frame.column(name, kind), fails=kind != given)


def refused(text: str, expected: str, *operands: Bound) -> InputError:
    """Return the error for operands of types that do not fit."""
    got = " and ".join(f"{one.text} of type {words(one.kind)}" for one in operands)
    return InputError(f"{text}: expected {expected}, got {got}")


def by_row(text: str, function: Callable[..., Any], kind: pa.DataType, *columns: pa.Array) -> pa.Array:
    """Apply a function of Python values to each row without None; raise `Misfit` for the first row that fails."""
    values = []
    for row, given in enumerate(zip(*map(python_values, columns), strict=True)):
        try:
            values.append(None if any(one is None for one in given) else function(*given))
        except ZeroDivisionError:
            raise Misfit(f"{text}: division of {shown(given[0])} by zero", row) from None
        except (ArithmeticError, ValueError) as error:
            why = str(error) if type(error) is ValueError else f"no result for {', '.join(map(shown, given))}"
            raise Misfit(f"{text}: {why}", row) from None
    try:
        return column_of(values, kind)
    except Misfit as error:
        raise Misfit(f"{text}: {error}", error.row) from None


def computed(
    text: str, fast: Callable[..., pa.Array] | None, slow: Callable[..., Any], kind: pa.DataType, *operands: Bound
) -> Bound:
    """Return the result of a function of columns, `fast`, where it can give it; else that of `slow`, row by row."""

    def run(frame: Frame) -> pa.Array:
        columns = [one.run(frame) for one in operands]
        if fast is not None:
            try:
                return fast(*columns)
            except ARROW_ERRORS:
                pass  # the values decide, one by one
        return by_row(text, slow, kind, *columns)

    return Bound(kind, text, run, fails=True)


def mapped(text: str, function: Callable[..., pa.Array], kind: pa.DataType, *operands: Bound) -> Bound:
    """Return the result of a function of columns that has one for all values."""
    fails = any(one.fails for one in operands)
    return Bound(kind, text, lambda frame: function(*(one.run(frame) for one in operands)), fails)


def needed(frame: Frame, mask: Any, one: Bound) -> pa.Array:
    """Return the values of `one` for the rows of `mask`; what stands in the others does not matter."""
    if not one.fails or mask.all():
        return one.run(frame)
    rows = np.flatnonzero(mask)
    if not len(rows):
        return pa.nulls(frame.size, one.kind)
    try:
        part = one.run(frame.taken(rows))
    except Misfit as error:
        error.row = None if error.row is None else int(rows[error.row])
        raise
    return part.take(pa.array(np.cumsum(mask) - 1, mask=~mask))


def _true(column: pa.Array, if_null: bool = False) -> Any:
    return np.array(column.fill_null(if_null).to_numpy(zero_copy_only=False), bool)


# -- types -------------------------------------------------------------------------------------------------------------


def common(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the type that values of all these types can have; None if there is none."""
    found = [kind for kind in dict.fromkeys(kinds) if kind != NULL]
    if len(found) < 2:
        return found[0] if found else NULL
    if not all(map(is_number, found)):
        return None
    return FLOAT if FLOAT in found else decimal_type(max(kind.scale for kind in found if is_decimal(kind)))


def as_type(one: Bound, kind: pa.DataType) -> Bound:
    """Convert to a wider type of numbers, or from null to any type."""
    if one.kind == kind:
        return one
    if one.kind == NULL:
        return Bound(kind, one.text, lambda frame: pa.nulls(frame.size, kind))
    if one.constant is not None:
        with suppress(*ARROW_ERRORS):  # too many digits: that fails for each row
            return literal(float(one.constant[0]) if kind == FLOAT else Decimal(one.constant[0]), kind, one.text)
    if kind != FLOAT:
        return replace(one, kind=kind, fails=True, run=lambda frame: _scaled(one.text, one.run(frame), kind))
    if one.kind == INT:
        return mapped(one.text, lambda column: column.cast(pa.float64(), safe=False), kind, one)
    # By their texts: what Arrow makes of decimals is not always the nearest float.
    return mapped(one.text, lambda column: column.cast(pa.string()).cast(pa.float64()), kind, one)


def _scaled(text: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return converted(column, kind)
    except Misfit as error:
        raise Misfit(f"{text}: {error}", error.row) from None


# -- arithmetic --------------------------------------------------------------------------------------------------------

_SYMBOLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "+": (pc.add_checked, operator.add, _CONTEXT.add),
    "-": (pc.subtract_checked, operator.sub, _CONTEXT.subtract),
    "*": (pc.multiply_checked, operator.mul, _CONTEXT.multiply),
    "/": (pc.divide_checked, operator.truediv, _QUOTIENT.divide),
}


def arithmetic(symbol: str, left: Bound, right: Bound, text: str) -> Bound:
    """Return a sum, difference, product or quotient.

    Decimals are exact, but products and quotients are rounded (half to even) to 18 digits after the point.
    """
    if not (is_number(left.kind) and is_number(right.kind)):
        hint = "; texts are joined by concat(…)" if symbol == "+" and STR in (left.kind, right.kind) else ""
        raise refused(text, f"numbers for {symbol}{hint}", left, right)
    fast, slow, exact = _SYMBOLS[symbol]
    kind = common((left.kind, right.kind))
    if kind == NULL:
        return Bound(NULL, text, lambda frame: pa.nulls(frame.size))
    if not is_decimal(kind):
        kind = FLOAT if symbol == "/" else kind
        return computed(text, fast, slow, kind, as_type(left, kind), as_type(right, kind))
    left, right = (as_type(one, decimal_type(0)) if one.kind in (INT, NULL) else one for one in (left, right))
    places = (left.kind.scale, right.kind.scale)
    kind = decimal_type({"*": sum(places), "/": PLACES}.get(symbol, max(places)))

    def by_value(a: Decimal, b: Decimal) -> Decimal:
        return rounded(exact(a, b), kind.scale, ROUND_HALF_EVEN)

    def by_column(a: pa.Array, b: pa.Array) -> pa.Array:
        result = fast(*(converted(c, pa.decimal256(n, c.type.scale)) for c, n in ((a, DIGITS), (b, DIGITS - 2))))
        return nearest(result, kind)

    return computed(text, None if symbol == "/" else by_column, by_value, kind, left, right)


def rounded(value: Decimal, places: int, mode: str = ROUND_HALF_UP) -> Decimal:
    """Round a decimal to a number of digits after the point."""
    return value.quantize(Decimal(1).scaleb(-places), mode, _CONTEXT)


def negative(one: Bound, text: str) -> Bound:
    """Return a number with the other sign."""
    if not is_number(one.kind):
        raise refused(text, "a number after -", one)
    if one.constant is not None and one.kind != NULL:
        value = one.constant[0]
        return literal(value.copy_negate() if isinstance(value, Decimal) else -value, one.kind, text)
    if one.kind in (NULL, FLOAT) or is_decimal(one.kind):
        return mapped(text, (lambda column: column) if one.kind == NULL else pc.negate, one.kind, one)
    return computed(text, pc.negate_checked, operator.neg, one.kind, one)


# -- comparison --------------------------------------------------------------------------------------------------------

_COMPARED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "=": (pc.equal, operator.eq),
    "<>": (pc.not_equal, operator.ne),
    "<": (pc.less, operator.lt),
    "<=": (pc.less_equal, operator.le),
    ">": (pc.greater, operator.gt),
    ">=": (pc.greater_equal, operator.ge),
}


def comparison(symbol: str, left: Bound, right: Bound, text: str) -> Bound:
    """Return whether two values compare so; null if one of them is null. Ints and decimals are compared exactly."""
    symbol = {"==": "=", "!=": "<>"}.get(symbol, symbol)
    fast, slow = _COMPARED[symbol]
    kind = common((left.kind, right.kind))
    if kind is None or not (kind in _WORDS or is_decimal(kind)) or (kind == BOOL and symbol not in ("=", "<>")):
        raise refused(text, f"values of one type for {symbol}{_hint(left, right)}", left, right)
    if NULL in (left.kind, right.kind):
        return _no_answer(text, left, right)
    if is_decimal(kind) and left.kind != right.kind:  # a common type may have too few digits before the point
        left, right = _like(left, right.kind), _like(right, left.kind)
        kind = left.kind if left.kind == right.kind else _WIDE
        return mapped(text, lambda *given: fast(*(converted(one, kind) for one in given)), BOOL, left, right)
    if INT in (left.kind, right.kind) and kind == FLOAT and left.constant is None and right.constant is None:
        # Arrow refuses to make a float of an int that it may not hold exactly; then Python compares.
        exact = computed(text, lambda *given: fast(*(c.cast(pa.float64()) for c in given)), slow, BOOL, left, right)
        return replace(exact, fails=left.fails or right.fails)
    return mapped(text, fast, BOOL, as_type(left, kind), as_type(right, kind))


def _like(one: Bound, kind: pa.DataType) -> Bound:
    """Return a constant with the type of the decimals that it is compared with, if it has one; else `one`."""
    with suppress(*ARROW_ERRORS):
        if one.constant is not None and is_decimal(kind):
            return literal(Decimal(one.constant[0]), kind, one.text)
    return one


def _no_answer(text: str, *operands: Bound) -> Bound:
    return mapped(text, lambda *columns: pa.nulls(len(columns[0]), BOOL), BOOL, *operands)


def _hint(left: Bound, right: Bound) -> str:
    kinds = {left.kind, right.kind}
    if kinds == {DATE, TIME}:
        return "; use date(…) of a datetime"
    name = "date" if DATE in kinds else "timestamp" if TIME in kinds else ""
    if STR in kinds and name:
        return f"; write a constant as {name} '…'"
    return "; use cast(… as …)" if STR in kinds else ""


def membership(one: Bound, values: Sequence[Bound], text: str) -> Bound:
    """Return whether a value is equal to one of `values`."""
    plain = [value for value in values if value.constant is not None and value.kind == one.kind]
    if one.kind not in (INT, STR, DATE, TIME) or len(plain) < 2:
        return logic("or", [comparison("=", one, value, text) for value in values], text)
    known = pa.array([value.constant[0] for value in plain if value.constant is not None], one.kind)

    def run(column: pa.Array) -> pa.Array:
        return pc.if_else(pc.is_valid(column), pc.is_in(column, known), pa.scalar(None, BOOL))

    parts = [mapped(text, run, BOOL, one)]
    parts += [comparison("=", one, value, text) for value in values if value not in plain]
    return logic("or", parts, text)


def likeness(one: Bound, pattern: str, text: str) -> Bound:
    """Return whether a text has the form of `pattern`: ``%`` stands for any characters, ``_`` for one."""
    if one.kind == NULL:
        return _no_answer(text, one)
    if one.kind != STR:
        raise refused(text, "a text before like", one)
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    regex = "".join(wild.get(part) or re.escape(part[1:] if len(part) > 1 else part) for part in parts)
    return mapped(text, lambda column: pc.match_substring_regex(column, rf"(?s)\A{regex}\z"), BOOL, one)


# -- logic -------------------------------------------------------------------------------------------------------------


def condition(one: Bound, where: str) -> Bound:
    """Return an operand that is true, false or null."""
    if one.kind not in (BOOL, NULL):
        raise refused(where, "a condition, which is true or false", one)
    return as_type(one, BOOL)


def logic(symbol: str, parts: Sequence[Bound], text: str) -> Bound:
    """Return ``and`` or ``or`` of conditions: null is neither, unless the others decide."""
    parts = [condition(part, text) for part in parts]
    is_and = symbol == "and"
    join = pc.and_kleene if is_and else pc.or_kleene

    def run(frame: Frame) -> pa.Array:
        result = parts[0].run(frame)
        for part in parts[1:]:
            undecided = _true(result, if_null=True) if is_and else ~_true(result)
            result = join(result, needed(frame, undecided, part))
        return result

    return Bound(BOOL, text, run, any(part.fails for part in parts))


def negation(one: Bound, text: str) -> Bound:
    """Return the opposite of a condition; null stays null."""
    return mapped(text, pc.invert, BOOL, condition(one, text))


def presence(one: Bound, text: str, *, null: bool) -> Bound:
    """Return whether a value is null, or is not."""
    return mapped(text, pc.is_null if null else pc.is_valid, BOOL, one)


def _of_one_type(values: Sequence[Bound], text: str) -> list[Bound]:
    kind = common([value.kind for value in values])
    if kind is None:
        raise refused(text, "results of one type", *values)
    return [as_type(value, kind) for value in values]


def choice(pairs: Sequence[tuple[Bound, Bound]], otherwise: Bound, text: str) -> Bound:
    """Return the value beside the first condition that is true, or else `otherwise`."""
    *values, last = _of_one_type([*(value for _, value in pairs), otherwise], text)
    cases = [(condition(given, text), value) for (given, _), value in zip(pairs, values, strict=True)]

    def run(frame: Frame) -> pa.Array:
        result, rest = pa.nulls(frame.size, last.kind), np.ones(frame.size, bool)
        for given, value in cases:
            hit = rest & _true(needed(frame, rest, given))
            result = pc.if_else(pa.array(hit), needed(frame, hit, value), result)
            rest &= ~hit
        return pc.if_else(pa.array(rest), needed(frame, rest, last), result)

    return Bound(last.kind, text, run, any(one.fails for one in (*(one for pair in cases for one in pair), last)))


def coalesced(values: Sequence[Bound], text: str) -> Bound:
    """Return the first value that is not null."""
    values = _of_one_type(values, text)

    def run(frame: Frame) -> pa.Array:
        result = values[0].run(frame)
        for value in values[1:]:
            null = pc.is_null(result)
            result = pc.if_else(null, needed(frame, _true(null), value), result)
        return result

    return Bound(values[0].kind, text, run, any(value.fails for value in values))
