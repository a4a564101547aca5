"""Composite spouts: declared streams, rejected combinations, and the metadata of their sources."""

from typing import Any

import pytest
from spout_samples import PlainSpout

from txstorm import NOT_READY, CompositeSpout, FailedException, TransactionalSpout, TransactionalTopologyBuilder
from txstorm.api.context import TaskContext
from txstorm.clocks import Clock
from txstorm.errors import SpoutError, TopologyError
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.spouts.executors import check_spout, planner, spout_committer


def words(*given: str) -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout([given], "word", take=1)


def build(spout: Any) -> Any:
    return TransactionalTopologyBuilder("sources", "all", spout).build_topology()


class Two(TransactionalSpout):
    fields = ("a",)
    streams = {"more": ("b", "c")}


def test_streams_are_named_after_their_sources_of_which_one_makes_it_opaque_or_a_committer() -> None:
    streams = build(CompositeSpout({"left": Two(), "right": words("x")})).spout.streams
    fields = {name: stream.fields for name, stream in streams.items()}
    assert fields == {"left": ("a",), "left-more": ("b", "c"), "right": ("word",)}
    opaque = OpaqueMemoryTransactionalSpout([["x"]], "word")
    assert not CompositeSpout({"a": words("x")}).opaque
    assert CompositeSpout({"a": words("x"), "b": opaque}).opaque
    assert spout_committer(CompositeSpout({"left": words("a")}), TaskContext("t", "all", 0, 1)) is None


FAULTS = {
    "none": ({}, "a composite spout without sources; give it a spout, or several"),
    "name": ({"a/b": words("x")}, "source 'a/b': a name is a letter followed by"),
    "bolt": ({"a": object()}, "source 'a': object is not a spout; pass one that derives from"),
    "nested": ({"a": CompositeSpout({"b": words("x")})}, "source 'a': CompositeSpout is not a spout"),
    "clash": ({"left-more": words("x"), "left": Two()}, "stream 'left-more' is declared twice"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_impossible_combinations_are_rejected_when_the_topology_is_built(name: str) -> None:
    sources, fault = FAULTS[name]
    with pytest.raises(TopologyError) as caught:
        build(CompositeSpout(sources))
    assert fault in str(caught.value)


class Scripted(PlainSpout):
    """A scripted source: plans each given number once, is not ready for a None, and raises a given exception."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        self.asked.append((txid, prev_metadata))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return NOT_READY if answer is None else answer


def planning(**sources: Any) -> Any:
    return planner(CompositeSpout(sources), TaskContext("t", "all", 0, 1))


def test_a_source_keeps_its_metadata_while_not_ready_or_removed_and_if_another_one_raises() -> None:
    left, right = Scripted(1, None, None, 2), Scripted(10, 20, None, 30)
    made = planning(left=left, right=right)
    first = made.plan(1, None)
    second = made.plan(2, first)
    assert second == {"sources": {"left": {"meta": 1, "skipped": True}, "right": {"meta": 20}}}
    assert made.plan(3, second) is NOT_READY
    assert made.plan(3, second) == {"sources": {"left": {"meta": 2}, "right": {"meta": 30}}}
    assert left.asked == [(1, None), (2, 1), (3, 1), (3, 1)]
    assert made.payload(second) == {"right": None}
    left, right = Scripted(1, 2, 3), Scripted(FailedException("later"), 10, FailedException("later"), 20)
    made = planning(left=left, right=right)
    with pytest.raises(FailedException):
        made.plan(1, None)
    first = made.plan(1, None)
    assert first == {"sources": {"left": {"meta": 1}, "right": {"meta": 10}}}
    assert left.asked == [(1, None)]
    with pytest.raises(FailedException):
        made.plan(2, first)
    # Txid 1 is now a different batch, so the plan of txid 2 that was based on the old one is void.
    assert made.plan(2, {"sources": {"left": {"meta": 7}, "right": {"meta": 10}}})["sources"]["left"] == {"meta": 3}
    first = planning(left=Scripted(1), right=Scripted(10)).plan(1, None)
    second = planning(left=Scripted(2)).plan(2, first)
    assert second == {"sources": {"right": {"meta": 10, "skipped": True}, "left": {"meta": 2}}}
    back = Scripted(20)
    planning(left=Scripted(3), right=back).plan(3, second)
    assert back.asked == [(3, 10)]
    with pytest.raises(SpoutError, match="planned with source 'right', which no longer exists"):
        planning(left=Scripted()).payload(first)


def test_a_mark_is_reached_once_every_source_has_reached_it() -> None:
    left, right = words("a", "b"), words("x")
    made = planning(left=left, right=right)
    mark = made.latest()
    first = made.plan(1, None)
    assert [made.reached(one, mark) for one in (None, first, made.plan(2, first))] == [False, False, True]
    assert planning(left=left, right=Scripted()).latest() is None


def test_every_source_is_checked_and_closed() -> None:
    class Missing(Two):
        def __init__(self, queue: str) -> None:
            self.queue = queue

        def check(self) -> None:
            raise SpoutError(f"no queue {self.queue}")

    with pytest.raises(SpoutError, match="no queue b"):
        check_spout(CompositeSpout({"left": words("a"), "right": Missing("b")}))
    with pytest.raises(SpoutError, match="no queue a\nno queue b"):
        check_spout(CompositeSpout({"left": Missing("a"), "right": Missing("b"), "third": Missing("b")}))
    closed = []

    class Closes(Scripted):
        def coordinator(self, context: TaskContext) -> Any:
            self.name = context.component
            return self

        def close(self) -> None:
            closed.append(self.name)
            raise OSError(self.name)

    with pytest.raises(OSError, match="all/"):
        planning(left=Closes(), right=Closes()).close()
    assert sorted(closed) == ["all/left", "all/right"]


def test_a_clock_that_bounds_all_sources_holds_each_one_at_its_own() -> None:
    made, document, upto = (
        planning(left=words("a", "b", "c"), right=words("d")),
        None,
        Clock({"left/0": 1, "right/0": 1}),
    )
    clocks = []
    for txid in (1, 2, 3):
        found = made.plan(txid, document, upto=upto)
        document = document if found is NOT_READY else found
        clocks.append(made.clock(document))
    assert clocks == [{"left/0": 0, "right/0": 0}, *[{"left/0": 1, "right/0": 0}] * 2]
    assert made.aligns and not planning(left=words("a"), right=Scripted()).aligns
