"""Values of tuples: fields of a line as read, the value of a field, and the conditions of FILTER."""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

Fields = tuple[str, ...]
"""A tuple: its fields as they were read or made, quotes too."""
BLANKS = " \t"
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")


def split_line(text: str) -> Fields | None:
    """Return the fields of a line of a data file, without its end; None for a comment and an empty line.

    Fields are separated by commas outside of double quotes, without the blanks around them.
    """
    if text.startswith("%") or not text.strip(string.whitespace):  # ASCII's, as where lines are counted
        return None
    parts = text.split(",")
    if '"' in text and any(part.count('"') % 2 for part in parts):
        parts = _outside_quotes(parts)
    return tuple([part.strip(BLANKS) for part in parts])


def _outside_quotes(parts: list[str]) -> list[str]:
    """Join again what was split at commas inside of quotes; a quote that is not closed reaches to the end."""
    made, open_ = [parts[0]], parts[0].count('"') % 2
    for part in parts[1:]:
        if open_:
            made[-1] += f",{part}"
        else:
            made.append(part)
        open_ ^= part.count('"') % 2
    return made


def value(field: str) -> str:
    """Return the value of a field: the field without one pair of quotes around it."""
    return field[1:-1] if len(field) > 1 and field[0] == field[-1] == '"' else field


def value_at(fields: Fields, number: int) -> str | None:
    """Return the value of a field, counted from 1; None if the tuple has fewer."""
    return value(fields[number - 1]) if number <= len(fields) else None


def values_at(tuples: Sequence[Fields], number: int) -> list[str | None]:
    """Return the value of a field of each tuple, as `value_at` does of one."""
    at = number - 1
    try:
        found: list[str | None] = list(map(operator.itemgetter(at), tuples))
    except IndexError:
        found = [fields[at] if at < len(fields) else None for fields in tuples]
    quoted: dict[str | None, str | None] = {one: value(one) for one in set(found) if one and one[0] == '"'}
    return list(map(quoted.get, found, found)) if quoted else found


def number_of(text: str) -> Decimal | None:
    """Return the number that a value is; None if it is no decimal number."""
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def holds(found: str, condition: str, wanted: str) -> bool:
    """Return whether a condition of FILTER holds: whether a value is equal to, less or greater than the wanted one.

    They are compared as numbers if both are decimal numbers, otherwise as texts by code points.

    Args:
        found: the `value` of the field.
        condition: ``=``, ``<`` or ``>``.
        wanted: the value that the operator compares it with.
    """
    return test_of(condition, wanted)(found)


def test_of(condition: str, wanted: str) -> Callable[[str], bool]:
    """Return the test of a value that `holds` does, for one condition."""
    compare: Callable[[Any, Any], bool] = {"=": operator.eq, "<": operator.lt, ">": operator.gt}[condition]
    number = number_of(wanted)
    if number is None:
        return lambda found: compare(found, wanted)

    def test(found: str) -> bool:
        given = number_of(found)
        return compare(found, wanted) if given is None else compare(given, number)

    return test
