"""Records that always fail: skipped and stored in the dead-letter table in the same transaction; the rest continues."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from failing_net import Trouble, failing_net
from recovery_cases import check, ended, open_books, sums
from watched import NUMBERS, PartitionedShelfSpout, ShelfSpout, at

from txstorm import FailedException, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.engine.spark import SparkEngine
from txstorm.errors import TopologyFailed
from txstorm.replay.audit import replay_txid
from txstorm.results.read import read_letters, read_sink
from txstorm.results.views import read_directory_history
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout

LAST = 14
POISON = {
    **{"emitter": (2, "value"), "basic.execute": (3, "exit"), "batch.execute": (4, "value")},
    **{"batch.finish": (5, "value"), "keep.execute": (6, "exit"), "keep.finish": (7, "value")},
    **{"grouping": (8, "value"), "behind.grouping": (9, "exit"), "behind.execute": (10, "value")},
    **{"behind.finish": (11, "value"), "basic.prepare": (12, "value"), "keep.prepare": (13, "value")},
}


def poisoned(place: Path, engine: Any = "local", *, rows: bool = False, **settings: Any) -> RunHandle:
    topology = failing_net(Trouble(place, POISON, always=True), rows=rows, **{"on_error": "dead_letter", **settings})
    return ended(topology, place / "data", engine, until_txid=LAST)


def letters(data_dir: Path) -> list[tuple[int, str, int, str, Any]]:
    """Return the dead letters as (txid, component, task, error, record), in table order."""
    found = read_letters(data_dir)
    assert found is not None
    return [
        (row["_txid"], row["component"], row["task"], row["type"], json.loads(row["record"]))
        for row in found.to_pylist()
    ]


def numbers(data_dir: Path, sink: str) -> set[int]:
    rows = read_sink(data_dir, sink).to_pylist()
    assert all(row["_txid"] == (row["n"] + 1) // 2 for row in rows)
    assert len({row["n"] for row in rows}) == len(rows)
    return {row["n"] for row in rows}


EVERYTHING = set(range(1, 2 * LAST + 1))
# What a task gets depends on the groupings: odd numbers are those that raise, and go to task 1 after "basic".
LETTERS = {
    2: [
        ("numbers", 0, "ValueError", {"meta": [3, 4], "task": 0, "of": 2}),
        ("numbers", 1, "ValueError", {"meta": [3, 4], "task": 1, "of": 2}),
    ],
    3: [("basic", 1, "SystemExit", {"n": 5})],
    4: [("batch", 1, "ValueError", {"n": 7})],
    5: [("batch", 0, "ValueError", {"n": 10}), ("batch", 1, "ValueError", {"n": 9})],
    8: [("basic", 1, "ValueError", {"n": 15})],
    10: [("behind", 1, "ValueError", {"n": 19})],
    11: [("behind", 0, "ValueError", {"n": 22}), ("behind", 1, "ValueError", {"n": 21})],
    12: [("basic", 0, "ValueError", {"n": 24}), ("basic", 1, "ValueError", {"n": 23})],
}


@pytest.mark.parametrize("rows", [False, True], ids=["tuples", "record batches"])
def test_what_raises_is_left_out_and_the_rest_goes_on(place, rows):
    handle = poisoned(place, rows=rows)
    found = letters(place / "data")
    for txid, expected in LETTERS.items():
        assert [one[1:] for one in found if one[0] == txid] == expected, txid
    by_txid = {txid: {one[4]["n"] for one in found if one[0] == txid} for txid in (6, 7, 9, 13)}
    assert by_txid == {6: {11}, 7: {13, 14}, 9: {17}, 13: {25, 26}}
    kept = EVERYTHING - {3, 4} - {5} - {7} - {9, 10} - {11} - {13, 14} - {15} - {23, 24} - {25, 26}
    assert numbers(place / "data", "kept") == kept
    assert sums(place / "data") == dict.fromkeys(sorted(kept), 1)
    assert numbers(place / "data", "ended") == kept - {17} - {19} - {21, 22}
    assert handle.progress.dead_letters == handle.status["deadLetters"] == len(found)
    assert sum(one.dead_letters for one in handle.recentProgress) == len(found)
    assert handle.progress.replays == len(POISON)
    assert handle.dead_letters().to_arrow().num_rows == len(found)
    check(place / "data", LAST)


@pytest.mark.spark
def test_the_same_letters_on_spark(spark, place):
    poisoned(place / "spark", SparkEngine(spark))
    poisoned(place / "local")
    one, two = place / "spark/data", place / "local/data"
    assert letters(one) == letters(two)
    assert numbers(one, "kept") == numbers(two, "kept")
    assert numbers(one, "ended") == numbers(two, "ended")
    assert read_letters(one)["frame"].to_pylist() == read_letters(two)["frame"].to_pylist()


def test_every_letter_says_what_went_wrong_and_where(place, data_dir):
    poisoned(place, on_error="retry(2), dead_letter")
    [row] = [row for row in read_letters(data_dir).to_pylist() if row["_txid"] == 4]
    assert (row["source"], row["stream"], row["what"], row["kind"]) == ("basic", "default", "tuple", "other")
    assert row["message"] == "trouble in batch.execute"
    assert "failing_net.py:" in row["frame"]
    [fourth] = [one for one in read_directory_history(data_dir).to_pylist() if one["txid"] == 4]
    assert (row["attempt"], row["stamp"]) == (fourth["attempt"], fourth["stamp"])


def test_retries_come_first_and_failed_exceptions_have_a_limit_of_their_own(watch):
    def trouble(txid, nth):
        if txid == 2:
            raise ValueError("never")
        if txid == 4:
            raise FailedException("never")
        if txid == 6 and nth <= 9:
            raise FailedException("not yet") if nth % 2 else ValueError("nor this")

    watch.ends(process=trouble, on_error="retry(4), dead_letter", max_retries=6)
    calls = watch.diary.calls("process")
    assert calls[2] == 6  # once, four retries, and once more without what it raises for
    assert calls[4] == 8
    assert calls[6] == 10  # neither of its two troubles has reached its limit
    assert [(one[0], one[4]["n"]) for one in letters(watch.data_dir)] == [(2, 3), (2, 4), (4, 7), (4, 8)]
    check(watch.data_dir, 10)


def test_a_failed_exception_is_still_replayed_while_other_errors_are_left_out(watch):
    def trouble(txid, nth):
        if txid == 3 and nth == 1:
            raise ValueError("poison, once")
        if txid == 3 and nth <= 5:
            raise FailedException("the database is away")

    watch.ends(process=trouble, on_error="dead_letter")
    assert watch.diary.calls("process")[3] == 6
    assert letters(watch.data_dir) == []
    assert sums(watch.data_dir) == dict.fromkeys(NUMBERS, 1)


def test_a_state_violation_makes_the_whole_batch_a_dead_letter(data_dir):
    """Two tasks change one key: no single record is at fault, so the whole batch becomes a dead letter."""
    source = MemoryTransactionalSpout([["a", "b", "b", "c"]], "key", take=2)
    builder = TransactionalTopologyBuilder("rule", "numbers", source)
    builder.set_bolt("sum", CountByKey("key", table="counts"), 2).all_grouping("numbers")
    builder.set_setting("on_error", "dead_letter")
    handle = ended(builder.build_topology(), data_dir)
    assert [(txid, component) for txid, component, *_ in letters(data_dir)] == [(1, "state"), (2, "state")]
    assert handle.state("counts").to_pylist() == []
    assert handle.committed == 2


def test_without_the_policy_there_is_no_table(place, data_dir):
    handle = ended(failing_net(Trouble(place)), data_dir, until_txid=2)
    assert not (data_dir / "dead_letters").exists()
    assert handle.dead_letters().to_pylist() == []


ALONE = {"on_error": "dead_letter", "batch_timeout": 0.7, "max_pack_txids": 1, "max_group_txids": 1}


@pytest.mark.parametrize("phase", ["process", "commit"])
def test_a_batch_that_never_ends_is_a_letter_as_a_whole(watch, phase):
    watch.ends(**{phase: at(3, lambda: time.sleep(30), times=3)}, **ALONE)
    [row] = read_letters(watch.data_dir).to_pylist()
    assert (row["_txid"], row["what"], row["kind"], row["source"]) == (3, "metadata", "lost", "numbers")
    assert row["component"] == ("the worker" if phase == "process" else "commit")
    assert json.loads(row["record"]) == {"meta": {"0": [4, 2]}, "facts": {"clock": {"0": 5}}}
    assert sums(watch.data_dir) == dict.fromkeys(NUMBERS[:4] + NUMBERS[6:], 1)
    check(watch.data_dir, 10)


@pytest.mark.spark
def test_a_batch_that_kills_its_worker_is_a_letter_as_a_whole(spark, watch):
    diary = watch.diary

    def trouble(txid, nth):
        if txid == 6 and [6, []] not in diary.of("process"):
            os.kill(os.getpid(), 9)

    watch.ends(engine="spark", spark=spark, process=trouble, on_error="dead_letter", max_pack_txids=2)
    [row] = read_letters(watch.data_dir).to_pylist()
    assert (row["_txid"], row["what"], row["kind"]) == (6, "metadata", "lost")
    assert sums(watch.data_dir) == dict.fromkeys(NUMBERS[:10] + NUMBERS[12:], 1)
    check(watch.data_dir, 10)


def test_a_dead_opaque_batch_keeps_its_extents_when_replanned(watch, shelf):
    """If the source has grown by the time the batch is replanned, the new records are not skipped along with it."""
    shelf.write([1, 2, 3, 4, 5], take=2)

    def trouble(txid, nth):
        if txid == 3 and nth == 3:
            shelf.write([1, 2, 3, 4, 5, 6, 7], take=2)
        if txid == 3 and nth <= 3:
            time.sleep(30)

    watch.ends(ShelfSpout(shelf), commit=trouble, until_txid=4, **ALONE)
    assert [one[4] for one in letters(watch.data_dir)] == [{"meta": [[4, 5]]}]
    assert sums(watch.data_dir) == dict.fromkeys([1, 2, 3, 4, 6, 7], 1)


def test_an_emitter_failure_before_the_extents_are_known_ends_the_run(watch, shelf):
    """If the emitter fails before it reports its extents, the batch cannot be skipped, and the run ends."""

    class Broken(PartitionedShelfSpout):
        def emit_partition_batch(self, attempt, collector, partition, last_metadata):
            raise ZeroDivisionError

    with pytest.raises(TopologyFailed, match=r"numbers\[0\] raised ZeroDivisionError"):
        watch.ends(Broken(shelf.write(["no number"])), on_error="dead_letter", until_txid=4)
    with open_books(watch.data_dir) as books:
        assert books.currtx() == 1


def test_a_transaction_with_dead_letters_is_replayed_without_them(place, data_dir):
    poisoned(place)
    topology = failing_net(Trouble(place, POISON, always=True), on_error="dead_letter")
    assert letters(data_dir)
    for txid in range(1, LAST + 1):
        verdict = replay_txid(topology, data_dir, txid)
        assert verdict.failure is None
        assert verdict.equal, verdict
