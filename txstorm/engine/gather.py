"""Exchange of cargo between stages, and gathering the outcomes of transactions from it in the driver."""

from __future__ import annotations

from collections.abc import Iterable

from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.port import ErrorRow, Pack, Processed
from txstorm.engine.program import Program
from txstorm.errors import EngineError
from txstorm.storage.tables.intent import Staged


def destinations(program: Program, level: int, task: int, cargo: Cargo) -> Iterable[int]:
    """Return the tasks of the stage after `level`, which must exist, that receive `cargo` from `task`."""
    following = program.stages[level + 1]
    if cargo.kind is Kind.ERROR:
        return range(following.tasks)
    if cargo.kind is Kind.DATA and program.level(program.edges[cargo.edge].target) == following.level:
        return (cargo.target,)
    return (task % following.tasks,)


def gather(program: Program, pack: Pack, arrived: Iterable[Cargo]) -> list[Processed]:
    """Gather the outcomes of the txids of `pack` from their cargo, up to and including the first failed txid.

    Raises `EngineError` if a task's report is missing: Storm's check that all tuples of a batch have arrived.
    """
    outcomes = {one.attempt.txid: Processed(one.attempt) for one in pack.inputs}
    for cargo in arrived:
        _take(outcomes[cargo.txid], cargo)
    expected = sum(stage.tasks for stage in program.stages)
    result: list[Processed] = []
    for outcome in outcomes.values():
        result.append(outcome)
        if outcome.error is not None:
            if outcome.emitters < program.stages[0].tasks:
                outcome.parts.clear()
            break
        if outcome.reports != expected:
            msg = f"txid {outcome.attempt}: {outcome.reports} of {expected} tasks reported; the batch is incomplete"
            raise EngineError(msg)
    return result


def _take(outcome: Processed, cargo: Cargo) -> None:
    if cargo.attempt_id != outcome.attempt.attempt_id:
        return
    if cargo.kind is Kind.ERROR:
        _take_error(outcome, ErrorRow(**cargo.data["row"]))
        _take_parts(outcome, cargo)
        outcome.digests.update(cargo.data.get("digests", {}))
    elif cargo.kind is Kind.DIVERTED:
        outcome.diverted.append(cargo.batch)
    elif cargo.kind is Kind.STAGED:
        component, uri, staged = cargo.data["component"], cargo.data["uri"], Staged.from_json(cargo.data["staged"])
        outcome.staged.setdefault(component, {}).setdefault(uri, []).append(staged)
        outcome.received[component] += staged.rows
    elif cargo.kind is Kind.RESULT:
        outcome.reports += 1
        _take_parts(outcome, cargo)
        outcome.digests.update(cargo.data["digests"])
        outcome.reported += cargo.data["reported"]
        outcome.busy[cargo.edge] = outcome.busy.get(cargo.edge, 0.0) + cargo.data["busy"]
        for component, count in cargo.data["counts"].items():
            outcome.counts[component] = outcome.counts.get(component, 0) + count
        outcome.received.update(cargo.data["received"])
        outcome.processes[cargo.edge, cargo.source] = tuple(cargo.data["process"])
    else:
        outcome.cargo.append(cargo)


def _take_parts(outcome: Processed, cargo: Cargo) -> None:
    """Add the parts that emitters reported in the first stage, even if a downstream bolt failed."""
    if cargo.edge == 0 and cargo.data["parts"] is not None:
        outcome.emitters += 1
        outcome.parts.update(cargo.data["parts"])


def _take_error(outcome: Processed, row: ErrorRow) -> None:
    """Record an error row; if a txid has several, the one of the earliest stage counts as the cause."""
    if outcome.error is None or (row.level, row.task) < (outcome.error.level, outcome.error.task):
        outcome.error = row
