"""Frame sinks: the rows of `DeltaSink`, staged by tasks of Spark or, if they are few, by the driver."""

import os
import signal
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import nan
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from recovery_cases import check, check_tiling, long_if, lose

from txstorm import BatchBolt, Committer, TransactionalTopologyBuilder, faults, restore_savepoint, rewind, run
from txstorm.bolts import Map, SumByKey
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import SettingError, TableCorrupt, TopologyError, TopologyFailed
from txstorm.operations.rebuild_ledger import recover
from txstorm.results.read import read_sink, read_state
from txstorm.sinks import DeltaSink, FrameSink
from txstorm.spouts import MemoryFrames, MemoryTransactionalSpout
from txstorm.state.target import Target
from txstorm.storage.tables.staging import StagedName, stage

pytestmark = pytest.mark.spark
COLUMNS = "country STRING, cents BIGINT"
BATCHES = [[("abc"[n % 3], n) for n in range(start, start + start % 7 + 1)] for start in range(6)]
BY_TASKS, BY_DRIVER = {"spill_bytes": 0}, {}
LONG = ("p4.after", "p6.before", "p8.before")
ODD = (
    "i INT, t TIMESTAMP, d DATE, m DECIMAL(38, 10), x DOUBLE, f FLOAT, b BINARY, l ARRAY<STRUCT<n: INT>>, s STRING, "
    "o BOOLEAN, `a b` STRUCT<c: ARRAY<STRING>>"
)
AT = datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
ODD_ROWS = [
    (-(2**31), AT, date(1, 1, 1), Decimal("-1E-10"), nan, -0.0, b"\x00", [{"n": 1}, {"n": None}, None], "é", True,
     (["", None],)),
    (None,) * 11,
    (7, AT + timedelta(days=9999), None, Decimal(10**28 - 1), float("-inf"), nan, b"", [], "", False, (None,)),
]  # fmt: skip


def builder(batches=BATCHES, columns=COLUMNS):
    return TransactionalTopologyBuilder("orders", "orders", MemoryFrames(columns, batches), 2)


def go(made, data_dir, spark, **settings):
    handle = run(made.set_settings(settings).build_topology(), spark=spark, data_dir=data_dir, available_now=True)
    handle.awaitTermination()
    return handle


def rows(data_dir, name):
    """Return the rows of a sink, each with its txid, in no order."""
    return Counter(map(repr, read_sink(data_dir, name).to_pylist()))


def by_tasks(data_dir, name):
    """Return the numbers of files in a sink's table that tasks and the driver have staged."""
    kinds = Counter(
        Path(file.path).name.rsplit("-", 2)[1] == "all" for file in DeltaHandle.open(data_dir / "sinks" / name).files()
    )
    return kinds[False], kinds[True]


@pytest.mark.parametrize("settings", [BY_TASKS, BY_DRIVER])
@pytest.mark.parametrize(("columns", "batches"), [(COLUMNS, BATCHES), (ODD, [ODD_ROWS, [], ODD_ROWS[1:]])])
def test_a_frame_sink_has_the_rows_of_a_delta_sink(spark, tmp_path, settings, columns, batches):
    frames = FrameSink("framed", columns)
    made = builder(batches, columns)
    made.set_frame_bolt("same", lambda frame: frame.select("*")).reads("orders")
    made.set_bolt("frames", frames, 2).shuffle_grouping("same")
    made.set_bolt("first", FrameSink("first", dict(list(frames.table.columns.items())[:1]))).none_grouping("orders")
    made.set_bolt("rows", DeltaSink("rows", frames.table.columns), 2).shuffle_grouping("same")
    handle = go(made, tmp_path, spark, max_pack_txids=8, **settings)
    framed = rows(tmp_path, "framed")
    assert framed == rows(tmp_path, "rows")
    assert framed.total() == sum(map(len, batches)) == rows(tmp_path, "first").total()
    assert [of_tasks > 0 for of_tasks, _ in (by_tasks(tmp_path, "framed"), by_tasks(tmp_path, "first"))] == [
        settings is BY_TASKS
    ] * 2
    assert (by_tasks(tmp_path, "framed")[1] > 0) == (settings is BY_DRIVER)
    check(tmp_path, len(batches))
    assert sum(handle.history()["tuples"].to_pylist()) == 2 * framed.total()


def summing(batches=BATCHES, *, writer="deltalake"):
    """Return a topology with a frame sink and a state behind one frame bolt."""
    made = builder(batches)
    made.set_frame_bolt("some", lambda orders: orders.where("cents > 1")).reads("orders")
    made.set_bolt("clean", FrameSink("clean", COLUMNS, writer=writer)).shuffle_grouping("some")
    made.set_bolt("sums", SumByKey("country", "cents", "sums"), 2).fields_grouping("some", ["country"])
    return made


def check_sums(data_dir, batches=BATCHES):
    """Check that each row counts once in both tables, under its txid in the sink."""
    good = [(txid, *row) for txid, batch in enumerate(batches, 1) for row in batch if row[1] > 1]
    found = [(row["_txid"], row["country"], row["cents"]) for row in read_sink(data_dir, "clean").to_pylist()]
    assert Counter(found) == Counter(good)
    sums = Counter()
    for _, country, cents in good:
        sums[country] += cents
    assert {row["country"]: row["cents"] for row in read_state(data_dir, "sums").to_pylist()} == sums


@pytest.mark.parametrize("point", long_if(LONG.__contains__, (*LONG, "p5.staged.after", "p6.after", "p7.1.written")))
def test_a_replay_in_another_order_gives_the_same_rows_and_leaves_no_files(spark, tmp_path, point):
    batches = [list(batch) for batch in BATCHES]
    faults.arm(f"{point}:raise:2")
    with pytest.raises((faults.InjectedFault, TopologyFailed)):
        go(summing(batches), tmp_path, spark, max_group_txids=2, max_retries=0, **BY_TASKS)
    faults.arm("")
    for batch in batches:
        batch.reverse()
    go(summing(batches), tmp_path, spark, max_group_txids=2, **BY_TASKS)
    check_sums(tmp_path)
    check(tmp_path, len(BATCHES))  # also that no file is left over


@pytest.mark.parametrize(
    ("harm", "what"), [(Path.unlink, "is not there"), (lambda file: file.write_bytes(b"PAR1"), "has digest")]
)
def test_a_file_that_is_not_what_its_task_wrote_is_never_decided(spark, tmp_path, monkeypatch, harm, what):
    whole, harmed = Target.take_over, []

    def take_harmed(self, txid, files):
        if files and not harmed:
            harmed.append(self.path / files[0].path)
            harm(harmed[0])
        whole(self, txid, files)

    monkeypatch.setattr(Target, "take_over", take_harmed)
    with pytest.raises(TopologyFailed, match=f"staged file .*sinks/clean.*a task has written it, but here it {what}"):
        go(summing(), tmp_path, spark, max_retries=0, on_error="fail_topology", **BY_TASKS)
    go(summing(), tmp_path, spark, **BY_TASKS)
    check_sums(tmp_path)
    check(tmp_path, len(BATCHES))


def test_a_rewind_into_a_group_and_a_lost_ledger(spark, tmp_path):
    """Files of tasks are named after the txids of their rows, that of the driver after the last one of the group."""
    settings = {"max_group_txids": 8, "max_pack_txids": 8}
    go(summing(BATCHES[:4]), tmp_path, spark, **BY_TASKS, **settings)
    faults.arm("p7.2.before:raise:1")  # sinks/clean is to come
    with pytest.raises(faults.InjectedFault):
        go(summing(), tmp_path, spark, **BY_TASKS, **settings)
    faults.arm("")
    lose(tmp_path)
    recover(tmp_path)
    go(summing(), tmp_path, spark, **BY_TASKS, **settings)
    check_sums(tmp_path)
    assert max(len(one.txids) for one in check_tiling(tmp_path, len(BATCHES))["sinks/clean"]) > 1
    rewind(tmp_path, 5)
    assert set(read_sink(tmp_path, "clean")["_txid"].to_pylist()) == {2, 3, 4, 5}
    go(summing(), tmp_path, spark)
    check_sums(tmp_path)


def test_spark_commits_rows_that_tasks_have_staged(spark, tmp_path):
    go(summing(BATCHES[:5], writer="spark"), tmp_path, spark, max_pack_txids=5, **BY_TASKS)
    check_sums(tmp_path, BATCHES[:5])


def noted(place):
    def twice(values: pd.Series) -> pd.Series:
        with Path(place).open("a") as file:
            file.write("".join(f"{value}\n" for value in values))
        return values * 2

    return F.pandas_udf(twice, "bigint")


def test_several_sinks_and_bolts_over_one_evaluation(spark, tmp_path):
    twice = noted(str(tmp_path / "note"))
    made = builder(BATCHES[:6])
    made.set_frame_bolt("twice", lambda orders: orders.withColumn("cents", twice("cents"))).reads("orders")
    for name in ("one", "two"):
        made.set_bolt(name, FrameSink(name, {"cents": int})).shuffle_grouping("twice")
    made.set_bolt("text", Map(lambda row: str(row["cents"]), "text")).shuffle_grouping("twice")
    made.set_bolt("texts", DeltaSink("texts", {"text": str})).shuffle_grouping("text")
    go(made, tmp_path / "data", spark, **BY_TASKS)
    given = sorted(cents for batch in BATCHES[:6] for _, cents in batch)
    assert sorted(map(int, (tmp_path / "note").read_text().split())) == given
    for name in ("one", "two"):
        assert sorted(read_sink(tmp_path / "data", name)["cents"].to_pylist()) == [2 * cents for cents in given]
    assert sorted(map(int, read_sink(tmp_path / "data", "texts")["text"].to_pylist())) == [2 * cents for cents in given]


def test_a_value_that_the_table_cannot_hold_ends_the_run_or_is_left_out(spark, tmp_path):
    batches = [[("a", 1)], [("b", 2**40), ("c", 3)], [("d", 4)]]
    for name, settings in (
        ("stops", {"max_retries": 0, "on_error": "fail_topology"}),
        ("goes-on", {"on_error": "dead_letter"}),
    ):
        made = builder(batches)
        made.set_bolt("clean", FrameSink("clean", {"cents": pa.int32()})).shuffle_grouping("orders")
        if name == "stops":
            with pytest.raises(TopologyFailed, match=r"txid 2 .*clean\[\d\] raised StateError.*'cents'"):
                go(made, tmp_path / name, spark, **settings, **BY_TASKS)
            assert read_sink(tmp_path / name, "clean")["cents"].to_pylist() == [1]
        else:
            go(made, tmp_path / name, spark, **settings, **BY_TASKS)
            assert sorted(read_sink(tmp_path / name, "clean")["cents"].to_pylist()) == [1, 3, 4]


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"land": str}, "no field 'land'"),
        ({"cents": str}, "FrameSink: field 'cents' of 'orders' has the type int64, but is taken as string"),
        ({"country": pa.list_(pa.string())}, "field 'country' of 'orders' has the type string, but is taken as list"),
        ({"cents": int, "Cents": int}, "differ only in case"),
        ({"_cents": int}, "'_cents'"),
        ({"cents": complex}, "complex is no column type"),
        ({}, "at least one column"),
    ],
)
def test_columns_are_checked_against_those_of_the_frame(columns, fault):
    made = builder()
    made.set_bolt("clean", FrameSink("clean", columns)).shuffle_grouping("orders")
    with pytest.raises(TopologyError, match=fault):
        made.build_topology()


def test_a_frame_sink_reads_frames_only():
    made = TransactionalTopologyBuilder("t", "rows", MemoryTransactionalSpout([["a"]], "word"))
    made.set_bolt("clean", FrameSink("clean", {"word": str})).shuffle_grouping("rows")
    with pytest.raises(TopologyError, match="'rows' → 'clean': a FrameSink reads a frame spout or frame bolts"):
        made.build_topology()
    made = builder()
    made.set_bolt("text", Map(lambda row: row["country"], "country")).shuffle_grouping("orders")
    made.set_bolt("clean", FrameSink("clean", {"country": str})).shuffle_grouping("orders").shuffle_grouping("text")
    with pytest.raises(TopologyError, match=r"'text' → 'clean': .*emits tuples; use a DeltaSink"):
        made.build_topology()
    for columns in ("a INT, A INT", "a MAP<INT, INT>", "_txstorm_a INT"):
        with pytest.raises(SettingError, match="columns"):
            FrameSink("clean", columns)


def test_a_savepoint_of_frames_is_a_beginning_of_its_own(spark, tmp_path):
    go(summing(BATCHES[:5]), tmp_path / "data", spark, **BY_TASKS).savepoint("five")
    restore_savepoint(tmp_path / "data", "five", tmp_path / "copy")
    for place in ("data", "copy"):
        go(summing(), tmp_path / place, spark, **BY_TASKS)
        check_sums(tmp_path / place)


def test_large_commits_behind_frames_beside_a_frame_sink(spark, tmp_path):
    batches = [[(f"{n % 40}", n) for n in range(first, first + 60)] for first in (0, 60, 120)]
    go(summing(batches), tmp_path, spark, large_commit_rows=8, **BY_TASKS)
    check_sums(tmp_path, batches)
    assert by_tasks(tmp_path, "../changes/sums")[0] > 0
    check(tmp_path, len(batches))


def once(place, act):
    """Return a UDF that calls `act` in the first worker that comes to it, and changes nothing."""

    def same(values: pd.Series) -> pd.Series:
        if len(values) and not Path(place).exists():
            Path(place).touch()
            act()
        return values

    return F.pandas_udf(same, "bigint")


class Late(BatchBolt, Committer):
    """Takes its time to commit the first transaction, once."""

    def __init__(self, place):
        self.place = place

    def execute(self, tuple):
        pass

    def finish_batch(self):
        if not Path(self.place).exists():
            Path(self.place).touch()
            time.sleep(30)


@pytest.mark.parametrize(
    ("where", "settings"),
    [
        ("killed", {}),
        pytest.param("bolt", {"batch_timeout": 12}, marks=pytest.mark.long),
        pytest.param("commit", {"batch_timeout": 12}, marks=pytest.mark.long),
    ],
)
def test_a_worker_that_dies_and_phases_beyond_their_timeout(spark, tmp_path, where, settings):
    note = str(tmp_path / "note")
    act = (lambda: os.kill(os.getpid(), signal.SIGKILL)) if where == "killed" else (lambda: time.sleep(30))
    made, same = summing(), once(note, act)
    if where == "commit":
        made.set_committer_bolt("late", Late(note)).shuffle_grouping("orders")
    else:
        made.set_frame_bolt("same", lambda rows: rows.withColumn("cents", same("cents"))).reads("some")
        made.set_bolt("copy", FrameSink("copy", COLUMNS)).shuffle_grouping("same")
    handle = go(made, tmp_path / "data", spark, on_error="retry(20)", **settings, **BY_TASKS)
    assert Path(note).exists() and handle.progress.replays >= 1
    check_sums(tmp_path / "data")
    assert where == "commit" or rows(tmp_path / "data", "copy") == rows(tmp_path / "data", "clean")


@pytest.mark.parametrize("same", [True, False])
def test_two_files_of_one_task_are_the_same_rows_in_any_order_or_the_table_is_refused(spark, tmp_path, same):
    faults.arm("p7.2.before:raise:1")  # sinks/clean is to come
    with pytest.raises(faults.InjectedFault):
        go(summing([BATCHES[5]]), tmp_path, spark, **BY_TASKS)
    faults.arm("")
    whole = max((tmp_path / "sinks/clean").rglob("*.parquet"), key=lambda one: one.stat().st_size)
    found = pq.read_table(whole)
    turned = found.take(list(range(found.num_rows))[::-1] if same else [0] * found.num_rows)
    epoch, txid, attempt, component, task, _ = whole.name.split("-")
    stage(tmp_path / "sinks/clean", turned, StagedName(int(epoch), int(txid), int(attempt), component, task))
    lose(tmp_path)
    if same:
        recover(tmp_path)
        go(summing([BATCHES[5]]), tmp_path, spark, **BY_TASKS)
        check_sums(tmp_path, [BATCHES[5]])
    else:
        with pytest.raises(TableCorrupt, match="found several that differ"):
            recover(tmp_path)
