"""An outlet: its rows are staged as those of a sink, and handed to its writer in P7; the mark decides every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm import faults
from txstorm.api.outlets import Outlet
from txstorm.state.intent import OUTLET, Intent, IntentTable
from txstorm.state.marked import Marked, reached
from txstorm.state.schema import sink_schema
from txstorm.state.sink import SinkGroup
from txstorm.state.staging import STAGED, checked_bytes
from txstorm.state.table import Owner, TableRef


class StoredOutlet:
    """One outlet: its declaration, its writer, and where it is.

    Attributes:
        last: the last txid written to it.
        recorded: whether the ledger keeps `last`; always, since an outlet has a mark.
    """

    recorded = True

    def __init__(self, data_dir: Path, owner: Owner, component: str, outlet: Outlet) -> None:
        self.component = component
        self.ref = TableRef(OUTLET, outlet.name)
        self.path = data_dir / self.ref.uri
        self.last = 0
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
            InputError: the target is missing, or the settings do not lead to it.
        """
        (self.path / STAGED).mkdir(parents=True, exist_ok=True)
        with reached(self._label, "open it"):
            self._outlet.writer.open(self._outlet.name, self._owner.topology, self._owner.incarnation)
        self.last = self._marked.lead(epoch, committed, recorded, live)

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the staged rows of `intent`, once; may be called again after any failure.

        Passes the fault points ``p7.<number>.before``, ``.written`` and ``.after``.

        Raises:
            FencedError: a newer coordinator leads this outlet.
            TableCorrupt: the staged rows are damaged, or the outlet is not where the intent expects it.
            BlockedError: the target cannot be reached, or refuses the rows.
        """
        faults.point(f"p7.{number}.before")
        data = checked_bytes(self.path, table.staged)
        self._marked.put(pq.read_table(pa.BufferReader(data)), table, intent, epoch)
        faults.point(f"p7.{number}.written")
        self.last = intent.last
        faults.point(f"p7.{number}.after")

    def group(self) -> SinkGroup:
        """Fresh unpublished rows."""
        return SinkGroup(self._outlet.table)

    def close(self) -> None:
        """Let go of the writer's connections."""
        self._outlet.writer.close()
