"""Small components of the runtime: final errors, timers, and callers that wait for all data."""

import ast
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
from runtime_samples import Clock, Source, flow_of

from txstorm.api.attempt import TransactionAttempt
from txstorm.books.data_directory import FORMAT_FILE, check_directory
from txstorm.clients.files import write_durably
from txstorm.coordinator.events import Opened, Planned, Wake
from txstorm.coordinator.machine import Config, State, initial, step
from txstorm.engine.port import ErrorRow
from txstorm.errors import EmitError, SpoutError, StoppedError, TopologyFailed
from txstorm.lanes import Inline
from txstorm.ledger.location import PLACE_FILE
from txstorm.runtime.failures import batch_failure, spout_failure
from txstorm.runtime.loop import Loop, Timers
from txstorm.testing import stepping

ROW = ErrorRow("split", 1, "other", "ValueError", "why", "jobs/a.py:3 in execute", "Traceback …")


def test_the_error_a_topology_ends_with() -> None:
    attempt = TransactionAttempt(5, 77)
    failure = batch_failure(attempt, ROW, 3)
    assert isinstance(failure, TopologyFailed)
    why = "split[1] raised ValueError at jobs/a.py:3 in execute: why"
    assert str(failure) == f"txid 5 (attempt 77) failed 3 times: {why}"
    assert failure.__notes__ == ["Traceback …"]
    assert isinstance(batch_failure(attempt, replace(ROW, type="EmitError"), 1), EmitError)
    for name in ("TopologyError", "FencedError"):
        assert type(batch_failure(attempt, replace(ROW, type=name), 1)) is TopologyFailed
    own = SpoutError("gone")
    assert spout_failure(own, "lines", 2) is own
    wrapped = spout_failure(ZeroDivisionError("x"), "lines", 2)
    assert str(wrapped) == "txid 2: the coordinator of spout 'lines' raised ZeroDivisionError: x"
    assert isinstance(wrapped.__cause__, ZeroDivisionError)


def test_timers_are_due_in_order_and_may_set_others() -> None:
    clock, made = Clock(), []
    timers = Timers(clock)
    assert timers.wait(7) == 7
    for seconds in (5, 1, 1, 3):
        timers.later(seconds, lambda seconds=seconds: made.append(seconds))
    assert timers.wait(7) == 1
    assert timers.wait(0.5) == 0.5
    clock.now += 3
    assert timers.wait(7) == 0
    timers.run_due()
    assert made == [1, 1, 3]
    assert timers.wait(7) == 2
    timers.later(0, lambda: timers.later(1, lambda: made.append("second")))
    timers.run_due()
    assert made == [1, 1, 3]
    clock.now += 1
    timers.run_due()
    assert made == [1, 1, 3, "second"]


def test_a_loop_feeds_any_machine_and_carries_out_its_commands_in_order():
    def step(total, event):
        kind, number = event
        return total + number, [("half", number // 2)] if kind == "add" and number > 1 else []

    recorded, seen = [], []
    lanes = Inline(lambda: 0, lambda: 0.0)
    loop = Loop(step, 0, lambda command: ("add", command[1]), lanes, lambda *one: recorded.append(one), seen.append)
    loop.put(lambda: loop.feed(("add", 4)))
    answer = loop.ask(lambda: loop.state)
    assert loop.drain() == 2
    assert (answer.result(), loop.state, seen) == (7, 7, [7])
    assert recorded == [(("add", 4), [("half", 2)]), (("add", 2), [("half", 1)]), (("add", 1), [])]


class Queue:
    """Test harness: callers that wait for a source, of which the first `held` transactions are already planned."""

    def __init__(self, source: Source) -> None:
        self.source, self.flow = source, flow_of(source)
        for txid in range(1, source.held + 1):
            self.flow.planning.plan(txid, replay=False)

    def wait(self, state: State) -> Future[None]:
        done: Future[None] = Future()
        self.flow.wait_for_all(done, state)
        return done

    def ask(self) -> None:
        """Ask the source, which has nothing more at the moment."""
        held, self.source.held = self.source.held, len(self.flow.planning.metas)
        assert not self.flow.plan(self.source.held + 1, committed(self.source.held), replay=False)
        self.source.held = held


def committed(upto: int, in_flight: int = 0) -> State:
    state, _ = step(initial(Config(4)), Opened(upto + 1, ()))
    state, _ = step(state, Wake())
    for txid in range(upto + 1, upto + 1 + in_flight):
        state, _ = step(state, Planned(txid, txid))
    return state


def test_waiters_return_when_the_rows_of_their_call_are_committed() -> None:
    queue = Queue(Source(3))
    first = queue.wait(committed(0))
    queue.source.held = 5
    second = queue.wait(committed(0))
    queue.ask()
    queue.flow.answer(committed(2), empty=9)
    assert not first.done()
    queue.flow.answer(committed(3))
    assert first.done()
    assert not second.done()
    queue.flow.end(None)
    assert isinstance(second.exception(), StoppedError)


def test_a_source_without_marks_is_exhausted_once_it_reports_not_ready_or_a_later_transaction_is_empty() -> None:
    queue = Queue(Source(2, tells=False))
    queue.ask()
    done = queue.wait(committed(2))
    queue.flow.answer(committed(2))
    assert not done.done()
    queue.ask()
    queue.flow.answer(committed(2, in_flight=1))
    assert not done.done()
    queue.flow.answer(committed(3))
    assert done.done()
    queue = Queue(Source(2, tells=False))
    done = queue.wait(committed(2, in_flight=3))
    queue.flow.answer(committed(5), empty=5)
    assert not done.done()
    queue.flow.answer(committed(6), empty=6)
    assert done.done()
    done = queue.wait(committed(0))
    queue.flow.end(TopologyFailed("broken"))
    assert isinstance(done.exception(), TopologyFailed)
    queue.flow.end(None)


def test_the_stepper_uses_only_public_names_of_the_driver() -> None:
    tree = ast.parse(Path(stepping.__file__).read_text(encoding="utf-8"))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    assert all(isinstance(node.value, ast.Name) and node.value.id == "self" for node in uses)


@pytest.mark.parametrize("name", [FORMAT_FILE, PLACE_FILE])
def test_leftovers_of_a_killed_first_run_are_not_taken_for_foreign_files(tmp_path, monkeypatch, name) -> None:
    def killed(*_, **__) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            write_durably(tmp_path / name, b"{}")
    assert [path.name.startswith(f"{name}.") for path in tmp_path.iterdir()] == [True]
    check_directory(tmp_path)
