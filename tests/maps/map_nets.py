"""Topologies for map tests: a source whose replays may differ, and a committer that sums its tuples in maps."""

from typing import Any

from txstorm import BatchBolt, Committer, FailedException, MapState, MemoryBackend, TransactionalTopologyBuilder
from txstorm.api.spout import Emitter, SpoutCoordinator, TransactionalSpout


class Source(TransactionalSpout):
    """A source whose transaction N is ``rows[N - 1]`` when first planned, and ``changed[N]`` if it is replanned."""

    fields = ("key", "n")

    def __init__(self, rows: list[list[tuple[str, int]]], changed: dict[int, Any] | None = None, opaque: bool = False):
        self.rows, self.changed, self.opaque = rows, changed or {}, opaque
        self.planned: dict[int, int] = {}

    def coordinator(self, context):
        return _Coordinator(self)

    def emitter(self, context):
        return _Emitter(context)


class _Coordinator(SpoutCoordinator):
    def __init__(self, source):
        self.source = source

    def initialize_transaction(self, txid, prev_metadata):
        self.source.planned[txid] = self.source.planned.get(txid, 0) + 1
        again = self.source.planned[txid] > 1 and txid in self.source.changed
        return {"rows": self.source.changed[txid] if again else self.source.rows[txid - 1], "end": txid}

    def payload(self, metadata):
        return metadata["rows"]

    def latest(self):
        return len(self.source.rows)

    def reached(self, metadata, mark):
        return metadata is not None and metadata["end"] >= mark


class _Emitter(Emitter):
    def __init__(self, context):
        self.context = context

    def emit_batch(self, attempt, metadata, collector):
        if self.context.task == 0:
            for row in self.context.payload:
                collector.emit(*row)


TROUBLE: dict[int, int] = {}
"""Remaining failures of `finish_batch`, which fails after all its writes, by txid."""


class Sums(BatchBolt, Committer):
    """A committer that adds the batch's sum for each key to its value in every map, and removes keys whose sum is 0."""

    def __init__(self, *maps: MapState) -> None:
        self.maps = maps

    def prepare(self, context, collector, attempt):
        self.context, self.attempt, self.sums = context, attempt, {}

    def execute(self, tuple):
        self.sums[tuple["key"]] = self.sums.get(tuple["key"], 0) + tuple["n"]

    def finish_batch(self):
        for one in self.maps:
            handle = self.context.state(one.name)
            handle.update_many({key: n for key, n in self.sums.items() if n}, lambda old, n: (old or 0) + n)
            handle.remove_many(key for key, n in self.sums.items() if not n)
        if TROUBLE.get(self.attempt.txid, 0):
            TROUBLE[self.attempt.txid] -= 1
            raise FailedException("after the writes")


def topology(source: Any, *maps: MapState, group: int = 64, parallelism: int = 1) -> Any:
    builder = TransactionalTopologyBuilder("own", "source", source)
    builder.set_bolt("sums", Sums(*maps), parallelism).fields_grouping("source", ["key"])
    builder.set_settings({"retry_backoff": 0, "max_group_txids": group, "max_spout_pending": 8})
    return builder.build_topology()


class Plain:
    """A minimal store, with only `multi_get` and `multi_put`."""

    def __init__(self) -> None:
        self.inner = MemoryBackend()

    def multi_get(self, keys):
        return self.inner.multi_get(keys)

    def multi_put(self, rows):
        self.inner.multi_put(rows)


def values(backend: Any, keys: str = "abcdefgh") -> dict[str, Any]:
    """Return the values of the one-letter keys in `keys`, by key; keys without a value are omitted."""
    rows = backend.multi_get([f'"{key}"' for key in keys])
    return {key: row.value for key, row in zip(keys, rows, strict=True) if row is not None and row.value is not None}
