"""Worlds with a windowed bolt: the sink holds each window that the model fires once, in the model's order of txids."""

import json
import random
from datetime import datetime

from window_schedules import duration, extent, micros, time, window_rules
from windows_model import Model
from world_bolts import Record, recorded

from txstorm import WindowedBolt
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
        unit = self.context.task if window.key is None else window.key
        ids = [[one["id"] for one in some] for some in (window.get(), window.get_new(), window.get_expired())]
        assert [one["id"] for one in window] == ids[0]
        assert window.table.column("id").to_pylist() == ids[0]
        assert window.new_table.column("id").to_pylist() == ids[1]
        assert window.expired_table.column("id").to_pylist() == ids[2]
        assert all(one.source_component == "feed" and one["unit"] == unit for one in window)
        self.collector.emit(unit, micros(window.start), micros(window.end), *ids, window.first, window.final)


def bolt_of(rules, rng):
    bolt = Report()
    if rules.gap is not None:
        gap = rules.gap
        bolt.with_session_window(lambda one: duration(gap(one["id"])))
    elif rules.trigger is not None:
        trigger = rules.trigger
        bolt.with_window(extent(rules.length), lambda one: trigger(one["id"]))
    else:
        bolt.with_window(extent(rules.length), extent(rules.slide))
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


class WindowsWorld(WorldKind):
    name, tick = "windows", 4
    settings = {"heartbeat_interval": 1}

    def declare(self, rng):
        self.rules = window_rules(rng)
        self.rules.inputs = min(self.rules.inputs, 2)
        self.bolt_seed = rng.randrange(1000)
        self.tasks = rng.choice([1, 2]) if self.rules.keyed else 2

    def __init__(self, rng):
        super().__init__(rng)
        self.now, self.ids = rng.randrange(60), 0

    @property
    def streams(self):
        return {f"s{i}": FIELDS for i in range(self.rules.inputs)}

    def build(self, builder, world):
        declarer = builder.set_bolt("w", bolt_of(self.rules, random.Random(self.bolt_seed)), self.tasks)
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
        model = Model(self.rules)
        found = recorded(data_dir)
        for batch in batches:
            rows = [(micros(at), int(name[1:]), part, unit, id) for name, (unit, part, at, id) in batch.rows]
            late, fired = model.transaction(batch.txid, batch.stamp, rows)
            expected = sorted(
                [one.unit, one.start, one.end, one.content, one.new, one.expired, one.first, one.final] for one in fired
            )
            got = found.get(batch.txid, {})
            if sorted(got.get("default", [])) != json.loads(json.dumps(expected)):
                return f"txid {batch.txid} of {self.rules} fires {got}, not {expected}"
            if sorted(row[-1] for row in got.get("late", [])) != sorted(late):
                return f"txid {batch.txid} of {self.rules} has {got.get('late')} late, not {late}"
        if extra := found.keys() - {batch.txid for batch in batches}:
            return f"the sink has rows of {extra}"
        return None
