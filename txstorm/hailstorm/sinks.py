"""Sinks: every N-th tuple of a stream for a consumer, counted over restarts, and at the end of input the last one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer, takes_batches
from txstorm.api.context import TaskContext
from txstorm.api.external import MapRow, MapState, Outlet
from txstorm.api.output import Collector
from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.api.tuples import Origin, Tuple
from txstorm.engine.arrow import as_columns, batch_of_rows
from txstorm.errors import InputError
from txstorm.sinks.text_files import FileSink, LinesSink, joined
from txstorm.tagged import text_of, value_of
from txstorm.topology.graph import found_tables
from txstorm.user_code import described

__all__ = ["FileSink", "LinesSink", "Sink", "console"]

Consume = Callable[[tuple[Any, ...], int, int], Any]
"""Type of a function of a tuple's values, its txid and its number."""
_TABLES = (KeyedState, CollectionState, SinkTable, MapState, Outlet)


def console(prefix: str = "", *, error: bool = False) -> Consume:
    """Return a consumer that prints the number and the values of each tuple, after `prefix`.

    Args:
        prefix: the beginning of each line.
        error: whether it prints to standard error rather than to standard output.
    """

    def show(values: tuple[Any, ...], txid: int, number: int) -> None:
        print(f"{prefix}{number}: {joined(values)}", file=sys.stderr if error else sys.stdout, flush=True)

    return show


class Sink(AssembledBolt):
    """A sink that hands every N-th tuple that arrives to a consumer, and at the end of input the last one.

    Tuples are counted over restarts: the count is a state, ``ID-seen``. It has one task.

    Example::

        builder.set_sink("out", Sink(FileSink("top.txt"), every=500)).global_grouping("top")
        builder.set_sink("log", Sink(console(), every=100)).global_grouping("top")

    Args:
        consumer: a committer, such as `LinesSink`, `FileSink`, `DeltaSink` or `KafkaSink`: exactly once, as it is. Or a
            function of values, txid and number, such as `console()`: called after the transaction was decided, at least
            once; while it raises, the run waits, and calls it again.
        every: N, at least 1.

    Raises:
        InputError: `consumer` is none of these, or `every` no int of at least 1.
    """

    processor = "sink"

    def __init__(self, consumer: Any, every: int = 1) -> None:
        committer = isinstance(consumer, BatchBolt) and isinstance(consumer, Committer)
        if getattr(consumer, "reads_frames", False) or not (committer or callable(consumer)):
            raise InputError(
                f"Sink: expected a committer such as LinesSink, or a function of values, txid and number, got "
                f"{described(consumer)}"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InputError(f"Sink: every: expected an int of at least 1, got {every!r}")
        self.consumer = consumer
        self.every = every

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that counts the tuples."""
        fault = f"Sink: a sink has one task, and counts the tuples that arrive; it has {site.parallelism}"
        inner = self.consumer
        if not isinstance(inner, BatchBolt):
            inner = _Calls(f"{site.id}-calls", inner)
        return Assembly(_EveryNth(f"{site.id}-seen", inner, self.every), (fault,) if site.parallelism != 1 else ())


class _EveryNth(BatchBolt, Committer):
    """Committer that passes on every N-th tuple to another one."""

    def __init__(self, name: str, inner: BatchBolt, every: int) -> None:
        self.state = KeyedState(name, {"sink": int}, {"seen": int, "last": str})
        self.tables = tuple(table for kind in _TABLES for table in found_tables(inner, kind))
        self.needed_fields = getattr(inner, "needed_fields", ())
        self.external = bool(getattr(inner, "external", False))  # type: ignore[misc]
        self._inner = inner
        self._every = every

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector, self._attempt = context, collector, attempt
        self._tuples: list[Tuple] = []

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple."""
        self._tuples.append(tuple)

    def finish_batch(self) -> None:
        """Pass on the tuples that are due, and remember the last one if it is not."""
        before = self._context.state(self.state.name).get(0) or {"seen": 0, "last": None}
        seen, last = before["seen"] + len(self._tuples), before["last"]
        due = [(n, one) for n, one in enumerate(self._tuples, before["seen"] + 1) if n % self._every == 0]
        if self._tuples:
            last = _kept(self._tuples[-1]) if seen % self._every else None
        if self._context.end_of_input and last is not None:
            due.append((seen, _restored(last, self._attempt)))
            last = None
        self._pass_on(due)
        if (seen, last) != (before["seen"], before["last"]):
            self._context.state(self.state.name).put(0, {"seen": seen, "last": last})

    def _pass_on(self, due: Sequence[tuple[int, Tuple]]) -> None:
        inner = self._inner
        inner.prepare(self._context, self._collector, self._attempt)
        if isinstance(inner, _Calls):
            inner.due = due
        elif takes_batches(inner):
            for _, one in due:
                inner.execute_batch(as_columns(batch_of_rows([one.values], one.fields), self._context.component))
        else:
            for _, one in due:
                inner.execute(one)
        inner.finish_batch()


class _Calls(BatchBolt, Committer):
    """Committer that calls a function once a transaction is decided: the function is the store of a map."""

    def __init__(self, name: str, function: Consume) -> None:
        self.map = MapState(name, _CallingMap(function), kind="non_transactional")
        self.due: Sequence[tuple[int, Tuple]] = ()

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._attempt = context, attempt

    def finish_batch(self) -> None:
        """Stage the calls."""
        calls = {n: [self._attempt.txid, text_of(tuple(one.values), "values")] for n, one in self.due}
        if calls:
            self._context.state(self.map.name).put_many(calls)


class _CallingMap:
    """`MapBackend` that calls a function for each row, in the order of their keys, and has no rows itself."""

    is_a_function = True  # at least once by intent

    def __init__(self, function: Consume) -> None:
        self._function = function

    def multi_get(self, keys: Sequence[str]) -> list[MapRow | None]:
        return [None] * len(keys)

    def multi_put(self, rows: Mapping[str, MapRow | None]) -> None:
        numbered = {int(key): row for key, row in rows.items() if row is not None}
        for number, row in sorted(numbered.items()):
            txid, text = row.value
            self._function(value_of(text), txid, number)


def _kept(one: Tuple) -> str:
    place = [one.source_component, one.source_stream, one.source_task]
    return text_of([tuple(one.values), list(one.fields), place], "values")


def _restored(text: str, attempt: TransactionAttempt) -> Tuple:
    values, fields, (component, stream, task) = value_of(text)
    return Tuple(values, Origin(attempt, component, stream, task, tuple(fields)))
