"""Recordings of committed transactions in a data directory, and ranges of them to replay, with their result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.external import ManagedState, MapState
from txstorm.api.join_store import StoreUse
from txstorm.books.data_directory import check_readable
from txstorm.engine.port import SOURCE, Pack, TxidInput
from txstorm.engine.program import Program
from txstorm.errors import InputError
from txstorm.results.read import read_letters
from txstorm.results.views import checked_txid, identity_of, origin_recorded, read_directory_history
from txstorm.spouts.executors import check_spout, planner
from txstorm.spouts.facts import facts_of
from txstorm.spouts.port import SpoutPlanner
from txstorm.storage.rows.dead_letters import METADATA
from txstorm.storage.rows.schema import TXID
from txstorm.topology.graph import Topology


@dataclass(frozen=True)
class Recorded:
    """Recording of one committed txid.

    Attributes:
        attempt: the committed attempt.
        stamp: its processing time, UTC microseconds.
        digest: digest of its input.
        document: the spout document with the extents that were read; it determines the batch.
        divert: kinds of errors whose records became dead letters; see `TxidInput.divert`.
    """

    attempt: TransactionAttempt
    stamp: int
    digest: str
    document: Any
    divert: tuple[str, ...] = ()

    @property
    def txid(self) -> int:
        """The transaction."""
        return self.attempt.txid


class Recording:
    """The committed transactions of a data directory, read once; works beside a live run, writes nothing.

    Attributes:
        data_dir: the data directory.
        identity: the identity of its topology.
        origin: location of the code of the last run, if recorded.
        committed: the last committed txid.

    Raises:
        DataDirectoryError: `data_dir` contains no data of a topology.
    """

    def __init__(self, data_dir: str | Path) -> None:
        self.data_dir = check_readable(data_dir)
        identity = identity_of(self.data_dir)
        if identity is None:
            msg = f"{self.data_dir}: its ledger has no identity; no topology has ever completed its start here"
            raise InputError(msg)
        self.identity = identity
        self.origin = origin_recorded(self.data_dir)
        self.committed = checked_txid(self.data_dir)
        self._rows = read_directory_history(self.data_dir)
        self._diverted = _diverted(read_letters(self.data_dir))
        # Sorted by timeline and txid: if a txid was committed on two timelines, the later row is used.
        self._at = {txid: row for row, txid in enumerate(self._rows["txid"].to_pylist())}

    def of(self, txid: int) -> Recorded:
        """Return the recording of `txid`; raise `InputError` if it is not committed, or no longer retained."""
        self.check(txid)
        return self._recorded(txid)

    def _recorded(self, txid: int) -> Recorded:
        row = self._rows.slice(self._at[txid], 1)
        return Recorded(
            TransactionAttempt(txid, row["attempt"][0].as_py()),
            pc.cast(row["stamp"], pa.int64())[0].as_py(),
            row["digest"][0].as_py(),
            json.loads(row["extents"][0].as_py()),
            self._diverted.get(txid, ()),
        )

    def check(self, txid: int) -> None:
        """Raise `InputError` unless `txid` is committed and still retained."""
        if not 1 <= txid <= self.committed:
            there = f"ask for 1 to {self.committed}" if self.committed else "there is nothing to replay yet"
            msg = f"{self.data_dir}: txid {txid} is not committed; the last one is {self.committed}: {there}"
            raise InputError(msg)
        if txid not in self._at:
            kept = f"begins with txid {min(self._at)}" if self._at else "is empty"
            msg = f"{self.data_dir}: txid {txid} is older than the kept history, which {kept}; ask for a later one"
            raise InputError(msg)

    @property
    def began_with_states(self) -> bool:
        """Whether the directory began with the states of a snapshot: its history has a txid 0."""
        return 0 in self._at

    def document_before(self, txid: int) -> Any:
        """Return the spout document of the previous txid; None if it is not retained, or `txid` is the first."""
        return self._recorded(txid - 1).document if txid - 1 in self._at else None

    def check_topology(self, topology: Topology) -> None:
        """Raise `InputError` unless the recording is that of `topology`, and the topology can be replayed."""
        if topology.id != self.identity.topology:
            raise InputError(
                f"{self.data_dir} holds topology {self.identity.topology!r}, but the code is that of {topology.id!r}; "
                "name the right one with --topology MODULE:ATTRIBUTE"
            )
        if kept_elsewhere := _kept_elsewhere(topology):
            raise InputError(
                f"topology {topology.id!r} cannot be replayed: {kept_elsewhere}; the earlier content of such a "
                "store is not kept, and a replay would change it: name code without it with --topology"
            )


def _diverted(letters: pa.Table | None) -> dict[int, tuple[str, ...]]:
    """Return txid → kinds of errors whose records became dead letters."""
    kinds: dict[int, set[str]] = {}
    for row in [] if letters is None else letters.to_pylist():
        whole = row["what"] == METADATA and row["source_task"] is None
        kind = SOURCE if whole else "failed" if row["kind"] == "reported" else row["kind"]
        kinds.setdefault(row[TXID.name], set()).add(kind)
    return {txid: tuple(sorted(found)) for txid, found in kinds.items()}


def _kept_elsewhere(topology: Topology) -> str:
    """Describe the topology's external stores, which a replay can neither read as of a txid nor leave unchanged."""
    outside = []
    for owner, one in ((owner, one) for owner, found in topology.targets.items() for one in found):
        if isinstance(one, StoreUse):
            outside.append(f"the store of {owner} is in an external system")
        elif not isinstance(one, ManagedState):
            place = "store" if isinstance(one, MapState) else "system"
            outside.append(f"{one.committed_as} {one.name!r} of {owner} is in an external {place}")
    external = [f"{one.id} is external" for one in topology.components if one.external]
    return ", ".join([*outside, *external])


class Source:
    """Recorded batches as input of packs."""

    def __init__(self, planner: SpoutPlanner, recording: Recording) -> None:
        self.planner = planner
        self.recording = recording

    @property
    def chained(self) -> bool:
        """Whether the spout continues from the end of the previous txid, regardless of the recording of this one."""
        return self.planner.opaque and self.planner.task_planned

    def pack(self, recorded: Sequence[Recorded]) -> Pack:
        """Build a pack of committed txids, with their committed attempt ids and stamps."""
        inputs = tuple(map(self._input, recorded))
        before = self.recording.document_before(recorded[0].txid)
        # `committed` stays 0, so that emitters do not clean up data that a live run may still need.
        return Pack(inputs, {} if before is None else self.planner.carried(before))

    def _input(self, one: Recorded) -> TxidInput:
        facts = facts_of(one.document, self.planner.sources, one.attempt.attempt_id)
        payload = None if facts.system else self.planner.payload(one.document)
        return TxidInput(one.attempt, one.document, one.stamp, payload, one.divert, facts)

    def document(self, recorded: Recorded, parts: dict[str, Any]) -> Any:
        """Return the document of the replayed batch, to compare with the recorded one."""
        return self.planner.finish(recorded.document, parts) if self.planner.task_planned else recorded.document


@contextmanager
def opened_source(topology: Topology, program: Program, recording: Recording) -> Iterator[Source]:
    """Open the source of a topology without running it; its coordinator is closed at the end.

    Raises:
        SpoutError: the source is missing.
        TopologyFailed: the spout raised any other error.
    """
    spout = topology.spout
    check_spout(spout.object)
    made = planner(spout.object, program.driver_context(spout.id))
    try:
        yield Source(made, recording)
    finally:
        made.close()


@dataclass(frozen=True)
class Span:
    """Committed txids `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass
class Result:
    """Result of replaying a range, as in the last line of ``jobs/replay.py``.

    Attributes:
        tuples: number of tuples emitted by spout and bolts.
        equal: number of txids equal to the committed ones: the same input and, in an audit, the same rows.
        different: the txids that are not.
        not_compared: txids whose input is the same, and whose rows need not be (`Committer.not_reproduced`).
        into: the new data directory of a backfill.
    """

    topology: str
    span: Span
    txids: int = 0
    tuples: int = 0
    equal: int = 0
    different: list[int] = field(default_factory=list)
    not_compared: list[int] = field(default_factory=list)
    into: Path | None = None

    def count(self, txid: int, tuples: int, *, equal: bool, compared: bool = True) -> None:
        """Add the result of one txid: its tuples, and whether it is equal to the committed one, as far as compared."""
        self.txids += 1
        self.tuples += tuples
        if equal and compared:
            self.equal += 1
        else:
            (self.not_compared if equal else self.different).append(txid)

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the fields and the duration in seconds as JSON values."""
        return {
            "topology": self.topology,
            "from_txid": self.span.first,
            "to_txid": self.span.last,
            "txids": self.txids,
            "tuples": self.tuples,
            "seconds": round(seconds, 3),
            "equal": self.equal,
            "different": self.different,
            **({"not_compared": self.not_compared} if self.not_compared else {}),
            "into": None if self.into is None else str(self.into),
        }


def span_of(recording: Recording, first: int | None, last: int | None) -> Span:
    """Return the requested range, by default all committed txids; raise `InputError` unless all are retained."""
    span = Span(1 if first is None else first, recording.committed if last is None else last)
    recording.check(span.first)
    recording.check(span.last)
    if len(span) < 1:
        raise InputError(f"txids {span.first} to {span.last}: expected a range, got one that ends before it begins")
    return span
