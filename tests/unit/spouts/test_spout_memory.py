import pickle
import threading

import pytest
from spouts_recording import Bench, flat

from txstorm import OutputFieldsDeclarer, TaskContext
from txstorm.errors import EmitError, SettingError, SpoutError
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

STARTER = {
    0: ["cat", "dog", "chicken", "cat", "dog", "apple"],
    1: ["cat", "dog", "apple", "banana"],
    2: ["cat", "cat", "cat", "cat", "cat", "dog", "dog", "dog", "dog"],
}


def test_takes_are_per_partition_and_metadata_their_index_and_amount_from_which_a_restart_goes_on():
    """The row limit applies per partition; an exhausted source yields empty transactions (T33)."""
    bench = Bench(MemoryTransactionalSpout(STARTER, ["word"], 3), tasks=3)
    assert [len(bench.rows(txid)) for txid in range(1, 7)] == [9, 7, 3, 0, 0, 0]
    bench, again = (Bench(MemoryTransactionalSpout(STARTER, "word", 3), tasks=2) for _ in range(2))
    # Partitions are assigned to tasks by modulo.
    bench.plan(1)
    rows = [[(word,) for word in STARTER[number][:3]] for number in range(3)]
    assert [recorder.rows for recorder in bench.emit(1)] == [[*rows[0], *rows[2]], rows[1]]
    bench.plan(2)
    assert bench.documents[2] == {"meta": {"0": [3, 3], "1": [3, 1], "2": [3, 3]}}
    again.documents = {1: bench.documents[1]}
    assert again.rows(2) == bench.rows(2)


def test_lists_of_lists_several_fields_and_payloads_of_only_the_slice():
    spout = MemoryTransactionalSpout([[("dog", 3), ["cat", 4]], [("cat", 1)]], ("word", "n"), 2)
    declarer = OutputFieldsDeclarer()
    spout.declare_output_fields(declarer)
    assert declarer.streams["default"].fields == ("word", "n")
    assert Bench(spout).rows(1) == [("dog", 3), ("cat", 4), ("cat", 1)]
    bench = Bench(MemoryTransactionalSpout([list(range(1000))], "n", 2))
    bench.plan(1)
    assert bench.planner.payload(bench.documents[1]) == {"0": [(0,), (1,)]}


def test_replay_is_exact_while_data_grow_and_late_data_enter_the_next_txid():  # storm.md 62, 64
    spout = MemoryTransactionalSpout([["a", "b", "c", "d"], ["d", "c"]], "w", 3)
    bench = Bench(spout, tasks=2)
    assert [len(bench.rows(1)), len(bench.rows(2)), len(bench.rows(3))] == [5, 1, 0]
    spout.add(0, "a", "b")
    spout.add(5, "new")
    assert [len(bench.rows(1)), len(bench.rows(2)), len(bench.rows(3))] == [5, 1, 0]
    assert sorted(bench.rows(4)) == [("a",), ("b",), ("new",)]


def test_fewer_rows_than_already_read_is_an_error_naming_the_partition():
    bench = Bench(MemoryTransactionalSpout(STARTER, "word", 3))
    bench.plan(1)
    less = Bench(MemoryTransactionalSpout({0: ["cat"]}, "word", 3))
    less.documents = bench.documents
    with pytest.raises(SpoutError, match=r"'lines': partition 0 was read up to tuple 3 but holds only 1 now"):
        less.plan(2)
    with pytest.raises(SpoutError, match="partition 0 was read up to tuple 3"):
        less.rows(1)


def test_pickled_copies_for_workers_contain_no_data():
    spout = MemoryTransactionalSpout([["secret" * 1000]], "w")
    shipped = pickle.dumps(spout)
    assert b"secret" not in shipped
    for use in (lambda spout: spout.add(0, "x"), lambda spout: spout.coordinator(TaskContext("t", "lines", 0, 1))):
        with pytest.raises(SpoutError, match="stays in the process that created it"):
            use(pickle.loads(shipped))


def test_reached_covers_the_data_present_when_latest_was_called():
    spout = MemoryTransactionalSpout([["a", "b", "c"]], "w", 2)
    bench = Bench(spout)
    mark = bench.planner.latest()
    spout.add(0, "later", "later")
    spout.add(1, "later still")
    bench.plan(1)
    bench.plan(2)
    assert [bench.planner.reached(bench.documents.get(txid), mark) for txid in (0, 1, 2)] == [False, False, True]
    assert not bench.planner.reached(bench.documents[2], bench.planner.latest())
    empty = Bench(MemoryTransactionalSpout([], "w"))
    assert empty.planner.reached(None, empty.planner.latest())


def test_adding_from_other_threads_loses_nothing():
    spout = MemoryTransactionalSpout([], "n", 10_000)
    threads = [threading.Thread(target=lambda p=p: [spout.add(p % 2, i) for i in range(500)]) for p in range(4)]
    for thread in threads:
        thread.start()
    bench = Bench(spout)
    found = flat([bench.rows(txid) for txid in range(1, 5)])
    for thread in threads:
        thread.join()
    found += bench.rows(5)
    assert sorted(found) == sorted([(i,) for i in range(500)] * 4)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MemoryTransactionalSpout([[("a", 1)]], ["w"]), EmitError, r"2 values, the fields are \['w'\]"),
        (lambda: MemoryTransactionalSpout([["a"]], ["w", "n"]), EmitError, r"'a' has 1 value"),
        (lambda: MemoryTransactionalSpout([["a"]], "w", 0), SettingError, "take is 0"),
        (lambda: MemoryTransactionalSpout([["a"]], "w", True), SettingError, "take is True"),
        (lambda: MemoryTransactionalSpout({-1: ["a"]}, "w"), SettingError, "partition -1"),
        (lambda: MemoryTransactionalSpout({"0": ["a"]}, "w"), SettingError, "partition '0'"),
        (lambda: OpaqueMemoryTransactionalSpout([["a"]], "w").set_take(-5), SettingError, "take is -5"),
    ],
)
def test_bad_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_opaque_example_of_storms_documentation():  # storm.md 77
    """The example of opaque transactions in Storm's documentation (T35, item 77)."""
    spout = OpaqueMemoryTransactionalSpout([list(range(1, 141))], "n", 50)
    bench = Bench(spout)
    assert bench.planner.opaque
    assert [bench.rows(1), bench.rows(2)] == [[(n,) for n in range(1, 51)], [(n,) for n in range(51, 101)]]
    bench.documents.clear()
    amounts = {1: 40}
    spout.set_take(lambda txid: amounts.get(txid, 50))
    again = [[n for (n,) in bench.rows(txid)] for txid in (1, 2, 3)]
    assert again == [list(range(1, 41)), list(range(41, 91)), list(range(91, 141))]


def test_a_disabled_partition_keeps_its_position_and_replaced_content_is_read_by_the_next_plan():
    """A disabled partition is not read, and continues at its position when enabled again (T33)."""
    spout = OpaqueMemoryTransactionalSpout([["a", "b", "c"], ["x", "y"]], "w", 1)
    bench = Bench(spout)
    bench.rows(1)
    spout.set_disabled(0)
    assert bench.rows(2) == [("y",)]
    assert bench.documents[2]["meta"]["0"] == [1, 0]
    mark = bench.planner.latest()
    assert bench.planner.reached(bench.documents[2], mark)
    spout.set_disabled(0, False)
    assert not bench.planner.reached(bench.documents[2], mark)
    assert bench.rows(3) == [("b",)]
    spout = OpaqueMemoryTransactionalSpout([["a", "b"]], "w", 2)
    bench = Bench(spout)
    assert bench.rows(1) == [("a",), ("b",)]
    spout.replace(0, ["a", "c", "d"])
    bench.documents.clear()
    assert [bench.rows(1), bench.rows(2)] == [[("a",), ("c",)], [("d",)]]
