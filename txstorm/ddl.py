"""Columns of DataFrames, declared in Spark's DDL, and read without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from txstorm.errors import SettingError

RESERVED = "_txstorm_"
"""Beginning of the names of columns that txstorm adds to DataFrames."""
_TIME = pa.timestamp("us", "UTC")
_TYPES: Mapping[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), ("tinyint", pa.int8())),
    **dict.fromkeys(("smallint", "short"), ("smallint", pa.int16())),
    **dict.fromkeys(("int", "integer"), ("int", pa.int32())),
    **dict.fromkeys(("bigint", "long"), ("bigint", pa.int64())),
    **dict.fromkeys(("float", "real"), ("float", pa.float32())),
    "double": ("double", pa.float64()),
    "string": ("string", pa.string()),
    "binary": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), ("timestamp", _TIME)),
}
_CURES = {
    "map": "select map_entries(column)",
    **dict.fromkeys(("interval", "time"), "cast it to STRING, or select a number"),
    "void": "cast it to the type that it is to have",
    "timestamp_ntz": "cast it to TIMESTAMP",
    "variant": "select to_json(column)",
    **dict.fromkeys(("char", "varchar"), "declare STRING"),
}
_BACKQUOTED, _WORD, _TEXT, _MARK = 1, 2, 3, 4
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|((?:'(?:[^'\\]|\\.)*')+|(?:\"(?:[^\"\\]|\\.)*\")+)|([<>(),:]))")


class FrameColumn(NamedTuple):
    """A column of DataFrames: its type as Spark writes it (``array<bigint>``), and as Arrow has it."""

    spark: str
    arrow: pa.DataType


def frame_columns(text: str) -> dict[str, FrameColumn]:
    """Read columns such as ``country STRING, cents BIGINT``, in Spark's DDL; return name → column.

    Raises:
        SettingError: the text is not DDL, a type has no values in Python, or a name is used twice or reserved.
    """
    if not isinstance(text, str):
        raise SettingError(f"columns: expected Spark's DDL, such as 'country STRING, cents BIGINT', got {text!r}")
    reader = _Reader(text)
    columns = dict(reader.fields(end=""))
    for name in columns:
        if name.startswith(RESERVED):
            raise reader.fault(f"column {name!r}: names with {RESERVED} are txstorm's own; rename it")
    return columns


def quoted(name: str) -> str:
    """Return the name of a column as SQL takes it, whatever its characters."""
    return f"`{name.replace('`', '``')}`"


def columns_text(columns: Mapping[str, str]) -> str:
    """Return columns, name → type as Spark writes it, in DDL."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def columns_fault(expected: Mapping[str, str], found: Sequence[tuple[str, str]]) -> str:
    """Return how the columns of a DataFrame, (name, type), differ from those that are expected; empty if not."""
    names, kinds = [name for name, _ in found], dict(found)
    faults = [f"{name!r} is there twice" for name in kinds if names.count(name) > 1]
    faults += [f"{name!r} is missing" for name in expected if name not in kinds]
    faults += [f"{name!r} is not declared" for name in kinds if name not in expected]
    faults += [
        f"{name!r} is {kinds[name]}, expected {kind}"
        for name, kind in expected.items()
        if kinds.get(name, kind) != kind
    ]
    return "; ".join(faults)


class _Reader:
    """Reads DDL from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def fault(self, why: str) -> SettingError:
        return SettingError(f"columns {self._text!r}: {why}")

    def fields(self, end: str) -> Iterator[tuple[str, FrameColumn]]:
        """Yield the columns up to `end`, which is consumed; empty: the end of the text."""
        seen = set[str]()
        while True:
            name = self._name()
            if name.lower() in seen:
                raise self.fault(f"{name!r} is declared twice; Spark does not tell upper from lower case")
            seen.add(name.lower())
            self._taken(_MARK, ":")
            yield name, self._type(name)
            if self._taken(_WORD, "not") and not self._taken(_WORD, "null"):
                raise self._expected("NULL after NOT")
            if self._taken(_WORD, "comment") and not self._taken(_TEXT):
                raise self._expected("a text in quotes")
            if not self._taken(_MARK, ","):
                break
        if end:
            self._require(end)
        elif self._text[self._at :].strip():
            raise self._expected("',' or the end")

    def _type(self, column: str) -> FrameColumn:
        name = self._name().lower()
        if name in ("decimal", "dec", "numeric"):
            digits, places = self._numbers() or (10, 0)
            if not 0 < digits <= 38 or not 0 <= places <= digits:
                raise self.fault(
                    f"column {column!r}: decimal({digits},{places}) has no values; expected 1 to 38 digits"
                )
            return FrameColumn(f"decimal({digits},{places})", pa.decimal128(digits, places))
        if name == "array":
            self._require("<")
            item = self._type(column)
            self._require(">")
            return FrameColumn(f"array<{item.spark}>", pa.list_(item.arrow))
        if name == "struct":
            self._require("<")
            parts = dict(self.fields(end=">"))
            text = ",".join(f"{written(part)}:{one.spark}" for part, one in parts.items())
            return FrameColumn(f"struct<{text}>", pa.struct([(part, one.arrow) for part, one in parts.items()]))
        if name in _TYPES:
            return FrameColumn(*_TYPES[name])
        known = [*_TYPES, "decimal", "array", "struct"]
        cure = _CURES.get(name)
        why = f"has no values in Python; {cure}" if cure else f"is unknown; known are {known}"
        raise self.fault(f"column {column!r}: type {name} {why}")

    def _numbers(self) -> tuple[int, int] | None:
        if not self._taken(_MARK, "("):
            return None
        numbers = [self._name()]
        if self._taken(_MARK, ","):
            numbers.append(self._name())
        if not self._taken(_MARK, ")") or not all(number.isdigit() for number in numbers):
            raise self._expected("one or two numbers in parentheses")
        return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0

    def _name(self) -> str:
        if (quoted := self._taken(_BACKQUOTED)) is not None:
            return quoted.replace("``", "`")
        if (word := self._taken(_WORD)) is None:
            raise self._expected("a name")
        return word

    def _taken(self, kind: int, wanted: str | None = None) -> str | None:
        """Consume and return the next token if it is of this kind, and the `wanted` one; else return None."""
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[kind] is None or (wanted is not None and found[kind].lower() != wanted):
            return None
        self._at = found.end()
        return found[kind]

    def _require(self, mark: str) -> None:
        if self._taken(_MARK, mark) is None:
            raise self._expected(f"{mark!r}")

    def _expected(self, what: str) -> SettingError:
        rest = self._text[self._at :].strip()
        return self.fault(
            f"expected {what}, got {rest[:40]!r}; write Spark's DDL, as in 'country STRING, cents BIGINT'"
        )


def written(name: str) -> str:
    """Return the name of a field as Spark writes it in the text of a type."""
    return name if re.fullmatch(r"\w+", name) else quoted(name)
