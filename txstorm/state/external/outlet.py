"""An outlet: its rows are staged as those of a sink, and handed to its writer in P7; the mark decides every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.outlets import Outlet
from txstorm.state.external.external import External
from txstorm.state.external.mark_rules import Marked, reached
from txstorm.state.sinks import SinkGroup
from txstorm.storage.rows.schema import sink_schema
from txstorm.storage.tables.intent import OUTLET, Intent, IntentTable
from txstorm.storage.tables.table import Owner, TableRef


class StoredOutlet(External):
    """One outlet: its declaration and its writer."""

    def __init__(self, data_dir: Path, owner: Owner, component: str, outlet: Outlet) -> None:
        super().__init__(data_dir, component, TableRef(OUTLET, outlet.name))
        self._outlet = outlet
        self._owner = owner
        writer, nothing = outlet.writer, sink_schema(outlet.table).empty_table()
        self._label = f"outlet {outlet.name!r}"
        self._marked: Marked[pa.Table] = Marked(
            self._label, "its target", self.ref.uri, owner, writer.published, writer.publish, nothing
        )

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Open the writer, check that mark and ledger belong together, make `epoch` the mark's; see `Marked.lead`.

        Raises:
            AwayError, BlockedError: the target does not answer.
            InputError: the target is missing, or the settings do not lead to it.
        """
        self.make_directory()
        with reached(self._label, "open it"):
            self._outlet.writer.open(self._outlet.name, self._owner.topology, self._owner.incarnation)
        self.last = self._marked.lead(epoch, committed, recorded, live)

    def _put(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        self._marked.put(pq.read_table(pa.BufferReader(staged)), table, intent, epoch)

    def group(self) -> SinkGroup:
        """Fresh unpublished rows."""
        return SinkGroup(self._outlet.table)

    def close(self) -> None:
        """Let go of the writer's connections."""
        self._outlet.writer.close()
