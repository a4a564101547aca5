"""Time to live: keys expire by the stamps of transactions, not by the clock, for committers and for readers."""

from datetime import timedelta

import pyarrow as pa
import pytest
from handle_cases import Bench
from index_cases import stores
from keyed_cases import SECOND, TTL, committed, opened, read
from store_cases import open_store

from txstorm.api.state import KeyedState
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import StateError
from txstorm.results.read import read_changes, read_state
from txstorm.state.index.index import Bounds, StateIndex
from txstorm.storage.rows.ttl import moment

COUNTS = KeyedState("counts", key={"word": str}, value={"n": int}, ttl=TTL)
LATE = 10 * SECOND


def turn(bench, txid, stamp):
    bench.group.begin(txid, stamp)
    return bench.open(txid)


def end(bench, txid, publish=True):
    bench.group.end_txid(txid)
    rows = bench.rows(txid, txid)
    if publish:
        bench.group.apply(txid)
    return rows


@pytest.mark.parametrize("publish", [True, False])
def test_a_key_expires_exactly_at_the_end_of_its_time_to_live(publish):
    bench = Bench(COUNTS)
    turn(bench, 1, 0).put_many({"a": 1, "b": 1})
    end(bench, 1, publish)
    handle = turn(bench, 2, LATE - 1)
    assert (handle.get("a"), handle.previous("a")) == (1, 1)
    handle.put("b", 2)
    end(bench, 2, publish)
    handle = turn(bench, 3, LATE)
    assert handle.get_many(["a", "b"]) == {"b": 2}
    assert (handle.get("a"), handle.previous("a"), handle.get("a", 7)) == (None, None, 7)
    handle.remove("a")
    assert end(bench, 3, publish) == []  # there was nothing to remove
    handle = turn(bench, 4, LATE)
    assert handle.update("a", lambda old: (old or 0) + 1) == 1
    (row,) = end(bench, 4, publish)
    assert (row["n"], row["_prev"], row["_stamp"]) == (1, None, moment(LATE))
    handle = turn(bench, 5, LATE - 1 + LATE)
    assert handle.get_many(["a", "b"]) == {"a": 1}


def test_every_kind_of_write_restarts_the_time_to_live():
    bench = Bench(COUNTS)
    keys = ["put", "put_many", "update", "update_many", "merge"]
    turn(bench, 1, 0).put_many(dict.fromkeys([*keys, "get"], 1))
    end(bench, 1)
    handle = turn(bench, 2, SECOND)
    handle.get("get")
    handle.put("put", 1)
    handle.put_many({"put_many": 1})
    handle.update("update", lambda old: old)
    handle.update_many({"update_many": 0}, lambda old, n: old + n)
    handle.merge(pa.record_batch({"word": ["merge"], "n": [0]}), {"n": "sum"})
    end(bench, 2)
    assert turn(bench, 3, LATE).get_many([*keys, "get"]) == dict.fromkeys(keys, 1)


def test_readers_see_the_unexpired_keys_at_the_stamp_of_each_txid(tmp_path):
    stamps = {1: 0, 2: SECOND, 3: LATE, 4: LATE + SECOND}
    store = opened(tmp_path, create=True)
    for txid, stamp in stamps.items():
        committed(store, txid, stamp, lambda r, txid=txid: r.state("count", 0, "seen").put(f"u{txid}", row(txid)))
    expected = {txid: shown(tmp_path, txid, stamp) for txid, stamp in stamps.items()}
    assert expected == {1: ["u1"], 2: ["u1", "u2"], 3: ["u2", "u3"], 4: ["u3", "u4"]}
    store.upkeep.compact()
    assert {txid: shown(tmp_path, txid, stamp) for txid, stamp in stamps.items()} == expected
    kept = DeltaHandle.open(tmp_path / "state/seen").read()
    assert sorted(kept["user"].to_pylist()) == ["u3", "u4"]  # the others have been removed from the files
    assert shown(tmp_path, 4, stamps[4] + LATE - SECOND) == ["u4"]  # later transactions changed nothing
    # Without stamps, that of the newest row is used.
    assert read_state(tmp_path, "seen")["user"].to_pylist() == ["u3", "u4"]
    changes = read_changes(tmp_path, "seen", 1, 4)
    assert changes["_stamp"].to_pylist() == [moment(stamp) for stamp in stamps.values()]


def row(n):
    return {"n": n, "by": "test"}


def shown(data_dir, txid, stamp):
    return [one["user"] for one in read(data_dir, "seen", txid, stamp)]


@pytest.mark.parametrize(
    "bounds", [Bounds(memory=2_000, kept_from=20, behind=1, seconds=1e9), Bounds(kept_from=120)], ids=["disk", "memory"]
)
def test_expired_keys_do_not_accumulate_in_the_index(tmp_path, bounds):
    index = StateIndex(COUNTS, stores(tmp_path, COUNTS).make, bounds=bounds)
    bench = Bench(COUNTS, index)
    for txid in range(1, 100):
        turn(bench, txid, txid * SECOND).put_many({f"{txid}-{i}": i for i in range(5)})
        end(bench, txid)
    assert (index._disk is None) == (bounds.kept_from == 120)
    held = index._cache if index._disk is None else index._disk._store.scan(b"", b"\xff\xff")
    assert 50 <= len(held) <= 150  # 50 of 495 keys have not expired
    handle = turn(bench, 100, 99 * SECOND)
    assert len(handle.get_many([f"{txid}-{i}" for txid in range(1, 100) for i in range(5)])) == 50


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(seconds=-1), 10, "1 day"])
def test_an_invalid_time_to_live_is_rejected(tmp_path, ttl):
    state = KeyedState("counts", key={"word": str}, value={"n": int}, ttl=ttl)
    with pytest.raises(StateError, match=r"state 'counts': expected a ttl that is a timedelta above 0, or None, got"):
        opened_with(tmp_path, state)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("ttl", [None, TTL * 2])
def test_a_time_to_live_other_than_the_tables_is_rejected(tmp_path, ttl):
    store = opened_with(tmp_path, COUNTS)
    committed(store, 1, 0, lambda r: r.state("count", 0, "counts").put("a", 1))
    store.close()
    again = KeyedState("counts", key={"word": str}, value={"n": int}, ttl=ttl)
    with pytest.raises(StateError, match=r"state 'counts': declared with the ttl .*, the table has 0:00:10"):
        opened_with(tmp_path, again, create=False, committed=1)


def opened_with(data_dir, state, **arguments):
    return open_store(data_dir, states={"count": [state]}, sinks={}, **{"create": True, **arguments})
