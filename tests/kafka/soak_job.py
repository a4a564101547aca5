"""Topology of the soak test: stores every record in a sink, and keeps counts and hashes by word and by partition.

A record is ``"<word> <number>"``; all records of a word are in one partition, so that their order
is known, and the hash by word can depend on it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey, Map
from txstorm.sinks import DeltaSink
from txstorm.spouts import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout
from txstorm.topology.graph import Topology

COLUMNS = {"word": str, "number": int, "partition": int, "offset": int}
SETTINGS = {"retry_backoff": 0.05, "retry_backoff_max": 0.5, "min_interval": 0.1, "max_spout_pending": 8}
FACTOR, MODULUS = 1_000_003, (1 << 61) - 1


def trail(before: int, numbers: Iterable[int]) -> int:
    """Fold `numbers` into the hash `before`; return the new hash, which depends on their order."""
    for number in numbers:
        before = (before * FACTOR + number + 1) % MODULUS
    return before


def parsed(row: Any) -> tuple[str, int, int, int]:
    word, _, number = row["value"].partition(" ")
    return word, int(number), row["partition"], row["offset"]


class Keep(BatchBolt, Committer):
    """A committer that folds offset and number of the records of a key into a state."""

    def __init__(self, state: KeyedState, fold: Callable[[Any, list[tuple[int, int]]], dict[str, int]]) -> None:
        self.state, self.fold = state, fold
        [self.key] = state.key

    def prepare(self, context, collector, attempt):
        self.context, self.came = context, defaultdict(list)

    def execute(self, tuple):
        self.came[tuple[self.key]].append((tuple["offset"], tuple["number"]))

    def finish_batch(self):
        self.context.state(self.state.name).update_many(self.came, self.fold)


def trails(old: Any, came: list[tuple[int, int]]) -> dict[str, int]:
    """Return the number of records and an order-dependent hash of their numbers."""
    n, before = (old["n"], old["trail"]) if old is not None else (0, 0)
    return {"n": n + len(came), "trail": trail(before, (number for _, number in came))}


def places(old: Any, came: list[tuple[int, int]]) -> dict[str, int]:
    """Return the number of records, the last offset, and the sum of the numbers."""
    n, total = (old["n"], old["total"]) if old is not None else (0, 0)
    return {"n": n + len(came), "last": came[-1][0], "total": total + sum(number for _, number in came)}


TRAILS = KeyedState("trails", key={"word": str}, value={"n": int, "trail": int})
PLACES = KeyedState("places", key={"partition": int}, value={"n": int, "last": int, "total": int})


def topology(brokers: str, source: str, *, opaque: bool = True, rows: int = 4000) -> Topology:
    """Build the topology of the soak test; used as ``txstorm run "soak_job:topology(…)"``."""
    kind = OpaqueTransactionalKafkaSpout if opaque else TransactionalKafkaSpout
    options = {"fields": ("value", "partition", "offset"), "max_batch_rows": rows, "patience": 1.0}
    builder = TransactionalTopologyBuilder("soak", "lines", kind(source, brokers, **options), 2)
    builder.set_bolt("records", Map(parsed, *COLUMNS), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("counts", CountByKey("word", table="counts"), 2).fields_grouping("records", ["word"])
    builder.set_bolt("trails", Keep(TRAILS, trails), 2).fields_grouping("records", ["word"])
    builder.set_bolt("places", Keep(PLACES, places), 2).fields_grouping("records", ["partition"])
    builder.set_bolt("rows", DeltaSink("rows", COLUMNS)).global_grouping("records")
    return builder.set_settings(SETTINGS).build_topology()
