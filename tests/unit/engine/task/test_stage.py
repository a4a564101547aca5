"""Both phases of a pack: the work of its tasks, their order, routing, failures, and results gathered in the driver."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_samples as samples
import pytest
from engine_samples import Collect, Rows, Step, chain, pack, processed, program
from topology_samples import Silent
from watched import Gathering

from txstorm import BatchBolt, Committer, Topology, TransactionalTopologyBuilder, TransactionAttempt
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.gather import destinations, gather
from txstorm.engine.port import Pack, Processed
from txstorm.engine.program import Program
from txstorm.engine.spill import sweep_spilled, unspill
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun, input_bytes
from txstorm.engine.task.stage import StageTask
from txstorm.errors import EngineError, StateError


@pytest.fixture(autouse=True)
def _called() -> Iterator[None]:
    samples.called.clear()
    yield
    samples.called.clear()


def numbers(outcome: Processed) -> list[int]:
    ordered = sorted(outcome.cargo, key=lambda one: one.order)
    return [n for one in ordered if one.batch is not None for (n,) in rows_of_batch(one.batch)]


def cargo_of(made: Program, given: Pack) -> list[Cargo]:
    """Run all stages; return the cargo that the tasks of the last stage send to the driver."""
    arrived: dict[int, list[Cargo]] = {}
    for stage in made.stages:
        sent: dict[int, list[Cargo]] = {}
        for task in range(stage.tasks):
            for one in StageTask(made, stage.level, task, given).run(arrived.get(task, ())):
                last = stage.level == len(made.stages) - 1
                for target in (0,) if last else destinations(made, stage.level, task, one):
                    sent.setdefault(target, []).append(one)
        arrived = sent
    return arrived[0]


def test_a_pack_yields_one_outcome_per_txid_of_one_emitter_per_task_that_is_closed() -> None:
    outcomes = processed(chain(), pack([1, 2, 3, 4], [], [7]))
    assert [outcome.attempt.txid for outcome in outcomes] == [1, 2, 3]
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [sorted(numbers(outcome)) for outcome in outcomes] == [[1, 2, 3, 4], [], [7]]
    assert outcomes[0].counts == {"numbers": 4, "a": 4, "b": 4, "collect": 4}
    assert outcomes[1].counts == dict.fromkeys(("numbers", "a", "b", "collect"), 0)
    assert outcomes[0].digests == {"0": "digest of [2, 4]", "1": "digest of [1, 3]"}
    assert set(outcomes[0].busy) == {0, 1}
    # Every task of a batch bolt finishes every batch, even an empty one.
    assert len([one for one in samples.called if one[0] == "collect"]) == 9
    samples.called.clear()
    processed(chain(), pack([1], [2], [3], first=8, committed=7))
    of_spout = [one for one in samples.called if one[0] in ("emitter", "cleanup", "closed")]
    expected = [(what, task) for what in ("closed", "emitter") for task in (0, 1)]
    assert sorted(of_spout) == [("cleanup", 7), ("cleanup", 7), *expected]


@pytest.mark.parametrize(("number", "kind", "name"), [(13, "failed", "FailedException"), (17, "other", "ValueError")])
def test_a_failure_ends_the_pack_at_its_txid(number: int, kind: str, name: str) -> None:
    outcomes = processed(chain(), pack([1, 2], [3, 4], [5, number], [6]))
    assert [outcome.attempt.txid for outcome in outcomes] == [1, 2, 3]
    assert [sorted(numbers(outcome)) for outcome in outcomes[:2]] == [[1, 2], [3, 4]]
    error = outcomes[2].error
    assert error is not None
    assert (error.component, error.kind, error.type, error.level) == ("a", kind, name, 0)
    assert error.frame.startswith(f"{samples.__file__}:")
    assert "in execute" in error.frame
    assert str(error).startswith(f"a[{error.task}] raised {name} at ")
    # The failed task does not start the next txid, and later stages process neither the failed txid nor later ones.
    assert ("emit", 4, 1) not in samples.called
    assert {one[1] for one in samples.called if one[0] in ("b", "collect")} == {1, 2}


def test_the_earliest_failing_stage_ends_the_pack_reported_errors_do_not_and_missing_reports_are_errors() -> None:
    builder = samples.TransactionalTopologyBuilder("late", "numbers", samples.Rows(), 2)
    builder.set_bolt("collect", samples.Collect(), 2).shuffle_grouping("numbers")
    builder.set_bolt("b", samples.Step(), 3).fields_grouping("collect", ["n"])
    builder.set_bolt("end", samples.Collect(), 2).shuffle_grouping("b")
    outcomes = processed(builder.build_topology(), pack([1], [2, 17], [3]))
    assert [outcome.error is None for outcome in outcomes] == [True, False]
    assert outcomes[1].error.component == "b"
    assert not [one for one in samples.called if one[0] == "end" and one[1] > 1]
    [outcome] = processed(chain(), pack([12, 13, 17, 23 * 2]))
    assert outcome.error is not None
    assert outcome.error.level == 0
    assert (outcome.error.component, outcome.error.task) == ("a", 1)
    assert outcome.error.message == "unlucky"
    [outcome] = processed(chain(), pack([19]))
    assert outcome.error is None
    first, second = sorted(outcome.reported)
    assert (first, re.sub(r"\d", "N", second)) == ("a[1]: ValueError('seen')", "b[N]: ValueError('seen')")
    made, given = program(chain()), pack([1, 2], [3])
    cargo = cargo_of(made, given)
    reports = [one for one in cargo if one.kind is Kind.RESULT and one.txid == 2]
    assert len(reports) == sum(stage.tasks for stage in made.stages)
    for lost in reports:
        with pytest.raises(EngineError, match=r"txid 2:102: 4 of 5 tasks reported; the batch is incomplete"):
            gather(made, given, [one for one in cargo if one is not lost])
    made, given = program(chain()), pack([1, 2])
    old = cargo_of(made, pack([1, 2, 3], attempt=50))
    [outcome] = gather(made, given, [*old, *cargo_of(made, given)])
    assert sorted(numbers(outcome)) == [1, 2]
    assert outcome.counts["numbers"] == 2


def test_errors_are_sent_to_all_tasks_and_parts_kept_only_if_every_emitter_had_emitted() -> None:
    made = program(chain())
    data = next(one for one in StageTask(made, 0, 1, pack([1])).run(()) if one.kind is Kind.DATA)
    assert tuple(destinations(made, 0, 1, data)) == (data.target,)
    error = dataclasses.replace(data, kind=Kind.ERROR, batch=None, data={})
    assert tuple(destinations(made, 0, 1, error)) == (0, 1, 2)
    report = dataclasses.replace(data, kind=Kind.RESULT, batch=None, data={})
    assert len(tuple(destinations(made, 0, 1, report))) == 1
    made, given = program(chain()), pack([1, 2])
    report = next(one for one in cargo_of(made, given) if one.kind is Kind.RESULT and one.edge == 0)
    [unlucky] = processed(chain(), pack([13]))
    row = dataclasses.asdict(unlucky.error)

    def failed(*tasks: int) -> Processed:
        parts = [{"row": row, "parts": {str(task): {"batch": 1}}} for task in tasks]
        [outcome] = gather(made, given, [dataclasses.replace(report, kind=Kind.ERROR, data=one) for one in parts])
        return outcome

    assert failed(0, 1).parts == {"0": {"batch": 1}, "1": {"batch": 1}}
    assert failed(0).parts == {}


def test_large_input_of_committers_is_spilled_to_files_that_attempts_never_share(tmp_path: Path) -> None:
    many = list(range(100, 1100))
    plain, spilled = (
        processed(chain(**settings), pack(many), tmp_path)[0]
        for settings in ({}, {"spill_bytes": 100, "cargo_bytes": 500})
    )
    assert {one.kind for one in plain.cargo} == {Kind.DATA}
    assert {one.kind for one in spilled.cargo} == {Kind.SPILLED}
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {one.data["file"] for one in spilled.cargo}
    assert len(files) > 10
    ordered = sorted(spilled.cargo, key=lambda one: one.order)
    rows = [n for one in ordered for (n,) in rows_of_batch(unspill(one, tmp_path))]
    assert rows == numbers(plain)
    txid = spilled.attempt.txid
    sweep_spilled(str(tmp_path), txid - 1)
    assert {path.name for path in tmp_path.iterdir()} == files
    sweep_spilled(str(tmp_path), txid)
    sweep_spilled(str(tmp_path), txid)
    assert not list(tmp_path.iterdir())
    topology = chain(spill_bytes=0)
    first = processed(topology, pack([1, 2, 3]), tmp_path)
    again = processed(topology, pack([1, 2, 3]), tmp_path)
    names = [one.data["file"] for outcome in (*first, *again) for one in outcome.cargo]
    assert len(names) == len(set(names)) >= 4
    assert all(name.startswith("1-101-") for name in names)


class Told(BatchBolt):
    fields = ("n",)

    def prepare(self, context, collector, attempt):
        assert context.attempt == attempt
        drawn = context.random().random()
        samples.called.append((context.component, context.task, context.parallelism, attempt, context.now, drawn))

    def execute(self, tuple):
        assert tuple.source_component == "numbers"


def test_the_processing_phase_has_a_context_repeatable_random_numbers_and_no_state() -> None:
    """The context has task, parallelism and transaction time, and random numbers are the same in a replay (T4)."""
    builder = samples.TransactionalTopologyBuilder("told", "numbers", samples.Rows())
    builder.set_bolt("told", Told(), 2).all_grouping("numbers").add_configuration("mine", 5)
    topology = builder.build_topology()
    seen = []
    for attempt in (100, 200):
        samples.called.clear()
        processed(topology, pack([1], [2], attempt=attempt))
        seen.append([one for one in samples.called if one[0] == "told"])
    assert {one[3] for one in seen[0]} == {TransactionAttempt(1, 101), TransactionAttempt(2, 102)}
    assert [one[4].isoformat() for one in seen[0][:2]] == ["1970-01-01T00:00:01+00:00", "1970-01-01T00:00:02+00:00"]
    assert {one[1:3] for one in seen[0]} == {(0, 2), (1, 2)}
    assert [one[5] for one in seen[0]] == [one[5] for one in seen[1]]
    assert len({one[5] for one in seen[0]}) == 4
    assert program(topology).components["told"].settings["mine"] == 5
    builder = samples.TransactionalTopologyBuilder("asks", "numbers", samples.Rows())
    builder.set_bolt("asks", Asks()).shuffle_grouping("numbers")
    [outcome] = processed(builder.build_topology(), pack([1]))
    assert outcome.error is not None
    assert outcome.error.type == "StateError"
    assert "only committers have tables" in outcome.error.message


class Asks(Silent):
    def prepare(self, context, collector, attempt):
        context.state("counts")


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
