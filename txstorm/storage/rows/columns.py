"""Columns of a state or sink: check values against the declared type, and convert them to Arrow and back.

Values are checked column by column: the set of their Python types is usually enough to show that all are valid; only
otherwise are they searched for the offending value. Stored values are canonical (built-in types, UTC, decimals with the
column's scale), so a value is the same before and after a round trip through a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.errors import StateError
from txstorm.misfits import Misfit
from txstorm.storage.rows.schema import type_text
from txstorm.typed import converted, declaration, fits, fitting, has_bounds, misfit, python_type, python_values

Label = Callable[[int], str]
_AS_GIVEN = (str, int, bool, bytes, date)


@dataclass(frozen=True)
class Column:
    """One declared column of a state or sink.

    Attributes:
        owner: the state or sink, as named in messages: ``state 'counts'``.
        role: the column's role in messages: ``key column``, ``value column`` or ``column``.
        field: the column's name and Arrow type.
        exact: the Python type of its canonical values.
        as_given: whether values of exactly that type need no conversion.
        holds_all: whether an Arrow column of the type has no values that are out of range.
    """

    owner: str
    role: str
    field: pa.Field
    exact: type = field(init=False)
    as_given: bool = field(init=False)
    holds_all: bool = field(init=False)

    def __post_init__(self) -> None:
        exact = python_type(self.field.type)
        object.__setattr__(self, "exact", exact)
        object.__setattr__(self, "as_given", exact in _AS_GIVEN or pa.types.is_float64(self.field.type))
        object.__setattr__(self, "holds_all", not has_bounds(self.field.type))

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
                raise self._error(label(position), fault) from self._misfit(fault)
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
        if self.holds_all and column.type == self.field.type:
            return column
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not fits(kind, self.field.type) and column.null_count < len(column):
            fault = f"expected {type_text(self.field.type)}, got {type_text(kind)}"
            no_key = "key" in self.role and python_type(kind) in (float, list, dict)
            declare = None if no_key else declaration(self.name, kind)
            advice = "cast the column" + (f", or declare it with that type: {declare}" if declare else "")
            raise self._error(where, f"{fault}; {advice}") from self._misfit(fault)
        try:
            return converted(column, self.field.type)
        except Misfit as cause:
            raise self._error(where, str(cause)) from cause.of(self.name, self.field.type)

    def _fitting(self, values: Sequence[Any], label: Label) -> pa.Array:
        try:
            return fitting(values, self.field.type)
        except Misfit as fault:
            where = "all rows together" if fault.row is None else label(fault.row)
            raise self._error(where, str(fault)) from fault.of(self.name, self.field.type)

    def _misfit(self, fault: str) -> Misfit:
        return Misfit(fault).of(self.name, self.field.type)

    def _error(self, row: str, fault: str) -> StateError:
        return StateError(f"{self.owner}, {self.role} {self.name!r}, {row}: {fault}")
