from collections.abc import Callable
from typing import Any

import pytest
from spout_samples import CommitterSpout, OneClass, OpaquePartitionedSpout
from spouts_recording import Bench, Recorder

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.composite import CompositeSpout
from txstorm.api.context import TaskContext
from txstorm.api.spout import (
    NOT_READY,
    Emitter,
    PartitionedCoordinator,
    PartitionedEmitter,
    PartitionedTransactionalSpout,
    SpoutCoordinator,
    TransactionalSpout,
)
from txstorm.errors import MetadataError, SpoutError
from txstorm.spouts.executors import check_spout, planner, spout_committer, spout_task
from txstorm.spouts.user_calls import storable


class Numbers:
    """A partitioned source of numbered tuples that stands in for a broker cluster."""

    take = 2

    def __init__(self, *sizes: int) -> None:
        self.partitions = [[f"{p}-{i}" for i in range(size)] for p, size in enumerate(sizes)]
        self.ready = True
        self.away: set[int] = set()
        self.asked = self.closed = 0


class LocalBench(Bench):
    """A test bench that does not pickle its spouts, so that all emitters share one source, as they share a broker."""

    ships = False


class _Coordinator(PartitionedCoordinator):
    def numPartitions(self) -> int:  # Storm's spelling is a valid override too
        return len(self.source.partitions)

    def isReady(self) -> bool:
        self.source.asked += 1
        return self.source.ready


class Partitioned(OneClass, _Coordinator, PartitionedTransactionalSpout, PartitionedEmitter):
    def __init__(self, source: Numbers) -> None:
        self.source = source

    def emit_partition_batch_new(self, attempt, collector, partition, last):
        start = last[1] if last else 0
        meta = (start, min(start + self.source.take, len(self.source.partitions[partition])))
        self.emit_partition_batch(attempt, collector, partition, meta)
        return meta

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for value in self.source.partitions[partition][metadata[0] : metadata[1]]:
            collector.emit(value)

    def close(self) -> None:
        self.source.closed += 1


class Opaque(OpaquePartitionedSpout):
    def __init__(self, source: Numbers) -> None:
        self.source = source

    def is_ready(self) -> bool:
        return self.source.ready

    def num_partitions(self) -> int:
        return len(self.source.partitions)

    def emit_partition_batch(self, attempt, collector, partition, last):
        if partition in self.source.away:
            return None
        start = last["next"] if last else 0
        rows = self.source.partitions[partition][start : start + self.source.take]
        for value in rows:
            collector.emit(value)
        return {"next": start + len(rows)}


class Emitting(Opaque):
    """An opaque spout that passes its collector to a function instead of emitting a batch."""

    def __init__(self, emit: Callable[[Any], Any]) -> None:
        super().__init__(Numbers(1))
        self.emit = emit

    def emit_partition_batch(self, attempt, collector, partition, last):
        return self.emit(collector)


def ran_as_pack(bench: Bench, documents: dict[int, Any]) -> tuple[list[str], dict[str, Any]]:
    """Run txids as one pack of a single task; return the values emitted and the positions carried."""
    task, carried, recorder = spout_task(bench.spout, bench.context(0)), {}, Recorder()
    for txid, document in documents.items():
        task.run(TransactionAttempt(txid, 9), document, carried, recorder)
    return values(recorder.rows), carried


def values(rows: list[tuple[Any, ...]]) -> list[str]:
    return [row[0] for row in rows]


@pytest.fixture
def source() -> Numbers:
    """Return a source of one partition with four tuples."""
    return Numbers(4)


@pytest.fixture
def bench(source: Numbers) -> LocalBench:
    """Return a bench of a partitioned spout on that source."""
    return LocalBench(Partitioned(source))


@pytest.fixture
def opaque(source: Numbers) -> LocalBench:
    """Return a bench of an opaque spout on that source."""
    return LocalBench(Opaque(source))


def test_sources_whose_names_begin_alike_have_their_own_partitions():
    alone = LocalBench(Partitioned(Numbers(3, 1)))
    assert alone.plan(1) == {"count": 2, "parts": None}
    alone.emit(1)
    assert alone.documents[1] == {"count": 2, "parts": {"0": {"batch": [0, 2]}, "1": {"batch": [0, 1]}}}
    bench = LocalBench(CompositeSpout({"a": Partitioned(Numbers(3)), "ab": Partitioned(Numbers(1, 1))}))
    bench.rows(1)
    parts = {name: one["parts"] for name, one in bench.documents[1]["sources"].items()}
    assert parts == {"a": {"0": {"batch": [0, 2]}}, "ab": {"0": {"batch": [0, 1]}, "1": {"batch": [0, 1]}}}


@pytest.mark.parametrize("skipped", [False, True])
def test_a_partition_that_disappeared_is_missed_also_after_a_skipped_transaction(skipped):
    bench = LocalBench(Partitioned(Numbers(1, 1)))
    bench.rows(1)
    if skipped:
        bench.documents[2] = bench.planner.skip(bench.documents[1])
    bench.spout.source.partitions.pop()
    with pytest.raises(SpoutError, match=r"partition 1 disappeared: num_partitions\(\) gave 1, expected at least 2"):
        bench.plan(2 + skipped)


def test_notices_are_given_once_and_a_skipped_transaction_changes_none():
    bench = LocalBench(Opaque(Numbers(1, 1)))
    bench.rows(1)
    planner = bench.planner
    parts = {"0": {"kept": [0, 1]}, "1": {"kept": [0, 1], "away": True}}
    planner.finish({"parts": None}, parts)
    (notice,) = planner.notices()
    assert "away: partition 1" in notice
    kept = {number: {"kept": [0, 1]} for number in parts}
    planner.finish(planner.skip(None), kept)
    assert planner.notices() == []
    planner.finish({"parts": None}, kept)
    assert ["back: partition 1" in one for one in planner.notices()] == [True]


class Spoiling(CommitterSpout):
    """Its emitters change the metadata of their commits."""

    def commit(self, attempt, metadata):
        metadata.clear()


def test_the_commit_of_an_emitter_cannot_change_what_is_stored():
    parts = {"0": ["row"]}
    context = TaskContext(topology="t", component="lines", task=0, parallelism=1)
    spout_committer(Spoiling(), context).commit(TransactionAttempt(1, 1), 0, parts)
    assert parts == {"0": ["row"]}


def test_a_pack_carries_positions_without_stored_documents_and_may_begin_with_replays():
    bench = LocalBench(Partitioned(Numbers(5, 1)))
    found, carried = ran_as_pack(bench, {txid: bench.planner.plan(txid, None) for txid in (1, 2, 3)})
    assert found == ["0-0", "0-1", "1-0", "0-2", "0-3", "0-4"]
    assert carried == {"0": {"batch": [4, 5]}, "1": {"batch": [1, 1]}}
    bench = LocalBench(Partitioned(Numbers(6)))
    bench.rows(1)
    found, _ = ran_as_pack(bench, {1: bench.documents[1], 2: {"count": 1, "parts": None}})
    assert found == ["0-0", "0-1", "0-2", "0-3"]


def test_is_ready_is_called_only_for_new_txids(source, bench):
    source.ready = False
    assert bench.plan(1) is NOT_READY
    assert source.asked == 1
    assert bench.plan(1, replay=True) == {"count": 1, "parts": None}
    assert source.asked == 1


def test_close_is_called_on_coordinator_and_emitters(source):
    bench = LocalBench(Partitioned(source), tasks=2)
    bench.rows(1)
    assert source.closed == 2
    bench.planner.close()
    assert source.closed == 3


def test_task_planned_spouts_have_no_marks(bench, opaque):
    for made in (bench.planner, opaque.planner):
        assert (made.task_planned, made.latest(), made.reached(None, None)) == (True, None, False)


def test_the_position_of_an_unavailable_opaque_partition_is_in_every_document():  # storm.md 60, 61
    source = Numbers(6, 6)
    bench = LocalBench(Opaque(source), tasks=2)
    bench.rows(1)
    source.away = {1}
    assert values(bench.rows(2)) == ["0-2", "0-3"]
    assert bench.documents[2]["parts"] == {"0": {"batch": {"next": 4}}, "1": {"kept": {"next": 2}}}
    assert bench.planner.notices() == []
    hidden = source.partitions.pop()
    bench.rows(3)
    assert bench.documents[3]["parts"]["1"] == {"kept": {"next": 2}, "away": True}
    said = "spout 'lines': away: partition 1; positions are kept ({'1': {'next': 2}}), the others continue"
    assert bench.planner.notices() == [said]
    source.partitions.append(hidden)
    source.away = set()
    assert values(bench.rows(4)) == ["1-2", "1-3"]


def test_opaque_partition_without_a_position_yet_starts_at_none(source, opaque):
    source.away = {0}
    assert opaque.rows(1) == []
    assert opaque.documents[1] == {"parts": {"0": {"kept": None}}}
    source.away = set()
    assert values(opaque.rows(2)) == ["0-0", "0-1"]


def test_opaque_partitions_are_counted_again_at_every_emission_and_sorted_by_number():  # storm.md 59
    source = Numbers(*[1] * 10)
    bench = LocalBench(Opaque(source), tasks=3)
    bench.plan(1)
    source.partitions.append(["added"])
    assert "added" in values(bench.rows(1))
    assert list(bench.documents[1]["parts"]) == [str(p) for p in range(11)]


class Plain(TransactionalSpout):
    fields = ("n",)
    ready = True
    meta: Any = None

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        return _PlainCoordinator(self)

    def emitter(self, context: TaskContext) -> Emitter:
        return _PlainEmitter(context)


class _PlainCoordinator(SpoutCoordinator):
    def __init__(self, spout: Plain) -> None:
        self.spout, self.seen = spout, []

    def isReady(self):
        return self.spout.ready

    def initializeTransaction(self, txid, prev_metadata):
        self.seen.append((txid, prev_metadata))
        return self.spout.meta if self.spout.meta is not None else {"from": txid * 10}

    def payload(self, metadata):
        return ["shipped", metadata["from"]]


class _PlainEmitter(Emitter):
    cleaned: list[int] = []

    def __init__(self, context: TaskContext) -> None:
        self.context = context

    def emitBatch(self, attempt, metadata, collector):
        assert self.context.attempt == attempt
        collector.emit((*self.context.payload, metadata["from"], self.context.task))

    def cleanup_before(self, txid):
        self.cleaned.append(txid)


def test_a_plain_spout_chains_metadata_ships_the_payload_and_may_be_not_ready_in_either_way():
    bench = Bench(Plain(), tasks=2)
    assert bench.plan(1) == {"meta": {"from": 10}}
    assert bench.rows(1) == [(("shipped", 10, 10, 0),), (("shipped", 10, 10, 1),)]
    bench.plan(2)
    assert bench.planner._coordinator.seen == [(1, None), (2, {"from": 10})]
    assert not bench.planner.opaque
    assert not bench.planner.task_planned
    bench = Bench(spout := Plain())
    spout.ready = False
    assert bench.plan(1) is NOT_READY
    assert bench.plan(1, replay=True) == {"meta": {"from": 10}}
    spout.ready, spout.meta = True, NOT_READY
    assert bench.plan(2) is NOT_READY


def test_cleanup_and_check_are_forwarded_and_metadata_comes_back_as_it_is_stored():
    task = spout_task(Plain(), TaskContext("t", "lines", 0, 1))
    task.cleanup_before(7)
    assert _PlainEmitter.cleaned == [7]
    asked = []
    spout = Plain()
    check_spout(spout)
    spout.check = lambda: asked.append(1)  # type: ignore[attr-defined]
    check_spout(spout)
    assert asked == [1]
    assert storable({"a": (1, 2)}, "x") == {"a": [1, 2]}


@pytest.mark.parametrize("bad", [{1, 2}, {"x": float("nan")}, {"x": object()}, {1: 2}, {"x": [{(1,): 2}]}, b"bytes"])
def test_metadata_that_cannot_be_stored_is_rejected_by_name(bad):
    spout = Plain()
    spout.meta = bad
    with pytest.raises(MetadataError) as caught:
        Bench(spout).plan(3)
    assert "spout 'lines', txid 3" in str(caught.value)
    assert repr(bad)[:20] in str(caught.value)


def test_tuples_without_metadata_and_objects_that_are_no_spouts_are_rejected():
    with pytest.raises(MetadataError, match="partition 0, txid 1: tuples were emitted but no metadata"):
        LocalBench(Emitting(lambda collector: collector.emit("lost or twice"))).rows(1)
    context = TaskContext("t", "lines", 0, 1)
    for make in (planner, spout_task):
        with pytest.raises(SpoutError, match="'lines' is a str; derive it from TransactionalSpout"):
            make("words", context)  # type: ignore[operator]


def test_collector_forwards_everything():
    def everything(collector):
        collector.emit_direct(3, "d")
        collector.emitDirect(4, "e")
        collector.digest("p0", "abc")
        collector.report_error(ValueError("seen"))
        collector.reportError(ValueError("seen too"))
        return 1

    bench = LocalBench(Emitting(everything))
    bench.plan(1)
    (recorder,) = bench.emit(1)
    assert recorder.direct == [(3, ("d",)), (4, ("e",))]
    assert recorder.digests == {"p0": "abc"}
    assert [str(error) for error in recorder.errors] == ["seen", "seen too"]
