"""Share of a large commit: the work of one committer task; both engines run the same code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.engine.cargo import Cargo, Kind
from txstorm.engine.gc_pause import seldom_collected
from txstorm.engine.port import CommitShare, ErrorRow, LargeCommit, ShareDone, TxidInput
from txstorm.engine.program import Program
from txstorm.engine.spill import spill
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun
from txstorm.engine.task.component_run import Resources
from txstorm.errors import TxstormError
from txstorm.plan.stages import Edge
from txstorm.state.commit_group import CommitHandles, Targets
from txstorm.state.commit_job import ShippedRowsIndex
from txstorm.state.keyed import StateGroup
from txstorm.state.sinks import SinkGroup
from txstorm.state.target import Target
from txstorm.storage.tables.intent import Staged


def run_share(program: Program, work: LargeCommit, share: CommitShare) -> ShareDone:
    """Run the committer task on its input and its state rows, and stage the rows it writes, in one file per table.

    Does not raise: exceptions raised by the committer and disk errors are reported in the result.
    """
    try:
        return _done(program, work, share)
    except CommitFailed as failure:
        return ShareDone(share.component, share.task, error=failure.row)
    except TxstormError as error:
        row = ErrorRow(share.component, share.task, "other", type(error).__name__, str(error), "", "")
        return ShareDone(share.component, share.task, error=row)
    except OSError as error:
        said = error.errno or 0, error.strerror or str(error), error.filename or ""
        return ShareDone(share.component, share.task, refused=said)


def _done(program: Program, work: LargeCommit, share: CommitShare) -> ShareDone:
    attempt = work.input.attempt
    rows = _ShareTables(program, work, share)
    run = _ShareRun(program, work.input, share.cargo, CommitHandles(attempt.txid, rows.targets))
    with seldom_collected():
        run.run_task(share.component, share.task)
        staged = work.place.stage(rows.written, attempt, share.component, share.task)
    return ShareDone(share.component, share.task, staged, run.counts, run.sent, run.reported)


class _ShareRun(CommitRun):
    """Commit phase of one task of one committer; its output for downstream bolts is spilled to files."""

    def __init__(self, program: Program, txid_input: TxidInput, cargo: Sequence[Cargo], tables: Resources) -> None:
        super().__init__(program, txid_input, cargo, tables)
        self.sent: list[Cargo] = []

    def send(self, edge: Edge, source: int, target: int, batch: pa.RecordBatch, partition: int) -> None:
        """Spill rows of `edge` to a file, for the downstream bolt."""
        cargo = Cargo(Kind.DATA, *self.input.attempt, edge.index, source, target, len(self.sent), batch)
        self.sent.append(spill(cargo, _spilled(self.program)))


class _ShareTables:
    """In-memory tables of the task: sinks, and states with the rows of the keys in the task's input.

    Attributes:
        written: the uri of each table → what the task writes to it; `targets`: all of them.
    """

    def __init__(self, program: Program, work: LargeCommit, share: CommitShare) -> None:
        txid = work.input.attempt.txid
        where = f"{share.component}[{share.task}], txid {txid}"
        self.written: dict[str, Target[Any, Any]] = {}
        for table in program.spread[share.component]:
            if isinstance(table, KeyedState):
                given = ShippedRowsIndex(table, _spilled(program) / share.given[table.name], where)
                target: Target[Any, Any] = StateGroup(table, given)
            else:
                target = SinkGroup(table)
            target.component = share.component
            self.written[target.ref.uri] = target
        self.targets = Targets(list(self.written.values()))
        self.targets.begin(txid, work.input.stamp)


def _spilled(program: Program) -> Path:
    assert program.spill_dir is not None
    return Path(program.spill_dir)


def as_cargo(work: LargeCommit, number: int, done: ShareDone) -> Cargo:
    """Encode the result of share `number` as cargo, to be sent from a worker to the driver."""
    staged = {uri: one.to_json() for uri, one in done.staged.items()}
    data = {**asdict(done), "staged": staged}
    return Cargo(Kind.RESULT, *work.input.attempt, 0, number, 0, 0, data=data)


def of_cargo(cargo: Cargo) -> ShareDone:
    """Decode a result encoded by `as_cargo`."""
    found: Mapping[str, Any] = cargo.data
    staged = {uri: Staged.from_json(one) for uri, one in found["staged"].items()}
    error = ErrorRow(**found["error"]) if found["error"] else None
    refused = tuple(found["refused"]) if found["refused"] else None
    sent = [Cargo(**{**one, "kind": Kind(one["kind"])}) for one in found["sent"]]
    place = found["component"], found["task"]
    return ShareDone(*place, staged, found["counts"], sent, found["reported"], error, refused)
