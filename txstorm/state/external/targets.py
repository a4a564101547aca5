"""External targets: maps with their stores, and outlets with their writers.

Both are taken over in P0 (take over) and written in P7 (publish), each guarded by the commit mark. The rows of an
outlet are staged like those of a sink, and then passed to its writer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.api.external import NON_TRANSACTIONAL, MapRow, MapState, MarkedMapBackend, Outlet
from txstorm.clients.files import secure_directories
from txstorm.state.external.map_rows import staged_rows
from txstorm.state.external.maps import MapGroup
from txstorm.state.external.mark_rules import MarkedTarget, reached
from txstorm.state.sinks import SinkGroup
from txstorm.state.unpublished import Unpublished
from txstorm.storage.rows.schema import sink_schema
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import MAP, OUTLET, STAGED, Intent, IntentTable
from txstorm.storage.tables.staging import checked_bytes


class ExternalTarget(ABC):
    """A map or outlet, with its owner, its staging directory and its external system.

    Attributes:
        component: the component that declares it.
        ref: its kind and name.
        path: its staging directory.
        last: the last txid written to it; without a commit mark, the last txid that this run knows of.
    """

    def __init__(self, data_dir: Path, component: str, ref: TableRef) -> None:
        self.component = component
        self.ref = ref
        self.path = data_dir / ref.uri
        self._data_dir = data_dir
        self.last = 0

    @property
    def keeps_rows(self) -> bool:
        """Whether it keeps what is published, so that the ledger records its last txid."""
        return True

    def make_directory(self) -> None:
        """Create the staging directory; called in P0 (take-over)."""
        secure_directories(self.path / STAGED, self._data_dir)

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the staged rows of `intent` exactly once; idempotent, so it may be repeated after any failure.

        Passes the fault points ``p7.<number>.before``, ``.written`` and ``.after``.

        Raises:
            FencedError: a newer coordinator leads the map or outlet.
            TableCorrupt: the staged rows are damaged, or the target is not at the txid that the intent expects.
            BlockedError: the external system cannot be reached, or refuses the rows.
        """
        faults.point(f"p7.{number}.before")
        self._put(checked_bytes(self.path, table.staged), table, intent, epoch)
        faults.point(f"p7.{number}.written")
        self.last = intent.last
        faults.point(f"p7.{number}.after")

    @abstractmethod
    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Take the target over in P0: check it against the ledger, and fence older coordinators.

        The arguments are those of `MarkedTarget.lead`.
        """

    def settle(self) -> None:  # noqa: B027 - most targets have nothing to do
        """Raise what user code has raised in `publish`, once the intent is completed."""

    @abstractmethod
    def close(self) -> None:
        """Close connections."""

    @abstractmethod
    def group(self) -> Unpublished[Any]:
        """Create the group that holds the target's unpublished rows."""

    @abstractmethod
    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the rows of the Parquet file `staged`, unless already written; raises the errors of `publish`."""


class StoredMap(ExternalTarget):
    """A map as an external target: its declaration and its store."""

    def __init__(self, data_dir: Path, owner: TopologyIdentity, component: str, state: MapState) -> None:
        super().__init__(data_dir, component, TableRef(MAP, state.name))
        self.state = state
        self._owner = owner

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Check that map and ledger belong together, then set the mark's epoch to `epoch`; see `MarkedTarget.lead`.

        Without a commit mark, nothing is checked.
        """
        self.last = committed
        self.make_directory()
        if (marked := self._marked()) is not None:
            self.last = marked.lead(epoch, committed, recorded, live)

    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        rows = staged_rows(staged, intent.timeline, keeps_txid=self.state.kind != NON_TRANSACTIONAL)
        if (marked := self._marked()) is not None:
            marked.put(rows, table, intent, epoch)
        else:
            with reached(f"map {self.state.name!r}", f"put txids {intent.first}-{intent.last}"):
                self.state.backend.multi_put(rows)

    def group(self) -> MapGroup:
        """Create the group that holds the target's unpublished rows."""
        return MapGroup(self.state, self._owner.timeline)

    def close(self) -> None:
        """Do nothing: the user is responsible for closing the store."""

    def _marked(self) -> MarkedTarget[Mapping[str, MapRow | None]] | None:
        backend = self.state.backend
        if not (self.state.marked and isinstance(backend, MarkedMapBackend)):
            return None
        label = f"map {self.state.name!r}"
        return MarkedTarget(label, "database", self.ref.uri, self._owner, backend.mark, backend.put_marked, {})


class StoredOutlet(ExternalTarget):
    """An outlet as an external target: its declaration and its writer."""

    def __init__(self, data_dir: Path, owner: TopologyIdentity, component: str, outlet: Outlet) -> None:
        super().__init__(data_dir, component, TableRef(OUTLET, outlet.name))
        self._outlet = outlet
        self._owner = owner
        writer, nothing = outlet.writer, sink_schema(outlet.table).empty_table()
        self._label = f"outlet {outlet.name!r}"
        self._marked: MarkedTarget[pa.Table] = MarkedTarget(
            self._label, "its target", self.ref.uri, owner, writer.published, writer.publish, nothing
        )

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Open the writer, check that mark and ledger agree, and set the mark's epoch; see `MarkedTarget.lead`.

        Raises:
            AwayError, BlockedError: the external system does not respond.
            InputError: the target does not exist, or the settings do not match it.
        """
        self.make_directory()
        with reached(self._label, "open it"):
            self._outlet.writer.open(self._outlet.name, self._owner.topology, self._owner.incarnation)
        self.last = self._marked.lead(epoch, committed, recorded, live)

    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        self._marked.put(pq.read_table(pa.BufferReader(staged)), table, intent, epoch)

    def group(self) -> SinkGroup:
        """Create the group that holds the target's unpublished rows."""
        return SinkGroup(self._outlet.table)

    def close(self) -> None:
        """Close the writer's connections."""
        self._outlet.writer.close()
