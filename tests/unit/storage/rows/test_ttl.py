"""Time to live by the stamps of transactions, not by the clock, and range tombstones among change rows."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from handle_cases import Bench
from index_cases import stores
from keyed_cases import SECOND, TTL, committed, opened, read
from seeded import seeded
from store_cases import open_store

from txstorm.api.state import CollectionState, KeyedState
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import StateError
from txstorm.results.read import read_changes, read_state
from txstorm.state.index.index import Bounds, StateIndex
from txstorm.storage.rows.eviction import NO_BOUND, Tombstones, bisected, limit_of, remaining, row_codes, split_changes
from txstorm.storage.rows.schema import COUNT_BITS, changes_schema
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


STATE = CollectionState("events", key={"user": str, "shop": int}, order={"at": int}, value={"n": int})
KEYS = ["user", "shop", "at", "_seq"]


@pytest.fixture
def draw():
    return seeded()


def change(key, at, txid, op="u", count=0):
    seq = -1 if op in "ea" else (txid << COUNT_BITS) + count
    row = {"user": key[0], "shop": key[1], "at": at, "_seq": seq, "n": None, "_txid": txid, "_prev": None, "_op": op}
    return {**row, "_kg": 0}


def table(rows):
    return pa.Table.from_pylist(rows, schema=changes_schema(STATE))


def test_the_rows_that_are_left_are_those_that_no_tombstone_removes(draw):
    keys = [("a", 1), ("a", None), (None, 1), ("b", 2)]
    for _ in range(60):
        rows = [change(draw.choice(keys), draw.randrange(20), draw.randrange(1, 8), count=i) for i in range(30)]
        cuts = [change(draw.choice(keys), draw.randrange(20), draw.randrange(1, 8), "e") for _ in range(6)]
        bounds = [change((None, None), draw.randrange(12), draw.randrange(1, 8), "a") for _ in range(draw.randrange(3))]
        split = split_changes(table(draw.sample([*rows, *cuts, *bounds], len(rows) + len(cuts) + len(bounds))))
        bound = max((row["at"] for row in bounds), default=NO_BOUND)
        assert split.bound == bound
        left = remaining(split.rows, split.tombstones, split.bound, KEYS).to_pylist()
        expected = [row for row in split.rows.to_pylist() if row["at"] >= bound and not any(
            (cut["user"], cut["shop"]) == (row["user"], row["shop"])
            and cut["at"] > row["at"] and cut["_txid"] >= row["_txid"] for cut in cuts)]  # fmt: skip
        assert left == expected
    cut = Tombstones(np.array([0, 0]), np.array([9, 3]), limit_of(np.array([2, 5])))
    owners, orders = np.zeros(4, np.int64), np.array([8, 8, 2, 2])
    numbers = np.array([1, 3, 5, 6]) << COUNT_BITS
    assert cut.hide(owners, orders, numbers).tolist() == [True, False, True, False]


def test_many_ranges_are_searched_at_once_as_each_alone(draw):
    for _ in range(40):
        values, low, high = [], [], []
        for _ in range(draw.randrange(1, 6)):
            low.append(len(values))
            values += sorted(draw.randrange(9) for _ in range(draw.randrange(5)))
            high.append(len(values))
        wanted = [draw.randrange(-1, 10) for _ in low]
        for after in (False, True):
            found = bisected(*map(np.array, ([*values, 0], low, high, wanted)), after=after)
            expected = [
                begin + sum(value <= aim if after else value < aim for value in values[begin:end])
                for begin, end, aim in zip(low, high, wanted, strict=True)
            ]
            assert found.tolist() == expected


def test_equal_rows_have_equal_numbers_in_any_number_of_columns(draw):
    for width in range(5):
        columns = [[draw.choice([None, 1, 2, 3]) for _ in range(50)] for _ in range(width)]
        codes = row_codes([pa.array(column, pa.int64()) for column in columns], 50).tolist()
        rows = list(zip(*columns, strict=True)) or [()] * 50
        assert len(set(zip(codes, rows, strict=True))) == len(set(codes)) == len(set(rows))
