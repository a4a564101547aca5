"""A topology whose committer uses every state operation that a large commit supports, and fails on demand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from scenarios.endless import Total
from watched import Diary, Gathering, Trouble

from txstorm import BasicBolt, BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.api.state import SinkTable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.results.read import read_changes, read_sink, read_state, rows_json
from txstorm.sinks import DeltaSink
from txstorm.storage.rows.ttl import moment

TTL = timedelta(milliseconds=40)
STATES = ("seen", "lately", "exact")


class Key(BasicBolt):
    """A bolt that emits numbers under a key of two columns: a string, and a number or None."""

    fields = ("name", "part", "n")

    def execute(self, tuple, collector):
        n = tuple["n"]
        collector.emit(f"käse {n % 11}", None if n % 3 == 0 else n % 3, n)


class Keep(BatchBolt, Committer):
    """A committer that stores a count and the last number per key, and deletes some keys, partly in the same txid."""

    seen = KeyedState("seen", key={"name": str, "part": int}, value={"times": int, "last": int})
    lately = KeyedState("lately", key={"name": str, "part": int}, value={"times": int}, ttl=TTL)
    exact = KeyedState("exact", key={"name": str, "part": int}, value={"ns": pa.list_(pa.int64())})
    log = SinkTable("log", {"name": str, "n": int, "before": int})

    def __init__(self, diary: Diary | None = None, trouble: Trouble | None = None) -> None:
        self.diary, self.trouble = diary, trouble

    def prepare(self, context, collector, attempt):
        self.context, self.attempt, self.numbers = context, attempt, defaultdict(list)

    def execute(self, tuple):
        self.numbers[tuple["name"], tuple["part"]].append(tuple["n"])

    def finish_batch(self):
        seen, lately, exact = (self.context.state(name) for name in STATES)
        for key, ns in self.numbers.items():
            before = seen.get(key, {"times": 0, "last": 0})
            seen.put(key, {"times": before["times"] + len(ns), "last": ns[-1]})
            if sum(ns) % 5 == 0:
                seen.remove(key)
            if sum(ns) % 7 == 0:  # there, and gone again
                exact.put(key, [0])
                exact.remove(key)
            self.context.sink("log").append(key[0], ns[0], before["times"])
        lately.update_many({key: len(ns) for key, ns in self.numbers.items()}, lambda old, n: (old or 0) + n)
        exact.update_many(self.numbers, lambda old, ns: [*(old or []), *ns][-5:])
        if self.diary is not None:
            self.diary.note("keep", self.attempt.txid, self.context.task)
        if self.trouble is not None:
            self.trouble(self.attempt.txid, self.context.task)


class Merged(Keep):
    exact = replace(Keep.exact, layout="merge")
    lately = replace(Keep.lately, layout="merge")


class Telling(Keep):
    """A committer that emits its numbers downstream, partitioned by a field that is not its key."""

    streams = {"default": ("n", "name"), "first": ("n",)}

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.collector = collector

    def finish_batch(self):
        super().finish_batch()
        for (name, _), ns in self.numbers.items():
            self.collector.emit(ns[0], stream="first")
            for n in ns:
                self.collector.emit(n, None if n % 4 == 0 else name)


class Pass(Gathering):
    """A bolt downstream of a committer that passes its tuples on, each with its position in the task's input."""

    fields = ("n", "place")

    def finish_batch(self):
        for place, n in enumerate(self.taken):
            self.collector.emit(n, f"{self.context.task}/{place}")


class SparkWritten(Keep):
    seen = replace(Keep.seen, writer="spark")


def topology(source: Any, keep: Keep | None = None, key: Key | None = None, **settings: Any) -> Any:
    builder = TransactionalTopologyBuilder("large", "numbers", source)
    builder.set_bolt("key", key or Key(), 2).shuffle_grouping("numbers")
    builder.set_committer_bolt("keep", keep or Keep(), 3).fields_grouping("key", ["name", "part"])
    builder.set_committer_bolt("total", Total()).global_grouping("key")
    if isinstance(keep, Telling):
        behind = builder.set_bolt("pass", Pass(), 2).shuffle_grouping("key").shuffle_grouping("keep")
        behind.all_grouping("keep", "first")
        builder.set_committer_bolt("heard", DeltaSink("heard", {"n": int, "place": str})).global_grouping("pass")
    wanted = {"max_spout_pending": 6, "max_pack_txids": 3, "retry_backoff": 0.01, **settings}
    return builder.build_topology().with_settings(wanted)


def tables(data_dir: Path, last: int) -> dict[str, Any]:
    """Return all rows of a data directory without time-dependent columns: equal for equal input."""
    changes = {name: _changes(data_dir, name, last) for name in ("seen", "total")}
    # The last transactions may have had nothing to write.
    cuts = [rows_json(read_state(data_dir, name, txid, last)) for name in ("seen", "total") for txid in range(last + 1)]
    sink = sorted(map(repr, read_sink(data_dir, "log").to_pylist()))
    return {**changes, "cuts": cuts, "exact": rows_json(read_state(data_dir, "exact", last, last)), "log": sink}


def over(data_dir: Path) -> list[Any]:
    """Return the stamps of expired rows of `Merged.lately` that any version of its table still contains."""
    table = data_dir / "state/lately"
    commits = (one for one in DeltaHandle.open(table).history() if one.info["kind"] == "commit")
    ends = {one.version: moment(one.info["txids"][-1]["stamp"]) - TTL for one in commits}
    stamps = {version: DeltaHandle.open(table, version).read(["_stamp"])["_stamp"].to_pylist() for version in ends}
    return [stamp for version, end in ends.items() for stamp in stamps[version] if stamp <= end]


def _changes(data_dir: Path, name: str, last: int) -> list[str]:
    return sorted(map(repr, read_changes(data_dir, name, 1, last).to_pylist()))
