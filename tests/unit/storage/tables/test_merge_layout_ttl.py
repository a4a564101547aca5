"""The merge layout with a time to live: a key is absent from every version as of the txid at which it expires."""

import random
from datetime import timedelta

import pytest
from deltalake import DeltaTable
from keyed_cases import SECOND, begun, publish, read, stamped
from store_cases import crash_and_roll_forward, intent_of, open_store

from txstorm.api.state import KeyedState, SinkTable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.recovery.lost_ledger import find_tables, unfinished_group
from txstorm.recovery.table_checks import roll_forward
from txstorm.results.read import read_sink
from txstorm.results.spark_views import views
from txstorm.storage.tables.identity import TableRef

TTL = 10 * SECOND
LIVE = KeyedState("live", {"user": str}, {"n": int}, timedelta(seconds=10), "merge")
LOG = SinkTable("log", {"n": int})


def opened(data_dir, **changes):
    return open_store(data_dir, **{"states": {"count": [LIVE]}, "sinks": {"count": [LOG]}, **changes})


def plain(data_dir, version=None):
    """Return the state (user → n) as a plain Delta reader sees it; `version` None: the newest."""
    rows = (
        DeltaTable(str(data_dir / "state/live"), version=version).to_pyarrow_table().select(["user", "n"]).to_pylist()
    )
    return {row["user"]: row["n"] for row in rows}


def ends(data_dir):
    """Return the last txid of the group that created each table version, by version."""
    history = DeltaHandle.open(data_dir / "state/live").history()
    return {entry.version: entry.info["last"] for entry in history if entry.info.get("kind") == "commit"}


def play(group, txid, stamp, puts):
    resources = begun(group, txid, stamp)
    live = resources.state("count", 0, "live")
    for user, n in puts.items():
        if n is None:
            live.remove(user)
        else:
            live.put(user, n)
    resources.sink("count", 0, "log").append(txid)
    group.end_txid(txid)


def committed(store, stamps, *plan, epoch=1):
    """Commit one group of transactions; `stamps` maps each txid to its stamp, and `plan` has the writes of each."""
    group = store.group(min(stamps))
    for (txid, stamp), puts in zip(stamps.items(), plan, strict=True):
        play(group, txid, stamp, puts)
    publish(store, group, stamps, epoch)


def test_every_version_has_the_unexpired_keys_at_its_stamp(tmp_path, monkeypatch):
    """Every version has exactly the unexpired keys, despite many small files, removals, empty txids and restarts."""
    monkeypatch.setattr("txstorm.storage.tables.merge_layout.FILE_ROWS", 6)
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    store, txid, stamp, kept, expected, stamp_of = opened(tmp_path, create=True), 0, 0, {}, {}, {}
    for epoch in range(1, 20):
        stamps, plan = {}, []
        for _ in range(draw.randrange(1, 4)):
            txid, stamp = txid + 1, stamp + draw.choice([0, 1, 3 * SECOND, 6 * SECOND])
            puts = {f"u{draw.randrange(40)}": draw.choice([1, 2, None]) for _ in range(draw.choice([0, 0, 3, 6]))}
            stamps[txid], plan = stamp, [*plan, puts]
            kept |= {user: (n, stamp) for user, n in puts.items()}
        committed(store, stamps, *plan, epoch=epoch)
        kept = {user: (n, at) for user, (n, at) in kept.items() if n is not None and at + TTL > stamp}
        stamp_of[txid], expected[txid] = stamp, {user: n for user, (n, _) in kept.items()}
        assert plain(tmp_path) == expected[txid]
        if draw.random() < 0.3:
            store.close()
            store = opened(tmp_path, committed=txid, epoch=None)
        store.raise_epoch(epoch + 1)
    for version, last in ends(tmp_path).items():
        assert plain(tmp_path, version) == expected[last]
        assert read(tmp_path, "live", last, stamp_of[last]) == [
            {"user": user, "n": n} for user, n in sorted(expected[last].items())
        ]
    store.close()


def test_a_txid_creates_a_version_if_it_writes_or_keys_expire(tmp_path):
    store = opened(tmp_path, create=True)
    committed(store, {1: 0}, {"a": 1})
    committed(store, {2: 5 * SECOND}, {"b": 1})
    committed(store, {3: TTL - 1}, {})
    committed(store, {4: TTL}, {})  # a expires
    committed(store, {5: TTL + 1}, {})
    committed(store, {6: 15 * SECOND, 7: 15 * SECOND}, {}, {})  # b expires
    committed(store, {8: 99 * SECOND}, {})
    assert [plain(tmp_path, version) for version in sorted(ends(tmp_path))] == [
        {"a": 1},
        {"a": 1, "b": 1},
        {"b": 1},
        {},
    ]
    assert sorted(ends(tmp_path).values()) == [1, 2, 4, 7]
    (view, *_) = views(tmp_path, 5, 8)
    assert view.query.endswith("VERSION AS OF 4")


def test_only_files_with_changed_or_expired_keys_are_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr("txstorm.storage.tables.merge_layout.FILE_ROWS", 8)
    store = opened(tmp_path, create=True)
    committed(store, {1: 0}, {"u7": 1})
    committed(store, {2: SECOND}, {f"u{i}": 1 for i in range(60) if i != 7})
    before = {file.path for file in DeltaHandle.open(tmp_path / "state/live").files()}
    committed(store, {3: TTL}, {})
    after = {file.path for file in DeltaHandle.open(tmp_path / "state/live").files()}
    assert 0 < len(before - after) <= 3 < len(before)
    assert plain(tmp_path) == {f"u{i}": 1 for i in range(60) if i != 7}


@pytest.mark.parametrize("point", ["p7.1.before", "merge.staged", "p7.1.written", "p7.1.after"])
@pytest.mark.parametrize("puts", [{}, {"b": 2}])
def test_rolling_forward_after_a_crash_gives_the_same_rows(tmp_path, point, puts):
    """Rolling forward after a crash gives the same rows however late it happens: keys expire by the decided stamp."""
    store = opened(tmp_path, create=True)
    committed(store, {1: 0, 2: SECOND}, {"a": 1, "c": 1}, {"c": 2})
    recorded = store.last_txids()
    group = store.group(3)
    play(group, 3, TTL, puts)
    intent = intent_of(group, [stamped(3, TTL)])
    assert [table.uri for table in intent.tables] == ["state/live", "sinks/log"]
    crash_and_roll_forward(store, intent, point)
    assert plain(tmp_path) == {"c": 2, **puts}
    again = opened(tmp_path, epoch=3, committed=3, recorded=[*recorded])
    committed(again, {4: TTL + SECOND}, {}, epoch=3)
    assert plain(tmp_path) == puts
    again.close()


@pytest.mark.parametrize("held", [0, 1])
def test_a_group_that_only_expires_keys_is_reconstructed_without_its_intent(tmp_path, held):
    store = opened(tmp_path, create=True)
    committed(store, {1: 0}, {"a": 1})
    group = store.group(2)
    play(group, 2, TTL, {})
    intent = intent_of(group, [stamped(2, TTL)])
    table = intent.tables[held]
    store.tables[TableRef(table.kind, table.name)].publish(held + 1, table, intent, 1)
    found = unfinished_group(tmp_path, find_tables(tmp_path))
    assert {one.uri: one for one in found.tables} == {one.uri: one for one in intent.tables}
    roll_forward(tmp_path, found, 1)
    assert (plain(tmp_path), read_sink(tmp_path, "log")["n"].to_pylist()) == ({}, [1, 2])


def test_a_failed_attempt_expires_no_keys(tmp_path):
    """A failed attempt expires no keys: its replay may have an earlier stamp, at which they are still alive."""
    store = opened(tmp_path, create=True)
    committed(store, {1: 0}, {"a": 1})
    group = store.group(2)
    play(group, 2, TTL, {})
    assert [table.uri for table in group.stage([stamped(2, TTL)], 1)] == ["state/live", "sinks/log"]
    group.drop_from(2)
    play(group, 2, SECOND, {})
    publish(store, group, {2: SECOND})
    assert (plain(tmp_path), list(ends(tmp_path).values())) == ({"a": 1}, [1])
    store.close()
