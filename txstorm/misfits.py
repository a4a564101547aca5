"""Values that do not fit a declared type: the errors, and how messages show a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from reprlib import Repr
from typing import Any

import pyarrow as pa

LONGEST = 400
"""Maximum number of digits of a decimal that is written without an exponent."""


class _Shorten(Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write out an int of more digits than `sys.get_int_max_str_digits`."""
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<int of {x.bit_length():,} bits>"


_shorten = _Shorten()
_shorten.maxstring = _shorten.maxother = 60


class Misfit(ValueError):
    """A value, or the type of a column, does not fit a declared type.

    Attributes:
        row: the index of the value; None if the type of the whole column does not fit.
        column: the name of the column, and the declared type; set by the callers that know them.
        kind: see `column`.
        find: returns row → reason for the values of a column that do not fit, if no type alone says which; or None.
    """

    column: str | None = None
    kind: pa.DataType | None = None
    find: Callable[[Any], dict[int, str]] | None = None

    def __init__(self, fault: str, row: int | None = None) -> None:
        super().__init__(fault)
        self.row = row

    def of(self, column: str, kind: pa.DataType) -> Misfit:
        """Note the column and its declared type; return the error itself."""
        self.column, self.kind = column, kind
        return self


class Misfits(ValueError):
    """Records of a batch that do not fit.

    Attributes:
        rows: row → reason; there is at least one.
    """

    def __init__(self, rows: Mapping[int, Misfit]) -> None:
        super().__init__(rows)
        self.rows = rows

    def __str__(self) -> str:
        return str(self.rows[min(self.rows)])


def shown(value: object) -> str:
    """Return the repr of `value`, shortened for a message."""
    try:
        return _shorten.repr(value)
    except ValueError:
        return f"of type {type(value).__name__}, with more digits than Python writes out"


def decimal_digits(value: Decimal) -> str:
    """Return a decimal as text: its digits or, if they are more than `LONGEST`, its significant ones and an exponent.

    An exponent costs a few bytes of input, and must not be written out to billions of zeros.
    """
    if abs(value.adjusted()) < LONGEST and len(text := format(value, "f")) <= LONGEST:  # the usual case
        return text
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or max(len(digits), len(digits) + exponent, -exponent) <= LONGEST:
        return format(value, "f")
    return f"{'-' * sign}{''.join(map(str, digits))}E{exponent}"
