"""Restarts as in Storm's tests and code (storm.md, items 62 to 66)."""

from pathlib import Path

import pytest
from crashes import crashing
from recovery_cases import check, ended, open_books, sums
from watched import SETTINGS, Diary, Gathering, Keep, PlannedSpout, Watched, at, raising

from txstorm import Committer, FailedException, KeyedState, TransactionalTopologyBuilder, run
from txstorm.api.state import SinkTable
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

# What committers did around a crash is counted: it is to find one group in their hands, not two.
ONE_GROUP = {"max_group_txids": 1, "finish_ahead": False}
both_kinds = pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])


class Count(Gathering, Committer):
    takes = "word"
    counts = SinkTable("counts", {"task": int, "n": int})

    def finish_batch(self):
        self.context.sink("counts").append(self.context.task, len(self.taken))


def counting(spout):
    builder = TransactionalTopologyBuilder("restart", "spout", spout, 2)
    builder.set_committer_bolt("count", Count(), 2).global_grouping("spout")
    settings = {"max_spout_pending": 1, "max_group_txids": 1}
    return builder.build_topology().with_settings(settings)


def counts(data_dir: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in read_sink(data_dir, "counts").to_pylist():
        found.setdefault(row["_txid"], []).append(row["n"])
    return {txid: sorted(both, reverse=True) for txid, both in found.items()}


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        # The third transaction is recorded as empty, and is replayed so.
        (MemoryTransactionalSpout, {3: [0, 0], 4: [2, 0]}),
        # An opaque spout is asked again.
        (OpaqueMemoryTransactionalSpout, {3: [2, 0], 4: [0, 0]}),
    ],
)
def test_item_62_restart(make_engine, data_dir, kind, after):
    spout = kind({0: ["a", "b", "c", "d"], 1: ["d", "c"]}, ["word"], take=3)
    with crashing("p6.before", 3):
        run(counting(spout), engine=make_engine(), data_dir=data_dir).awaitTermination()
    assert counts(data_dir) == {1: [5, 0], 2: [1, 0]}

    spout.add(0, "a", "b")
    ended(counting(spout), data_dir, make_engine(), until_txid=4)
    assert counts(data_dir) == {1: [5, 0], 2: [1, 0], **after}
    check(data_dir, 4)


class Numbers(PlannedSpout):
    """A spout of two numbers per transaction that records all calls of its coordinator and its emitter."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def is_ready(self):
        self.diary.note("is_ready")
        return True

    def initialize_transaction(self, txid, prev_metadata):
        self.diary.note("initialize", txid, prev_metadata)
        start = prev_metadata[1] if prev_metadata else 1
        return [start, start + 2]

    def emit(self, context, attempt, metadata, collector):
        self.diary.note("emit", attempt.txid, attempt.attempt_id, metadata)
        super().emit(context, attempt, metadata, collector)


def test_items_63_and_64_stored_transactions_are_emitted_again_as_they_were_and_nobody_asks(make_engine, watch):
    diary, settings = watch.diary, {"max_spout_pending": 4, "max_pack_txids": 2, **ONE_GROUP}
    with crashing("p5.before", 3):
        watch.start(Numbers(diary), make_engine(), **settings).awaitTermination()
    with open_books(watch.data_dir) as books:
        assert books.currtx() == 3
        stored = {txid: meta.document["meta"] for txid, meta in books.metas().items() if txid >= 3}
    assert stored[3] == [5, 7]
    last = max(stored)
    # The run may have ended between a question and the ledger: what was never stored is asked for again.
    assert diary.txids("initialize")[:last] == list(range(1, last + 1))
    split = len(diary.read())

    watch.ends(Numbers(diary), engine=make_engine(), until_txid=last + 2, **settings)

    after = diary.read()[split:]
    # Cancelled tasks of the first run may still write; the coordinator's epoch is part of an attempt's id.
    emitted = [entry[1:] for entry in after if entry[0] == "emit" and entry[2] >> 32 == 2]
    assert {txid: metadata for txid, _, metadata in emitted if txid <= last} == stored
    assert [entry[1] for entry in after if entry[0] == "initialize"] == [last + 1, last + 2]
    assert next(entry[2] for entry in after if entry[0] == "initialize") == stored[last]
    # Asked for the new ones, and perhaps for one that `until_txid` did not let begin.
    first = next(index for index, entry in enumerate(after) if entry[0] == "is_ready")
    assert all(entry[0] != "initialize" for entry in after[:first])
    assert [entry[0] for entry in after].count("is_ready") == 2
    assert all(attempt >> 32 == 1 for _, attempt, _ in diary.of("emit")[:2])
    assert diary.txids("commit") == list(range(1, last + 3))
    check(watch.data_dir, last + 2)


def test_until_txid_also_ends_before_transactions_that_are_stored(watch):
    settings = {"max_spout_pending": 8, "max_pack_txids": 2, **ONE_GROUP}
    with crashing("p5.before", 2):
        watch.start(Numbers(watch.diary), **settings).awaitTermination()
    for until in (3, 3, 4):
        watch.ends(Numbers(watch.diary), until_txid=until, **settings)
        with open_books(watch.data_dir) as books:
            assert books.currtx() == until + 1
    assert watch.diary.txids("commit") == [1, 2, 3, 4]
    watch.ends(Numbers(watch.diary), until_txid=12, **settings)
    check(watch.data_dir, 12)


class Value(Gathering, Committer):
    """Storm's example: a count that every attempt increments."""

    takes = "letter"
    value = KeyedState("value", key={}, value={"n": int})

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def finish_batch(self):
        self.diary.note("finish", self.attempt.txid)
        self.context.state("value").update((), lambda old: (old or 0) + len(self.taken))


@both_kinds
@pytest.mark.parametrize("point", ["p7.1.written", "p7.1.after", "p8.before"])
def test_item_65_a_crash_between_the_state_and_currtx_counts_nothing_twice(data_dir, diary, kind, point):
    """A crash between state and currtx doubles no count; unlike in Storm, the transaction is not even replayed."""

    def topology():
        builder = TransactionalTopologyBuilder("restart", "spout", kind([list("abcdef")], ["letter"], take=2))
        builder.set_committer_bolt("value", Value(diary)).global_grouping("spout")
        return builder.build_topology().with_settings({**SETTINGS, **ONE_GROUP})

    with crashing(point, 2):
        ended(topology(), data_dir)
    with open_books(data_dir) as books:
        assert books.currtx() == 2
    assert read_state(data_dir, "value")["n"].to_pylist() == [4]  # a reader sees what is published

    ended(topology(), data_dir)
    changes = read_changes(data_dir, "value", 1, 3).to_pylist()
    found = [(row["_txid"], row["n"], row["_prev"] and row["_prev"]["n"]) for row in changes]
    assert found == [(1, 2, None), (2, 4, 2), (3, 6, 4)]
    assert diary.of("finish") == [[1], [2], [3]]
    check(data_dir, 3)


def numbers(kind):
    return kind([list(range(6))], ["n"], take=2)


@both_kinds
def test_item_66_a_committer_that_finished_in_vain_finishes_again_with_the_same_end(make_engine, data_dir, diary, kind):
    """A committer downstream fails once, after the other one has finished."""
    builder = TransactionalTopologyBuilder("restart", "spout", numbers(kind))
    builder.set_bolt("commit", Keep(diary, "commit")).global_grouping("spout")
    fails = Watched(diary, "last", at(2, raising(FailedException()), times=1))
    builder.set_committer_bolt("fails", fails).global_grouping("commit")
    ended(builder.build_topology().with_settings(SETTINGS), data_dir, make_engine())

    assert diary.calls("commit")[2] == 2
    assert sums(data_dir) == dict.fromkeys(range(6), 1)
    assert read_state(data_dir, "total")["n"].to_pylist() == [15]
    check(data_dir, 3)


def test_item_66_also_when_the_attempt_died_with_its_process(watch):
    with crashing("p6.before", 2):
        watch.ends(numbers(MemoryTransactionalSpout), **ONE_GROUP)
    watch.ends(numbers(MemoryTransactionalSpout), **ONE_GROUP)

    assert watch.diary.txids("commit") == [1, 2, 2, 3]
    assert sums(watch.data_dir) == dict.fromkeys(range(6), 1)
    check(watch.data_dir, 3)
