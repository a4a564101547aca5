"""Backfill: an ordinary run of a topology's current code over recorded transactions, into a new data directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from txstorm.api.spout import NOT_READY
from txstorm.books.origin import CodeOrigin
from txstorm.clocks import Clock
from txstorm.engine.port import Engine
from txstorm.errors import InputError
from txstorm.ledger.open import local_directory
from txstorm.replay.recording import Recording, Result, Span
from txstorm.results.views import read_directory_history
from txstorm.runtime.opening import RunOptions
from txstorm.runtime.run import launch
from txstorm.spouts.port import Parts, RecordedPlan, SpoutPlanner
from txstorm.topology.graph import Topology


def check_into(recording: Recording, into: str | Path, span: Span) -> Path:
    """Return `into` as a path; raise `InputError` unless it can take a backfill of `span`."""
    target = local_directory(into).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"--into {target}: expected a directory that is new or empty; name another one")
    if target.is_relative_to(recording.data_dir.absolute()):
        raise InputError(
            f"--into {target} lies inside {recording.data_dir}, which a replay does not change; name another directory"
        )
    if span.first != 1:
        raise InputError(
            f"--into: a backfill begins with txid 1, got --from-txid {span.first}: new tables are empty, so states "
            "would lack the changes of earlier txids; leave --from-txid out"
        )
    if recording.began_with_states:
        raise InputError(
            f"--into: {recording.data_dir} began with the states of a snapshot, which new tables would lack; run the "
            "topology in a new directory instead"
        )
    return target


def backfill(
    topology: Topology,
    recording: Recording,
    span: Span,
    into: Path,
    engine: Engine,
    origin: CodeOrigin,
    committed: Callable[[int], None],
) -> Result:
    """Run the transactions of `span` on `engine` into the data directory `into`, which `check_into` has accepted.

    The new directory has its own ledger and tables, with the recorded txids, attempts, stamps and extents. The topology
    can continue there after `span`. The code may have changed; `origin`, where it is, is recorded in the new ledger.
    `committed` is called with each committed txid. The engine is closed at the end.

    Raises:
        TopologyFailed: user code raised an error; the transactions before it are committed.
        SpoutError: the source can no longer return a recorded batch; the transactions before it are committed.
    """
    options = RunOptions(
        until_txid=span.last, origin=origin, recorded=lambda planner: RecordedPlanner(planner, recording, span)
    )
    handle = launch(topology, engine, into, options, [lambda progress: committed(progress.txid)])
    try:
        handle.awaitTermination()
    except BaseException as error:
        handle.stop()
        done = handle.committed
        error.add_note(f"{into} holds {done} of the {len(span)} txids; begin again in another directory.")
        raise
    result = Result(topology.id, span, into=into)
    for row in read_directory_history(into).select(["txid", "digest", "tuples"]).to_pylist():
        result.count(row["txid"], row["tuples"], equal=row["digest"] == recording.of(row["txid"]).digest)
    return result


class RecordedPlanner(SpoutPlanner):
    """Planner of the recorded transactions of a range, and of none after them; replaces the spout's own planner.

    The spout's planner supplies the payload of a batch and the positions in a document.
    """

    def __init__(self, planner: SpoutPlanner, recording: Recording, span: Span) -> None:
        self.opaque = planner.opaque
        self.task_planned = planner.task_planned
        self.sources = planner.sources
        self._planner = planner
        self._recording = recording
        self._span = span

    def plan(self, txid: int, previous: Any, *, replay: bool = False, upto: Clock | None = None) -> Any:
        """Return the recorded spout document, with the extents that were read."""
        return self._recording.of(txid).document if txid <= self._span.last else NOT_READY

    def recorded(self, txid: int) -> RecordedPlan | None:
        """Return the recorded attempt and stamp, and the errors whose records were dead-lettered."""
        found = self._recording.of(txid)
        return RecordedPlan(found.attempt.attempt_id, found.stamp, found.divert)

    def payload(self, document: Any) -> Any:
        """Return the spout's payload for the batch with this document."""
        return self._planner.payload(document)

    def finish(self, document: Any, parts: Parts) -> Any:
        """Return the document with the extents that were read this time."""
        return self._planner.finish(document, parts)

    def carried(self, document: Any) -> Parts:
        """Return the position of each partition after the transaction of this document."""
        return self._planner.carried(document)

    def notices(self) -> list[str]:
        """Return the messages of the spout's planner."""
        return self._planner.notices()

    def close(self) -> None:
        """Close the spout's planner."""
        self._planner.close()
