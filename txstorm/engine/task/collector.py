"""The collector through which bolts and spouts emit: buffers tuples, and returns them as record batches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.names import DEFAULT_STREAM, counted, near
from txstorm.api.output import Refusals, StreamDeclaration
from txstorm.engine.arrow import batch_of_columns, batch_of_rows, conform
from txstorm.engine.task.error_rows import shortened
from txstorm.errors import EmitError

FLUSH_VALUES = 131072


Place = Callable[[int], dict[str, Any]]
"""Number of a tuple → where it is in the source."""


class Emitted(NamedTuple):
    """Rows that a task emitted to one stream, in order; `direct` is the receiving task if the stream is direct.

    For `partition` see `OutputCollector.partition`.
    """

    stream: str
    batch: pa.RecordBatch
    direct: int | None = None
    partition: int = 0


Observe = Callable[[str, int, TransactionAttempt, Sequence[Emitted]], None]
"""Callback that receives the output of a component task for an attempt, possibly empty, once the task has finished."""


class _Buffer:
    """Buffer of the values emitted to one stream, row after row in a single flat list.

    A list of row tuples would take more than twice as long: the garbage collector repeatedly traverses every tuple, but
    never strings and numbers.
    """

    __slots__ = ("arity", "cuts", "direct", "fields", "flat", "places", "rows", "taken")

    def __init__(self, declaration: StreamDeclaration) -> None:
        self.fields = declaration.fields
        # No `emit` has this arity on a direct stream or one without fields, so one comparison per tuple is enough.
        self.arity = -1 if declaration.direct else len(declaration.fields) or -1
        self.direct = declaration.direct
        self.flat: list[Any] = []
        self.rows = 0
        # (partition, number of rows buffered at its end); rows are cut when sent: their types must not depend on it.
        self.cuts: list[tuple[int, int]] = []
        self.taken = 0
        self.places: list[tuple[int, Place]] = []

    @property
    def waiting(self) -> int:
        """The number of rows in the buffer."""
        return len(self.flat) // len(self.fields) if self.fields else self.rows

    @property
    def given(self) -> int:
        """The number of rows emitted so far."""
        return self.taken + self.waiting

    def place(self, row: int) -> dict[str, Any]:
        """Return where in its source a row is, counted from the first one emitted; empty if that is unknown."""
        known = [(first, place) for first, place in self.places if first <= row][-1:]
        return {} if not known else known[0][1](row - known[0][0])

    def cut(self, partition: int) -> None:
        """Note that the rows since the last cut come from `partition`."""
        rows = self.waiting
        if rows > (self.cuts[-1][1] if self.cuts else 0):
            self.cuts.append((partition, rows))

    def take(
        self, partition: int, refuse: Callable[[int, tuple[Any, ...], EmitError], None]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (partition, its rows) of the buffered rows, the last of which are of `partition`; clear the buffer.

        `refuse` is called with each tuple that cannot be sent, and its number, counted from the first one emitted.
        """
        self.cut(partition)
        cuts, self.cuts = self.cuts, []
        if not cuts:
            return
        batch, rows = self._batch(refuse)
        first = 0
        for number, end in cuts:
            last = bisect_left(rows, end)
            if last > first:
                yield number, batch.slice(first, last - first)
            first = last

    def _batch(self, refuse: Callable[[int, tuple[Any, ...], EmitError], None]) -> tuple[pa.RecordBatch, Sequence[int]]:
        """Return the buffered rows that can be sent, with their numbers, and clear the buffer."""
        before, self.taken = self.taken, self.given
        flat, rows, width = self.flat, self.rows, len(self.fields)
        self.flat, self.rows = [], 0
        if width == 0:
            return batch_of_rows([()] * rows, ()), range(rows)
        try:
            return batch_of_columns([flat[i::width] for i in range(width)], self.fields), range(len(flat) // width)
        except EmitError:
            good: dict[int, tuple[Any, ...]] = {}
            for number, row in enumerate(tuple(flat[i : i + width]) for i in range(0, len(flat), width)):
                try:
                    batch_of_rows([row], self.fields)
                    good[number] = row
                except EmitError as error:
                    refuse(before + number, row, error)
            return batch_of_rows(list(good.values()), self.fields), list(good)


class OutputCollector:
    """Implements `txstorm.api.output.Collector` for one task and attempt.

    Args:
        component: the component that emits.
        streams: the streams that it declares.
        eager: whether `emit` checks values immediately, which is much slower than checking whole batches.
        ordered: whether rows carry the partition of the source that they come from.
    """

    AFTER_ALL = (1 << 63) - 1
    """Position, in the order of the source, of what a bolt emits in `finish_batch`."""

    def __init__(
        self, component: str, streams: Mapping[str, StreamDeclaration], *, eager: bool = False, ordered: bool = False
    ) -> None:
        self._component = component
        self._buffers = {name: _Buffer(declaration) for name, declaration in streams.items()}
        self._eager = eager
        self._ordered = ordered
        self._partition = 0
        if eager:
            for buffer in self._buffers.values():
                buffer.arity = -1
        self._out: list[Emitted] = []
        self._pending_direct: tuple[str, int] | None = None
        self.errors: list[BaseException] = []
        self.digests: dict[str, str] = {}
        self.count = 0
        self._over: TransactionAttempt | None = None
        self.divert: Callable[[BaseException, Any], bool] = lambda error, record: False
        self.divert_all: Callable[[Refusals], bool] = lambda refusals: False

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple."""
        buffer = self._buffers.get(stream)
        if buffer is None or len(values) != buffer.arity:
            self._emit_rare(stream, values)
            return
        flat = buffer.flat
        flat.extend(values)
        if len(flat) >= FLUSH_VALUES:
            self._flush(stream)

    def _emit_rare(self, stream: str, values: tuple[Any, ...]) -> None:
        """Emit a tuple in a rare case: it has no fields, is invalid, or must be checked immediately."""
        buffer = self._buffers.get(stream)
        if buffer is None or buffer.direct or len(values) != len(buffer.fields):
            self._refuse(stream, values, direct=False)
        else:
            buffer.flat.extend(values)
            buffer.rows += 1
            if self._eager:
                self._flush(stream)

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to the task with index `task` of each direct subscriber."""
        buffer = self._buffers.get(stream)
        if buffer is None or len(values) != len(buffer.fields) or not buffer.direct:
            self._refuse(stream, values, direct=True)
        else:
            if self._pending_direct != (stream, task):
                self._flush_direct()
                self._pending_direct = (stream, task)
            buffer.flat.extend(values)
            buffer.rows += 1
            if self._eager:
                self._flush_direct()

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit the rows of a record batch or table."""
        buffer = self._buffers.get(stream)
        if buffer is None or buffer.direct:
            self._refuse(stream, None, direct=False)
        else:
            self._flush(stream)
            refuse = partial(self._reject, buffer)
            for piece in conform(batch, buffer.fields, f"{self._component}, stream {stream!r}", refuse):
                self._add(stream, self._partition, piece)
            buffer.taken += batch.num_rows

    @property
    def taken(self) -> int:
        """The number of rows emitted so far; may be read on any thread."""
        return self.count + sum(buffer.waiting for buffer in tuple(self._buffers.values()))

    def report_error(self, error: BaseException) -> None:
        """Report `error` to the driver without failing the batch."""
        self.errors.append(error)

    def origin(self, place: Place) -> None:
        """Note from where in the source the tuples come that are emitted from now on."""
        for buffer in self._buffers.values():
            buffer.places.append((buffer.given, place))

    def note(self, topic: str, rows: Callable[[], Any]) -> None:
        """Ignore rows for the test driver, whose collector keeps them."""

    def digest(self, partition: str, digest: str) -> None:
        """Record the digest of the input read from `partition`."""
        self.digests[partition] = digest

    def partition(self, number: int) -> None:
        """Note that what is emitted from here on comes from partition `number`, in the order of the source.

        Receivers behind the next exchange get the rows of all tasks in the order of these numbers.
        """
        if self._ordered and number != self._partition:
            for buffer in self._buffers.values():
                buffer.cut(self._partition)
            self._partition = number

    def refuse(self, error: BaseException, record: Any) -> None:
        """Reject a record that a spout cannot emit: raise `error`, unless `divert` makes the record a dead letter."""
        if not self.divert(error, record):
            raise error

    def refuse_all(self, refusals: Refusals) -> None:
        """Reject records as `refuse` does, unless `divert_all` makes all of them dead letters."""
        if not self.divert_all(refusals):
            refusals.one_by_one(self.refuse)

    emitDirect = emit_direct  # noqa: N815 - Storm's names
    emitBatch = emit_batch  # noqa: N815
    reportError = report_error  # noqa: N815

    def take(self) -> list[Emitted]:
        """Return everything emitted so far, in order for each stream, and empty the collector."""
        self._flush_direct()
        for stream in self._buffers:
            self._flush(stream)
        out, self._out = self._out, []
        return out

    def close(self, attempt: TransactionAttempt) -> None:
        """End the batch of `attempt`: any later emission through this collector raises an error."""
        self._over = attempt
        self._buffers = {}

    def _flush(self, stream: str) -> None:
        buffer = self._buffers[stream]
        if not buffer.direct:
            self._flush_to(stream)

    def _flush_direct(self) -> None:
        if self._pending_direct is not None:
            stream, task = self._pending_direct
            self._flush_to(stream, task)
            self._pending_direct = None

    def _flush_to(self, stream: str, direct: int | None = None) -> None:
        buffer = self._buffers[stream]

        def refuse(row: int, values: tuple[Any, ...], error: EmitError) -> None:
            given = shortened(values)
            found = EmitError(f"{self._component}, stream {stream!r}, tuple {given}: {error}")
            found.late = not self._eager
            self._reject(buffer, row, found, {"tuple": given})

        for partition, batch in buffer.take(self._partition, refuse):
            self._add(stream, partition, batch, direct)

    def _reject(self, buffer: _Buffer, row: int, error: EmitError, record: dict[str, Any]) -> None:
        """Reject a tuple that cannot be sent, the `row`-th of its stream, and say where in the source it is."""
        if place := buffer.place(row):
            error.args = (f"{error} ({', '.join(f'{name} {shortened(one)}' for name, one in place.items())})",)
        self.refuse(error, {**place, **record})

    def _add(self, stream: str, partition: int, batch: pa.RecordBatch, direct: int | None = None) -> None:
        if batch.num_rows:
            self.count += batch.num_rows
            self._out.append(Emitted(stream, batch, direct, partition))

    def _refuse(self, stream: str, values: tuple[Any, ...] | None, *, direct: bool) -> None:
        where = f"{self._component}, stream {stream!r}"
        buffer = self._buffers.get(stream)
        if self._over is not None:
            msg = (
                f"{where}: a tuple was emitted for txid {self._over.txid} after that batch was over (attempt "
                f"{self._over.attempt_id}): {values!r}; emit through the collector of the batch at hand"
            )
        elif buffer is None:
            hint = near(str(stream), list(self._buffers))
            msg = f"{where}: not declared; {self._component!r} declares {sorted(self._buffers)}{hint}"
        elif direct != buffer.direct:
            kind, use = ("direct", "emit_direct") if buffer.direct else ("not direct", "emit")
            msg = f"{where}: the stream is {kind}; use {use}"
        else:
            msg = (
                f"{where}: expected {counted(len(buffer.fields), 'value')} for fields {list(buffer.fields)}, got "
                f"{len(values or ())}: {values!r}; pass one argument per field"
            )
        raise EmitError(msg)
