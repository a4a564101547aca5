"""Compaction of collection states: which files it keeps, rewrites and drops, and what readers see afterwards."""

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from keyed_cases import begun, committed, opened, read
from store_cases import open_store

from txstorm.api.state import CollectionState
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import TableCorrupt
from txstorm.results.read import read_state
from txstorm.storage.upkeep import collection_rewrite

SECOND = 1_000_000


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store whose collections have files of eight rows, with one compaction per txid."""
    monkeypatch.setattr(collection_rewrite, "FILE_ROWS", 8)
    return opened(tmp_path, create=True)


def fill(store, first, last, at=10):
    """Commit txids with eight rows each, at consecutive places from `at` times the txid on; compact after each."""
    for txid in range(first, last + 1):
        rows = [("ab"[i % 2], at * txid + i, "k", txid) for i in range(8)]
        commit(store, txid, lambda events, rows=rows: events.append_many(rows))


def commit(store, txid, work):
    committed(store, txid, txid * SECOND, lambda r: work(r.collection("count", 0, "events")))
    store.upkeep.compact()


def files(path):
    """Return the files of the state table, and their rows as seen by a reader that knows nothing of bounds."""
    handle = DeltaHandle.open(path / "state/events")
    return {file.path for file in handle.files()}, sorted(handle.read()["at"].to_pylist())


def scanned(store, txid):
    """Return the places of user a's events as a committer of `txid` sees them."""
    handle = begun(store.group(txid), txid, txid * SECOND).collection("count", 0, "events")
    return [at for at, *_ in handle.scan("a")]


def shown(path, txid):
    return sorted(row["at"] for row in read(path, "events", txid, txid * SECOND))


def test_new_rows_become_further_files_and_evicted_or_removed_ones_leave_them(store, tmp_path):
    fill(store, 1, 2)
    before, _ = files(tmp_path)
    fill(store, 3, 3)
    after, rows = files(tmp_path)
    assert before < after
    assert rows == shown(tmp_path, 3) == [10 * txid + i for txid in (1, 2, 3) for i in range(8)]
    commit(store, 4, lambda events: events.evict_before(10))  # evicts nothing, so all full files stay
    assert files(tmp_path)[0] == after
    commit(store, 5, lambda events: [events.evict_before(25, "a"), events.remove("b", 31, 33)])
    _, rows = files(tmp_path)
    assert rows == shown(tmp_path, 5) == [11, 13, 15, 17, 21, 23, 25, 26, 27, 30, 32, 34, 35, 36, 37]
    assert shown(tmp_path, 3) == [10 * txid + i for txid in (1, 2, 3) for i in range(8)]


def test_files_below_the_bound_are_dropped_unread_and_only_the_file_around_it_is_rewritten(
    store, tmp_path, monkeypatch
):
    fill(store, 1, 4)
    before, _ = files(tmp_path)
    read_paths, replace = [], collection_rewrite.CollectionRewriting._replace

    def noted(self, file, removals):
        read_paths.append(file.path)
        return replace(self, file, removals)

    monkeypatch.setattr(collection_rewrite.CollectionRewriting, "_replace", noted)
    commit(store, 5, lambda events: events.evict_before(34))
    after, rows = files(tmp_path)
    assert rows == shown(tmp_path, 5) == [34, 35, 36, 37, *range(40, 48)]
    assert len(read_paths) == 1
    assert len(before & after) == 1
    assert len(after - before) == 1
    assert shown(tmp_path, 4) == [10 * txid + i for txid in (1, 2, 3, 4) for i in range(8)]


def test_small_files_are_merged_with_as_many_new_rows(store, tmp_path):
    for txid in range(1, 6):
        commit(store, txid, lambda events, txid=txid: events.append("a", txid, "k", txid))
    assert len(files(tmp_path)[0]) < 5
    assert files(tmp_path)[1] == [1, 2, 3, 4, 5]


def test_files_of_few_long_rows_are_not_written_again(store, tmp_path, monkeypatch):
    monkeypatch.setattr(collection_rewrite, "FILE_ROWS", 1000)
    monkeypatch.setattr(collection_rewrite, "FILE_BYTES", 1 << 14)
    known = set()
    for txid in range(1, 4):
        rows = [("ab"[i % 2], 10 * txid + i, random.Random(i + txid).randbytes(1000).hex(), txid) for i in range(8)]
        commit(store, txid, lambda events, rows=rows: events.append_many(rows))
        paths, found = files(tmp_path)
        assert known < paths
        assert found == shown(tmp_path, txid) == [10 * one + i for one in range(1, txid + 1) for i in range(8)]
        known = paths


def test_the_bound_of_all_keys_survives_compaction_and_restart(store, tmp_path):
    fill(store, 1, 2)
    commit(store, 3, lambda events: events.evict_before(25))
    store.close()
    again = opened(tmp_path, epoch=2, committed=3)
    committed(again, 4, 4 * SECOND, lambda r: r.collection("count", 0, "events").append_many(
        [("a", 24, "late", 4), ("a", 26, "new", 4)]), epoch=2)  # fmt: skip
    assert shown(tmp_path, 4) == [25, 26, 26, 27]
    assert scanned(again, 5) == [26, 26]


def test_files_that_are_gone_after_a_compaction_are_looked_up_again(store, tmp_path):
    fill(store, 1, 2)
    index = store._indexes["events"]
    index.refresh()
    old, _ = files(tmp_path)
    commit(store, 3, lambda events: events.evict_before(14))
    for path in old - files(tmp_path)[0]:
        (tmp_path / "state/events" / path).unlink()
    assert scanned(store, 4) == [14, 16, 20, 22, 24, 26]


def test_a_damaged_file_is_named(store, tmp_path):
    fill(store, 1, 1)
    store._indexes["events"].refresh()
    for file in (tmp_path / "state/events/_txstorm/staged").glob("*compact*"):
        file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(TableCorrupt, match=r"state/events/_txstorm/staged/.*compact.*parquet: cannot be read"):
        scanned(store, 2)


def test_a_group_without_rows_but_with_a_bound_is_compacted(store, tmp_path):
    fill(store, 1, 1)
    commit(store, 2, lambda events: events.evict_batch(pa.table({"user": ["a", "b"], "at": [99, 15]})))
    assert files(tmp_path)[1] == shown(tmp_path, 2) == [15, 17]


@pytest.mark.parametrize(
    ("order", "place"),
    [(datetime, lambda n: datetime(1969, 12, 31, 23, 59, 59, 999_990, tzinfo=UTC) + timedelta(microseconds=n)),
     (pa.int16(), lambda n: n - 10)],
)  # fmt: skip
def test_bounds_of_every_type_of_order_hold_before_and_after_compaction_and_restart(
    tmp_path, monkeypatch, order, place
):
    for name in ("txstorm.storage.tables.staging.PLACED_ROWS", "txstorm.state.index.row_groups.SMALL"):
        monkeypatch.setattr(name, 2)
    typed = CollectionState("typed", key={}, order={"at": order}, value={"n": int}, ttl=timedelta(seconds=50))
    states = {"count": [typed]}
    store = open_store(tmp_path, create=True, states=states, sinks={})

    def turn(txid, work, epoch=1):
        committed(store, txid, txid * SECOND, lambda r: work(r.collection("count", 0, "typed")), epoch)

    turn(1, lambda typed: typed.append_many([((), place(n), n) for n in range(20)]))
    turn(2, lambda typed: typed.evict_before(place(7)))
    found = []
    turn(
        3, lambda typed: [found.append([n for _, n in typed.scan((), end=place(9))]), typed.evict_before(place(8), ())]
    )
    store.upkeep.compact()
    store.close()
    store = open_store(tmp_path, epoch=2, committed=3, states=states, sinks={})
    turn(4, lambda typed: typed.append_many([((), place(6), 6), ((), place(9), 99)]), 2)
    turn(5, lambda typed: found.append([n for _, n in typed.scan((), end=place(9))]), 2)
    assert found == [[7, 8, 9], [8, 9, 99]]
    shown = read_state(tmp_path, "typed", 4, 4, lambda txid: txid * SECOND)
    assert sorted(shown["n"].to_pylist()) == [*range(8, 20), 99]
    assert sorted(read_state(tmp_path, "typed", 2, 4, lambda txid: txid * SECOND)["n"].to_pylist()) == [*range(7, 20)]
