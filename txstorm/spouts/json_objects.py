"""JSON objects as columns of declared types: the one module that reads types out of JSON, for spouts and joins.

No value is changed to fit: it is what the text says, or its record is reported with the reason. Columns are converted
as a whole; single values are looked at only where a column does not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from math import isinf
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import arrow_type
from txstorm.errors import SettingError
from txstorm.misfits import Misfit, decimal_digits, shown
from txstorm.typed import (
    ARROW_ERRORS,
    misfit,
    of_values,
    python_type,
    python_values,
    shape_of,
    sifted,
    sum_bounds,
    times_of,
)

_NONE = type(None)
_USUAL: Mapping[type, frozenset[type]] = {
    str: frozenset({str, _NONE}),
    bool: frozenset({bool, _NONE}),
    int: frozenset({int, _NONE}),
    float: frozenset({float, int, _NONE}),
    Decimal: frozenset({Decimal, int, _NONE}),
    datetime: frozenset({str, _NONE}),
    date: frozenset({str, _NONE}),
    list: frozenset({_NONE}),
    dict: frozenset({_NONE}),
}
"""Type of a field → types of its values in JSON that need no conversion of single ones."""
_NO_INTS: frozenset[type] = frozenset({float, _NONE})
_NAMED: Mapping[type, str] = {datetime: "a time in ISO 8601 with a zone", date: "a date in ISO 8601"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,9})?")
_DATE = r"^\d{4}-\d\d-\d\d$"
_TIME = r"^\d{4}-\d\d-\d\d[T ]\d\d[0-9:.]*(Z|[+-][0-9:]+)$"
_MOST_DIGITS = 20
"""Digits of the largest integer of Arrow."""
_PLAIN, _EXACT = json.JSONDecoder(), json.JSONDecoder(parse_float=Decimal)


class ObjectColumns(NamedTuple):
    """Fields of JSON objects as a record batch with all rows, null in bad ones; row → reason of each bad one."""

    batch: pa.RecordBatch
    bad: Mapping[int, Misfit]

    def good(self) -> pa.RecordBatch:
        """Return the rows that are not bad."""
        return self.batch.take(pa.array(self.good_rows())) if self.bad else self.batch

    def good_rows(self) -> Any:
        """Return the numbers of the rows that are not bad, as an array of NumPy."""
        return np.delete(np.arange(self.batch.num_rows), list(self.bad))


class JsonObjects:
    """Reader of JSON objects, one a text, whose fields have declared types.

    Other fields are left out, a missing one is None. An int may be written as ``3.0``, a Decimal as a text; times and
    dates are texts in ISO 8601, times with a zone.

    Args:
        types: field → type, as `declared_types` returns them.
    """

    def __init__(self, types: Mapping[str, pa.DataType]) -> None:
        self.types = dict(types)
        self._schema = pa.schema(list(self.types.items()))
        self._is_exact = any(python_type(kind) in (Decimal, list, dict) for kind in self.types.values())

    def read(self, texts: Sequence[str | bytes | None]) -> ObjectColumns:
        """Read the objects in `texts`, which are UTF-8 if they are bytes."""
        bad: dict[int, Misfit] = {}
        records = self._records(texts, bad)
        columns = [self._column(name, records, texts, bad) for name in self.types]
        return ObjectColumns(pa.RecordBatch.from_arrays(columns, schema=self._schema), bad)

    def _records(self, texts: Sequence[str | bytes | None], bad: dict[int, Misfit]) -> list[dict[str, Any]]:
        """Return the objects, empty ones in place of bad records."""
        decoder = _EXACT if self._is_exact else _PLAIN
        read, records = decoder.raw_decode, []
        for row, given in enumerate(texts):
            found, end = None, 0
            try:
                text = given.decode() if isinstance(given, bytes) else given
                if text is not None:
                    if text[:1] == "{":  # the usual case, in a fifth of the time
                        found, end = read(text)
                    if end != len(text) or not end:
                        found = decoder.decode(text)
            except (ValueError, RecursionError, ArithmeticError) as error:
                why = "the exponent of a number is too large" if isinstance(error, ArithmeticError) else error
                bad[row] = Misfit(f"expected JSON objects; got a record that is no JSON: {why}")
            else:
                if type(found) is dict:
                    records.append(found)
                    continue
                bad[row] = Misfit(
                    f"expected JSON objects; got {'null, or no value' if found is None else shown(found)}"
                )
            records.append({})
        return records

    def _column(
        self,
        name: str,
        records: Sequence[Mapping[str, Any]],
        texts: Sequence[str | bytes | None],
        bad: dict[int, Misfit],
    ) -> pa.Array:
        """Return the values of one field as a column; those that do not fit are None, and their records are bad."""
        kind = self.types[name]
        python, values = python_type(kind), [one.get(name) for one in records]
        usual = _usual(kind)
        if usual.issuperset(map(type, values)):
            with suppress(*ARROW_ERRORS):
                column = _converted(values, kind)
                if python is not float or not pc.any(pc.is_inf(column)).as_py():
                    return column
        faults: dict[int, str] = {}
        for row, value in enumerate(values):
            if (inexact := type(value) is float and (python is int or isinf(value))) or type(value) not in usual:
                try:
                    values[row] = _value(_exactly(value, name, texts[row]) if inexact else value, kind)
                except ValueError as error:
                    values[row], faults[row] = None, f", got {error}"
        odd = _unlike(values, _TIME if pa.types.is_timestamp(kind) else _DATE) if pa.types.is_temporal(kind) else []
        faults |= {row: f": {_text_of(values[row])} does not fit {kind}" for row in odd}
        for row in odd:
            values[row] = None
        shape = shape_of(kind) if pa.types.is_temporal(kind) else None
        doubtful = (lambda: _unlike(values, shape)) if shape else tuple
        column, wrong = sifted(values, kind, _converted, lambda: _out_of_range(values, kind), doubtful)
        faults |= {row: f": {_text_of(values[row])} does not fit {kind}" for row in wrong}
        expected = str(kind) if pa.types.is_nested(kind) else _NAMED.get(python, python.__name__)
        for row, fault in faults.items():
            bad.setdefault(row, Misfit(f"field {name!r}: expected {expected} or null{fault}").of(name, kind))
        return column


def declared_types(types: Mapping[str, Any], where: str) -> dict[str, pa.DataType]:
    """Return field → Arrow type for types declared as Python or Arrow types.

    Args:
        types: field → type.
        where: what declares them, for errors.

    Raises:
        SettingError: a name is no text, or a type has no form in JSON.
    """
    made = {name: arrow_type(kind) for name, kind in types.items() if isinstance(name, str) and name}
    if len(made) < len(types) or not made:
        raise SettingError(f"{where}: expected the types of fields, such as {{'n': int}}, got {dict(types)!r}")
    found = {name: kind for name, kind in made.items() if kind is not None and _has_json(kind)}
    if others := [name for name in made if name not in found]:
        known = ", ".join(kind.__name__ for kind in _USUAL if arrow_type(kind) is not None)
        raise SettingError(f"{where}: types of {others} have no form in JSON; expected {known} or such Arrow types")
    return found


def _has_json(kind: pa.DataType) -> bool:
    """Return whether values of a type are read from JSON."""
    inner = (kind.field(i).type for i in range(kind.num_fields))
    return python_type(kind) in _USUAL and all(map(_has_json, inner))


def _converted(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Convert values, of times and dates their texts, to a column; raise one of `ARROW_ERRORS` if one does not fit."""
    return times_of(pa.array(values, pa.string()), kind) if pa.types.is_temporal(kind) else of_values(values, kind)


def _usual(kind: pa.DataType) -> frozenset[type]:
    """Return the types of values in JSON that need no conversion of single ones; Arrow checks ints in doubles only."""
    return _NO_INTS if pa.types.is_floating(kind) and kind.bit_width < 64 else _USUAL[python_type(kind)]


def _unlike(values: Sequence[Any], pattern: str) -> list[int]:
    """Return the rows with texts that a pattern does not match; none if that cannot be seen in all at once."""
    with suppress(*ARROW_ERRORS):
        found = pc.match_substring_regex(pa.array(values, pa.string()), pattern)
        rows: list[int] = pc.indices_nonzero(pc.invert(found)).to_pylist()
        return rows
    return []


def _out_of_range(values: Sequence[Any], kind: pa.DataType) -> list[int]:
    """Return rows with values that certainly do not fit, as far as that can be seen fast."""
    python = python_type(kind)
    if python is int:
        least, most = sum_bounds(kind)
        return [row for row, value in enumerate(values) if value is not None and not least <= value <= most]
    if python is str:
        texts = ((row, value) for row, value in enumerate(values) if value is not None and not value.isascii())
        return [row for row, value in texts if _SURROGATE.search(value)]
    if python is Decimal:
        most = kind.precision - kind.scale
        return [
            row for row, value in enumerate(values) if isinstance(value, Decimal) and value and value.adjusted() >= most
        ]
    return []


def _value(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as `_converted` takes it; raise `ValueError` with its text if it is of another type."""
    python, given = python_type(kind), type(value)
    if python is list and given is list:
        return [_inner(one, kind.value_type) for one in value]
    if python is dict and given is dict:
        return {field.name: _inner(value.get(field.name), field.type) for field in kind}
    if python is int and given is Decimal and value.adjusted() < _MOST_DIGITS and value == value.to_integral_value():
        return int(value)
    if python is float and given is Decimal and not isinf(float(value)):
        return float(value)
    if python is Decimal and given is str and _NUMBER.fullmatch(value):
        return Decimal(value)
    if given in _USUAL[python] and not (python is float and misfit(kind, value)):
        return value
    raise ValueError(_text_of(value))


def _inner(value: Any, kind: pa.DataType) -> Any:
    """Return a value within a list or an object as Python has it."""
    made = _value(value, kind)
    if made is None or not pa.types.is_temporal(kind):
        return made
    try:
        return python_values(_converted([made], kind))[0]
    except ARROW_ERRORS:
        raise ValueError(_text_of(value)) from None


def _text_of(value: Any) -> str:
    return decimal_digits(value) if type(value) is Decimal else shown(value)


def _exactly(value: Any, name: str, given: str | bytes | None) -> Any:
    """Return the value of field `name` of an object, which as a float is `value`, as its text says."""
    try:
        return _EXACT.decode(given.decode() if isinstance(given, bytes) else given or "")[name]
    except ArithmeticError:
        raise ValueError(shown(value)) from None
