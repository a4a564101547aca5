"""Converted spout: turns the records of a spout, its first field, into tuples by a function."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np
import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import counted
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.errors import LEAVE_OUT, SpoutError

Convert = Callable[[Any], Any]
_PLAIN = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
"""Types of values that become columns; an int beyond 64 bits does not, and is emitted as it is."""

_AT_ONCE = 1024
"""Number of records converted at once: these tuples stay in the processor's cache, and Python reuses their memory."""


class ConvertedSpout(TransactionalSpout):
    """A spout whose records are converted to tuples, and which may have fewer instances than its component has tasks.

    Args:
        inner: the spout; the first field that it emits is the record.
        convert: a pure function of a record: returns a tuple of values, a list of such tuples, the bare value of a
            single field, or None for no tuple. None: the tuples of `inner` as they are.
        fields: the fields of the tuples.
        instances: number of instances; that with number i reads partitions i, i + n, and so on.
    """

    def __init__(
        self, inner: TransactionalSpout, convert: Convert | None, fields: Sequence[str], instances: int
    ) -> None:
        self.inner = inner
        self._convert = convert
        self._names = tuple(fields)
        self.instances = instances
        self.opaque, self.live, self.kept_rows = inner.opaque, inner.live, inner.kept_rows

    def check(self) -> None:
        """Examine the source, if the spout can."""
        if (check := getattr(self.inner, "check", None)) is not None:
            check()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields of the tuples."""
        if self._convert is None:
            self.inner.declare_output_fields(declarer)
        else:
            declarer.declare(self._names)

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the fields, if the tuples are those of the spout."""
        return self.inner.known_types() if self._convert is None else {}

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator of the spout."""
        return self.inner.coordinator(self._own(context))

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter of converted records."""
        if context.task >= self.instances:
            return _Idle()
        return _ConvertingEmitter(self.inner.emitter(self._own(context)), context, self._convert, self._names)

    def _own(self, context: TaskContext) -> TaskContext:
        # In a composite spout each source has a context of its own.
        context.parallelism = min(context.parallelism, self.instances)
        return context


class _Idle(Emitter):
    """Emitter of a task that no instance of the source runs in."""

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        """Emit nothing."""


class _ConvertingEmitter(Emitter):
    def __init__(self, inner: Emitter, context: TaskContext, convert: Convert | None, fields: tuple[str, ...]) -> None:
        self.inner = inner
        self._where = f"spout {context.component!r}"
        self._convert = convert
        self._fields = fields

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        if self._convert is not None:
            converting = ConvertingCollector(collector, self._convert, self._fields, f"{self._where}, {attempt}")
            self.inner.emit_batch(attempt, metadata, cast("Collector", converting))
        else:
            self.inner.emit_batch(attempt, metadata, collector)

    def cleanup_before(self, txid: int) -> None:
        self.inner.cleanup_before(txid)

    def close(self) -> None:
        self.inner.close()


class ConvertingCollector:
    """Collector that converts each record; one for which the function raises is refused."""

    def __init__(self, inner: Any, convert: Convert, fields: tuple[str, ...], where: str) -> None:
        self.inner = inner
        self._convert = convert
        self._fields = fields
        self._where = where
        self._place: Callable[[int], dict[str, Any]] = lambda number: {}
        self._records = 0
        self._rows = array("q")
        self.digest, self.partition, self.note, self.refuse = (
            inner.digest, inner.partition, inner.note, inner.refuse,
        )  # fmt: skip
        self.report_error = self.reportError = inner.report_error
        self.refuse_all = lambda refusals: refusals.give(inner)

    def origin(self, place: Callable[[int], dict[str, Any]]) -> None:
        """See `Collector`; tuples are at the place of their record."""
        self._place, self._records, self._rows = place, 0, array("q")
        rows = self._rows
        self.inner.origin(lambda number: place(rows[number]))

    def emit(self, *values: Any) -> None:
        """Emit the tuples of one record."""
        record, number = values[0], self._records
        self._records += 1
        try:
            made = list(_tuples(self._convert(record), len(self._fields)))
        except Exception as error:  # noqa: BLE001 - user code
            self._refuse(record, number, error)
            return
        for row in made:
            self._rows.append(number)
            self.inner.emit(*row)

    def emit_batch(self, batch: Any) -> None:
        """Emit the tuples of the records of an Arrow batch."""
        self.emit_records(batch.column(0).to_pylist())

    def emit_records(self, records: list[Any]) -> None:
        """Emit the tuples of the records."""
        try:
            columns = _columns(self._convert, records, len(self._fields))
        except Exception:  # noqa: BLE001 - user code; below it is called again for each record, and the bad one named
            columns = None
        if columns is None:
            for record in records:
                self.emit(record)
            return
        rows, made = columns
        self._rows.frombytes((rows + self._records).tobytes())
        self._records += len(records)
        self.inner.emit_batch(pa.record_batch(made, [*self._fields]))

    def _refuse(self, record: Any, number: int, error: Exception) -> None:
        place = self._place(number)
        where = ", ".join(
            f"{name} {value}" for name, value in place.items() if name in ("topic", "partition", "offset")
        )
        msg = (
            f"{self._where}: {where or f'record {number}'} cannot be converted: {type(error).__name__}: {error}; "
            f"mend convert{LEAVE_OUT}"
        )
        refused = SpoutError(msg)
        refused.__cause__ = error
        text = base64.b64encode(record).decode() if isinstance(record, bytes) else repr(record)
        self.inner.refuse(refused, {"value": text, **place})


def _tuples(made: Any, fields: int) -> Iterator[tuple[Any, ...]]:
    """Yield the tuples that a convert function has returned; raise `ValueError` if one has a wrong number of values."""
    for one in made if isinstance(made, list) else [] if made is None else [made]:
        row = one if isinstance(one, tuple) else (one,)
        if len(row) != fields:
            raise ValueError(f"convert returned {counted(len(row), 'value')}, expected {fields}: {row!r:.200}")
        yield row


def _columns(convert: Convert, records: list[Any], fields: int) -> tuple[Any, list[pa.Array]] | None:
    """Return the tuples of records as columns, with the record of each row; errors of `convert` are raised.

    None unless it is one tuple, or none, of each record, with values of one plain type in each column.
    """
    numbers: list[Any] = []
    columns: list[list[Any]] = [[] for _ in range(fields)]
    for start in range(0, len(records), _AT_ONCE):
        made = list(map(convert, records[start : start + _AT_ONCE]))
        kinds = set(map(type, made))
        if type(None) in kinds:
            numbers.append(start + np.flatnonzero([one is not None for one in made]))
            made = [one for one in made if one is not None]
            kinds.remove(type(None))
        else:
            numbers.append(np.arange(start, start + len(made)))
        if kinds - {tuple} or set(map(len, made)) - {fields}:
            return None
        for place, column in enumerate(columns):
            column += map(itemgetter(place), made)
    types = [set(map(type, column)) for column in columns]
    arrow = [_PLAIN.get(*kinds) if len(kinds) == 1 else None for kinds in types]
    if not numbers or None in arrow:
        return None
    return np.concatenate(numbers), [pa.array(column, kind) for column, kind in zip(columns, arrow, strict=True)]
