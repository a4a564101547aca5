"""Declaring output streams and emitting to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from txstorm.api.names import DEFAULT_STREAM


@dataclass(frozen=True)
class StreamDeclaration:
    """One output stream of a component: its fields, and whether tuples name their receiving task."""

    fields: tuple[str, ...]
    direct: bool = False


class OutputFieldsDeclarer:
    """Collects the streams a component declares in `declare_output_fields`."""

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
    """The declarations of a component that only sets `fields` and `streams`."""
    declarer = OutputFieldsDeclarer()
    if fields:
        declarer.declare(fields)
    for stream, names in streams.items():
        declarer.declare_stream(stream, names)
    return declarer


class Collector(Protocol):
    """What bolts and spouts emit through. Grouping, anchoring and the attempt are the framework's business.

    Emitted values, and the memory of emitted batches, must not change after the call: not all of them are copied in it.
    The test driver raises `EmitError` when they do.
    """

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple; `values` in the order of the declared fields. Raises `EmitError` on another arity."""

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple of a direct stream to the task with index `task` of every direct subscriber."""

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit a `pyarrow.RecordBatch` or `Table` whose columns are the declared fields."""

    def report_error(self, error: BaseException) -> None:
        """Show `error` in the log and the status without failing the batch."""

    def digest(self, partition: str, digest: str) -> None:
        """Record the digest of what a spout read from `partition` for this batch."""

    def refuse(self, error: BaseException, record: Any) -> None:
        """For spouts: nothing is emitted for one record of the source, because of `error`.

        Raises `error`, unless such failures go to the dead letters, as `record` (JSON) does then.
        """

    def emitDirect(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:  # noqa: N802
        """Storm's spelling of `emit_direct`."""

    def reportError(self, error: BaseException) -> None:  # noqa: N802
        """Storm's spelling of `report_error`."""
