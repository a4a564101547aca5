"""External targets: what is committed outside of the tables, and outlets with their writers.

They are taken over in P0 (take over) and written in P7 (publish), each guarded by a commit mark if its system keeps
one. The rows of an outlet are staged like those of a sink, and then passed to its writer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.api.external import Outlet
from txstorm.clients.files import secure_directories
from txstorm.state.external.mark_rules import MarkedTarget, reached
from txstorm.state.sinks import SinkGroup, TaskSink
from txstorm.state.target import E, H, Target
from txstorm.storage.rows.schema import sink_schema
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import OUTLET, STAGED, Intent, IntentTable
from txstorm.storage.tables.staging import checked_bytes


class ExternalTarget(Target[H, E]):
    """A target in an external system. Without a commit mark, `last` is the last txid that this run knows of."""

    @property
    def keeps_rows(self) -> bool:
        """Whether it keeps what is published, so that the ledger records its last txid."""
        return True

    def make_directory(self) -> None:
        """Create the staging directory; called in P0 (take-over)."""
        secure_directories(self.path / STAGED, self.path.parent.parent)

    def meet(self, others: Sequence[ExternalTarget[Any, Any]]) -> None:
        """Look for others of the topology that have to do with this one; called once all are made."""

    @abstractmethod
    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Take the target over in P0: check it against the ledger, and fence older coordinators.

        The arguments are those of `MarkedTarget.lead`.
        """

    def _put(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        faults.point(f"p7.{number}.before")
        self._write(checked_bytes(self.path, table.staged), table, intent, epoch)
        faults.point(f"p7.{number}.written")
        faults.point(f"p7.{number}.after")

    @abstractmethod
    def _write(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the rows of the Parquet file `staged`, unless already written; raises the errors of `publish`."""

    def conclude(self) -> None:
        """Raise what user code has raised in `publish`, once the intent is completed."""

    def close(self) -> None:
        """Close connections."""


class StoredOutlet(ExternalTarget[TaskSink, pa.Table], SinkGroup):
    """An outlet as a commit target: its declaration, its writer, and its unpublished rows."""

    def __init__(self, data_dir: Path, owner: TopologyIdentity, component: str, outlet: Outlet) -> None:
        SinkGroup.__init__(self, outlet.table, TableRef(OUTLET, outlet.name))
        self.place(component, data_dir)
        self._owner = owner
        self._writer, nothing = outlet.writer, sink_schema(outlet.table).empty_table()
        self._label = f"outlet {outlet.name!r}"
        self._marked: MarkedTarget[pa.Table] = MarkedTarget(
            self._label, "its target", self.ref.uri, owner, self._writer.published, self._writer.publish, nothing
        )

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Open the writer, check that mark and ledger agree, and set the mark's epoch; see `MarkedTarget.lead`.

        Raises:
            AwayError, BlockedError: the external system does not respond.
            InputError: the target does not exist, or the settings do not match it.
        """
        self.make_directory()
        with reached(self._label, "open it"):
            self._writer.open(self.name, self._owner.topology, self._owner.incarnation)
        self.last = self._marked.lead(epoch, committed, recorded, live)

    def _write(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        self._marked.put(pq.read_table(pa.BufferReader(staged)), table, intent, epoch)

    def close(self) -> None:
        """Close the writer's connections."""
        self._writer.close()
