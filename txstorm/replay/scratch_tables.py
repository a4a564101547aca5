"""In-memory tables of a replay: states as of a txid, which committers read and write; nothing is written to disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.bolt import Committer
from txstorm.api.state import KeyedState, SinkTable
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.engine.program import Program
from txstorm.engine.task.commit_phase import CommitFailed, CommitRun
from txstorm.errors import TxstormError
from txstorm.replay.compare import Rows
from txstorm.results.read import (
    keeps_no_changes,
    key_names,
    list_sinks,
    list_states,
    read_bound,
    read_changes,
    read_sink,
    read_state,
)
from txstorm.spouts.kept_rows import KeptRows
from txstorm.state.collections import CollectionGroup, state_group
from txstorm.state.commit_group import CommitHandles, Targets
from txstorm.state.index.collection_index import CollectionIndex
from txstorm.state.index.index import StateIndex
from txstorm.state.index.open import state_index
from txstorm.state.keyed import StateGroup
from txstorm.state.sinks import SinkGroup
from txstorm.storage.rows.schema import PREV, TXID, stored_fields
from txstorm.storage.tables.declared import DeclaredTable, declarations
from txstorm.storage.tables.identity import TableRef, table_ref
from txstorm.storage.tables.intent import CHANGES, SINK
from txstorm.storage.tables.merge_layout import no_changes
from txstorm.storage.tables.table import open_table
from txstorm.topology.graph import Topology
from txstorm.user_code import Caught, ignore


class ReplayTables:
    """In-memory states and sinks of a topology, initially as of txid `before`.

    `commit` applies a txid to the state before it; `follow` undoes that and applies the recorded changes instead, so
    that a difference in one txid does not cause differences in all later ones.

    `caught` is called with every exception of the commit phase, while its frames still exist.

    Raises:
        StateError: a declaration differs from its table, or the state as of `before` is no longer retained.
    """

    def __init__(
        self, data_dir: Path, topology: Topology, before: int, committed: int, caught: Caught = ignore
    ) -> None:
        self._caught = caught
        self._committers = [one.object for one in topology.components if isinstance(one.object, Committer)]
        self._committed = Committed(data_dir)
        self._indexes: dict[str, StateIndex | CollectionIndex] = {}
        members: list[StateGroup | CollectionGroup | SinkGroup] = []
        self._kept = KeptRows(topology.spout.id, topology.spout.object)
        for one in declarations({**topology.states, **topology.kept}, topology.sinks):
            table = self._checked(data_dir, one)
            if isinstance(table, SinkTable):
                members.append(SinkGroup(table))
            else:
                members.append(state_group(table, self._loaded(data_dir, table, before, committed)))
            members[-1].component = one.component
        self._targets, self._members = Targets(members), members

    def _checked(self, data_dir: Path, one: DeclaredTable) -> KeyedState | SinkTable:
        """Return the declaration; raise `StateError` unless the table has the columns that the code declares."""
        for ref in one.refs[:1]:
            if ref.uri in self._committed.kinds:
                found = one.checked(open_table(data_dir, ref))
                return one.stored(found) if isinstance(one.table, KeyedState) else one.table
        return one.table

    def _loaded(self, data_dir: Path, state: KeyedState, before: int, committed: int) -> StateIndex | CollectionIndex:
        index = self._indexes[state.name] = state_index(state)
        uri = TableRef(CHANGES, state.name).uri
        if uri in self._committed.kinds:
            if before < self._committed.lives[uri][0]:
                return index  # the table begins later, so it is empty
            rows = read_state(data_dir, state.name, before, committed, whole=True)
            rows = rows.append_column(TXID, pa.repeat(pa.scalar(before, TXID.type), rows.num_rows))
            index.load(rows.append_column(PREV, pa.nulls(rows.num_rows, pa.struct(stored_fields(state)))))
            if isinstance(index, CollectionIndex):
                index.set_bound(read_bound(data_dir, state.name, before, committed))
        return index

    def prefetch(self, first: int, last: int) -> None:
        """Read the recorded rows of txids `first` to `last` at once."""
        self._committed.read(first, last)

    def commit(self, program: Program, txid_input: TxidInput, processed: Processed) -> dict[str, int] | ErrorRow:
        """Run the commit phase of a processed txid; return the numbers of tuples emitted, or the error row.

        `rows` returns its rows until `follow` is called.
        """
        txid = txid_input.attempt.txid
        self._targets.begin(txid, txid_input.stamp)
        resources = CommitHandles(txid, self._targets)
        run = CommitRun(program, txid_input, processed.cargo, resources)
        try:
            run.run()
            self._kept.write(txid_input.document, resources)
            for one in self._members:
                one.end_txid(txid)
        except CommitFailed as failure:
            self._caught(failure.__cause__ or failure)
            return failure.row
        except TxstormError as error:
            self._caught(error.__cause__ or error)
            return ErrorRow("state", 0, "other", type(error).__name__, str(error), "", "")
        return run.counts

    def rows(self, txid: int) -> dict[str, Rows]:
        """Return, by table, the recorded rows of `txid` and those written by `commit`.

        Tables that begin later, or were dropped before, are omitted because there is no record to compare with, as are
        dropped tables that the code no longer declares.
        """
        replayed = {one.ref.uri: one.changes(txid, txid) for one in self._members}
        uris = dict.fromkeys([*replayed, *self._committed.kinds])
        lives = {uri: self._committed.lives.get(uri, (0, None)) for uri in uris}
        right = [
            uri
            for uri, (since, until) in lives.items()
            if since < txid and (until is None or (txid <= until and uri in replayed))
        ]
        declared = {one.ref.uri: one.keys.names for one in self._members if not isinstance(one, SinkGroup)}
        keys = {**declared, **self._committed.kinds}
        return {uri: Rows(self._committed.of(uri, txid), replayed.get(uri), keys.get(uri)) for uri in right}

    def not_reproduced(self, rows: Mapping[str, Rows]) -> str | None:
        """Return why a transaction with these rows need not give them again; see `Committer`."""
        changes = {uri.partition("/")[2]: one.committed for uri, one in rows.items() if one.committed is not None}
        return next(filter(None, (one.not_reproduced(changes) for one in self._committers)), None)

    def follow(self, txid: int) -> None:
        """Undo `commit` and apply the recorded changes of `txid` to the states."""
        for one in self._members:
            one.drop_from(txid)
        for name, index in self._indexes.items():
            rows = self._committed.of(TableRef(CHANGES, name).uri, txid)
            if rows is not None and rows.num_rows:
                index.load(rows)


class Committed:
    """Rows written by the recorded run, read one range of txids at a time.

    Attributes:
        kinds: table → its key columns; None for a sink.
        lives: table → the txid after which it begins, and the last txid for which it is complete if it was dropped.
    """

    def __init__(self, data_dir: Path) -> None:
        self._readers: dict[str, Callable[[int, int], pa.Table]] = {}
        self.kinds: dict[str, Sequence[str] | None] = {}
        for name in list_states(data_dir):
            if keeps_no_changes(data_dir, name):
                raise no_changes(name)
            self.kinds[TableRef(CHANGES, name).uri] = key_names(data_dir, name)
            self._readers[TableRef(CHANGES, name).uri] = partial(read_changes, data_dir, name)
        for name in list_sinks(data_dir):
            self.kinds[TableRef(SINK, name).uri] = None
            self._readers[TableRef(SINK, name).uri] = partial(read_sink, data_dir, name)
        opened = [open_table(data_dir, table_ref(uri)) for uri in self.kinds]
        self.lives = {one.ref.uri: (one.since(), one.until()) for one in opened}
        self._read: Mapping[str, pa.Table] = {}
        self._range = range(0)

    def read(self, first: int, last: int) -> None:
        """Read the rows of txids `first` to `last`."""
        self._read = {uri: reader(first, last) for uri, reader in self._readers.items()}
        self._range = range(first, last + 1)

    def of(self, uri: str, txid: int) -> pa.Table | None:
        """Return the rows of one txid; None if there is no such table."""
        if uri not in self.kinds:
            return None
        if txid not in self._range:
            self.read(txid, txid)
        rows = self._read[uri]
        return rows.filter(pc.equal(rows[TXID.name], txid))
