"""Reading states, changes and sinks as of any retained txid, in a stable order, without the topology's code."""

import json
import random
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from every_type import KINDS, ROW, WIDE, put, wide
from store_cases import commit, open_store, record
from table_ranges import TableRange, check_tiling, table_ranges
from table_steps import plain_words

from txstorm.api.state import KeyedState
from txstorm.errors import StateError, TableCorrupt
from txstorm.results.joins import deduplicators_in, joins_in, store_parts_in
from txstorm.results.read import (
    has_letters,
    keeps_no_changes,
    key_names,
    left_out,
    list_sinks,
    list_states,
    read_changes,
    read_letters,
    read_sink,
    read_state,
    rows_json,
    txid_of,
)
from txstorm.results.windowed_components import windowed_components
from txstorm.storage.tables.table import DeltaTableState


def test_every_type_survives_a_round_trip_in_key_and_value(tmp_path):
    key = tuple(ROW[name] for name in KINDS)
    nothing = (None,) * len(KINDS)
    store = put(tmp_path, WIDE, {key: wide(), nothing: dict.fromkeys(wide())})
    expected = [{**dict.fromkeys(KINDS), **dict.fromkeys(wide())}, {**{n: ROW[n] for n in KINDS}, **wide()}]
    assert read_state(tmp_path, "wide").to_pylist() == expected
    store.upkeep.compact()
    assert read_state(tmp_path, "wide").to_pylist() == expected


def test_directories_are_paths_or_texts(tmp_path):
    put(tmp_path, WIDE, {tuple(ROW[name] for name in KINDS): wide()})
    calls = [(list_states,), (list_sinks,), (read_state, "wide"), (read_changes, "wide", 1, 1), (key_names, "wide")]
    calls += [(keeps_no_changes, "wide"), (has_letters,), (read_letters,), (left_out, 1), (windowed_components,)]
    calls += [(joins_in,), (store_parts_in,), (deduplicators_in,)]
    for call, *arguments in calls:
        assert call(str(tmp_path), *arguments) == call(tmp_path, *arguments), call.__name__
    for directory in (tmp_path, str(tmp_path)):
        with pytest.raises(StateError, match="no sink 'rows'"):
            read_sink(directory, "rows")
        with pytest.raises(StateError, match=r"no state 'wode'.*did you mean 'wide'"):
            read_state(directory, "wode")


def test_every_type_has_one_json_representation_and_zero_decimals_are_plain(tmp_path):
    put(tmp_path, WIDE, {tuple(ROW[name] for name in KINDS): {**wide(), "f": float("nan")}})
    line = rows_json(read_state(tmp_path, "wide"))
    assert "\n" not in line
    found = json.loads(line)
    assert list(found) == ["state", "txid", "rows"]
    assert (found["state"], found["txid"]) == ("wide", 1)
    shown = {"s": "ä\n", "i": -(2**63), "b": True, "y": "AP8=", "t": "2026-01-02T03:04:05.000006Z", "d": "2026-01-02"}
    shown["m"] = "1.500000000000000000"
    assert found["rows"] == [
        {**shown, **{f"v{name}": value for name, value in shown.items()}, "f": "NaN", "l": [1, None]}
    ]
    assert list(found["rows"][0]) == [*KINDS, *[f"v{name}" for name in KINDS], "f", "l"]
    state = KeyedState("z", {"k": int}, {"m": Decimal, "f": float, "t": datetime})
    put(tmp_path / "zero", state, {1: {"m": Decimal(0), "f": -float("inf"), "t": datetime(1, 1, 1, tzinfo=UTC)}})
    shown = '"m": "0.000000000000000000", "f": "-Infinity", "t": "0001-01-01T00:00:00.000000Z"'
    assert shown in rows_json(read_state(tmp_path / "zero", "z"))


def test_none_comes_first_in_every_key_column(tmp_path):
    state = KeyedState("n", {"a": str, "b": int}, {"n": int})
    keys = [("x", 2), (None, 1), ("x", None), ("", 0), (None, None), ("x", -1)]
    put(tmp_path, state, dict.fromkeys(keys, 1))
    rows = read_state(tmp_path, "n").to_pylist()
    found = [(row["a"], row["b"]) for row in rows]
    assert found == [(None, None), (None, 1), ("", 0), ("x", None), ("x", -1), ("x", 2)]


def test_a_state_without_key_is_one_row(tmp_path):
    state = KeyedState("one", {}, {"n": int})
    store = put(tmp_path, state, {(): 1})
    put(tmp_path, state, {(): 2}, 2, store)
    assert read_state(tmp_path, "one").to_pylist() == [{"n": 2}]
    assert read_state(tmp_path, "one", 1).to_pylist() == [{"n": 1}]
    put(tmp_path, state, {}, 3, store, drop=[()])
    assert read_state(tmp_path, "one").to_pylist() == []
    store.upkeep.compact()
    assert read_state(tmp_path, "one", 0).to_pylist() == []
    assert read_state(tmp_path, "one", 2).to_pylist() == [{"n": 2}]


def plain(table):
    return dict(zip(*table.to_pydict().values(), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_every_txid_is_readable_regardless_of_compaction(tmp_path, seed):
    print(f"seed {seed}")
    choose = random.Random(seed)
    state = KeyedState("n", {"k": int}, {"n": int})
    store, now, was = None, {}, {0: {}}
    for txid in range(1, 13):
        values = {choose.randrange(6): choose.randrange(100) for _ in range(choose.randrange(4))}
        drop = [key for key in range(6) if key not in values and choose.random() < 0.2]
        if not (values or set(drop) & set(now)):
            values = {0: txid}
        store = put(tmp_path, state, values, txid, store, drop)
        now = {key: value for key, value in {**now, **values}.items() if key not in drop}
        was[txid] = now
        assert plain(read_state(tmp_path, "n")) == now, f"seed {seed}, txid {txid}"
        if choose.random() < 0.4:
            store.upkeep.compact()
            assert plain(read_state(tmp_path, "n")) == now, f"seed {seed}, txid {txid}"
    for txid, expected in was.items():
        table = read_state(tmp_path, "n", txid)
        assert plain(table) == expected, f"seed {seed}, txid {txid}"
        assert txid_of(table) == txid
    store.upkeep.compact()
    assert plain_words(tmp_path, name="n") == was[12], f"seed {seed}"


def test_the_last_txid_of_the_topology_may_be_later_than_that_of_a_table(tmp_path):
    commit(open_store(tmp_path, create=True, committed=5), 6, {"a": 1})
    open_store(tmp_path, epoch=2).upkeep.compact()
    assert txid_of(read_state(tmp_path, "counts")) == 6
    assert txid_of(read_state(tmp_path, "counts", committed=9)) == 9
    assert txid_of(read_state(tmp_path, "counts", 8, committed=9)) == 8
    with pytest.raises(StateError, match="txid 10 is not committed; the last one is 9"):
        read_state(tmp_path, "counts", 10, committed=9)
    with pytest.raises(StateError, match="ask for 0 to 6"):
        read_state(tmp_path, "counts", -1)
    assert read_state(tmp_path, "counts", 5).num_rows == 0
    with pytest.raises(StateError, match="as of txid 4: it begins after txid 5; ask for txid 5 or later"):
        read_state(tmp_path, "counts", 4)


def test_names(tmp_path):
    open_store(tmp_path, create=True)
    assert (list_states(tmp_path), list_sinks(tmp_path)) == (["counts", "totals"], ["out"])
    with pytest.raises(StateError, match=r"no state 'count' \(did you mean 'counts'\?\); it has counts, totals"):
        read_state(tmp_path, "count")
    with pytest.raises(StateError, match="no sink 'counts'"):
        read_sink(tmp_path, "counts")
    assert list_states(tmp_path / "nowhere") == []


@pytest.mark.parametrize("lost", ["state/counts", "changes/counts"])
def test_a_state_missing_one_of_its_tables_is_corrupt(tmp_path, lost):
    import shutil

    open_store(tmp_path, create=True)
    shutil.rmtree(tmp_path / lost)
    with pytest.raises(TableCorrupt, match=lost):
        read_state(tmp_path, "counts")


def test_ranges_of_changes_and_sinks(tmp_path, monkeypatch):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"b": 1, "a": 1}, {"a": 2})
    commit(store, 3, {"a": 3})
    assert [row["n"] for row in read_sink(tmp_path, "out", 2, 2).to_pylist()] == [2]
    assert [row["n"] for row in read_sink(tmp_path, "out", 2).to_pylist()] == [2, 3]
    rows = read_changes(tmp_path, "counts", 2, 3).to_pylist()
    found = [(row["_txid"], row["word"], row["n"], row["_prev"]) for row in rows]
    assert found == [(2, "a", 3, {"n": 1}), (3, "a", 6, {"n": 3})]
    monkeypatch.setattr(DeltaTableState, "floor", lambda table: 2)
    assert read_changes(tmp_path, "counts", 3, 3).num_rows == 1
    with pytest.raises(StateError, match="the rows up to txid 2 are no longer kept"):
        read_changes(tmp_path, "counts", 2, 3)


def test_commit_ranges_are_contiguous(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1}, {"a": 1})
    commit(store, 3, {})
    commit(store, 4, {"a": 1})
    ranges = table_ranges(tmp_path)
    assert [(one.first, one.last) for one in ranges["changes/counts"]] == [(1, 2), (3, 4)]
    assert [(one.first, one.last) for one in ranges["changes/totals"]] == [(1, 2), (3, 3), (4, 4)]
    assert ranges["changes/counts"][0].txids == (record(1), record(2))
    assert ranges["sinks/out"][-1].version == store.versions()["sinks/out"]


@pytest.mark.parametrize("second", [(4, 5), (2, 3), (3, 2)])
def test_gaps_and_overlaps_between_ranges_are_named(second):
    with pytest.raises(TableCorrupt, match=r"table changes/x: version 1 ends with txid 2, but version 2 holds"):
        check_tiling("changes/x", [TableRange(1, 2, 1, ()), TableRange(*second, 2, ())])
