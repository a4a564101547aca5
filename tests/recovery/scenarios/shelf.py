"""Topologies over a shelf: a source in a file that tests rewrite between two starts.

``shelf DATA_DIR SHELF DIARY KIND UNTIL`` runs the watched topology. `topology` builds one with collections and times to
live, and `expected` computes its result for any numbers.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from watched import Diary, PartitionedShelfSpout, Shelf, ShelfSpout, watched_topology

from txstorm import BasicBolt, BatchBolt, CollectionState, Committer, KeyedState, TransactionalTopologyBuilder, run
from txstorm.api.state import SinkTable
from txstorm.results.read import read_sink
from txstorm.storage.tables.history import read_history

KINDS = {"planned": ShelfSpout, "partitioned": PartitionedShelfSpout}
TTL = timedelta(milliseconds=60)
WIDTH = 20
RISE = 3
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("at", pa.int64())])


class Key(BasicBolt):
    fields = ("k", "n")

    def execute(self, tuple, collector):
        collector.emit(tuple["n"] % 3, tuple["n"])


class Window(BatchBolt, Committer):
    """A committer that keeps each key's recent numbers by position, removing old ones; one sink row per number.

    It also keeps them as columns, and evicts those below a bound per key, and below one that rises with the txid.
    """

    events = CollectionState("events", key={"k": int}, order={"at": int}, value={"n": int})
    lately = KeyedState("lately", key={"k": int}, value={"n": int}, ttl=TTL)
    recent = CollectionState("recent", key={"k": int}, order={"at": int}, value={"n": int}, ttl=TTL)
    window = CollectionState("window", key={"k": int}, order={"at": int}, value={"n": int})
    saw = SinkTable("saw", {"k": int, "n": int, "inside": int, "lately": int, "recent": int})

    def prepare(self, context, collector, attempt):
        self.context, self.txid, self.numbers = context, attempt.txid, []

    def execute(self, tuple):
        self.numbers.append((tuple["k"], tuple["n"]))

    def finish_batch(self):
        context = self.context
        events, recent = context.collection("events"), context.collection("recent")
        for k, n in self.numbers:
            at = place(n)
            events.append(k, at, n)
            recent.append(k, -at, n)
            events.remove(k, None, at - 2 * WIDTH)
            times = context.state("lately").update(k, lambda old: (old or 0) + 1)
            inside = sum(row[1] for row in events.scan(k, at - WIDTH, at))
            context.sink("saw").append(k, n, inside, times, len(recent.scan(k)))
        window = context.collection("window")
        columns = {"k": [k for k, _ in self.numbers], "n": [n for _, n in self.numbers]}
        window.append_batch(pa.table({**columns, "at": [place(n) for _, n in self.numbers]}, schema=COLUMNS))
        for k, at in cuts(self.numbers).items():
            window.evict_before(at, k)
            assert all(row["at"] >= at for row in window.scan_table([k]).to_pylist())
        window.evict_before(RISE * self.txid)


def cuts(numbers: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the place below which the numbers of each key are evicted."""
    keys = sorted({k for k, _ in numbers})
    return {k: max(place(n) for other, n in numbers if other == k) // 3 for k in keys}


def place(n: int) -> int:
    return n * 37 % 100


def topology(source: Any, **settings: Any) -> Any:
    builder = TransactionalTopologyBuilder("keyed", "numbers", source)
    builder.set_bolt("key", Key(), 2).shuffle_grouping("numbers")
    builder.set_committer_bolt("window", Window(), 2).fields_grouping("key", ["k"])
    wanted = {"max_spout_pending": 4, "max_pack_txids": 2, "retry_backoff": 0.01, **settings}
    return builder.build_topology().with_settings(wanted)


def expected(batches: Sequence[tuple[int, int, Sequence[int]]]) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Return expected states at the last stamp, and sink rows, for batches of (txid, stamp, numbers)."""
    ttl = TTL // timedelta(microseconds=1)
    events: dict[int, list[tuple[int, int]]] = defaultdict(list)
    recent: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    lately: dict[int, tuple[int, int]] = {}
    window: dict[int, list[tuple[int, int]]] = defaultdict(list)
    saw, stamp = [], 0
    for txid, stamp, numbers in batches:
        for n in numbers:
            k, at = n % 3, place(n)
            events[k] = [(a, m) for a, m in [*events[k], (at, n)] if a > at - 2 * WIDTH]
            recent[k] = [one for one in recent[k] if one[2] > stamp - ttl] + [(-at, n, stamp)]
            before, written = lately.get(k, (0, 0))
            lately[k] = (before if written > stamp - ttl else 0) + 1, stamp
            inside = sum(m for a, m in events[k] if at - WIDTH <= a <= at)
            saw.append((txid, k, n, inside, lately[k][0], len(recent[k])))
        for n in numbers:
            window[n % 3].append((place(n), n))
        for k, cut in cuts([(n % 3, n) for n in numbers]).items():
            window[k] = [row for row in window[k] if row[0] >= cut]
        window = defaultdict(list, {k: [row for row in rows if row[0] >= RISE * txid] for k, rows in window.items()})
    states = {
        "window": rows(window),
        "events": rows(events),
        "lately": [{"k": k, "n": n} for k, (n, written) in sorted(lately.items()) if written > stamp - ttl],
        "recent": rows({k: [row[:2] for row in found if row[2] > stamp - ttl] for k, found in recent.items()}),
    }
    return states, sorted(saw)


def rows(found: Mapping[int, list[tuple[int, int]]]) -> list[dict[str, int]]:
    return [{"k": k, "at": at, "n": n} for k in sorted(found) for at, n in sorted(found[k], key=lambda row: row[0])]


def made(data_dir: Path, txid: int | None = None) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Return the actual content of a directory as of a txid, in the form of `expected`."""
    from txstorm.results.snapshot import snapshot

    cut = snapshot(data_dir, txid)
    states = {name: cut.state(name).to_pylist() for name in ("events", "lately", "recent", "window")}
    for row in [row for found in states.values() for row in found]:
        row.pop("_seq", None)
    names = ("_txid", "k", "n", "inside", "lately", "recent")
    saw = cut.sink("saw").to_pylist()
    return states, sorted(tuple(row[name] for name in names) for row in saw)


def batches(data_dir: Path, last: int) -> list[tuple[int, int, list[int]]]:
    """Return (txid, stamp, numbers) of the transactions up to `last`, from the history and the sink."""
    history = read_history(data_dir)
    stamps = dict(zip(history["txid"].to_pylist(), history["stamp"].cast("int64").to_pylist(), strict=True))
    numbers: dict[int, list[int]] = defaultdict(list)
    for row in read_sink(data_dir, "saw").to_pylist():
        numbers[row["_txid"]].append(row["n"])
    return [(txid, stamps[txid], sorted(numbers[txid])) for txid in range(1, last + 1)]


def watch(data_dir: str, shelf: str, diary: str, kind: str, until: str) -> None:
    topology = watched_topology(
        KINDS[kind](Shelf(Path(shelf))), Diary(Path(diary)), max_group_txids=1, max_spout_pending=4, max_pack_txids=2
    )
    run(topology, engine="local", data_dir=data_dir, until_txid=int(until)).awaitTermination()
