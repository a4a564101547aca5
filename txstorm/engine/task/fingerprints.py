"""Fingerprints: in the test driver, detect user code that changes emitted values or payloads.

Copying every emitted value, and every row of a payload for every task, would cost more than the rest of `emit`. Such
values must therefore not be changed; violations are detected by comparing fingerprints taken before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import StreamDeclaration
from txstorm.engine.task.collector import Emitted, Observe, OutputCollector
from txstorm.engine.task.error_rows import shortened
from txstorm.errors import EmitError, SpoutError
from txstorm.tagged import text_of

A = TypeVar("A")
_FIXED = (str, int, float, bool, bytes, type(None))
"""Immutable types, whose values need no fingerprint."""


class _Given(NamedTuple):
    stream: str
    values: Any
    fingerprint: Any
    shown: str = ""


class CheckedCollector(OutputCollector):
    """A collector that raises `EmitError` if a value, or the memory of a batch, was changed after its emission.

    What is passed to `note` is emitted to a stream that is not declared, so that only the observer receives it.
    """

    def __init__(self, component: str, streams: Mapping[str, StreamDeclaration], *, ordered: bool = False) -> None:
        super().__init__(component, streams, ordered=ordered)
        self._given: list[_Given] = []

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple."""
        self._note(stream, values)
        super().emit(*values, stream=stream)

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to one task."""
        self._note(stream, values)
        super().emit_direct(task, *values, stream=stream)

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit the rows of a record batch or table."""
        if isinstance(batch, pa.RecordBatch | pa.Table):
            self._given.append(_Given(stream, batch, _bytes_of(batch)))
        super().emit_batch(batch, stream=stream)

    def note(self, topic: str, rows: Callable[[], Any]) -> None:
        """Keep rows for the observer."""
        self._out.append(Emitted(topic, rows()))

    emitDirect = emit_direct  # noqa: N815 - Storm's names
    emitBatch = emit_batch  # noqa: N815

    def take(self) -> list[Emitted]:
        """Return everything emitted so far; raises `EmitError` if any of it has been changed since."""
        given, self._given = self._given, []
        for one in given:
            self._check(one)
        return super().take()

    def _note(self, stream: str, values: tuple[Any, ...]) -> None:
        if any(not isinstance(value, _FIXED) for value in values):
            self._given.append(_Given(stream, values, fingerprint(values), shortened(values)))

    def _check(self, one: _Given) -> None:
        where = f"{self._component}, stream {one.stream!r}"
        if isinstance(one.values, tuple):
            if fingerprint(one.values) != one.fingerprint:
                raise EmitError(
                    f"{where}: a tuple was changed after it was emitted: emitted {one.shown}, now "
                    f"{shortened(one.values)}; emitted values must not change: emit a copy, or make a new list or dict "
                    "for each tuple"
                )
        elif _bytes_of(one.values) != one.fingerprint:
            raise EmitError(
                f"{where}: a record batch was changed after it was emitted; its memory (for example a NumPy array) "
                "must not change: emit a batch over a copy of the array"
            )


def leaving_alone(payload: Any, component: str, emit: Callable[[], A]) -> A:
    """Call `emit` and return its result; raises `SpoutError` if the call changed the payload of the batch."""
    before = fingerprint(payload)
    result = emit()
    if fingerprint(payload) != before:
        raise SpoutError(
            f"spout {component!r}: an emitter changed its payload (TaskContext.payload), which all tasks and the "
            "coordinator share on the local engine; change a copy of it"
        )
    return result


def fingerprint(value: Any) -> str | None:
    """Return the fingerprint of `value`; None if it cannot be sent, and is thus refused or ignored elsewhere."""
    try:
        return text_of(value, "")
    except (EmitError, RecursionError, ValueError, TypeError):
        return None


def collector_kind(observe: Observe | None) -> type[OutputCollector]:
    """Return `CheckedCollector` if the test driver observes the tasks through `observe`, else `OutputCollector`."""
    return OutputCollector if observe is None else CheckedCollector


def _bytes_of(batch: pa.RecordBatch | pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write(batch)
    return bytes(sink.getvalue())
