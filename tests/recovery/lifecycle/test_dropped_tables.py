"""Tables and sources added to or removed from the code: no table is orphaned silently; each shows its last txid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recovery_cases import killed
from scenarios.dropped import WORDS, Keep, topology

from txstorm import CompositeSpout, TransactionalTopologyBuilder, run
from txstorm.books.books import Books
from txstorm.cli.commands.replay_batch import BatchRequest, replay_batch
from txstorm.errors import DataDirectoryError, InputError, StateError, TxstormError
from txstorm.ledger.open import open_ledger
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.restore import restore_savepoint
from txstorm.operations.rewind import rewind
from txstorm.operations.savepoints import create_savepoint
from txstorm.results.snapshot import snapshot
from txstorm.results.spark_views import sql_views
from txstorm.results.views import SinkView, StateView
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

HERE = Path(__file__).resolve().parent


def go(data, built, until, **options):
    handle = run(built, engine="local", data_dir=data, until_txid=until, **options)
    handle.awaitTermination()
    if handle.exception():
        raise handle.exception()


def books_of(data):
    return Books(open_ledger(data, create=False, read_only=True), data / "intents")


def files_of(data):
    """Return the table logs and the ledger, which a refused start must not change."""
    logs = {path: path.read_bytes() for path in data.glob("*/**/_delta_log/*.json")}
    books = books_of(data)
    return logs, books.tables(), books.stored_epoch(), books.identity(), (data / "format.json").read_bytes()


BOTH = Keep("counts"), Keep(sink="out")


def test_a_committer_that_is_left_out_is_refused_before_anything_is_written(tmp_path):
    go(tmp_path, topology(*BOTH), 10)
    before = files_of(tmp_path)
    with pytest.raises(
        StateError, match=r"sinks/out is recorded .* not declared by the code; .* --drop out \(in Python"
    ):
        go(tmp_path, topology(BOTH[0]), 20)
    assert files_of(tmp_path) == before
    go(tmp_path, topology(*BOTH), 30)
    assert len(SinkView(tmp_path, "out").to_pylist()) == 30


def test_several_that_are_left_out_are_all_named(tmp_path):
    go(tmp_path, topology(*BOTH, Keep("more")), 2)
    with pytest.raises(StateError, match=r"changes/more, sinks/out are recorded .*--drop more --drop out"):
        go(tmp_path, topology(BOTH[0]), 4)
    with pytest.raises(StateError, match=r"changes/more is recorded"):
        go(tmp_path, topology(BOTH[0]), 4, drop=["out"])
    go(tmp_path, topology(BOTH[0]), 4, drop=["sinks/out", "more"])
    assert books_of(tmp_path).dropped().tables == {"sinks/out": 2, "changes/more": 2}


@pytest.mark.parametrize(
    ("drop", "fault"),
    [
        ("conts", "nothing of that name is recorded"),
        ("counts", "topology 't' declares it"),
        ("x", "there is out to drop"),
    ],
)
def test_names_that_cannot_be_dropped(tmp_path, drop, fault):
    go(tmp_path, topology(*BOTH), 2)
    with pytest.raises(InputError, match=fault):
        go(tmp_path, topology(BOTH[0]), 4, drop=["out", drop] if drop == "counts" else [drop])
    assert not any(books_of(tmp_path).dropped())


def test_drop_takes_a_list(tmp_path):
    with pytest.raises(InputError, match="drop: expected a list of names"):
        run(topology(*BOTH), engine="local", data_dir=tmp_path, drop="out")


@pytest.mark.parametrize("layout", ["changes", "merge"])
def test_a_dropped_table_says_until_when_it_is_right_and_cuts_respect_that(tmp_path, layout):
    gone = Keep("old", "out", layout)
    go(tmp_path, topology(Keep("counts"), gone), 10)
    go(tmp_path, topology(Keep("counts")), 20, drop=["old", "out"])
    assert json.loads((tmp_path / "format.json").read_text())["version"] == 2
    go(tmp_path, topology(Keep("counts")), 22, drop=["old", "out"])  # the same command again

    cut = snapshot(tmp_path)
    assert (cut.states, cut.sinks, cut.left_out.keys()) == (("counts",), (), {"state/old", "sinks/out"})
    assert "dropped after txid 10" in json.loads(cut.to_json())["left_out"]["sinks/out"]
    assert set(snapshot(tmp_path, 10).tables()) == {"state/counts", "state/old", "sinks/out"}
    assert {view.name for view in sql_views(tmp_path)} == {"state_counts", "changes_counts"}
    assert "sink_out" in {view.name for view in sql_views(tmp_path, 10)}
    assert sum(row["n"] for row in StateView(tmp_path, "old").to_pylist()) == 10
    with pytest.raises(StateError, match="as of txid 11: it was dropped after txid 10"):
        StateView(tmp_path, "old", 11).to_arrow()
    with pytest.raises(StateError, match="as of txid 11: it was dropped after txid 10"):
        SinkView(tmp_path, "out", 11).to_arrow()
    if layout == "changes":
        assert StateView(tmp_path, "old").changes(9, 10).num_rows == 2
        with pytest.raises(StateError, match="it was dropped after txid 10"):
            StateView(tmp_path, "old").changes(9, 11)
    with pytest.raises(StateError, match=r"'old': was dropped after txid 10, .*new name, or backfill"):
        go(tmp_path, topology(Keep("counts"), Keep("old")), 24)


def test_a_new_table_says_from_when_on_it_is_right(tmp_path):
    go(tmp_path, topology(Keep("counts")), 5)
    go(tmp_path, topology(Keep("counts"), Keep("late", "out")), 10)
    assert set(snapshot(tmp_path, 4).left_out) == {"state/late", "sinks/out"}
    assert snapshot(tmp_path, 6).left_out == {}
    with pytest.raises(StateError, match="it begins after txid 5"):
        SinkView(tmp_path, "out", 4).to_arrow()
    with pytest.raises(StateError, match="it begins after txid 5; ask for txid 5 or later"):
        StateView(tmp_path, "late").changes(5, 7)
    rewind(tmp_path, 3)
    go(tmp_path, topology(Keep("counts"), Keep("late", "out")), 8)
    assert [row["_txid"] for row in SinkView(tmp_path, "out").to_pylist()] == [4, 5, 6, 7, 8]
    assert snapshot(tmp_path, 4).left_out == {}
    assert set(snapshot(tmp_path, 2).left_out) == {"state/late", "sinks/out"}


def test_a_rewind_takes_dropped_tables_along_and_does_not_bring_them_back(tmp_path):
    go(tmp_path, topology(*BOTH), 10)
    go(tmp_path, topology(BOTH[0]), 15, drop=["out"])
    rewind(tmp_path, 12)
    assert books_of(tmp_path).dropped().tables == {"sinks/out": 10}
    rewind(tmp_path, 6)
    assert books_of(tmp_path).dropped().tables == {"sinks/out": 6}
    assert [row["_txid"] for row in SinkView(tmp_path, "out").to_pylist()] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(StateError, match="was dropped after txid 6"):
        go(tmp_path, topology(*BOTH), 8)
    go(tmp_path, topology(BOTH[0]), 8)
    assert set(snapshot(tmp_path, 7).left_out) == {"sinks/out"}
    assert snapshot(tmp_path, 6).left_out == {}


def test_savepoints_hold_the_tables_that_are_right(tmp_path):
    data, restored = tmp_path / "data", tmp_path / "restored"
    go(data, topology(*BOTH), 5)
    go(data, topology(BOTH[0], Keep("late")), 10, drop=["out"])
    assert {*create_savepoint(data, "then", 4).tables} == {"state/counts", "changes/counts", "sinks/out"}
    assert {uri for uri in create_savepoint(data, "now").tables if uri[:5] != "state"} == {
        "changes/counts",
        "changes/late",
    }
    restore_savepoint(data, "then", restored)
    go(restored, topology(*BOTH), 8)
    assert len(SinkView(restored, "out").to_pylist()) == 8
    assert len(SinkView(restored, "out", 2).to_pylist()) == 2  # its rows of before came along


def test_a_rebuilt_ledger_knows_what_was_dropped(tmp_path):
    go(tmp_path, topology(*BOTH), 5)
    go(tmp_path, topology(BOTH[0]), 8, drop=["out"])
    for file in tmp_path.glob("ledger.db*"):
        file.unlink()
    assert recover(tmp_path)["dropped"] == {"sinks/out": 5}
    with pytest.raises(StateError, match="was dropped after txid 5"):
        go(tmp_path, topology(*BOTH), 10)
    go(tmp_path, topology(BOTH[0]), 10)
    assert set(snapshot(tmp_path).left_out) == {"sinks/out"}


def test_a_component_may_have_another_name(tmp_path):
    go(tmp_path, topology(*BOTH), 4)
    builder = TransactionalTopologyBuilder("t", "words", MemoryTransactionalSpout([WORDS], "word", take=1))
    for name, bolt in zip(("renamed", "too"), BOTH, strict=True):
        builder.set_committer_bolt(name, bolt, 1).global_grouping("words")
    go(tmp_path, builder.build_topology(), 8)
    assert sum(row["n"] for row in StateView(tmp_path, "counts").to_pylist()) == 8
    assert len(SinkView(tmp_path, "out").to_pylist()) == 8


def test_dead_letters_stay_recorded_when_nothing_is_left_out_any_more(tmp_path):
    go(tmp_path, topology(*BOTH), 2, settings={"on_error": "dead_letter"})
    go(tmp_path, topology(*BOTH), 4)
    assert "dead_letters" in books_of(tmp_path).tables()
    go(tmp_path, topology(*BOTH), 6, settings={"on_error": "dead_letter"})


def test_a_table_created_by_a_killed_start_begins_after_the_last_commit(tmp_path):
    """A start that adds a table is killed in P0; older code commits more txids; the table begins after those."""
    go(tmp_path, topology(Keep("counts")), 3)
    killed("p0.1.created:kill:1", tmp_path, "--late", scenario="dropped")
    go(tmp_path, topology(Keep("counts")), 6)  # no table of its own is recorded, so nothing is missed
    go(tmp_path, topology(Keep("counts"), Keep(sink="late")), 8)
    assert set(snapshot(tmp_path, 5).left_out) == {"sinks/late"}
    assert [row["_txid"] for row in SinkView(tmp_path, "late").to_pylist()] == [7, 8]
    assert recover_says(tmp_path)["sinks/late"] == 8


def recover_says(data):
    """Return the records of the tables in a rebuilt ledger."""
    for file in data.glob("ledger.db*"):
        file.rename(data.parent / file.name)
    return recover(data, dry_run=True)["tables"]


def replayed(data, *tables, **request):
    """Run an audit or backfill with code that has these tables; return its exit code."""
    code = f"scenarios.dropped:built({', '.join(map(repr, tables))})"
    return replay_batch(BatchRequest(str(data), engine="local", topology=code, **request))


def test_audits_and_backfills_of_tables_that_came_and_went(tmp_path):
    data, into = tmp_path / "data", tmp_path / "into"
    go(data, topology(*BOTH), 4)
    go(data, topology(BOTH[0], Keep("late")), 8, drop=["out"])
    assert replayed(data, "counts", "late", from_txid=1, to_txid=8) == 0
    assert replayed(data, "counts", "late", from_txid=6, to_txid=8) == 0
    assert replayed(data, "counts", "late", "sinks/out", from_txid=1, to_txid=8) == 0
    assert replayed(data, "counts", "late", "sinks/out", into=str(into)) == 0
    assert [row["_txid"] for row in SinkView(into, "out").to_pylist()] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert snapshot(into, 2).left_out == {}


def sources(*names, opaque=False):
    made = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    return CompositeSpout({name: made([[f"{name}{i}" for i in range(20)]], "word", take=1) for name in names})


@pytest.mark.parametrize("opaque", [False, True])
def test_a_source_that_is_left_out_is_refused_and_a_new_one_begins_at_its_start(tmp_path, opaque):
    def built(*names):
        return topology(Keep(sink="out"), spout=sources(*names, opaque=opaque), streams=names)

    go(tmp_path, built("x", "y"), 4)
    with pytest.raises(StateError, match=r"source y is recorded .*--drop y"):
        go(tmp_path, built("x"), 6)
    go(tmp_path, built("x"), 6, drop=["y"])
    go(tmp_path, built("x", "z"), 8)
    go(tmp_path, built("x", "z", "y"), 10)  # its position was kept
    with pytest.raises(StateError, match=r"source y is recorded"):
        go(tmp_path, built("x", "z"), 12)
    words = sorted(row["word"] for row in SinkView(tmp_path, "out").to_pylist())
    assert words == sorted([f"x{i}" for i in range(10)] + [f"y{i}" for i in range(6)] + [f"z{i}" for i in range(4)])


def test_another_kind_of_spout_is_refused(tmp_path):
    go(tmp_path, topology(Keep(sink="out"), spout=sources("x"), streams=("x",)), 2)
    with pytest.raises(DataDirectoryError, match="those of a composite spout, the code has a single source"):
        go(tmp_path, topology(Keep(sink="out")), 4)


def test_an_older_txstorm_refuses_a_directory_with_dropped_tables(tmp_path):
    """A version that supports format 1 only would keep writing to a dropped table that its code declares."""
    go(tmp_path, topology(*BOTH), 2)
    assert json.loads((tmp_path / "format.json").read_text())["version"] == 1
    go(tmp_path, topology(BOTH[0]), 4, drop=["out"])
    assert json.loads((tmp_path / "format.json").read_text())["version"] == 2


DROPPING = [
    "p0.before",
    "p0.epoch",
    "p0.raised",
    "p0.recorded",
    "p0.1.dropped",
    "p0.2.dropped",
    "p0.3.dropped",
    "p0.after",
]


@pytest.mark.parametrize("point", DROPPING)
def test_killed_while_it_drops_and_started_again(tmp_path, point):
    go(tmp_path, topology(Keep("counts"), Keep("old", "out")), 4)
    killed(f"{point}:kill:1", tmp_path, "--drop", scenario="dropped")
    told = books_of(tmp_path).dropped().tables
    assert told == ({} if point in DROPPING[:3] else {"changes/old": 4, "sinks/out": 4})
    if not told:
        with pytest.raises(TxstormError, match="are recorded"):
            go(tmp_path, topology(Keep("counts")), 6)
    go(tmp_path, topology(Keep("counts")), 6, drop=["old", "out"])
    assert set(snapshot(tmp_path).left_out) == {"state/old", "sinks/out"}
    assert sum(row["n"] for row in StateView(tmp_path, "old").to_pylist()) == 4
