"""Restarts as in Storm's tests and code (storm.md, items 62 to 66)."""

from __future__ import annotations

from pathlib import Path

import pytest
from recovery_cases import check, open_books, sums
from watched import SETTINGS, Diary, Keep, watched_topology

from txstorm import (
    BatchBolt,
    Committer,
    Emitter,
    FailedException,
    KeyedState,
    SpoutCoordinator,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    faults,
    run,
)
from txstorm.api.state import SinkTable
from txstorm.faults import InjectedFault
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout

# What committers did around a crash is counted: it is to find one group in their hands, not two.
ONE_GROUP = {"max_group_txids": 1, "finish_ahead": False}


@pytest.fixture
def diary(place: Path) -> Diary:
    return Diary(place / "diary")


class Count(BatchBolt, Committer):
    counts = SinkTable("counts", {"task": int, "n": int})

    def prepare(self, context, collector, attempt):
        self.context, self.n = context, 0

    def execute(self, tuple):
        self.n += 1

    def finish_batch(self):
        self.context.sink("counts").append(self.context.task, self.n)


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
def test_item_62_restart(make_engine, place, kind, after):
    spout = kind({0: ["a", "b", "c", "d"], 1: ["d", "c"]}, ["word"], take=3)
    faults.arm("p6.before:raise:3")
    handle = run(counting(spout), engine=make_engine(), data_dir=place / "data")
    with pytest.raises(InjectedFault):
        handle.awaitTermination()
    assert counts(place / "data") == {1: [5, 0], 2: [1, 0]}
    faults.arm("")

    spout.add(0, "a", "b")
    run(counting(spout), engine=make_engine(), data_dir=place / "data", until_txid=4).awaitTermination()
    assert counts(place / "data") == {1: [5, 0], 2: [1, 0], **after}
    check(place / "data", 4)


class Numbers(TransactionalSpout):
    """A spout of two numbers per transaction that records all calls of its coordinator."""

    fields = ("n",)

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def coordinator(self, context):
        return _Coordinator(self.diary)

    def emitter(self, context):
        return _Emitter(self.diary)


class _Coordinator(SpoutCoordinator):
    def __init__(self, diary):
        self.diary = diary

    def is_ready(self):
        self.diary.note("is_ready")
        return True

    def initialize_transaction(self, txid, prev_metadata):
        self.diary.note("initialize", txid, prev_metadata)
        start = prev_metadata[1] if prev_metadata else 1
        return [start, start + 2]


class _Emitter(Emitter):
    def __init__(self, diary):
        self.diary = diary

    def emit_batch(self, attempt, metadata, collector):
        self.diary.note("emit", attempt.txid, attempt.attempt_id, metadata)
        for number in range(*metadata):
            collector.emit(number)


def test_items_63_and_64_stored_transactions_are_emitted_again_as_they_were_and_nobody_asks(make_engine, place, diary):
    def topology():
        return watched_topology(Numbers(diary), diary, max_spout_pending=4, max_pack_txids=2, **ONE_GROUP)

    faults.arm("p5.before:raise:3")
    with pytest.raises(InjectedFault):
        run(topology(), engine=make_engine(), data_dir=place / "data").awaitTermination()
    faults.arm("")
    with open_books(place / "data") as books:
        assert books.currtx() == 3
        stored = {txid: meta.document["meta"] for txid, meta in books.metas().items() if txid >= 3}
    assert stored[3] == [5, 7]
    last = max(stored)
    # The run may have ended between a question and the ledger: what was never stored is asked for again.
    assert [txid for txid, _ in diary.of("initialize")][:last] == list(range(1, last + 1))
    split = len(diary.read())

    run(topology(), engine=make_engine(), data_dir=place / "data", until_txid=last + 2).awaitTermination()

    after = diary.read()[split:]
    # Cancelled tasks of the first run may still write; the coordinator's epoch is part of an attempt's id.
    emitted = [entry[1:] for entry in after if entry[0] == "emit" and entry[2] >> 32 == 2]
    assert {txid: metadata for txid, _, metadata in emitted if txid <= last} == stored
    asked = [entry[1] for entry in after if entry[0] == "initialize"]
    assert asked == [last + 1, last + 2]
    assert next(entry[2] for entry in after if entry[0] == "initialize") == stored[last]
    # Asked for the new ones, and perhaps for one that `until_txid` did not let begin.
    first = next(index for index, entry in enumerate(after) if entry[0] == "is_ready")
    assert all(entry[0] != "initialize" for entry in after[:first])
    assert [entry[0] for entry in after].count("is_ready") == 2
    assert all(attempt >> 32 == 1 for _, attempt, _ in diary.of("emit")[:2])
    assert [txid for txid, _ in diary.of("commit")] == list(range(1, last + 3))
    check(place / "data", last + 2)


def test_until_txid_also_ends_before_transactions_that_are_stored(place, diary):
    def topology():
        return watched_topology(Numbers(diary), diary, max_spout_pending=8, max_pack_txids=2, **ONE_GROUP)

    faults.arm("p5.before:raise:2")
    with pytest.raises(InjectedFault):
        run(topology(), engine="local", data_dir=place / "data").awaitTermination()
    faults.arm("")
    for until in (3, 3, 4):
        run(topology(), engine="local", data_dir=place / "data", until_txid=until).awaitTermination()
        with open_books(place / "data") as books:
            assert books.currtx() == until + 1
    assert [txid for txid, _ in diary.of("commit")] == [1, 2, 3, 4]
    run(topology(), engine="local", data_dir=place / "data", until_txid=12).awaitTermination()
    check(place / "data", 12)


class Value(BatchBolt, Committer):
    """Storm's example: a count that every attempt increments."""

    value = KeyedState("value", key={}, value={"n": int})

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def prepare(self, context, collector, attempt):
        self.context, self.n, self.txid = context, 0, attempt.txid

    def execute(self, tuple):
        self.n += 1

    def finish_batch(self):
        self.diary.note("finish", self.txid)
        self.context.state("value").update((), lambda old: (old or 0) + self.n)


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
@pytest.mark.parametrize("point", ["p7.1.written", "p7.1.after", "p8.before"])
def test_item_65_a_crash_between_the_state_and_currtx_counts_nothing_twice(place, diary, kind, point):
    """A crash between state and currtx doubles no count; unlike in Storm, the transaction is not even replayed."""

    def topology():
        builder = TransactionalTopologyBuilder("restart", "spout", kind([list("abcdef")], ["letter"], take=2))
        builder.set_committer_bolt("value", Value(diary)).global_grouping("spout")
        return builder.build_topology().with_settings({**SETTINGS, **ONE_GROUP})

    faults.arm(f"{point}:raise:2")
    with pytest.raises(InjectedFault):
        run(topology(), engine="local", data_dir=place / "data", available_now=True).awaitTermination()
    faults.arm("")
    with open_books(place / "data") as books:
        assert books.currtx() == 2
    assert read_state(place / "data", "value")["n"].to_pylist() == [4]  # a reader sees what is published

    run(topology(), engine="local", data_dir=place / "data", available_now=True).awaitTermination()
    changes = read_changes(place / "data", "value", 1, 3).to_pylist()
    assert [(row["_txid"], row["n"], row["_prev"] and row["_prev"]["n"]) for row in changes] == [
        (1, 2, None),
        (2, 4, 2),
        (3, 6, 4),
    ]
    assert diary.of("finish") == [[1], [2], [3]]
    check(place / "data", 3)


class Fails(BatchBolt, Committer):
    """A committer that finishes after the other committer, and fails at its first attempt."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def prepare(self, context, collector, attempt):
        self.attempt = attempt

    def execute(self, tuple):
        pass

    def finish_batch(self):
        self.diary.note("last", self.attempt.txid)
        if self.attempt.txid == 2 and diary_count(self.diary, 2) == 1:
            raise FailedException


def diary_count(diary: Diary, txid: int) -> int:
    return diary.of("last").count([txid])


@pytest.mark.parametrize("kind", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_item_66_a_committer_that_finished_in_vain_finishes_again_with_the_same_end(make_engine, place, diary, kind):
    builder = TransactionalTopologyBuilder("restart", "spout", kind([list(range(6))], ["n"], take=2))
    builder.set_bolt("commit", Keep(diary, "commit")).global_grouping("spout")
    builder.set_committer_bolt("fails", Fails(diary)).global_grouping("commit")
    topology = builder.build_topology().with_settings(SETTINGS)
    run(topology, engine=make_engine(), data_dir=place / "data", available_now=True).awaitTermination()

    assert [txid for txid, _ in diary.of("commit")].count(2) == 2
    assert sums(place / "data") == dict.fromkeys(range(6), 1)
    assert read_state(place / "data", "total")["n"].to_pylist() == [15]
    check(place / "data", 3)


def test_item_66_also_when_the_attempt_died_with_its_process(place, diary):
    def topology():
        return watched_topology(MemoryTransactionalSpout([list(range(6))], ["n"], take=2), diary, **ONE_GROUP)

    faults.arm("p6.before:raise:2")
    with pytest.raises(InjectedFault):
        run(topology(), engine="local", data_dir=place / "data", available_now=True).awaitTermination()
    faults.arm("")
    run(topology(), engine="local", data_dir=place / "data", available_now=True).awaitTermination()

    assert [txid for txid, _ in diary.of("commit")] == [1, 2, 2, 3]
    assert sums(place / "data") == dict.fromkeys(range(6), 1)
    check(place / "data", 3)
