"""Redefined columns: the first commit fixes them; until then, a table gets the columns of the current code.

A Delta feature enabled during a run is reported with table and remedy; the run continues when it is disabled.
"""

import json

import deltalake
import pytest
from recovery_cases import check_tiling, ended, eventually, killed, lose
from scenarios.redefined import Keep, tables, topology

from txstorm import KeyedState, TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.errors import FencedError, InputError, StateError, TxstormError
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.rewind import rewind
from txstorm.results.read import read_sink, read_state
from txstorm.results.snapshot import snapshot
from txstorm.results.views import SinkView, StateView
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.rows.schema import sink_schema
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.table import DeltaTableState

LAYOUTS = ["", "merge-"]


def go(data, built, until=None):
    ended(built, data, **({} if until is None else {"until_txid": until}))


def begun(data, layout=""):
    """Create a data directory by a run that committed nothing because its source was still empty."""
    go(data, topology(f"{layout}old", words=()))


def is_new(data):
    """Assert that every reader sees all words, in tables with the new columns."""
    assert StateView(data, "kept").to_pylist()[0] == {"word": "a", "n": "one", "more": 0.5}
    assert [row["word"] for row in SinkView(data, "out").to_pylist()] == [b"a", b"b", b"c", b"d"]
    assert deltalake.DeltaTable(str(data / "sinks/out")).to_pyarrow_table().column_names == ["word", "_txid"]
    assert deltalake.DeltaTable(str(data / "state/kept")).to_pyarrow_table()["more"].to_pylist() == [0.5] * 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_and_ttl_change_as_long_as_nothing_is_committed(tmp_path, layout):
    begun(tmp_path, layout)
    before = deltalake.DeltaTable(str(tmp_path / "sinks/out"))
    go(tmp_path, topology(f"{layout}new"))
    is_new(tmp_path)
    before.update_incremental()  # a reader that had it open
    assert before.to_pyarrow_table().column_names == ["word", "_txid"]
    assert before.metadata().id == deltalake.DeltaTable(str(tmp_path / "sinks/out")).metadata().id


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back_again_and_then_fixed(tmp_path, layout):
    begun(tmp_path, layout)
    go(tmp_path, topology(f"{layout}new", words=()))
    begun(tmp_path, layout)
    go(tmp_path, topology(f"{layout}old"), 2)
    with pytest.raises(StateError, match=r"(?s)'n' is declared as string, .* are fixed by the first commit"):
        go(tmp_path, topology(f"{layout}typed"), 4)
    with pytest.raises(StateError, match="declared with the ttl 1 day, 0:00:00, the table has None"):
        go(tmp_path, topology(f"{layout}new"), 4)
    go(tmp_path, topology(f"{layout}old"), 4)
    assert len(SinkView(tmp_path, "out").to_pylist()) == 4


def test_rows_in_the_change_table_fix_the_columns_of_both(tmp_path):
    """The state table is still empty, as it lags, but its change table has rows: both keep their columns."""
    killed("p8.after:kill:1", tmp_path, "old", 2, scenario="redefined")
    assert deltalake.DeltaTable(str(tmp_path / "state/kept")).to_pyarrow_table().num_rows == 0
    with pytest.raises(StateError, match="'n' is declared as string"):
        go(tmp_path, topology("typed"), 4)


def test_a_decided_group_is_a_commit(tmp_path):
    """A decided group that is not published yet is rolled forward with the old columns, which are kept."""
    begun(tmp_path)
    killed("p6.after:kill:1", tmp_path, "old", 1, scenario="redefined")
    with pytest.raises(StateError, match="'n' is declared as string"):
        go(tmp_path, topology("typed"), 4)
    assert len(SinkView(tmp_path, "out").to_pylist()) == 1


class Late(Keep):
    """A committer with an additional state to which it never writes."""

    def __init__(self, columns):
        super().__init__("old")
        self.late = KeyedState("late", {"k": str}, columns)


def test_a_table_that_was_added_late_and_not_written_to(tmp_path):
    def late(columns):
        source = MemoryTransactionalSpout([list("abcd")], "word", take=1)
        builder = TransactionalTopologyBuilder("t", "words", source)
        builder.set_committer_bolt("keep", Late(columns), 1).global_grouping("words")
        return builder.build_topology()

    go(tmp_path, topology("old"), 1)
    go(tmp_path, late({"n": int}), 2)
    go(tmp_path, late({"n": str}), 3)
    assert StateView(tmp_path, "late").to_arrow().schema.field("n").type == "string"
    assert snapshot(tmp_path, 0).left_out.keys() == {"state/late"}
    assert snapshot(tmp_path, 1).left_out == {}


def test_after_a_rewind_to_the_beginning_nothing_is_committed(tmp_path):
    go(tmp_path, topology("old"), 2)
    rewind(tmp_path, 0)
    go(tmp_path, topology("new"))
    is_new(tmp_path)


@pytest.mark.parametrize(
    ("point", "then", "layout"),
    [
        pytest.param(point, then, layout, marks=() if (i + j + k) % 2 else pytest.mark.long)
        for i, point in enumerate(("before", "raised", "1.redefined", "2.redefined", "recorded", "after"))
        for j, then in enumerate(("old", "new"))
        for k, layout in enumerate(LAYOUTS)
    ],
)
def test_killed_at_every_step_and_started_with_either_code(tmp_path, layout, point, then):
    begun(tmp_path, layout)
    killed(f"p0.{point}:kill:1", tmp_path, f"{layout}new", 2, scenario="redefined")
    go(tmp_path, topology(f"{layout}{then}"))
    if then == "new":
        is_new(tmp_path)
    assert len(StateView(tmp_path, "kept").to_pylist()) == len(SinkView(tmp_path, "out").to_pylist()) == 4


def test_a_rebuilt_ledger_goes_on_with_the_new_columns(tmp_path):
    begun(tmp_path)
    go(tmp_path, topology("new"), 2)
    lose(tmp_path)
    recover(tmp_path)
    go(tmp_path, topology("new"))
    is_new(tmp_path)


def test_a_fenced_coordinator_changes_no_columns(tmp_path):
    """A stale coordinator cannot change columns: the log's compare-and-set and its epoch fence it."""
    begun(tmp_path)
    entry = min((tmp_path / "sinks/out/_delta_log").glob("*.json"))
    metadata = next(json.loads(line)["metaData"] for line in entry.read_text().splitlines() if "metaData" in line[:12])
    incarnation = metadata["configuration"]["txstorm.incarnation"]
    asleep = DeltaTableState.open(tmp_path, TopologyIdentity("t", incarnation), TableRef("sink", "out"))
    begun(tmp_path)  # the next one leads
    with pytest.raises(FencedError):
        asleep.redefine(sink_schema(tables("new")[1]), {}, 1)
    go(tmp_path, topology("old"))


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.long
def test_with_the_spark_writer_and_for_readers_in_spark(spark, tmp_path):
    begun(tmp_path, "spark-")
    assert spark.read.format("delta").load(str(tmp_path / "sinks/out")).columns == ["word", "n", "_txid"]
    go(tmp_path, topology("spark-new"))
    is_new(tmp_path)
    found = spark.read.format("delta").load(str(tmp_path / "sinks/out"))
    rows = sorted((row["word"], row["_txid"]) for row in found.collect())
    assert rows == [(b"a", 1), (b"b", 2), (b"c", 3), (b"d", 4)]


def test_the_layout_is_fixed_when_the_table_is_made(tmp_path):
    begun(tmp_path)
    with pytest.raises(StateError, match=r"which is fixed when the table is made"):
        go(tmp_path, topology("merge-old"))


def test_a_table_with_features_of_others_keeps_its_columns(tmp_path):
    begun(tmp_path)
    deltalake.DeltaTable(str(tmp_path / "sinks/out")).alter.add_constraint({"some": "n > 0"})
    with pytest.raises(TxstormError):
        go(tmp_path, topology("new"))


def featured(spout):
    builder = TransactionalTopologyBuilder("featured", "words", spout)
    builder.set_committer_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    builder.set_committer_bolt("out", DeltaSink("out", {"word": str})).shuffle_grouping("words")
    return builder.build_topology().with_settings({"min_interval": 0.05})


@pytest.mark.parametrize("uri", ["sinks/out", "changes/counts"])
def test_a_constraint_blocks_a_run_until_it_is_dropped(tmp_path, uri):
    words = [f"w{n % 7}" for n in range(60)]
    taken = {"most": 0}
    spout = MemoryTransactionalSpout({0: words}, ["word"], take=lambda _: taken["most"])
    data_dir = tmp_path / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txstorm.runtime.commit.publication.Publisher.TRIES", 10_000)
        handle = run(featured(spout), engine="local", data_dir=data_dir)
        eventually(lambda: handle.progress.committed > 0)
        deltalake.DeltaTable(str(data_dir / uri)).alter.add_constraint({"little": "_txid < 100000"})
        taken["most"] = 3
        eventually(lambda: "BLOCKED" in handle.status["message"])
        message = handle.status["message"]
        assert uri in message
        assert "CHECK constraint little (_txid < 100000)" in message
        assert "DROP CONSTRAINT little" in message
        deltalake.DeltaTable(str(data_dir / uri)).alter.drop_constraint("little")
        eventually(
            lambda: "BLOCKED" not in handle.status["message"] and read_sink(data_dir, "out").num_rows == len(words)
        )
        handle.stop()
    check_tiling(data_dir, handle.progress.committed)
    assert sum(read_state(data_dir, "counts")["n"].to_pylist()) == 60
    assert sorted(read_sink(data_dir, "out")["word"].to_pylist()) == sorted(words)
    deltalake.DeltaTable(str(data_dir / uri)).alter.add_constraint({"little": "_txid < 100000"})
    with pytest.raises(InputError, match="CHECK constraint little"):
        run(featured(spout), engine="local", data_dir=data_dir)
