"""`Stepper`: runs transactions on the caller's thread, one phase at a time; each waits for its ack or fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow
from txstorm.monitor.progress import Monitor
from txstorm.runtime import stepping
from txstorm.runtime.opening import RunOptions, open_session
from txstorm.runtime.stepping import ONE_AT_A_TIME, Stepper
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing.driver import InlineEngine
from txstorm.testing.emissions import Emissions


class Count(BatchBolt, Committer):
    state = KeyedState("counts", {"word": str}, {"n": int})

    def prepare(self, context, collector, attempt):
        self.context, self.words = context, []

    def execute(self, tuple):
        self.words.append(tuple["word"])

    def finish_batch(self):
        if "boom" in self.words:
            raise ValueError("boom")
        for word in self.words:
            self.context.state("counts").update(word, lambda n: (n or 0) + 1)


@pytest.fixture
def stepper(tmp_path: Path) -> Iterator[Stepper]:
    builder = TransactionalTopologyBuilder(
        "steps", "words", MemoryTransactionalSpout([["a", "b", "boom"]], ["word"], 1)
    )
    builder.set_bolt("count", Count()).fields_grouping("words", ["word"])
    topology = builder.build_topology().with_settings({**ONE_AT_A_TIME, "max_spout_pending": 2})
    engine, monitor = InlineEngine(Emissions()), Monitor()
    session = open_session(topology, engine, tmp_path / "data", RunOptions(), monitor, lambda seconds: True)
    engine.start(session.program)
    made = Stepper(session, monitor)
    made.open()
    yield made
    made.close()
    session.release()


def phases(stepper: Stepper) -> dict[int, str]:
    return {txid: status.value for txid, (_, status) in stepper.active.items()}


def attempt(stepper: Stepper, txid: int) -> TransactionAttempt:
    return TransactionAttempt(txid, stepper.active[txid][0])


def test_a_phase_ends_when_it_is_acked(stepper: Stepper):
    assert phases(stepper) == {1: "processing", 2: "processing"}
    stepper.ack(attempt(stepper, 2))
    assert phases(stepper) == {1: "processing", 2: "processed"}
    stepper.ack(attempt(stepper, 1))
    assert phases(stepper) == {1: "committing", 2: "processed"}
    assert stepper.committed == 0
    stepper.ack(attempt(stepper, 1))
    assert stepper.committed == 1


def test_a_failed_phase_is_replayed_with_a_new_attempt(stepper: Stepper):
    first = attempt(stepper, 1)
    stepper.fail(first, ErrorRow("the test", 0, "failed", "FailedException", "", "", ""))
    second = attempt(stepper, 1)
    assert second > first
    stepper.ack(first)  # too late, so it has no effect
    assert phases(stepper)[1] == "processing"


def test_an_error_is_raised_immediately_and_preceding_transactions_commit(stepper: Stepper):
    stepper.ack(attempt(stepper, 1))
    stepper.ack(attempt(stepper, 1))
    stepper.ack(attempt(stepper, 2))
    stepper.ack(attempt(stepper, 3))
    with pytest.raises(Exception, match="boom"):
        stepper.ack(attempt(stepper, 2))
    assert stepper.committed == 2


def test_the_stepper_uses_only_public_names_of_the_driver():
    tree: Any = ast.parse(Path(stepping.__file__).read_text(encoding="utf-8"))
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    assert all(isinstance(node.value, ast.Name) and node.value.id == "self" for node in uses)
