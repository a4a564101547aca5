"""The merge layout: despite any failure, each version of the table is exactly the state after one commit group."""

from dataclasses import replace
from datetime import timedelta

import keyed_cases
import pytest
from keyed_cases import SECOND, begun, publish, stamped
from seeded import seeded
from store_cases import (
    COUNTS,
    INCARNATION,
    TOPOLOGY,
    TOTALS,
    commit,
    crash_and_roll_forward,
    intent_of,
    open_store,
    staged_files,
)
from table_ranges import table_ranges
from table_steps import counted, decided, full_disk, plain_words, words_read

from txstorm.api.state import KeyedState, SinkTable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import BlockedError, FencedError, StateError, TableCorrupt
from txstorm.recovery.lost_ledger import find_tables, unfinished_group
from txstorm.recovery.take_over import raise_epochs, roll_forward
from txstorm.results.read import read_changes, read_sink
from txstorm.results.spark_views import views
from txstorm.state.index.index import Bounds
from txstorm.storage.tables.identity import TableRef, TopologyIdentity

STATES = {"count": [replace(COUNTS, layout="merge"), TOTALS]}


def opened(data_dir, **changes):
    return open_store(data_dir, **{"states": STATES, **changes})


@pytest.fixture
def store(tmp_path):
    """Return a store that has committed txid 1, which counts one word."""
    made = opened(tmp_path, create=True)
    commit(made, 1, {"a": 1})
    return made


def paths(data_dir, name="counts"):
    return {file.path for file in DeltaHandle.open(data_dir / "state" / name).files()}


def test_a_plain_reader_sees_exactly_the_state_at_every_version(tmp_path, monkeypatch):
    monkeypatch.setattr("txstorm.storage.tables.merge_layout.FILE_ROWS", 8)
    draw = seeded()
    store, plan, after = opened(tmp_path, create=True), [], {0: {}}
    plan.append({f"w{i}": 1 for i in range(60)})
    commit(store, 1, *plan)
    after[1] = counted(*plan)
    assert len(paths(tmp_path)) > 7
    for _ in range(12):
        group = [
            {f"w{draw.randrange(60)}": draw.choice([1, 2, None]) for _ in range(draw.randrange(1, 6))}
            for _ in range(draw.randrange(1, 4))
        ]
        commit(store, len(plan) + 1, *group)
        plan += group
        after[len(plan)] = counted(*plan)
    entries = {entry.version: entry.info for entry in DeltaHandle.open(tmp_path / "state/counts").history()}
    assert [plain_words(tmp_path, version) for version in entries] == [after[info["last"]] for info in entries.values()]
    for txid, words in after.items():
        assert words_read(tmp_path, txid) == words
    assert not (tmp_path / "changes/counts").exists()


def test_only_files_with_changed_keys_are_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr("txstorm.storage.tables.merge_layout.FILE_ROWS", 8)
    store = opened(tmp_path, create=True)
    commit(store, 1, {f"w{i}": 1 for i in range(60)})
    before = paths(tmp_path)
    commit(store, 2, {"w7": 1})
    assert 0 < len(before - paths(tmp_path)) <= 3 < len(before)
    assert plain_words(tmp_path) == {**{f"w{i}": 1 for i in range(60)}, "w7": 2}


def test_txids_inside_a_group_cannot_be_read_but_read_the_previous_version_if_it_changed_nothing(tmp_path, store):
    commit(store, 2, {"a": 1}, {"a": 1}, {"a": 1})
    with pytest.raises(StateError, match=r"txids 2 to 4 were committed as one group.* expected txid 1 or 4, got 3"):
        words_read(tmp_path, 3)
    with pytest.raises(StateError, match="the layout merge keeps no change rows"):
        read_changes(tmp_path, "counts", 1, 2)
    assert [words_read(tmp_path, txid) for txid in (0, 1, 4)] == [{}, {"a": 1}, {"a": 4}]
    assert read_changes(tmp_path, "totals", 3, 3).num_rows == 1
    commit(store, 5, {}, {})
    commit(store, 7, {"a": 1})
    assert [words_read(tmp_path, txid) for txid in (4, 5, 6, 7)] == [{"a": 4}] * 3 + [{"a": 5}]
    assert [(one.first, one.last) for one in table_ranges(tmp_path)["state/counts"]] == [(1, 1), (2, 4), (5, 7)]


def test_staged_rows_are_removed_when_no_intent_needs_them(tmp_path):
    store = opened(tmp_path, create=True)
    for txid in range(1, 6):
        commit(store, txid, {"a": 1})
    store.forget(4)
    staged = [path for path in staged_files(tmp_path) if path.startswith("state/counts") and "compact" not in path]
    assert [path.split("/")[-1].split("-")[1] for path in staged] == ["4", "5"]


def test_a_missing_data_file_blocks_publishing_without_damage(tmp_path, store):
    """Publishing fails if a data file is missing, as after another program's VACUUM; once it is back, it succeeds."""
    (path,) = paths(tmp_path)
    hidden = (tmp_path / "state/counts" / path).rename(tmp_path / "hidden")
    _, intent = decided(store, 2, {"a": 1})
    with pytest.raises(TableCorrupt, match="state/counts"):
        store.publish(intent, 1)
    hidden.rename(tmp_path / "state/counts" / path)
    store.publish(intent, 1)
    assert plain_words(tmp_path) == {"a": 2}


def test_a_full_disk_during_publishing(tmp_path, store):
    group, intent = decided(store, 2, {"a": 1})
    tables = "state/counts|sinks/out|changes/totals"
    with full_disk(), pytest.raises((OSError, TableCorrupt, BlockedError), match=tables):
        store.publish(intent, 1)
    assert plain_words(tmp_path) == {"a": 1}
    store.publish(intent, 1)
    group.apply(2)
    assert plain_words(tmp_path) == {"a": 2}
    store.sweep([intent])
    assert len([path for path in staged_files(tmp_path) if "compact" in path and "state/counts" in path]) == 2


def test_the_spark_view_reads_the_table_itself(tmp_path):
    commit(opened(tmp_path, create=True), 1, {"a": 1}, {"a": 1})
    table = f"delta.`{tmp_path}/state/counts`"
    now = {view.name: view.query for view in views(tmp_path, None, 2)}
    assert now["state_counts"] == f"SELECT `word`, `n` FROM {table}"
    assert "changes_counts" not in now
    (then, *_) = views(tmp_path, 0, 2)
    assert then.query == f"SELECT `word`, `n` FROM {table} VERSION AS OF 0"
    with pytest.raises(StateError, match="at the ends of groups only"):
        views(tmp_path, 1, 2)


def test_the_index_matches_the_table_after_a_restart(tmp_path):
    """Without change rows an index that lags behind cannot catch up, so a restart rebuilds it from the table."""
    bounds = Bounds(memory=1, kept_from=1, behind=1)
    store = opened(tmp_path, create=True, bounds=bounds)
    commit(store, 1, {f"w{i}": i for i in range(50)})
    store.close()
    store = opened(tmp_path, epoch=2, bounds=bounds)
    commit(store, 2, {"w1": None, "w2": 5}, epoch=2)
    store.close()
    for epoch in (3, 4):
        store = opened(tmp_path, epoch=epoch, bounds=bounds)
        commit(store, epoch, {"w1": 1, "w2": 1}, epoch=epoch)
        assert words_read(tmp_path) == {**{f"w{i}": i for i in range(50)}, "w1": epoch - 2, "w2": 7 + epoch - 2}
        store.close()


@pytest.mark.parametrize(("first", "second"), [("merge", "changes"), ("changes", "merge")])
def test_a_changed_layout_is_rejected_with_the_possible_remedies(tmp_path, first, second):
    declared = {name: {"count": [replace(COUNTS, layout=name), TOTALS]} for name in (first, second)}
    commit(open_store(tmp_path, create=True, states=declared[first]), 1, {"a": 1})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StateError, match=rf"'{second}', the table state/counts has '{first}'.*new name, or backfill"):
        open_store(tmp_path, states=declared[second])
    assert sorted(tmp_path.rglob("*")) == before
    assert words_read(tmp_path) == {"a": 1}


@pytest.mark.parametrize("held", [1, 2, 3])
@pytest.mark.parametrize("last", [{"a": 1, "c": 1}, {"a": None, "b": None}])
def test_a_partly_published_group_is_reconstructed_without_its_intent(tmp_path, held, last):
    store = opened(tmp_path, create=True)
    commit(store, 1, {"a": 1, "b": 1})
    _, intent = decided(store, 2, last)
    for number, table in enumerate(intent.tables, 1):
        if number == held:
            store.tables[TableRef(table.kind, table.name)].publish(number, table, intent, 1)
    found = unfinished_group(tmp_path, find_tables(tmp_path))
    assert {table.uri: table for table in found.tables} == {table.uri: table for table in intent.tables}
    assert replace(found, tables=()) == replace(intent, tables=())
    raise_epochs(tmp_path, store.last_txids(), TopologyIdentity(TOPOLOGY, INCARNATION), 2)
    roll_forward(tmp_path, found, 2)
    assert plain_words(tmp_path) == words_read(tmp_path) == counted({"a": 1, "b": 1}, last)
    assert [table.last_txid() for table in find_tables(tmp_path).tables.values()] == [2, 2, 2]
    assert unfinished_group(tmp_path, find_tables(tmp_path)) is None


def test_tables_are_found_without_their_ledger(tmp_path, store):
    commit(store, 2, {"b": 1})
    found = find_tables(tmp_path)
    assert sorted(found.tables) == ["changes/totals", "sinks/out", "state/counts"]
    assert (found.last, found.tables["state/counts"].last_txid()) == (2, 2)
    store.forget(3)
    assert unfinished_group(tmp_path, found) is None  # a group without staged rows was completed


# --- with a time to live: a key is absent from every version as of the txid at which it expires -----------------------

TTL = 10 * SECOND
LIVE = KeyedState("live", {"user": str}, {"n": int}, timedelta(seconds=10), "merge")
LOG = SinkTable("log", {"n": int})


def opened_live(data_dir, **changes):
    return open_store(data_dir, **{"states": {"count": [LIVE]}, "sinks": {"count": [LOG]}, **changes})


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
    monkeypatch.setattr("txstorm.storage.tables.merge_layout.FILE_ROWS", 6)
    draw = seeded()
    store, txid, stamp, kept, expected, stamp_of = opened_live(tmp_path, create=True), 0, 0, {}, {}, {}
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
        assert plain_words(tmp_path, name="live") == expected[txid]
        if draw.random() < 0.3:
            store.close()
            store = opened_live(tmp_path, committed=txid, epoch=None)
        store.raise_epoch(epoch + 1)
    for version, last in ends(tmp_path).items():
        assert plain_words(tmp_path, version, "live") == expected[last]
        assert keyed_cases.read(tmp_path, "live", last, stamp_of[last]) == [
            {"user": user, "n": n} for user, n in sorted(expected[last].items())
        ]
    store.close()


def test_a_txid_creates_a_version_if_it_writes_or_keys_expire(tmp_path):
    store = opened_live(tmp_path, create=True)
    committed(store, {1: 0}, {"a": 1})
    committed(store, {2: 5 * SECOND}, {"b": 1})
    committed(store, {3: TTL - 1}, {})
    committed(store, {4: TTL}, {})  # a expires
    committed(store, {5: TTL + 1}, {})
    committed(store, {6: 15 * SECOND, 7: 15 * SECOND}, {}, {})  # b expires
    committed(store, {8: 99 * SECOND}, {})
    found = [plain_words(tmp_path, version, "live") for version in sorted(ends(tmp_path))]
    assert found == [{"a": 1}, {"a": 1, "b": 1}, {"b": 1}, {}]
    assert sorted(ends(tmp_path).values()) == [1, 2, 4, 7]
    (view, *_) = views(tmp_path, 5, 8)
    assert view.query.endswith("VERSION AS OF 4")


def test_only_files_with_expired_keys_are_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr("txstorm.storage.tables.merge_layout.FILE_ROWS", 8)
    store = opened_live(tmp_path, create=True)
    committed(store, {1: 0}, {"u7": 1})
    committed(store, {2: SECOND}, {f"u{i}": 1 for i in range(60) if i != 7})
    before = paths(tmp_path, "live")
    committed(store, {3: TTL}, {})
    assert 0 < len(before - paths(tmp_path, "live")) <= 3 < len(before)
    assert plain_words(tmp_path, name="live") == {f"u{i}": 1 for i in range(60) if i != 7}


@pytest.mark.parametrize("point", ["p7.1.before", "merge.staged", "p7.1.written", "p7.1.after"])
@pytest.mark.parametrize("puts", [{}, {"b": 2}])
def test_rolling_forward_after_a_crash_gives_the_same_rows(tmp_path, point, puts):
    """Rolling forward after a crash gives the same rows however late it happens: keys expire by the decided stamp."""
    store = opened_live(tmp_path, create=True)
    committed(store, {1: 0, 2: SECOND}, {"a": 1, "c": 1}, {"c": 2})
    recorded = store.last_txids()
    group = store.group(3)
    play(group, 3, TTL, puts)
    intent = intent_of(group, [stamped(3, TTL)])
    assert [table.uri for table in intent.tables] == ["state/live", "sinks/log"]
    crash_and_roll_forward(store, intent, point)
    assert plain_words(tmp_path, name="live") == {"c": 2, **puts}
    if point in ("p7.1.before", "merge.staged"):  # otherwise, it knows that the group is already published
        with pytest.raises(FencedError):
            store.publish(intent, 1)
    again = opened_live(tmp_path, epoch=3, committed=3, recorded=[*recorded])
    committed(again, {4: TTL + SECOND}, {}, epoch=3)
    assert plain_words(tmp_path, name="live") == puts
    again.close()


@pytest.mark.parametrize("held", [0, 1])
def test_a_group_that_only_expires_keys_is_reconstructed_without_its_intent(tmp_path, held):
    store = opened_live(tmp_path, create=True)
    committed(store, {1: 0}, {"a": 1})
    group = store.group(2)
    play(group, 2, TTL, {})
    intent = intent_of(group, [stamped(2, TTL)])
    table = intent.tables[held]
    store.tables[TableRef(table.kind, table.name)].publish(held + 1, table, intent, 1)
    found = unfinished_group(tmp_path, find_tables(tmp_path))
    assert {one.uri: one for one in found.tables} == {one.uri: one for one in intent.tables}
    roll_forward(tmp_path, found, 1)
    assert (plain_words(tmp_path, name="live"), read_sink(tmp_path, "log")["n"].to_pylist()) == ({}, [1, 2])


def test_a_failed_attempt_expires_no_keys(tmp_path):
    """A failed attempt expires no keys: its replay may have an earlier stamp, at which they are still alive."""
    store = opened_live(tmp_path, create=True)
    committed(store, {1: 0}, {"a": 1})
    group = store.group(2)
    play(group, 2, TTL, {})
    assert [table.uri for table in group.stage([stamped(2, TTL)], 1)] == ["state/live", "sinks/log"]
    group.drop_from(2)
    play(group, 2, SECOND, {})
    publish(store, group, {2: SECOND})
    assert (plain_words(tmp_path, name="live"), list(ends(tmp_path).values())) == ({"a": 1}, [1])
    store.close()
