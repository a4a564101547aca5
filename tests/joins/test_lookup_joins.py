"""Look-ups in a Delta table that changes: types of joins, the pinned version in replays and restarts, both engines."""

import logging
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from txstorm import Duration, TransactionalTopologyBuilder, run
from txstorm.errors import TxstormError
from txstorm.joins import LookupJoin, Side
from txstorm.joins.lookup import lookup_table as cached
from txstorm.replay.audit import replay_txid
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout, ManualClock, TopologyTestDriver
from txstorm.topology.graph import Topology

ALWAYS = Duration(0)
ROWS = [("one", 1), ("two", 2), ("three", 3), ("none", None)]
USERS = {"id": [1, 2, 2, None, 9], "name": ["Ann", "Bob", "Bert", "Nil", "Zoe"]}


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    cached.CACHE.clear()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "users", pa.table(USERS))
    return tmp_path / "users"


def add(table: Path, **columns: Sequence[Any]) -> None:
    write_deltalake(table, pa.table(columns), mode="append")


def topology(
    join: LookupJoin, tasks: int = 1, *, opaque: bool = False, fields: Sequence[str] = ("n", "id")
) -> Topology:
    builder = TransactionalTopologyBuilder("t", "feed", FeedSpout({"s": fields}, opaque=opaque))
    builder.set_bolt("j", join, tasks).shuffle_grouping("feed", "s")
    return builder.build_topology()


def looked_up(join: LookupJoin, rows: Sequence[Any] = ROWS, tasks: int = 1) -> list[tuple[Any, ...]]:
    with TopologyTestDriver(topology(join, tasks)) as driver:
        return driver.emitted("j", committed(driver, rows))


def committed(driver: TopologyTestDriver, rows: Sequence[Any]) -> int:
    txid = driver.feed({"s": rows})
    driver.commit(txid)
    return txid


MATCHED = [("one", 1, "Ann"), ("two", 2, "Bob"), ("two", 2, "Bert")]
TYPES = {
    "inner": MATCHED,
    "left": [*MATCHED, ("three", 3, None), ("none", None, None)],
    "left_outer": [*MATCHED, ("three", 3, None), ("none", None, None)],
    "semi": [("one", 1), ("two", 2)],
    "leftsemi": [("one", 1), ("two", 2)],
    "anti": [("three", 3), ("none", None)],
    "left_anti": [("three", 3), ("none", None)],
}


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("how", TYPES)
def test_each_type_gives_the_result_of_sql(how: str, tasks: int, users: Path) -> None:
    """U10: a key that the table has twice gives two results, None matches nothing."""
    emitted = looked_up(LookupJoin(("feed", "s"), users, on="id", how=how), tasks=tasks)
    assert (emitted if tasks == 1 else sorted(emitted, key=str)) == (
        TYPES[how] if tasks == 1 else sorted(TYPES[how], key=str)
    )


def test_whether_an_int_meets_a_float_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "rates", pa.table({"id": [1.0, 2.5]}))
    for rows in ([("one", 1)], [("one", 1), ("other", 2.5)]):
        with pytest.raises(TxstormError):
            looked_up(LookupJoin(("feed", "s"), tmp_path / "rates", on="id"), rows)
    rows = [("a", 1.0), ("b", 2.5)]
    assert looked_up(LookupJoin(("feed", "s"), tmp_path / "rates", on="id"), rows) == rows


def test_values_without_arrow_type_are_joined_as_well(users: Path) -> None:
    rows = [((1, 2), 1), ({"a": 1}, 2), (3.5, 3), (7, None)]
    emitted = looked_up(LookupJoin(("feed", "s"), users, on="id", how="left"), rows)
    assert emitted == [((1, 2), 1, "Ann"), ({"a": 1}, 2, "Bob"), ({"a": 1}, 2, "Bert"), (3.5, 3, None), (7, None, None)]


def test_several_fields_are_joined_and_selected(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"a": [1, 1, 2], "b": ["x", "y", "x"], "n": [10, 11, 12], "z": [0, 0, 0]}))
    side = Side("feed", "s", key=["n", "id"], time="n")
    join = LookupJoin(side, f"file://{tmp_path}/t", on={"n": "a", "id": "b"}, select="left:n, table:n, s:id, z")
    assert topology(join).component("j").streams["default"].fields == ("s_n", "table_n", "id", "z")
    assert looked_up(join, [(1, "y"), (2, "y"), (2, "x")]) == [(1, 11, "y", 0), (2, 12, "x", 0)]
    everything = topology(LookupJoin(side, tmp_path / "t", on={"n": "a", "id": "b"}))
    assert everything.component("j").streams["default"].fields == ("s_n", "id", "a", "b", "table_n", "z")
    write_deltalake(tmp_path / "a table", pa.table({"n": [1], "id": [2], "more": [3]}))
    of_the_side = topology(LookupJoin(side, (tmp_path / "a table").as_uri()))
    assert of_the_side.component("j").streams["default"].fields == ("n", "id", "more")


def names(driver: TopologyTestDriver, txid: int, attempt: int | None = None) -> list[str]:
    return [name for _, _, name in driver.emitted("j", txid, attempt)]


def test_results_follow_the_version_that_each_transaction_has_pinned(users: Path) -> None:
    """U10. The table changes between planning and commit, and between transactions."""
    join = LookupJoin(("feed", "s"), users, on="id", refresh=ALWAYS)
    with TopologyTestDriver(topology(join, tasks=2), pending=2) as driver:
        first = driver.feed({"s": [("a", 3)]})
        add(users, id=[3], name=["Cid"])
        second = driver.feed({"s": [("a", 3)]})
        add(users, id=[3], name=["Cora"])
        driver.commit(second)
        third = committed(driver, [("a", 3)])
        assert [names(driver, txid) for txid in (first, second)] == [[], ["Cid"]]
        assert sorted(names(driver, third)) == ["Cid", "Cora"]


def test_a_newer_version_is_looked_for_after_the_refresh_time(users: Path) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    join = LookupJoin(("feed", "s"), users, on="id", refresh=Duration.seconds(10))
    found = []
    with TopologyTestDriver(topology(join), clock=clock) as driver:
        for number in range(5):
            found.append(len(names(driver, committed(driver, [("a", 3)]))))
            add(users, id=[3], name=[f"new {number}"])
            driver.advance(4)
            if number == 3:
                driver.restart()  # the time since the last look counts on
    assert found == [0, 0, 0, 3, 3]


@pytest.mark.parametrize("how", ["fail", "restart"])
def test_a_replay_sees_the_version_of_the_first_attempt(how: str, users: Path) -> None:
    join = LookupJoin(("feed", "s"), users, on="id", how="left", refresh=ALWAYS)
    with TopologyTestDriver(topology(join, tasks=2)) as driver:
        committed(driver, ROWS)
        txid = driver.feed({"s": [("a", 1), ("b", 3)]})
        before = driver.emitted("j", txid)
        add(users, id=[1, 3], name=["Amy", "Cid"])
        if how == "fail":
            cached.CACHE.clear()
            driver.fail(txid)
            driver.advance(60)
        else:
            driver.restart()
        driver.commit(txid)
        assert len(driver.attempts(txid)) == 2
        assert sorted(driver.emitted("j", txid)) == sorted(before) == [("a", 1, "Ann"), ("b", 3, None)]
        assert names(driver, driver.feed({"s": [("b", 3)]})) == ["Cid"]


def test_an_opaque_transaction_that_is_planned_again_pins_again(users: Path) -> None:
    join = LookupJoin(("feed", "s"), users, on="id", refresh=ALWAYS)
    with TopologyTestDriver(topology(join, opaque=True)) as driver:
        txid = driver.feed({"s": [("a", 3), ("b", 1)]})
        assert names(driver, txid) == ["Ann"]
        add(users, id=[3], name=["Cid"])
        driver.fail(txid)
        driver.advance(60)
        assert driver.feed({"s": [("a", 3)]}) == txid
        driver.commit(txid)
        assert names(driver, txid) == ["Cid"]


def test_each_process_reads_a_version_once(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = cached._loaded
    monkeypatch.setattr(cached, "_loaded", lambda content: read.append(content.version) or original(content))
    join = LookupJoin(("feed", "s"), users, on="id", select=["left:n"], refresh=ALWAYS)
    with TopologyTestDriver(topology(join, tasks=3)) as driver:
        for _ in range(2):
            for _ in range(3):
                committed(driver, ROWS)
            add(users, id=[3], name=["Cid"])
    assert read == [0, 1]
    [content, _] = cached.CACHE._tables
    assert content.columns == ("id",)


def test_a_table_that_sql_defines_anew_is_still_the_same(users: Path) -> None:
    """CREATE OR REPLACE TABLE gives a table another id, but keeps its earlier versions."""
    join = LookupJoin(("feed", "s"), users, on="id", refresh=ALWAYS)
    with TopologyTestDriver(topology(join)) as driver:
        committed(driver, [("a", 1)])
        DeltaTable.create(users, schema=DeltaTable(users).schema(), mode="overwrite")
        add(users, id=[1], name=["Anew"])
        assert names(driver, committed(driver, [("a", 1)])) == ["Anew"]


def kept_topology(users: Path, number: int, **settings: Any) -> Topology:
    rows = [(f"n{n}", n % 4) for n in range(number)]
    builder = TransactionalTopologyBuilder("t", "feed", MemoryTransactionalSpout([rows], ("n", "id"), take=2))
    join = LookupJoin("feed", users, on="id", how="left", refresh=ALWAYS)
    builder.set_bolt("j", join, 2).local_or_shuffle_grouping("feed")
    builder.set_bolt("keep", DeltaSink("rows", {"n": str, "id": int, "name": str})).global_grouping("j")
    return builder.set_settings({"retry_backoff": 0, **settings}).build_topology()


def kept(data_dir: Path) -> list[tuple[Any, ...]]:
    rows = read_sink(data_dir, "rows").to_pylist()
    return sorted(((row["n"], row["id"], row["name"]) for row in rows), key=str)


def expected(numbers: range, users: dict[int, list[str]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [(f"n{n}", n % 4, name) for n in numbers for name in users.get(n % 4, [None])]
    return sorted(found, key=str)


def test_both_engines_look_up_in_the_tasks(make_engine: Any, users: Path, tmp_path: Path) -> None:
    """U10: in Spark's workers too; the table changes between two runs."""
    data = tmp_path / "data"
    run(kept_topology(users, 10), engine=make_engine(), data_dir=data, available_now=True).awaitTermination(120)
    first = expected(range(10), {1: ["Ann"], 2: ["Bob", "Bert"]})
    assert kept(data) == first
    add(users, id=[3], name=["Cid"])
    run(kept_topology(users, 20), engine=make_engine(), data_dir=data, available_now=True).awaitTermination(120)
    second = expected(range(10, 20), {1: ["Ann"], 2: ["Bob", "Bert"], 3: ["Cid"]})
    assert kept(data) == sorted(first + second, key=str)


def test_a_committed_transaction_is_replayed_with_its_version(users: Path, tmp_path: Path) -> None:
    """As ``txstorm replay`` does, after the table has changed."""
    data = tmp_path / "data"
    run(kept_topology(users, 10), engine="local", data_dir=data, available_now=True).awaitTermination(120)
    add(users, id=[3], name=["Cid"])
    cached.CACHE.clear()
    assert replay_txid(kept_topology(users, 10), data, 2).equal
    run(kept_topology(users, 12), engine="local", data_dir=data, available_now=True).awaitTermination(120)
    assert kept(data)[-1] == ("n9", 1, "Ann")
    assert ("n11", 3, "Cid") in kept(data)


def vacuum(users: Path) -> None:
    """Replace all rows, and delete the files of the version before."""
    write_deltalake(users, pa.table(USERS), mode="overwrite")
    assert DeltaTable(users).vacuum(0, enforce_retention_duration=False, dry_run=False)


def shorten_log(users: Path) -> None:
    """Delete the log entries of the version before, as Delta does after `delta.logRetentionDuration`."""
    add(users, id=[3], name=["Cid"])
    DeltaTable(users).create_checkpoint()
    (users / "_delta_log" / f"{0:020}.json").unlink()


def drop(users: Path) -> None:
    shutil.rmtree(users)


def replace(users: Path) -> None:
    drop(users)
    for _ in range(3):
        write_deltalake(users, pa.table(USERS), mode="append")


def rename_column(users: Path) -> None:
    table = pa.table({"id": USERS["id"], "nickname": USERS["name"]})
    write_deltalake(users, table, mode="overwrite", schema_mode="overwrite")


def retype_key(users: Path) -> None:
    table = pa.table({"id": pa.array(["1"]), "name": ["x"]})
    write_deltalake(users, table, mode="overwrite", schema_mode="overwrite")


LOST = {
    "vacuumed": (vacuum, r"version 0 of the table .*users, which is pinned for this transaction, cannot be used: .*"
                 r"restore the table with this version .a vacuum must keep"),
    "with a shorter log": (shorten_log, r"cannot be used: .*users: its log no longer has version 0; the newest one is 1"),
    "dropped": (drop, r"users: expected a Delta table, found none"),
    "replaced": (replace, r"the table .*users was replaced by another one: expected the table with id .*, got .*; put "),
    "without a column": (rename_column, r"version 1 of the table .* has no column 'name' .did you mean 'nickname'"),
    "with another type of key": (retype_key, r"version 1 of the table .* has other types of id than when"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_table_that_is_lost_ends_the_run_once_and_a_restored_one_continues_it(name: str, users: Path, tmp_path: Path):
    """One clear error; nothing is lost, and the transaction is processed with the version that it had pinned."""
    lose, message = LOST[name]
    made = topology(LookupJoin(("feed", "s"), users, on="id", how="left", refresh=ALWAYS), tasks=2)
    shutil.copytree(users, tmp_path / "copy")
    with TopologyTestDriver(made, data_dir=tmp_path / "data") as driver:
        committed(driver, ROWS)
        if name in ("vacuumed", "with a shorter log"):
            txid = driver.feed({"s": [("x", 1), ("y", 3)]})
            lose(users)
            with pytest.raises(TxstormError, match=message):
                driver.restart()
        else:
            lose(users)
            txid = 2
            with pytest.raises(TxstormError, match=message) as failed:
                driver.feed({"s": [("x", 1), ("y", 3)]})
            assert str(failed.value).count("restore the table") <= 1
        shutil.rmtree(users, ignore_errors=True)
        shutil.copytree(tmp_path / "copy", users)
        driver.restart()
        driver.commit(txid)
        assert sorted(driver.emitted("j", txid)) == [("x", 1, "Ann"), ("y", 3, None)]
        assert names(driver, committed(driver, [("x", 1)])) == ["Ann"]


def test_a_table_that_cannot_be_looked_at_for_a_while_is_not_missed(users: Path, caplog: pytest.LogCaptureFixture):
    """Pinning fails while the table is away; it is back when the tuples are joined."""
    made = topology(LookupJoin(("feed", "s"), users, on="id", refresh=ALWAYS))
    lookup: Any = made.component("j").object
    pinned = lookup.pin(_At(1), None)
    users.rename(users.with_name("away"))
    later = lookup.pin(_At(2), pinned)
    assert (later["version"], later["id"], later["at"]) == (0, pinned["id"], 2)
    assert "expected a Delta table, found none" in later["doubt"]
    users.with_name("away").rename(users)
    add(users, id=[3], name=["Cid"])
    assert lookup.pin(_At(3), later) == {**pinned, "version": 1, "at": 3}
    assert caplog.records == [] or max(one.levelno for one in caplog.records) < logging.ERROR


class _At:
    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
