"""Kafka records as Arrow columns, and the digest of the records read."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.output import Collector, Refusals
from txstorm.clients.kafka.cluster import CHUNK, Partition, Range
from txstorm.misfits import Misfit
from txstorm.spouts.kafka.options import KafkaSource
from txstorm.spouts.kafka.ranges import named
from txstorm.typed import FIRST_MICROS, LAST_MICROS, NO_TIME

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")
_CHUNK_BYTES = 64 << 20
_OFFSET, _KEY, _VALUE = map(methodcaller, ("offset", "key", "value"))


class PartitionDigest:
    """Digest of offsets, keys and values, regardless of how the records are divided into pieces."""

    def __init__(self) -> None:
        self._parts = [hashlib.blake2b(digest_size=16) for _ in range(5)]
        self._count = 0

    def add(self, offsets: np.ndarray[Any, Any], keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> None:
        """Add records, in the order of their offsets."""
        self._count += len(offsets)
        self._parts[0].update(offsets.tobytes())
        for part, raw in ((1, keys), (3, values)):
            column = pa.array(raw, pa.binary())
            _, bounds, data = column.buffers()
            ends = np.frombuffer(bounds, np.int32, len(raw) + 1)
            sizes = np.diff(ends).astype(np.int64)
            if column.null_count:
                sizes[column.is_null().to_numpy(zero_copy_only=False)] = -1
            self._parts[part].update(sizes.tobytes())
            if ends[-1]:
                self._parts[part + 1].update(data.slice(0, int(ends[-1])))

    def digest(self, extent: Range) -> str:
        """Return the digest of the records, which were read from the range `extent`."""
        whole = hashlib.blake2b(f"{extent[0]} {extent[1]} {self._count}".encode(), digest_size=16)
        for part in self._parts:
            whole.update(part.digest())
        return whole.hexdigest()


def emit_records(
    source: KafkaSource, where: str, partition: Partition, extent: Range, messages: Sequence[Any], collector: Collector
) -> None:
    """Emit the records of one range and report its digest; records that cannot be decoded are refused one by one.

    `where` names spout and txid, for errors.
    """
    digest = PartitionDigest()
    for chunk in _chunks(messages):
        piece = _Piece(source, where, partition, chunk)
        digest.add(piece.offsets, piece.keys, piece.values)
        piece.emit(collector)
    collector.digest(f"{named(partition)}[{extent[0]}:{extent[1]}]", digest.digest(extent))


def _chunks(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split `messages` into chunks that each fit into one record batch, whose columns hold at most 2 GiB."""
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    start = 0
    while start < len(messages):
        before = ends[start - 1] if start else 0
        full = int(np.searchsorted(ends, before + _CHUNK_BYTES, side="right")) + 1
        stop = min(start + CHUNK, full)
        yield messages[start:stop]
        start = stop


class _Piece:
    """Consecutive records of one partition, emitted as one record batch."""

    def __init__(self, source: KafkaSource, where: str, partition: Partition, messages: Sequence[Any]) -> None:
        self._source = source
        self._where = where
        self._partition = partition
        self._messages = messages
        self.offsets = np.fromiter(map(_OFFSET, messages), np.int64, len(messages))
        self.keys = list(map(_KEY, messages))
        self.values = list(map(_VALUE, messages))
        self._fields: Mapping[str, pa.Array] = {}

    def emit(self, collector: Collector) -> None:
        bad: dict[int, Misfit] = {}
        messages = self._messages
        if self._source.typed:
            value = self._decoded("value", bad)
            self._fields = {name: value.field(name) for name in self._source.typed}
        columns = [self._column(name, bad) for name in self._source.fields]
        self._refuse(bad, collector)
        collector.origin(lambda number: self._record([row for row in range(len(messages)) if row not in bad][number]))
        if all(isinstance(column, pa.Array) for column in columns):
            batch = pa.RecordBatch.from_arrays(columns, list(self._source.fields))
            collector.emit_batch(batch.filter(self._good(bad)) if bad else batch)
        else:
            rows = [column.to_pylist() if isinstance(column, pa.Array) else column for column in columns]
            for row, values in enumerate(zip(*rows, strict=True)):
                if row not in bad:
                    collector.emit(*values)

    def _good(self, bad: dict[int, Misfit]) -> pa.Array:
        good = np.ones(len(self._messages), bool)
        good[list(bad)] = False
        return pa.array(good)

    def _column(self, name: str, bad: dict[int, Misfit]) -> Any:
        if name in self._fields:
            return self._fields[name]
        if name in ("key", "value"):
            return self._decoded(name, bad)
        if name == "timestamp":
            return self._timestamp_column(bad)
        if name == "offset":
            return pa.array(self.offsets)
        if name == "headers":
            every = (message.headers() or () for message in self._messages)
            return pa.array([[{"key": key, "value": value} for key, value in one] for one in every], HEADERS)
        place = dict(zip(("topic", "partition"), self._partition, strict=True))
        return pa.repeat(pa.scalar(place[name]), len(self._messages))

    def _decoded(self, name: str, bad: dict[int, Misfit]) -> Any:
        decoder = self._source.key if name == "key" else self._source.value
        decoded = decoder.column(self.keys if name == "key" else self.values)
        for row, why in decoded.bad.items():
            bad.setdefault(row, fault := Misfit(f"its {name} cannot be decoded: {why}"))
            fault.column = why.column if isinstance(why, Misfit) else name
        return decoded.column

    def _timestamp_column(self, bad: dict[int, Misfit]) -> pa.Array:
        times = [_micros(message) for message in self._messages]
        for row, time in enumerate(times):
            if time is not None and not FIRST_MICROS <= time <= LAST_MICROS:
                bad.setdefault(row, fault := Misfit(f"its timestamp, {time // 1000} ms, is {NO_TIME}"))
                fault.column = "timestamp"
                times[row] = None
        return pa.array(times, pa.int64()).cast(TIME)

    def _refuse(self, bad: Mapping[int, Misfit], collector: Collector) -> None:
        rows = sorted(bad)
        place = f"{self._where}: {named(self._partition)}, offset"
        messages = [f"{place} {self.offsets[row]}: {bad[row]}; choose another decoder" for row in rows]
        records = [json.dumps(self._record(row)) for row in rows]
        columns = [bad[row].column for row in rows]
        Refusals(messages, records, columns, lambda number: bad[rows[number]]).give(collector)

    def _record(self, row: int) -> dict[str, Any]:
        (topic, number), micros = self._partition, _micros(self._messages[row])
        record = {"topic": topic, "partition": number, "offset": int(self.offsets[row]), "timestamp": micros}
        return {**record, "key": _base64(self.keys[row]), "value": _base64(self.values[row])}


def _micros(message: Any) -> int | None:
    kind, millis = message.timestamp()
    return None if kind == 0 else millis * 1000


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
