"""Output of components: declared streams, the collector that emits tuples, and the choice of tasks for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from txstorm.api.names import DEFAULT_STREAM
from txstorm.errors import LEAVE_OUT, SpoutError
from txstorm.misfits import Misfit


@dataclass(frozen=True)
class StreamDeclaration:
    """One output stream of a component: its fields, and whether it is direct (the emitter names the receiving task)."""

    fields: tuple[str, ...]
    direct: bool = False


class OutputFieldsDeclarer:
    """Collects the streams declared in a component's `declare_output_fields`, and the faults of these declarations."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamDeclaration] = {}
        self.faults: list[str] = []

    def declare(self, *fields: str | Iterable[str], direct: bool = False) -> None:
        """Declare the fields of the default stream: ``declare("word", "n")`` or ``declare(Fields("word", "n"))``."""
        self.declare_stream(DEFAULT_STREAM, *fields, direct=direct)

    def declare_stream(self, stream: str, *fields: str | Iterable[str], direct: bool = False) -> None:
        """Declare the fields of the stream named `stream`."""
        flat = tuple(name for part in fields for name in ((part,) if isinstance(part, str) else part))
        if stream in self.streams:
            self.faults.append(f"stream {stream!r} is declared twice; declare it once")
        self.streams[stream] = StreamDeclaration(flat, direct)

    declareStream = declare_stream  # noqa: N815 - Storm's name


def declared(fields: Iterable[str], streams: Mapping[str, Iterable[str]]) -> OutputFieldsDeclarer:
    """Return a declarer filled from the class attributes `fields` and `streams` of a component."""
    declarer = OutputFieldsDeclarer()
    if fields:
        declarer.declare(fields)
    for stream, names in streams.items():
        declarer.declare_stream(stream, names)
    return declarer


class Collector(Protocol):
    """Output port of bolts and spouts; the framework takes care of grouping, anchoring and the attempt.

    Emitted values, and the memory of emitted batches, must not be changed after the call, since not all of them are
    copied. The test driver raises `EmitError` if they are.
    """

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple, `values` in the order of the declared fields; raise `EmitError` for a wrong number."""

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple on a direct stream, to the task with index `task` of every direct subscriber."""

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a `pyarrow.RecordBatch` or `Table` whose columns are the declared fields."""

    def report_error(self, error: BaseException) -> None:
        """Report `error` in the log and the status without failing the batch."""

    def note(self, topic: str, rows: Callable[[], Any]) -> None:
        """Show rows to the test driver, which alone calls `rows`, for a record batch; they belong to no stream."""

    def digest(self, partition: str, digest: str) -> None:
        """For spouts: record a digest of the data read from `partition` for this batch; replays are verified by it."""

    def refuse(self, error: BaseException, record: Any) -> None:
        """For spouts: skip one bad record of the source.

        If the error policy allows dead letters, `record` (JSON) is stored as one, at once, without a replay; otherwise
        `error` is raised.
        """

    def partition(self, number: int) -> None:
        """For spouts: what is emitted from here on comes from partition `number` of the source.

        Receivers get the partitions in the order of their numbers, whichever tasks read them. Without it they get what
        one task has emitted after the other; partitioned spouts need not call it.
        """

    def origin(self, place: Callable[[int], dict[str, Any]]) -> None:
        """For spouts: say where in the source the tuples are that are emitted from now on.

        `place(n)`, JSON values, stands in the error and the dead letter of the n-th of them (from 0, in each stream) if
        it cannot be sent.
        """

    def emitDirect(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:  # noqa: N802
        """Storm's spelling of `emit_direct`."""

    def reportError(self, error: BaseException) -> None:  # noqa: N802
        """Storm's spelling of `report_error`."""


@dataclass(frozen=True)
class Refusals:
    """Records of a source that a spout cannot emit, in order, as columns.

    Attributes:
        messages: why each is refused, without `LEAVE_OUT`.
        records: each as a JSON object.
        columns: the column of each whose declared type a value does not fit, or None.
        cause: returns the cause of the error of a record, given its index.
    """

    messages: Sequence[str]
    records: Sequence[str]
    columns: Sequence[str | None]
    cause: Callable[[int], Misfit | None] = lambda row: None

    def error(self, row: int) -> SpoutError:
        """Return the error for a record, given its index."""
        error = SpoutError(self.messages[row] + LEAVE_OUT)
        if (cause := self.cause(row)) is not None:
            cause.column = self.columns[row]
        error.__cause__ = cause
        return error

    def give(self, collector: Collector) -> None:
        """Have `collector` refuse the records: all at once if it can do that."""
        at_once = getattr(collector, "refuse_all", None)
        if at_once is None:
            self.one_by_one(collector.refuse)
        elif self.messages:
            at_once(self)

    def one_by_one(self, refuse: Callable[[BaseException, Any], None]) -> None:
        """Call `refuse` with the error and the description of each record."""
        for row, record in enumerate(self.records):
            refuse(self.error(row), json.loads(record))


class CustomStreamGrouping(Protocol):
    """A user-defined grouping; its choices must depend only on the arguments of its methods.

    Every task uses a fresh copy of the object for every batch, so no attribute outlives the batch.
    """

    def prepare(self, component: str, stream: str, targets: int) -> None:
        """Set up for one source; called once per task and batch, with the number of receiving tasks."""

    def choose_tasks(self, source_task: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the indices of the tasks that are to receive one tuple."""


class FunctionGrouping(CustomStreamGrouping):
    """Grouping by a function of a tuple's values: task ``function(values) mod tasks``, also if that is negative."""

    def __init__(self, function: Callable[[Sequence[Any]], int]) -> None:
        self._function = function
        self._targets = 1

    def prepare(self, component: str, stream: str, targets: int) -> None:
        """Set up for one source."""
        self._targets = targets

    def choose_tasks(self, source_task: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the one task."""
        return (self._function(values) % self._targets,)


@dataclass(frozen=True)
class Grouping:
    """The grouping of one subscription: the rule that assigns tuples to tasks.

    Attributes:
        kind: one of `KINDS`.
        fields: the grouping fields, for `fields` and `partial_key`.
        custom: the `CustomStreamGrouping`, for `custom`.
    """

    KINDS: ClassVar[tuple[str, ...]] = (
        "shuffle",
        "fields",
        "global",
        "all",
        "none",
        "direct",
        "local_or_shuffle",
        "partial_key",
        "custom",
    )

    kind: str
    fields: tuple[str, ...] = ()
    custom: Any = None

    def __str__(self) -> str:
        if self.kind == "custom":
            return f"custom {type(self.custom).__name__}"
        return f"{self.kind.replace('_', '-')}{' ' + ', '.join(self.fields) if self.fields else ''}"
