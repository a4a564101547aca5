"""Blocks of tuples that sources read, made of lines, and the shapes in which they are emitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.dadstorm.source.columns import split_lines
from txstorm.errors import LEAVE_OUT, SpoutError

_BOM = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Tuples of one replica in a transaction, from one source.

    Attributes:
        operator, replica: the receiver.
        prefix: the beginning of their ids.
        numbers: the rest of their ids: of lines their numbers.
        lines: their lines.
    """

    operator: str
    replica: int
    prefix: str
    numbers: list[int]
    lines: pa.StringArray

    def tuples(self) -> pa.ListArray:
        """Return them as a column of lists of fields."""
        return split_lines(self.lines)

    def ids(self) -> pa.StringArray:
        """Return their ids."""
        return pc.binary_join_element_wise(self.prefix, pa.array(self.numbers, pa.int64()).cast(pa.string()), "")


class Shape(Protocol):
    """Form in which a source emits its tuples."""

    def declare(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams."""

    def emit(self, block: Block, collector: Any) -> None:
        """Emit tuples."""


class Rows:
    """Shape in which all tuples are rows of one stream: operator, replica, id and line."""

    fields = ("operator", "replica", "id", "line")

    def declare(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the stream."""
        declarer.declare(self.fields)

    def emit(self, block: Block, collector: Any) -> None:
        """Emit the rows."""
        count = len(block.lines)
        columns = [
            pa.repeat(pa.scalar(block.operator), count),
            pa.repeat(pa.scalar(block.replica, pa.int64()), count),
            block.ids(),
            block.lines,
        ]
        collector.emit_batch(pa.RecordBatch.from_arrays(columns, list(self.fields)))


def is_tuple(line: bytes) -> bool:
    """Return whether a line is neither a comment nor empty."""
    line = line.removeprefix(_BOM)
    return line[:1] != b"%" and bool(line) and not line.isspace()


def are_tuples(data: bytes, lines: Iterable[bytes]) -> bool:
    """Return whether all lines of `data` are tuples, which is seen at a glance; if not, `is_tuple` tells."""
    return b"%" not in data and _BOM not in data and all(map(bytes.strip, lines))


def decoded(
    raw: list[bytes], numbers: list[int], prefix: str, collector: Collector
) -> tuple[list[int], pa.StringArray]:
    """Return the numbers and texts of lines; those that are not UTF-8 are refused, by their ids."""
    raw[:1] = [line.removeprefix(_BOM) for line in raw[:1]]
    try:
        return numbers, pa.array(raw, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        pass
    found: dict[int, str] = {}
    for number, line in zip(numbers, raw, strict=True):
        try:
            found[number] = line.decode()
        except UnicodeDecodeError as error:
            why = f"{error.reason} at its byte {error.start + 1}"
            msg = f"{prefix}{number}: the line is not UTF-8: {why}; convert the file{LEAVE_OUT}"
            record = {"id": f"{prefix}{number}", "text": line.decode(errors="backslashreplace")}
            collector.refuse(SpoutError(msg), record)
    return list(found), pa.array(found.values(), pa.string())
