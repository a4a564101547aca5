"""System transactions: when a heartbeat or the end of input is due, and values pinned at planning."""

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from runtime_samples import Source, flow_of
from topology_samples import Silent

from txstorm import Committer, TransactionalTopologyBuilder
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import Processed, TxidInput
from txstorm.engine.program import program_of
from txstorm.plan.stages import compile_plan
from txstorm.runtime.batches.flow import Flow
from txstorm.runtime.batches.planning import Pins
from txstorm.runtime.batches.txn import Txn
from txstorm.spouts import MemoryTransactionalSpout


@pytest.fixture
def world() -> Any:
    """Return the clocks, which only the test moves."""
    return SimpleNamespace(micros=0, seconds=0.0)


def system(world: Any, currtx: int = 1, **options: Any) -> Flow:
    options = {"monotonic": lambda: world.seconds, "timers": True, **options}
    flow = flow_of(Source(99), now=lambda: world.micros, **options)
    flow.planning.plan(currtx - 1, replay=False)
    flow.open(currtx, print, print, print)
    return flow


def committed(flow: Flow, timers: list[int]) -> None:
    attempt = TransactionAttempt(max(flow.planning.metas), 1)
    flow.committed([Txn(TxidInput(attempt, None, 0), Processed(attempt), timers=timers)])


def test_a_heartbeat_is_due_at_its_time_while_nothing_is_in_flight(world):
    made = system(world)
    assert made.until_heartbeat() is None
    assert not made.plan_system(1, idle=True, replay=False)
    committed(made, [9_000_000, 3_000_000])
    assert made.until_heartbeat() == 3.0
    world.micros = 3_000_000
    assert not made.plan_system(2, idle=False, replay=False)
    assert made.plan_system(2, idle=True, replay=False)
    assert made.planning.kind(2) == "heartbeat"
    committed(made, [5])
    committed(made, [])  # a transaction without timers cancels them
    assert made.until_heartbeat() is None


def test_heartbeats_keep_their_interval_and_one_that_failed_is_planned_again(world):
    made = system(world)
    committed(made, [0])
    assert made.plan_system(2, idle=True, replay=False)
    committed(made, [0])
    assert made.until_heartbeat() == 1.0
    assert not made.plan_system(3, idle=True, replay=False)
    world.seconds = 1.0
    assert made.plan_system(3, idle=True, replay=False)
    made = system(world)
    committed(made, [0])
    assert made.plan_system(5, idle=True, replay=False)
    assert made.plan_system(5, idle=True, replay=True)  # although the interval has not passed
    assert not made.plan_system(6, idle=True, replay=True)


@pytest.mark.parametrize("timers", [True, False])
def test_one_heartbeat_is_due_at_once_after_a_start_with_committed_transactions(world, timers):
    made = system(world, 8, timers=timers)
    assert made.plan_system(8, idle=True, replay=False) is timers


def test_the_end_of_input_follows_the_last_data(world):
    made = system(world, timers=False, end=True)
    assert not made.plan_system(4, idle=True, replay=False)
    made.closed = True
    assert made.plan_system(4, idle=False, replay=False)
    assert made.planning.kind(4) == "end"


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
    with caplog.at_level(logging.WARNING, "txstorm.runtime.batches.planning"):
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
    with caplog.at_level(logging.WARNING, "txstorm.runtime.batches.planning"):
        assert made(1, 5, {"pinning": 7}) == {"pinning": 7}
        assert made(2, 5, {"pinning": 7}) == {"pinning": 7}
    assert len(calls) == 1
    assert "did not return within pin_timeout=0.01 s" in caplog.text
    go.set()
