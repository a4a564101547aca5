"""Windows on two tables: a stateful windowed bolt and an aggregate, which crash tests kill at any step and in hooks.

``windows DATA_DIR PROVIDER [--conf JSON] [--spout S] [--take N] [--hook METHOD:ACTION:TXID]`` runs the topology to the end of
its input, which closes all windows. Each of the two has a state, and sinks for its results and late tuples.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from scenarios.stateful import Hooked, arguments, run_stateful
from scenarios.words import memory_spout
from txstorm import Duration, StatefulWindowedBolt, TransactionalTopologyBuilder, WindowAggregate
from txstorm.sinks import DeltaSink

FIELDS = ("unit", "at", "id", "value")
LENGTH, SLIDE, LAG, LATENESS = 40, 20, 10, 15
PARTITIONS = 2


def rows(partition: int) -> list[tuple[str, int, int, int]]:
    """Return the rows of a partition: (unit, time in microseconds, id, value), out of order, some of them late."""
    made = []
    for i in range(partition, 20, PARTITIONS):
        back = 70 if i % 11 == 7 else (i * 7) % 13
        made.append(("abc"[i % 3], 12 * i - back, i, i * 5 % 7))
    return made


class Sums(Hooked, StatefulWindowedBolt):
    """Emits the ids of each window; its state counts windows and their tuples by unit."""

    fields = ("unit", "end", "content", "new", "expired")

    def prepare(self, context, collector):
        self.collector = collector

    def init_state(self, state):
        self.counts = state

    def execute(self, window):
        ids = [[one["id"] for one in some] for some in (window.get(), window.get_new(), window.get_expired())]
        windows, tuples = self.counts.get(window.key, (0, 0))
        self.counts.put(window.key, (windows + 1, tuples + len(ids[0])))
        self.collector.emit(window.key, window.end, *map(json.dumps, ids))


RESULT = {"unit": str, "start": datetime, "end": datetime, "n": int, "total": int, "last": int}


def topology(spout: str, take: int, bolt: Sums) -> Any:
    source = memory_spout(spout, {number: rows(number) for number in range(PARTITIONS)}, FIELDS, take)
    builder = TransactionalTopologyBuilder("windows", "rows", source, PARTITIONS)
    length, slide, lag = Duration(LENGTH / 1000), Duration(SLIDE / 1000), Duration(LAG / 1000)
    bolt.with_window(length, slide).with_key("unit").with_persistence()
    bolt.with_timestamp_field("at", unit="us").with_lag(lag).with_late_tuple_stream("late")
    builder.set_bolt("sums", bolt, 2).fields_grouping("rows", ["unit"])
    windows = DeltaSink("windows", dict.fromkeys(Sums.fields, str) | {"end": datetime})
    builder.set_bolt("windows", windows, 2).fields_grouping("sums", ["unit"])
    late = DeltaSink("late", dict.fromkeys(FIELDS, int) | {"unit": str})
    builder.set_bolt("late", late).global_grouping("sums", "late")
    columns = {"n": "count", "total": ("value", "sum"), "last": ("id", "last")}
    aggregate = WindowAggregate("unit", table="totals", retractions=True, **columns)
    aggregate.with_window(length, slide).with_timestamp_field("at", unit="us").with_lag(lag)
    aggregate.with_allowed_lateness(Duration(LATENESS / 1000))
    builder.set_bolt("aggregate", aggregate, 2).fields_grouping("rows", ["unit"])
    for name, stream in (("results", "default"), ("retracted", "retractions")):
        builder.set_bolt(name, DeltaSink(name, RESULT), 2).fields_grouping("aggregate", stream, ["unit"])
    return builder.build_topology()


def main(*argv: str) -> dict[str, Any]:
    """Run the topology once; return its progress."""
    options = arguments(argv)
    bolt = Sums(options.data_dir.with_name("hooks"), options.hook)
    return run_stateful(topology(options.spout, options.take, bolt), options, end_of_input=True)
