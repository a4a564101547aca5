"""Commit phase of one txid: order of components, tasks, routing, and error messages."""

from typing import Any

import engine_samples as samples
import pytest
from engine_samples import Collect, Rows, Step, pack, processed, program
from watched import Gathering

from txstorm import Committer, Topology, TransactionalTopologyBuilder
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun, input_bytes
from txstorm.errors import StateError


class Resources:
    """Fake state and sink resources that record whether they were active when a handle was requested."""

    def __init__(self) -> None:
        self.active = False

    def activate(self, active: bool) -> None:
        self.active = active

    def state(self, component: str, task: int, name: str) -> Any:
        samples.called.append(("state", component, task, name, self.active))

    def sink(self, component: str, task: int, name: str) -> Any:
        raise AssertionError


def prepared(topology: Topology, numbers: list[int]) -> CommitRun:
    """Process a batch; return its commit phase, which has not begun, and forget the calls so far."""
    given = pack(numbers)
    [outcome] = processed(topology, given)
    samples.called.clear()
    return CommitRun(program(topology), given.inputs[0], outcome.cargo, Resources())


def commit(topology: Topology, numbers: list[int]) -> CommitRun:
    run = prepared(topology, numbers)
    run.run()
    return run


class Keep(Gathering, Committer):
    fields = ("n",)
    streams = {"last": ("n",)}

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.tables = context.state("counts")

    def finish_batch(self):
        samples.called.append((self.context.component, self.context.task, sorted(self.taken)))
        self.context.state("counts")
        for n in self.taken:
            self.collector.emit(n)
        self.collector.emit(max(self.taken, default=-1), stream="last")


def graph() -> Topology:
    builder = TransactionalTopologyBuilder("graph", "numbers", Rows())
    builder.set_bolt("keep", Keep(), 2).fields_grouping("numbers", ["n"])
    builder.set_bolt("each", Step(), 3).shuffle_grouping("keep")
    builder.set_bolt("collect", Collect(), 2).fields_grouping("each", ["n"]).global_grouping("keep", "last")
    builder.set_bolt("end", Keep()).global_grouping("collect").global_grouping("numbers")
    return builder.build_topology()


def test_components_finish_in_topological_order_with_active_handles_and_may_execute_before() -> None:
    run = commit(graph(), [1, 2, 3, 4])
    finished = [one[0] for one in samples.called if one[0] in ("keep", "collect", "end")]
    assert finished == ["keep", "keep", "collect", "collect", "end"]
    check_counts(run)
    commit(graph(), [1])
    asked = [one for one in samples.called if one[0] == "state" and one[1] == "end"]
    assert [active for *_, active in asked] == [False, True]
    run = prepared(graph(), [1, 2, 3, 4])
    run.execute()
    run.execute()
    assert {one[1] for one in samples.called} == {"keep", "end"}  # prepared; `finish_batch` has not been called
    run.run()
    check_counts(run)


def check_counts(run: CommitRun) -> None:
    """Check that a commit phase of the numbers 1 to 4 has delivered each tuple once."""
    [end] = [one for one in samples.called if one[0] == "end"]
    last = [max(one[2], default=-1) for one in samples.called if one[0] == "keep"]
    assert end[2] == sorted([1, 2, 3, 4, 1, 2, 3, 4, *last])
    assert run.counts == {"keep": 6, "each": 4, "collect": 6, "end": 11}


def test_a_failure_names_component_task_and_line_and_bolts_downstream_have_no_tables() -> None:
    with pytest.raises(CommitFailed, match=r"each\[\d\] raised ValueError at .*engine_samples.py:\d+ in execute: odd"):
        commit(graph(), [1, 17])
    assert not [one for one in samples.called if one[0] == "end"]
    builder = TransactionalTopologyBuilder("graph", "numbers", Rows())
    builder.set_bolt("keep", Keep()).shuffle_grouping("numbers")
    builder.set_bolt("reads", Reads()).shuffle_grouping("keep")
    with pytest.raises(CommitFailed, match="only committers have tables") as caught:
        commit(builder.build_topology(), [1])
    assert isinstance(caught.value.__cause__, StateError)


class Reads(Gathering):
    def prepare(self, context, collector, attempt):
        context.state("counts")


def test_input_bytes_of_a_commit_phase() -> None:
    [outcome] = processed(graph(), pack(list(range(1000))))
    assert 8000 * 2 <= input_bytes(outcome.cargo) < 50_000
