"""Random operations on keyed state and collections, with or without a time to live, against a model of plain dicts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from store_cases import intent_of, open_store, record

from txstorm.api.state import CollectionState, KeyedState
from txstorm.results.read import read_state
from txstorm.state.commit_group import CommitGroup
from txstorm.state.index.index import Bounds
from txstorm.state.store import StateStore
from txstorm.storage.tables.intent import TxidRecord

SECOND = 1_000_000
TTL = timedelta(seconds=10)
SEEN = KeyedState("seen", key={"user": str}, value={"n": int, "by": str}, ttl=TTL)
EVENTS = CollectionState("events", key={"user": str}, order={"at": int}, value={"kind": str, "n": int})
RECENT = CollectionState("recent", key={}, order={"at": int}, value={"n": int}, ttl=TTL)
USERS = ("ann", "bob", None)
FEW = Bounds(memory=2_000, kept_from=4, behind=5, seconds=1e9, sync_seconds=0.0)

Row = tuple[Any, ...]


@dataclass
class Shown:
    """Model of the three states as of a txid: user → (value, stamp), user → rows, and rows with their stamps."""

    seen: dict[Any, tuple[Any, int]] = field(default_factory=dict)
    events: dict[Any, list[Row]] = field(default_factory=dict)
    recent: list[tuple[int, int, int]] = field(default_factory=list)
    bound: int = -1

    def copy(self) -> Shown:
        events = {user: list(rows) for user, rows in self.events.items()}
        return Shown(dict(self.seen), events, list(self.recent), self.bound)

    def evict(self, bound: int) -> None:
        """Drop the events of all users below the higher one of `bound` and all earlier ones."""
        self.bound = max(self.bound, bound)
        self.events = {user: [row for row in rows if row[0] >= self.bound] for user, rows in self.events.items()}

    def at(self, stamp: int) -> tuple[dict[Any, Any], dict[Any, list[Row]], list[Row]]:
        """Return the part of the model that has not expired at `stamp`."""
        over = stamp - TTL // timedelta(microseconds=1)
        seen = {user: value for user, (value, written) in self.seen.items() if written > over}
        events = {user: rows for user, rows in self.events.items() if rows}
        return seen, events, [(at, n) for at, n, written in self.recent if written > over]


def place(row: Row) -> int:
    return row[0]


def play(draw: random.Random, resources: Any, now: Shown, stamp: int) -> None:
    """Run one txid of random reads and writes on both the handles and the model `now`; check that each read agrees."""
    seen = resources.state("count", 0, "seen")
    events, recent = (resources.collection("count", 0, name) for name in ("events", "recent"))
    bound, cuts = -1, dict.fromkeys(USERS, -1)
    for _ in range(draw.randrange(1, 6)):
        user, n, at = draw.choice(USERS), draw.randrange(100), draw.randrange(12)
        there = now.at(stamp)
        action = draw.choice(["put", "update", "remove", "append", "append", "cut", "expiring", "evict", "bound"])
        if action == "put":
            seen.put(user, {"n": n, "by": "put"})
            now.seen[user] = {"n": n, "by": "put"}, stamp
        elif action == "update":
            value = {"n": there[0].get(user, {"n": 0})["n"] + n, "by": "update"}
            assert seen.update(user, lambda old, n=n: {"n": (old or {"n": 0})["n"] + n, "by": "update"}) == value
            now.seen[user] = value, stamp
        elif action == "remove":
            seen.remove(user)
            now.seen.pop(user, None)
        elif action == "append":
            rows = [(user, draw.randrange(12), f"k{n}", i) for i in range(draw.randrange(1, 4))]
            events.append_many(rows)
            for user, at, *values in rows:
                now.events.setdefault(user, []).append((at, *values))
                now.events[user] = [row for row in now.events[user] if row[0] >= cuts[user]]
                now.events[user].sort(key=place)
            now.evict(-1)
        elif action == "evict":
            events.evict_batch(pa.table({"user": pa.array([user], pa.string()), "at": [at]}))
            cuts[user] = max(cuts[user], at)
            now.events[user] = [row for row in now.events.get(user, []) if row[0] >= at]
        elif action == "bound" and draw.random() < 0.3:
            events.evict_before(at // 2)
            bound = max(bound, at // 2)
        elif action == "cut":
            keep = [row for row in now.events.get(user, []) if not at <= row[0] <= at + 4]
            assert events.remove(user, at, at + 4) == len(now.events.get(user, [])) - len(keep)
            now.events[user] = keep
        else:
            recent.append((), at, n)
            now.recent = sorted([*now.recent, (at, n, stamp)], key=place)
        check(resources, now, stamp, at)
    now.evict(bound)


def check(resources: Any, now: Shown, stamp: int, at: int = 3) -> None:
    """Assert that the handles read the same as the model `now`."""
    seen, events, recent = now.at(stamp)
    assert resources.state("count", 0, "seen").get_many(USERS) == seen
    handle = resources.collection("count", 0, "events")
    assert handle.scan_many(USERS) == events
    part = {user: [row for row in rows if at <= row[0] <= at + 4] for user, rows in events.items()}
    assert handle.scan_many(USERS, at, at + 4) == {user: rows for user, rows in part.items() if rows}
    assert handle.scan("ann", None, at) == [row for row in events.get("ann", []) if row[0] <= at]
    for limit, reverse in ((1, True), (3, False), (3, True), (99, True)):
        wanted = {user: rows[::-1][:limit] if reverse else rows[:limit] for user, rows in part.items() if rows}
        assert handle.scan_many(USERS, at, at + 4, limit=limit, reverse=reverse) == wanted
    rows = [{"user": user, "at": at, "kind": kind, "n": n} for user in part for at, kind, n in part[user]]
    assert handle.scan_table(part, at, at + 4).to_pylist() == rows
    by_key = sorted(rows, key=lambda row: (row["user"] is not None, row["user"] or ""))
    assert handle.scan_table(None, at, at + 4).to_pylist() == by_key
    for user in events:
        rows = [(user, *row) for row in events[user] if row[0] <= at][-3:]
        assert [tuple(row.values()) for row in handle.scan_table([user], end=at, last=3).to_pylist()] == rows
    handle = resources.collection("count", 0, "recent")
    assert handle.scan(()) == recent
    assert handle.scan((), limit=2, reverse=True) == recent[::-1][:2]
    assert handle.scan_table([()]).to_pylist() == [{"at": at, "n": n} for at, n in recent]


def opened(data_dir: Path, bounds: Bounds = FEW, **arguments: Any) -> StateStore:
    states = {"count": [SEEN, EVENTS, RECENT]}
    return open_store(data_dir, states=states, sinks={}, bounds=bounds, **arguments)


def begun(group: CommitGroup, txid: int, stamp: int) -> Any:
    """Begin a txid in `group` at `stamp`; return its resources, ready for use."""
    resources = group.begin_txid(txid, stamp=stamp)
    group.activate(True)
    return resources


def stamped(txid: int, stamp: int) -> TxidRecord:
    found = record(txid)
    return TxidRecord(found.txid, found.attempt_id, found.digest, found.extents, stamp)


def publish(store: StateStore, group: CommitGroup, stamps: Mapping[int, int], epoch: int = 1) -> None:
    """Publish a group: run P6 (decide) and P7 (publish) for the txids in `stamps`."""
    intent = intent_of(group, [stamped(txid, stamp) for txid, stamp in stamps.items()], epoch)
    store.publish(intent, epoch)
    group.apply(intent.last)


def committed(store: StateStore, txid: int, stamp: int, work: Callable[[Any], object], epoch: int = 1) -> None:
    """Commit one txid alone in its group, with `work` done on its resources."""
    group = store.group(txid)
    work(begun(group, txid, stamp))
    group.end_txid(txid)
    publish(store, group, {txid: stamp}, epoch)


def read(data_dir: Path, name: str, txid: int, stamp: int) -> list[dict[str, Any]]:
    """Return the rows of state `name` as of a txid and its stamp, without row numbers."""
    rows = read_state(data_dir, name, txid, txid, lambda _: stamp)
    return [{column: value for column, value in row.items() if column != "_seq"} for row in rows.to_pylist()]


def check_read(data_dir: Path, txid: int, now: Shown, stamp: int) -> None:
    """Assert that an external reader sees the same states as the model `now`."""
    seen, events, recent = now.at(stamp)
    users = sorted(USERS, key=lambda user: (user is not None, user or ""))
    assert read(data_dir, "seen", txid, stamp) == [{"user": user, **seen[user]} for user in users if user in seen]
    assert read(data_dir, "events", txid, stamp) == [
        {"user": user, "at": at, "kind": kind, "n": n} for user in users for at, kind, n in events.get(user, [])
    ]
    assert read(data_dir, "recent", txid, stamp) == [{"at": at, "n": n} for at, n in recent]
