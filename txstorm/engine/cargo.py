"""Cargo: rows and reports sent between tasks and from tasks to the driver, in memory or as bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa

from txstorm.errors import EngineError

FORMAT = 3
# Columns must begin at addresses that suit their values: header and content are padded to multiples of this.
_ALIGNMENT = 8
_HEADER = struct.Struct("<BB6xqqqIIII")


class Kind(IntEnum):
    """Kind of a piece of cargo: rows, or one of the reports of a task."""

    DATA = 1
    """Rows of one edge; `batch` is set."""
    RESULT = 2
    """A stage task's report on a txid; `data` has counts, digests and parts."""
    ERROR = 3
    """A txid failed in a task; `data` is an error row."""
    SPILLED = 4
    """Rows of one edge, in a file named by `data`."""
    DIVERTED = 5
    """Dead letters of a stage task; `batch` is set."""
    STAGED = 6
    """A file with rows for a frame sink, which `data` describes."""


@dataclass(frozen=True, slots=True)
class Cargo:
    """One piece of cargo: rows of one edge, or a report of a task, for one attempt.

    Attributes:
        txid, attempt_id: the attempt it belongs to.
        edge: index of the edge in the plan (DATA, SPILLED); for other kinds, the level of the reporting stage.
        source, target: indices of the sending and receiving task.
        sequence: position among the cargo of the same attempt, edge and source task.
        partition: position, in the order of the source, of the partition that the rows come from; see
            `txstorm.engine.task.collector.OutputCollector.partition`.
    """

    kind: Kind
    txid: int
    attempt_id: int
    edge: int
    source: int
    target: int
    sequence: int
    batch: pa.RecordBatch | None = None
    data: Any = None
    partition: int = 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sort key for the order in which a receiver executes cargo; edges are numbered in order of subscription."""
        return (self.edge, self.partition, self.source, self.sequence)


def encode(cargo: Cargo) -> bytes:
    """Encode `cargo` as bytes: a versioned header, then Arrow IPC or JSON."""
    ids = cargo.txid, cargo.attempt_id, cargo.partition
    header = _HEADER.pack(FORMAT, cargo.kind, *ids, cargo.edge, cargo.source, cargo.target, cargo.sequence)
    if cargo.batch is None:
        content = json.dumps(cargo.data).encode()
        return header + content + b" " * (-len(content) % _ALIGNMENT)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, cargo.batch.schema) as writer:
        writer.write_batch(cargo.batch)
    return header + bytes(sink.getvalue())


def decode(data: pa.Buffer) -> Cargo:
    """Decode the cargo in `data`; if the buffer's address is aligned, the record batch refers to it without copying."""
    if data.address % _ALIGNMENT:
        data = pa.py_buffer(data.to_pybytes())
    view = memoryview(data)
    version, kind, txid, attempt_id, partition, edge, source, target, sequence = _HEADER.unpack(view[: _HEADER.size])
    if version != FORMAT:
        msg = f"cargo of format {version}, expected {FORMAT}: driver and workers run different versions of txstorm"
        raise EngineError(msg)
    body = view[_HEADER.size :]
    if kind in (Kind.DATA, Kind.DIVERTED):
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            batch, content = reader.read_next_batch(), None
    else:
        batch, content = None, json.loads(bytes(body))
    return Cargo(Kind(kind), txid, attempt_id, edge, source, target, sequence, batch, content, partition)


def split(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Slice `batch` into pieces of about `limit` bytes and at least one row each."""
    pieces = max(1, -(-batch.nbytes // limit))
    rows = max(1, -(-batch.num_rows // pieces))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
