"""Tables and sources added to or removed from the code: no table is orphaned silently; each shows its last txid."""

import json

import pytest
from recovery_cases import ended, killed, lose
from scenarios.dropped import WORDS, Keep, topology

from txstorm import CompositeSpout, TransactionalTopologyBuilder
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


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def go(data, built, until, **options):
    ended(built, data, until_txid=until, **options)


def books_of(data):
    return Books(open_ledger(data, create=False, read_only=True), data / "intents")


def files_of(data):
    """Return the table logs and the ledger, which a refused start must not change."""
    logs = {path: path.read_bytes() for path in data.glob("*/**/_delta_log/*.json")}
    books = books_of(data)
    return logs, books.tables(), books.stored_epoch(), books.identity(), (data / "format.json").read_bytes()


BOTH = Keep("counts"), Keep(sink="out")


@pytest.mark.parametrize(
    ("drop", "error", "message"),
    [
        ([], StateError, r"sinks/out is recorded .* not declared by the code; .* --drop out \(in Python"),
        (["conts"], InputError, "nothing of that name is recorded"),
        (["out", "counts"], InputError, "topology 't' declares it"),
        (["x"], InputError, "there is out to drop"),
        ("out", InputError, "drop: expected a list of names"),
    ],
)
def test_a_committer_that_is_left_out_is_refused_before_anything_is_written(data, drop, error, message):
    """It is refused unless exactly what is left out is dropped."""
    go(data, topology(*BOTH), 2)
    before = files_of(data)
    with pytest.raises(error, match=message):
        go(data, topology(BOTH[0]), 4, drop=drop)
    assert files_of(data) == before
    assert not any(books_of(data).dropped())
    go(data, topology(*BOTH), 4)
    assert len(SinkView(data, "out").to_pylist()) == 4


def test_several_that_are_left_out_are_all_named(data):
    go(data, topology(*BOTH, Keep("more")), 2)
    with pytest.raises(StateError, match=r"changes/more, sinks/out are recorded .*--drop more --drop out"):
        go(data, topology(BOTH[0]), 4)
    with pytest.raises(StateError, match=r"changes/more is recorded"):
        go(data, topology(BOTH[0]), 4, drop=["out"])
    go(data, topology(BOTH[0]), 4, drop=["sinks/out", "more"])
    assert books_of(data).dropped().tables == {"sinks/out": 2, "changes/more": 2}


@pytest.mark.parametrize("layout", ["changes", "merge"])
def test_a_dropped_table_says_until_when_it_is_right_and_cuts_respect_that(data, layout):
    gone = Keep("old", "out", layout)
    go(data, topology(Keep("counts"), gone), 10)
    assert json.loads((data / "format.json").read_text())["version"] == 1
    go(data, topology(Keep("counts")), 20, drop=["old", "out"])
    # A version that supports format 1 only would keep writing to a dropped table that its code declares.
    assert json.loads((data / "format.json").read_text())["version"] == 2
    go(data, topology(Keep("counts")), 22, drop=["old", "out"])  # the same command again

    cut = snapshot(data)
    assert (cut.states, cut.sinks, cut.left_out.keys()) == (("counts",), (), {"state/old", "sinks/out"})
    assert "dropped after txid 10" in json.loads(cut.to_json())["left_out"]["sinks/out"]
    assert set(snapshot(data, 10).tables()) == {"state/counts", "state/old", "sinks/out"}
    assert {view.name for view in sql_views(data)} == {"state_counts", "changes_counts"}
    assert "sink_out" in {view.name for view in sql_views(data, 10)}
    assert sum(row["n"] for row in StateView(data, "old").to_pylist()) == 10
    with pytest.raises(StateError, match="as of txid 11: it was dropped after txid 10"):
        StateView(data, "old", 11).to_arrow()
    with pytest.raises(StateError, match="as of txid 11: it was dropped after txid 10"):
        SinkView(data, "out", 11).to_arrow()
    if layout == "changes":
        assert StateView(data, "old").changes(9, 10).num_rows == 2
        with pytest.raises(StateError, match="it was dropped after txid 10"):
            StateView(data, "old").changes(9, 11)
    with pytest.raises(StateError, match=r"'old': was dropped after txid 10, .*new name, or backfill"):
        go(data, topology(Keep("counts"), Keep("old")), 24)


def test_a_new_table_says_from_when_on_it_is_right(data):
    go(data, topology(Keep("counts")), 5)
    go(data, topology(Keep("counts"), Keep("late", "out")), 10)
    assert set(snapshot(data, 4).left_out) == {"state/late", "sinks/out"}
    assert snapshot(data, 6).left_out == {}
    with pytest.raises(StateError, match="it begins after txid 5"):
        SinkView(data, "out", 4).to_arrow()
    with pytest.raises(StateError, match="it begins after txid 5; ask for txid 5 or later"):
        StateView(data, "late").changes(5, 7)
    rewind(data, 3)
    go(data, topology(Keep("counts"), Keep("late", "out")), 8)
    assert [row["_txid"] for row in SinkView(data, "out").to_pylist()] == [4, 5, 6, 7, 8]
    assert snapshot(data, 4).left_out == {}
    assert set(snapshot(data, 2).left_out) == {"state/late", "sinks/out"}


def test_a_rewind_takes_dropped_tables_along_and_does_not_bring_them_back(data):
    go(data, topology(*BOTH), 10)
    go(data, topology(BOTH[0]), 15, drop=["out"])
    rewind(data, 12)
    assert books_of(data).dropped().tables == {"sinks/out": 10}
    rewind(data, 6)
    assert books_of(data).dropped().tables == {"sinks/out": 6}
    assert [row["_txid"] for row in SinkView(data, "out").to_pylist()] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(StateError, match="was dropped after txid 6"):
        go(data, topology(*BOTH), 8)
    go(data, topology(BOTH[0]), 8)
    assert set(snapshot(data, 7).left_out) == {"sinks/out"}
    assert snapshot(data, 6).left_out == {}


def test_savepoints_hold_the_tables_that_are_right(data):
    restored = data.with_name("restored")
    go(data, topology(*BOTH), 5)
    go(data, topology(BOTH[0], Keep("late")), 10, drop=["out"])
    assert {*create_savepoint(data, "then", 4).tables} == {"state/counts", "changes/counts", "sinks/out"}
    now = {uri for uri in create_savepoint(data, "now").tables if not uri.startswith("state")}
    assert now == {"changes/counts", "changes/late"}
    restore_savepoint(data, "then", restored)
    go(restored, topology(*BOTH), 8)
    assert len(SinkView(restored, "out").to_pylist()) == 8
    assert len(SinkView(restored, "out", 2).to_pylist()) == 2  # its rows of before came along


def test_a_rebuilt_ledger_knows_what_was_dropped(data):
    go(data, topology(*BOTH), 5)
    go(data, topology(BOTH[0]), 8, drop=["out"])
    lose(data)
    assert recover(data)["dropped"] == {"sinks/out": 5}
    with pytest.raises(StateError, match="was dropped after txid 5"):
        go(data, topology(*BOTH), 10)
    go(data, topology(BOTH[0]), 10)
    assert set(snapshot(data).left_out) == {"sinks/out"}


def test_a_component_may_have_another_name(data):
    go(data, topology(*BOTH), 4)
    builder = TransactionalTopologyBuilder("t", "words", MemoryTransactionalSpout([WORDS], "word", take=1))
    for name, bolt in zip(("renamed", "too"), BOTH, strict=True):
        builder.set_committer_bolt(name, bolt, 1).global_grouping("words")
    go(data, builder.build_topology(), 8)
    assert sum(row["n"] for row in StateView(data, "counts").to_pylist()) == 8
    assert len(SinkView(data, "out").to_pylist()) == 8


def test_dead_letters_stay_recorded_when_nothing_is_left_out_any_more(data):
    go(data, topology(*BOTH), 2, settings={"on_error": "dead_letter"})
    go(data, topology(*BOTH), 4)
    assert "dead_letters" in books_of(data).tables()
    go(data, topology(*BOTH), 6, settings={"on_error": "dead_letter"})


def test_a_table_created_by_a_killed_start_begins_after_the_last_commit(data):
    """A start that adds a table is killed in P0; older code commits more txids; the table begins after those."""
    go(data, topology(Keep("counts")), 3)
    killed("p0.1.created:kill:1", data, "--late", scenario="dropped")
    go(data, topology(Keep("counts")), 6)  # no table of its own is recorded, so nothing is missed
    go(data, topology(Keep("counts"), Keep(sink="late")), 8)
    assert set(snapshot(data, 5).left_out) == {"sinks/late"}
    assert [row["_txid"] for row in SinkView(data, "late").to_pylist()] == [7, 8]
    lose(data)
    assert recover(data, dry_run=True)["tables"]["sinks/late"] == 8


def replayed(data, *tables, **request):
    """Run an audit or backfill with code that has these tables; return its exit code."""
    code = f"scenarios.dropped:built({', '.join(map(repr, tables))})"
    return replay_batch(BatchRequest(str(data), engine="local", topology=code, **request))


def test_audits_and_backfills_of_tables_that_came_and_went(data):
    into = data.with_name("into")
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
def test_a_source_that_is_left_out_is_refused_and_a_new_one_begins_at_its_start(data, opaque):
    def built(*names):
        return topology(Keep(sink="out"), spout=sources(*names, opaque=opaque), streams=names)

    go(data, built("x", "y"), 4)
    with pytest.raises(StateError, match=r"source y is recorded .*--drop y"):
        go(data, built("x"), 6)
    go(data, built("x"), 6, drop=["y"])
    go(data, built("x", "z"), 8)
    go(data, built("x", "z", "y"), 10)  # its position was kept
    with pytest.raises(StateError, match=r"source y is recorded"):
        go(data, built("x", "z"), 12)
    words = sorted(row["word"] for row in SinkView(data, "out").to_pylist())
    assert words == sorted([f"x{i}" for i in range(10)] + [f"y{i}" for i in range(6)] + [f"z{i}" for i in range(4)])


def test_another_kind_of_spout_is_refused(data):
    go(data, topology(Keep(sink="out"), spout=sources("x"), streams=("x",)), 2)
    with pytest.raises(DataDirectoryError, match="those of a composite spout, the code has a single source"):
        go(data, topology(Keep(sink="out")), 4)


DROPPING = ["before", "epoch", "raised", "recorded", "1.dropped", "2.dropped", "3.dropped", "after"]


@pytest.mark.parametrize("point", DROPPING)
def test_killed_while_it_drops_and_started_again(data, point):
    go(data, topology(Keep("counts"), Keep("old", "out")), 4)
    killed(f"p0.{point}:kill:1", data, "--drop", scenario="dropped")
    told = books_of(data).dropped().tables
    assert told == ({} if point in DROPPING[:3] else {"changes/old": 4, "sinks/out": 4})
    if not told:
        with pytest.raises(TxstormError, match="are recorded"):
            go(data, topology(Keep("counts")), 6)
    go(data, topology(Keep("counts")), 6, drop=["old", "out"])
    assert set(snapshot(data).left_out) == {"state/old", "sinks/out"}
    assert sum(row["n"] for row in StateView(data, "old").to_pylist()) == 4
