"""Backfill: replay committed txids, with the present code, into the tables of a new data directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from pathlib import Path

from txstorm.books.origin import CodeOrigin
from txstorm.books.records import Meta
from txstorm.engine.port import Engine, ErrorRow
from txstorm.engine.task.stage import sweep_spilled
from txstorm.errors import InputError, SpoutError
from txstorm.ledger.open import local_directory
from txstorm.ledger.paths import meta_path
from txstorm.ledger.port import Delete, Op
from txstorm.monitor.progress import Monitor
from txstorm.replay.ranges import TRIES, Done, Packs, Result, Span
from txstorm.replay.recording import Recording, Source
from txstorm.runtime.commit.outcome import ProcessedBatch, batch_digest
from txstorm.runtime.failures import batch_failure
from txstorm.runtime.opening import RunOptions, open_session
from txstorm.runtime.session import Session
from txstorm.topology.graph import Topology

Told = Callable[[int], None]


def check_into(recording: Recording, into: str | Path, span: Span) -> Path:
    """Return `into` as a path; raise `InputError` unless it can take a backfill of `span`."""
    target = local_directory(into).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        msg = f"--into {target}: expected a directory that is new or empty; name another one"
        raise InputError(msg)
    if target.is_relative_to(recording.data_dir.absolute()):
        msg = (
            f"--into {target} lies inside {recording.data_dir}, which a replay does not change; name another directory"
        )
        raise InputError(msg)
    if span.first != 1:
        msg = (
            f"--into: a backfill begins with txid 1, got --from-txid {span.first}: new tables are empty, so states "
            "would lack the changes of earlier txids; leave --from-txid out"
        )
        raise InputError(msg)
    return target


def backfill(
    topology: Topology,
    recording: Recording,
    span: Span,
    into: Path,
    engine: Engine,
    origin: CodeOrigin,
    told: Told,
) -> Result:
    """Replay `span` on `engine` into the new data directory `into`, which `check_into` has accepted.

    The directory gets a ledger and tables with the recorded txids, attempts, stamps and extents; a run of the topology
    there continues after `span`.

    Args:
        topology: the code, which may have changed.
        recording: the recording of the directory to replay.
        span: the txids to replay; the first is 1.
        into: the new directory.
        engine: runs the packs; closed at the end.
        origin: location of the code, for the new ledger.
        told: called with each committed txid.

    Raises:
        TopologyFailed: user code raised; all earlier txids are committed.
        SpoutError: the source can no longer return a recorded batch; all earlier txids are committed.
    """
    session = open_session(topology, engine, into, RunOptions(origin=origin), Monitor(()), _slept)
    result = Result(topology.id, span, into=into)
    compact = False
    try:
        engine.start(session.program)
        source = Source(session.planning.planner, recording)
        writer = _Writer(session, source, result, told)
        for group in _groups(Packs(engine, source, topology.settings), span, topology.settings.max_group_txids):
            writer.write(group)
        compact = True
    except BaseException as error:
        error.add_note(f"{into} holds {result.txids} of the {len(span)} txids; start over in another directory.")
        raise
    finally:
        session.close(compact=lambda: compact)
    return result


class _Writer:
    """Commits processed txids as the driver does, with their recorded metadata."""

    def __init__(self, session: Session, source: Source, result: Result, told: Told) -> None:
        self._session = session
        self._source = source
        self._result = result
        self._told = told
        self._metas: list[int] = []

    def write(self, group: list[Done]) -> None:
        """Commit consecutive processed txids (P4 to P8)."""
        metas = {one.recorded.txid: self._meta(one) for one in group}
        self._session.books.write_metas(metas)
        self._metas += list(metas)
        left = [self._ready(one, metas[one.recorded.txid]) for one in group]
        tries = 0
        while left:
            outcome = self._session.committer.commit(left, self._housekeeping)
            tries = 1 if outcome.committed else tries + 1
            left = left[len(outcome.committed) :]
            for one in outcome.committed:
                self._done(one.ready, sum(one.counts.values()))
            if outcome.failed is not None:
                attempt, row = outcome.failed
                assert row is not None  # no group is abandoned here
                if row.kind != "failed" or tries >= TRIES:
                    raise batch_failure(attempt, row, tries)
        self._session.after_commit()

    def _meta(self, done: Done) -> Meta:
        error, recorded = done.processed.error, done.recorded
        if isinstance(error, ErrorRow):
            raise batch_failure(recorded.attempt, error, 1)
        document = self._source.document(recorded, done.processed.parts)
        if document != recorded.document:
            msg = (
                f"txid {recorded.txid}: the spout read other extents than were recorded; its source has changed, so "
                "later txids would not continue from there: run the topology in a new directory instead of a backfill"
            )
            raise SpoutError(msg)
        return Meta(document, recorded.stamp, dict(done.processed.digests))

    def _ready(self, done: Done, meta: Meta) -> ProcessedBatch:
        return ProcessedBatch(done.txid_input, done.processed, batch_digest(done.processed.digests), meta.document)

    def _housekeeping(self, last: int) -> list[Op]:
        old, self._metas = [one for one in self._metas if one < last], [one for one in self._metas if one >= last]
        return [Delete(meta_path(txid)) for txid in old]

    def _done(self, ready: ProcessedBatch, tuples: int) -> None:
        txid = ready.attempt.txid
        equal = ready.digest == self._recorded_digest(txid)
        self._result.count(txid, tuples, equal=equal)
        sweep_spilled(self._session.program.spill_dir, txid)
        self._told(txid)

    def _recorded_digest(self, txid: int) -> str:
        return self._source.recording.of(txid).digest


def _groups(packs: Packs, span: Span, most: int) -> Iterator[list[Done]]:
    """Yield the processed txids in commit groups; a failed txid ends its group, and is alone in the next one."""
    outcomes = packs.run(span)
    for failed, found in groupby(outcomes, lambda one: one.processed.error is not None):
        while group := list(islice(found, 1 if failed else min(most, packs.size))):
            yield group


def _slept(seconds: float) -> bool:
    time.sleep(seconds)
    return False
