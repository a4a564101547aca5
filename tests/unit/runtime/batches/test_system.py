"""System transactions: when a heartbeat or the end of input is due, and values pinned at planning."""

import logging
import threading
from typing import Any

import pytest
from topology_samples import Silent

from txstorm import Committer, TransactionalTopologyBuilder
from txstorm.engine.program import program_of
from txstorm.plan.stages import compile_plan
from txstorm.runtime.batches.system import Pins, SystemTransactions
from txstorm.spouts import MemoryTransactionalSpout


class World:
    """Clocks, and planner and gate as far as system transactions use them."""

    def __init__(self) -> None:
        self.micros, self.seconds, self.closed = 0, 0.0, False
        self.kinds: dict[int, Any] = {}
        self.now, self.monotonic = lambda: self.micros, lambda: self.seconds
        self.plan_system = self.kinds.__setitem__

    def kind(self, txid: int) -> Any:
        return self.kinds.get(txid, "data")

    def waiting(self, txid: int) -> tuple[str, ...]:
        return ()


@pytest.fixture
def world() -> World:
    return World()


def system(world: World, **options: Any) -> SystemTransactions:
    return SystemTransactions(world, world, 1.0, world.monotonic, **{"timers": True, **options})  # type: ignore[arg-type]


def test_a_heartbeat_is_due_at_its_time_while_nothing_is_in_flight(world):
    made = system(world)
    made.open(1)
    assert made.wait() is None
    assert not made.plan(1, idle=True, replay=False)
    made.committed([9_000_000, 3_000_000])
    assert made.wait() == 3.0
    world.micros = 3_000_000
    assert not made.plan(2, idle=False, replay=False)
    assert made.plan(2, idle=True, replay=False)
    assert world.kinds == {2: "heartbeat"}
    made.committed([5])
    made.committed([])  # a transaction without timers cancels them
    assert made.wait() is None


def test_heartbeats_keep_their_interval_and_one_that_failed_is_planned_again(world):
    made = system(world)
    made.open(1)
    made.committed([0])
    assert made.plan(2, idle=True, replay=False)
    made.committed([0])
    assert made.wait() == 1.0
    assert not made.plan(3, idle=True, replay=False)
    world.seconds = 1.0
    assert made.plan(3, idle=True, replay=False)
    made = system(world)
    made.committed([0])
    assert made.plan(5, idle=True, replay=False)
    assert made.plan(5, idle=True, replay=True)  # although the interval has not passed
    assert not made.plan(6, idle=True, replay=True)


@pytest.mark.parametrize("timers", [True, False])
def test_one_heartbeat_is_due_at_once_after_a_start_with_committed_transactions(world, timers):
    made = system(world, timers=timers)
    made.open(8)
    assert made.plan(8, idle=True, replay=False) is timers


def test_the_end_of_input_follows_the_last_data(world):
    made = system(world, timers=False, end=True)
    assert not made.plan(4, idle=True, replay=False)
    world.closed = True
    assert made.plan(4, idle=False, replay=False)
    assert world.kinds == {4: "end"}


class Pinning(Silent, Committer):
    """Pins what `answers` gives for the topology."""

    answers: dict[str, Any] = {}

    def pin(self, context: Any, previous: Any) -> Any:
        return self.answers[context.topology](context, previous)


def pins(name: str, answer: Any, timeout: float = 60.0) -> Pins:
    Pinning.answers[name] = answer
    builder = TransactionalTopologyBuilder(name, "spout", MemoryTransactionalSpout([[1]], "n"))
    builder.set_bolt("pinning", Pinning()).global_grouping("spout")
    topology = builder.build_topology()
    assert [one.id for one in topology.components if one.pins] == ["pinning"]
    return Pins(program_of(compile_plan(topology)), ["pinning"], timeout)


def test_a_value_is_pinned_from_the_previous_one():
    made = pins("counted", lambda context, previous: {"at": context.stamp, "n": (previous or {"n": 0})["n"] + 1})
    first = made(1, 5, {})
    assert first == {"pinning": {"at": 5, "n": 1}}
    assert made(2, 6, first) == {"pinning": {"at": 6, "n": 2}}


@pytest.mark.parametrize(
    ("answer", "match"),
    [(lambda context, previous: 1 / 0, "ZeroDivisionError"), (lambda context, previous: {1}, "cannot be stored")],
)
def test_a_failing_pin_keeps_the_previous_value_with_one_warning(caplog, answer, match):
    made = pins("failing", answer)
    with caplog.at_level(logging.WARNING, "txstorm.runtime.batches.system"):
        assert made(1, 5, {"pinning": 7}) == {"pinning": 7}
        assert made(2, 5, {"pinning": 7}) == {"pinning": 7}
    (record,) = caplog.records
    assert "component pinning: pin() failed" in record.getMessage()
    assert match in record.getMessage()


def test_a_hanging_pin_is_not_called_again_before_it_returns(caplog):
    calls, go = [], threading.Event()

    def answer(context: Any, previous: Any) -> Any:
        calls.append(1)
        go.wait(60)
        return "late"

    made = pins("hanging", answer, timeout=0.01)
    with caplog.at_level(logging.WARNING, "txstorm.runtime.batches.system"):
        assert made(1, 5, {"pinning": 7}) == {"pinning": 7}
        assert made(2, 5, {"pinning": 7}) == {"pinning": 7}
    assert len(calls) == 1
    assert "did not return within pin_timeout=0.01 s" in caplog.text
    go.set()
