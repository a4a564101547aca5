"""Column values: check Python values against the declared type, and convert them to Arrow and back.

Values are checked column by column: the set of their Python types is usually enough to show that all are valid; only
otherwise are they searched for the offending value. Stored values are canonical (built-in types, UTC, decimals with the
column's scale), so a value is the same before and after a round trip through a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from reprlib import Repr
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.errors import StateError
from txstorm.storage.rows.schema import type_text

Label = Callable[[int], str]
ARROW_ERRORS = (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError, TypeError)
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], type, tuple[type, ...]], ...] = (
    (pa.types.is_boolean, bool, (bool, np.bool_)),
    (pa.types.is_integer, int, (int, np.integer)),
    (pa.types.is_floating, float, (float, int, np.floating, np.integer)),
    (pa.types.is_string, str, (str,)),
    (pa.types.is_binary, bytes, (bytes,)),
    (pa.types.is_timestamp, datetime, (datetime,)),
    (pa.types.is_date32, date, (date,)),
    (pa.types.is_decimal128, Decimal, (Decimal, int)),
    (pa.types.is_list, list, (list, tuple)),
    (pa.types.is_struct, dict, (Mapping,)),
)
_ALIASES = (
    (pa.types.is_large_string, str),
    (pa.types.is_string_view, str),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_binary_view, bytes),
    (pa.types.is_date64, date),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_large_list, list),
)
_WIDENED = {(int, float), (int, Decimal)}
# Subclasses that a user regards as a different type: True is not an int here, and a datetime is not a date.
_STRANGERS: dict[type, tuple[type, ...]] = {int: (bool,), float: (bool,), Decimal: (bool,), date: (datetime,)}
_AS_GIVEN = (str, int, bool, bytes, date)
_shorten = Repr()
_shorten.maxstring = _shorten.maxother = 60


def shown(value: object) -> str:
    """Return the repr of `value`, shortened for a message."""
    return _shorten.repr(value)


def python_type(kind: pa.DataType) -> type:
    """Return the Python type for values of the Arrow type `kind`; `NoneType` if it is not supported."""
    pairs = (*((fits, exact) for fits, exact, _ in _FAMILIES), *_ALIASES)
    return next((exact for fits, exact in pairs if fits(kind)), type(None))


def misfit(kind: pa.DataType, value: Any) -> str | None:
    """Describe why `value` does not fit the Arrow type `kind` (``"expected …, got …"``); return None if it fits.

    Ranges are not checked.
    """
    if value is None:
        return None
    exact, accepted = next((exact, accepted) for fits, exact, accepted in _FAMILIES if fits(kind))
    if not isinstance(value, accepted) or isinstance(value, _STRANGERS.get(exact, ())):
        return f"expected {exact.__name__}, got {type(value).__name__} {shown(value)}; convert it before it is written"
    if isinstance(value, datetime) and value.utcoffset() is None:
        return f"expected a datetime with a time zone, got the naive {value!r}; times are UTC: give it tzinfo=UTC"
    return _misfit_inside(kind, value) if exact in (list, dict) else None


def _misfit_inside(kind: pa.DataType, value: Any) -> str | None:
    if pa.types.is_list(kind):
        faults = (misfit(kind.value_type, item) for item in value)
    else:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if set(value) != {field.name for field in fields}:
            return f"expected a dict with {[field.name for field in fields]}, got one with {sorted(map(str, value))}"
        faults = (misfit(field.type, value[field.name]) for field in fields)
    return next((fault for fault in faults if fault), None)


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert an Arrow column to Python objects; timestamps become datetimes in `datetime.UTC`."""
    values: list[Any] = array.to_pylist()
    if pa.types.is_timestamp(array.type):
        return [None if value is None else value.replace(tzinfo=UTC) for value in values]
    return values


@dataclass(frozen=True)
class Column:
    """One declared column of a state or sink.

    Attributes:
        owner: the state or sink, as named in messages: ``state 'counts'``.
        role: the column's role in messages: ``key column``, ``value column`` or ``column``.
        field: the column's name and Arrow type.
        exact: the Python type of its canonical values.
        as_given: whether values of exactly that type need no conversion.
    """

    owner: str
    role: str
    field: pa.Field
    exact: type = field(init=False)
    as_given: bool = field(init=False)

    def __post_init__(self) -> None:
        exact = python_type(self.field.type)
        object.__setattr__(self, "exact", exact)
        object.__setattr__(self, "as_given", exact in _AS_GIVEN or pa.types.is_float64(self.field.type))

    @property
    def name(self) -> str:
        """The column's name."""
        return str(self.field.name)

    def canonical(self, values: Sequence[Any], label: Label) -> Sequence[Any]:
        """Check `values` and convert them to canonical form; return the same object if no conversion is needed.

        Args:
            values: Python values, which may include None.
            label: returns, for the position of a value, the name of its row in error messages.

        Raises:
            StateError: a value has the wrong type, is a naive datetime, or is out of the column's range.
        """
        return self.checked(values, label)[0]

    def checked(self, values: Sequence[Any], label: Label) -> tuple[Sequence[Any], pa.Array | None]:
        """Like `canonical`; also returns the values as an Arrow array if the check has built one."""
        kinds = set(map(type, values))
        kinds.discard(type(None))
        if not kinds:
            return values, None
        if self.as_given and kinds == {self.exact}:
            # Building the array detects out-of-range integers and lone surrogates.
            return values, self._fitting(values, label) if self.exact in (int, str) else None
        if kinds == {self.exact} == {datetime} and all(value is None or value.tzinfo is UTC for value in values):
            return values, None
        for position, value in enumerate(values):
            fault = misfit(self.field.type, value)
            if fault:
                raise self._error(label(position), fault)
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        array = self._fitting(plain, label)
        return python_values(array), array

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Convert canonical `values` to an Arrow array."""
        return pa.array(values, self.field.type)

    def conformed(self, column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
        """Cast an Arrow column to the declared type; only lossless conversions between related types are allowed.

        `where` names the rows in error messages.

        Raises:
            StateError: the column's type is incompatible, it has timestamps without a time zone, or a value is out of
                range.
        """
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        actual = python_type(kind)
        compatible = actual is self.exact or (actual, self.exact) in _WIDENED or pa.types.is_null(kind)
        fault = f"expected {type_text(self.field.type)}, got {type_text(kind)}"
        if not compatible or (actual is datetime and kind.tz is None):
            float_key = "key" in self.role and actual is float
            declare = "" if float_key else f", or declare it with that type: {{{self.name!r}: {actual.__name__}}}"
            raise self._error(where, f"{fault}; cast the column{declare}")
        try:
            return column if column.type == self.field.type else column.cast(self.field.type)
        except ARROW_ERRORS as cause:
            raise self._error(where, f"{fault}: {cause}") from cause

    def _fitting(self, values: Sequence[Any], label: Label) -> pa.Array:
        try:
            return self.array(values)
        except ARROW_ERRORS:
            raise self._culprit(values, label) from None

    def _culprit(self, values: Sequence[Any], label: Label) -> StateError:
        for position, value in enumerate(values):
            try:
                self.array([value])
            except ARROW_ERRORS as cause:
                fault = f"expected a value that fits {type_text(self.field.type)}, got {shown(value)} ({cause})"
                return self._error(label(position), fault)
        return self._error("all rows together", f"do not fit one column of {type_text(self.field.type)}")

    def _error(self, row: str, fault: str) -> StateError:
        return StateError(f"{self.owner}, {self.role} {self.name!r}, {row}: {fault}")
