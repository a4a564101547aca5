"""Worlds with a windowed bolt: the sink holds each window that the model fires once, in the model's order of txids.

A bolt with a state counts the windows and tuples of each unit; so it has seen each window once.
"""

import json
import random
from datetime import datetime

from window_schedules import duration, extent, micros, time, window_rules
from windows_model import Model
from world_bolts import Record, recorded

from txstorm import StatefulWindowedBolt, WindowedBolt
from txstorm.results.read import read_state
from txstorm.simulation.topologies.kind import WorldKind

FIELDS = ("unit", "part", "at", "id")


class ByUnit:
    def prepare(self, component, stream, targets):
        self.targets = targets

    def choose_tasks(self, source_task, values):
        return [values[0]]


class Report(WindowedBolt):
    fields = ("unit", "start", "end", "content", "new", "expired", "first", "final")

    def prepare(self, context, collector):
        self.context, self.collector = context, collector

    def execute(self, window):
        unit = self.unit_of(window)
        ids = [[one["id"] for one in some] for some in (window.get(), window.get_new(), window.get_expired())]
        assert [one["id"] for one in window] == ids[0]
        assert window.table.column("id").to_pylist() == ids[0]
        assert window.new_table.column("id").to_pylist() == ids[1]
        assert window.expired_table.column("id").to_pylist() == ids[2]
        assert all(one.source_component == "feed" and one["unit"] == unit for one in window)
        self.collector.emit(unit, micros(window.start), micros(window.end), *ids, window.first, window.final)

    def unit_of(self, window):
        return self.context.task if window.key is None else window.key


class StatefulReport(Report, StatefulWindowedBolt):
    key_type = str

    def init_state(self, state):
        self.counts = state

    def execute(self, window):
        super().execute(window)
        unit = str(self.unit_of(window))
        windows, tuples = self.counts.get(unit, (0, 0))
        self.counts.put(unit, (windows + 1, tuples + len(window.get())))


def bolt_of(rules, rng, *, stateful=False):
    bolt = StatefulReport().with_persistence() if stateful else Report()
    if rules.gap is not None:
        gap = rules.gap
        bolt.with_session_window(lambda one: duration(gap(one["id"])))
    elif rules.trigger is not None:
        trigger = rules.trigger
        bolt.with_window(extent(rules.length), lambda one: trigger(one["id"]))
    else:
        bolt.with_window(extent(rules.length), extent(rules.slide), closed=rules.closed)
    if not rules.processing_time:
        if rng.random() < 0.7:
            bolt.with_timestamp_field("at")
        else:
            bolt.with_timestamp_extractor(lambda one: one["at"])
        bolt.with_lag(duration(rules.lag)).with_watermark_interval(duration(rules.interval))
        bolt.with_watermark_policy(rules.policy).with_partition_field("part").with_late_tuple_stream("late")
        if rules.idle is not None:
            bolt.with_idle_timeout(duration(rules.idle))
    if rules.keyed:
        bolt.with_key("unit", ttl=None if rules.ttl is None else duration(rules.ttl))
    if rules.early is not None:
        bolt.with_early_results(duration(rules.early))
    if rng.random() < 0.5:
        bolt.with_columns({"unit": str if rules.keyed else int, "part": str, "at": datetime, "id": int})
    return bolt


def in_order(window):
    """Sort the windows of a transaction: early results last, then by end and unit."""
    return not window[-1], window[2], str(window[0]), json.dumps(window)


class WindowsWorld(WorldKind):
    name, tick = "windows", 4
    settings = {"heartbeat_interval": 1}

    def declare(self, rng):
        self.rules = window_rules(rng)
        self.rules.inputs = min(self.rules.inputs, 2)
        self.bolt_seed = rng.randrange(1000)
        self.tasks = rng.choice([1, 2]) if self.rules.keyed else 2
        self.stateful = rng.random() < 0.4
        limit = (1, 7, 10_000)[self.bolt_seed % 3]  # of ends per transaction
        self.settings = {**self.settings, "max_ends_per_txid": limit}
        self.rules.early = self.rules.early if limit > 7 else None  # early results wait, too

    def __init__(self, rng):
        super().__init__(rng)
        self.now, self.ids = rng.randrange(60), 0

    @property
    def streams(self):
        return {f"s{i}": FIELDS for i in range(self.rules.inputs)}

    def build(self, builder, world):
        bolt = bolt_of(self.rules, random.Random(self.bolt_seed), stateful=self.stateful)
        declarer = builder.set_bolt("w", bolt, self.tasks)
        for name in self.streams:
            if self.rules.keyed:
                declarer.fields_grouping("feed", name, ["unit"])
            else:
                declarer.custom_grouping("feed", name, ByUnit())
        record = builder.set_committer_bolt("record", Record())
        record.global_grouping("w")
        if not self.rules.processing_time:
            record.global_grouping("w", "late")

    def rows(self, partition):
        self.now += self.rng.choice([0, 1, 4, 15, 40])
        rows = []
        for _ in range(self.rng.choice([0, 1, 2, 5])):
            self.ids += 1
            i = self.rng.randrange(self.rules.inputs)
            unit = f"k{self.rng.randrange(3)}" if self.rules.keyed else self.rng.randrange(2)
            at = time(self.now + 15 * i - self.rng.randrange(12))
            rows.append((f"s{i}", (unit, "", at, self.ids)))
        return rows

    def check(self, batches, data_dir):
        model, counts = Model(self.rules), {}
        found, fired_so_far, expected = recorded(data_dir), [], []
        for batch in batches:
            rows = [(micros(at), int(name[1:]), part, unit, id) for name, (unit, part, at, id) in batch.rows]
            late, fired = model.transaction(batch.txid, batch.stamp, rows)
            every = [
                [one.unit, one.start, one.end, one.content, one.new, one.expired, one.first, one.final] for one in fired
            ]
            expected += sorted(json.loads(json.dumps(every)), key=in_order)
            got = found.get(batch.txid, {})
            fired_so_far += sorted(got.get("default", []), key=in_order)
            # With a limit the same windows fire in the same order, but perhaps later.
            whole = expected if self.settings["max_ends_per_txid"] > 7 else expected[: len(fired_so_far)]
            if fired_so_far != whole:
                return f"txid {batch.txid} of {self.rules} fires {got}, not {fired}"
            if sorted(row[-1] for row in got.get("late", [])) != sorted(late):
                return f"txid {batch.txid} of {self.rules} has {got.get('late')} late, not {late}"
        if extra := found.keys() - {batch.txid for batch in batches}:
            return f"the sink has rows of {extra}"
        for unit, _, _, content, *_ in fired_so_far:
            windows, tuples = counts.get(str(unit), (0, 0))
            counts[str(unit)] = windows + 1, tuples + len(content)
        if self.stateful:
            rows = read_state(data_dir, "w").to_pylist()
            if (state := {row["key"]: tuple(json.loads(row["value"])["t"]) for row in rows}) != counts:
                return f"the state has {state}, not {counts}"
        return None
