"""Outlets in complete runs with an in-memory writer: rows arrive exactly once, even if responses are lost."""

import json
from dataclasses import replace

import cloudpickle
import pytest
from outlet_nets import MemoryWriter, Send, Target, topology
from runs import ended
from topology_samples import Silent

from txstorm import Outlet, OutletWriter, TransactionalTopologyBuilder, explain, open_ledger, run
from txstorm.books.books import Books
from txstorm.errors import BlockedError, FencedError, InputError, StateError, TableCorrupt, TopologyError
from txstorm.operations.repair import abandon
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.tables.intent import STAGED


def ends(target, data_dir, **options):
    return ended(topology(target, **options), data_dir)


def books_of(data_dir, read):
    """Return what `read` gets from the books of a run that has ended."""
    books = Books(open_ledger(data_dir, create=False, read_only=True), data_dir / "intents")
    try:
        return read(books)
    finally:
        books.ledger.close()


def sending(*outlets, bolt=Send):
    """Return a builder of a topology with one bolt for each outlet."""
    builder = TransactionalTopologyBuilder("sending", "source", MemoryTransactionalSpout([[(1,)]], ["n"]))
    for number, outlet in enumerate(outlets):
        builder.set_bolt(f"send{number}", bolt(outlet)).global_grouping("source")
    return builder


def in_order(numbers: int = 8) -> list[dict[str, int]]:
    return [{"n": n, "_txid": n // 2 + 1} for n in range(numbers)]


def test_rows_arrive_in_txid_order_with_their_mark_and_a_second_run_raises_its_epoch(tmp_path):
    target = Target()
    for epoch, numbers in ((1, 4), (2, 8)):
        ends(target, tmp_path / "data", numbers=numbers)
        assert target.rows == in_order(numbers)
        assert (target.mark.topology, target.mark.epoch, target.mark.txid) == ("sending", epoch, numbers // 2)
    assert target.calls[0] == "open numbers sending"
    assert target.calls[-1] == "close"
    assert books_of(tmp_path / "data", Books.tables) == {"outlets/numbers": 4}


# Each step is executed once in P0, and then once per group.
@pytest.mark.parametrize(
    "trouble", [[("before", 2)], [("after", 2)], [("after", 3), ("published", 4)], [("published", 2)]]
)
def test_a_write_whose_response_is_lost_is_not_repeated(tmp_path, trouble):
    target = Target(*trouble)
    ends(target, tmp_path / "data")
    assert target.rows == in_order()
    assert all(target.calls.count(where) >= nth for where, nth in trouble)


@pytest.mark.parametrize("trouble", ["published", "before", "after"])
def test_a_target_unavailable_at_the_start_ends_the_run_before_planning(tmp_path, trouble):
    target = Target((trouble, 1))
    says = "outlet 'numbers': cannot take it over: ConnectionError: the line went dead"
    with pytest.raises(BlockedError, match=says):
        ends(target, tmp_path / "data")
    assert target.rows == []
    ends(target, tmp_path / "data")
    assert target.rows == in_order()


def test_a_decided_group_waits_for_its_outlet_and_is_written_first(tmp_path):
    target = Target(*(("before", nth) for nth in range(3, 30)))
    built = topology(target)
    handle = run(built, engine="local", data_dir=tmp_path / "data")
    with pytest.raises(BlockedError, match="txids 3-4 are decided"):
        _blocked(handle, target)
    with pytest.raises(StateError, match="outlet 'numbers': txids 3-4 are decided and have rows for it"):
        ends(target, tmp_path / "data", name="others")
    with pytest.raises(InputError, match="outlets/numbers holds txids 3-4 is unknown"):
        abandon(tmp_path / "data", 3)
    target.trouble = ()
    ended(topology(target), tmp_path / "data", until_txid=4)
    assert target.rows == in_order()
    assert len(list((tmp_path / "data/outlets/numbers" / STAGED).iterdir())) <= 3


def _blocked(handle, target):
    while target.calls.count("before") < 4:
        handle.awaitTermination(0.01)
    assert "outlet 'numbers'" in handle.status["message"]
    handle.stop()
    handle.awaitTermination()


def test_a_fenced_coordinator_writes_nothing_to_an_outlet(tmp_path):
    target = Target()
    ends(target, tmp_path / "data", numbers=4)

    class Overtaken(MemoryWriter):
        def publish(self, rows, expected, mark):
            if rows.num_rows:  # another coordinator takes over between reading the mark and writing
                self.target.mark = replace(self.target.mark, epoch=99)
            return super().publish(rows, expected, mark)

    built = topology(target)
    object.__setattr__(built.component("send").object.outlet, "writer", Overtaken(target))
    with pytest.raises(FencedError, match="a coordinator with epoch 99 has taken over"):
        ended(built, tmp_path / "data")
    assert target.rows == in_order(4)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"incarnation": "another"}, "belongs to topology 'sending', incarnation another"),
        ({"txid": 7}, "the ledger expects it at txid 2 of timeline 0, found 7"),
        ({"txid": 1}, "the ledger expects it at txid 2 of timeline 0, found 1"),
        (None, "the ledger knows it at txid 2, but the store has no mark of it"),
    ],
)
def test_a_target_that_does_not_match_the_ledger_is_rejected(tmp_path, change, told):
    target = Target()
    ends(target, tmp_path / "data", numbers=4)
    target.mark = None if change is None else replace(target.mark, **change)
    with pytest.raises((StateError, TableCorrupt), match=told):
        ends(target, tmp_path / "data")
    assert target.rows == in_order(4)


def test_a_row_of_the_wrong_type_is_rejected_before_the_decision(tmp_path):
    class Wrong(Send):
        def finish_batch(self):
            self.context.sink(self.outlet.name).append("seven")

    target = Target()
    builder = sending(Outlet("numbers", {"n": int}, MemoryWriter(target)), bolt=Wrong)
    with pytest.raises(Exception, match="seven"):
        ended(builder.build_topology(), tmp_path / "data")
    assert target.rows == []
    assert books_of(tmp_path / "data", Books.intents) == []


def test_an_outlet_is_shown_counts_in_the_fingerprint_and_its_writer_is_not_copied_to_tasks():
    built = topology(Target())
    assert "outlet numbers (MemoryWriter)" in built.describe()
    assert "outlet numbers: MemoryWriter" in explain(built)
    (send,) = [one for one in json.loads(built.describe("json"))["components"] if one["id"] == "send"]
    assert send["outlets"] == [{"name": "numbers", "columns": ["n"], "writer": "MemoryWriter"}]
    assert "numbers" in built.describe("svg")
    assert built.fingerprint() == topology(Target()).fingerprint() != topology(Target(), name="other").fingerprint()
    outlet = Outlet("numbers", {"n": int}, MemoryWriter(Target()))
    assert isinstance(outlet.writer, OutletWriter)
    copy = cloudpickle.loads(cloudpickle.dumps(outlet))
    assert (copy.name, copy.columns, copy.writer) == ("numbers", {"n": int}, None)
    assert "writer" not in repr(outlet)


def test_faults_are_found_when_the_topology_is_built():
    writer = MemoryWriter(Target())
    builder = sending(
        Outlet("one", {"n": int}, writer),
        Outlet("two", {"n": int}, writer),
        Outlet("three", {"n": int}, object()),
        Outlet("4", {"n": object}, MemoryWriter(Target())),
        Outlet("words", {"n": int}, MemoryWriter(Target())),
    )
    builder.set_bolt("keep", DeltaSink("words", {"n": int})).global_grouping("source")

    class InTheMiddle(Silent):
        outlet = Outlet("middle", {"n": int}, MemoryWriter(Target()))

    builder.set_bolt("middle", InTheMiddle()).global_grouping("source")
    with pytest.raises(TopologyError) as refused:
        builder.build_topology()
    told = "\n".join(refused.value.faults)
    assert "outlets 'one' and 'two' share one writer" in told
    methods = "open, published, publish, close"
    assert f"outlet 'three': expected a writer with {methods}, got an object of type object" in told
    assert "component 'send3': outlet name '4'" in told or "outlet '4'" in told
    assert "column 'n'" in told
    assert "sink 'words' is declared by both" in told
    assert "component 'middle' declares outlet 'middle' but is not a committer" in told
