"""A map in its store: taken over in P0, put in P7; every step is decided by what the mark says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from txstorm import faults
from txstorm.api.maps import NON_TRANSACTIONAL, MapRow, MapState, MarkedMapBackend
from txstorm.state.intent import MAP, Intent, IntentTable
from txstorm.state.maprows import staged_rows
from txstorm.state.maps import MapGroup
from txstorm.state.marked import Marked, reached
from txstorm.state.staging import STAGED, checked_bytes
from txstorm.state.table import Owner, TableRef


class StoredMap:
    """One map: its declaration, its store, and where it is.

    Attributes:
        last: the last txid put to it.
        recorded: whether the ledger keeps `last`; only of a map with a mark.
    """

    def __init__(self, data_dir: Path, owner: Owner, component: str, state: MapState) -> None:
        self.state = state
        self.component = component
        self.ref = TableRef(MAP, state.name)
        self.path = data_dir / self.ref.uri
        self.last = 0
        self.recorded = state.marked
        self._owner = owner

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Check that map and ledger belong together, then make `epoch` the map's; see `Marked.lead`."""
        self.last = committed
        (self.path / STAGED).mkdir(parents=True, exist_ok=True)
        if (marked := self._marked()) is not None:
            self.last = marked.lead(epoch, committed, recorded, live)

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Put the staged rows of `intent`, once; may be called again after any failure.

        Passes the fault points ``p7.<number>.before``, ``.written`` and ``.after``.

        Raises:
            FencedError: a newer coordinator leads this map.
            TableCorrupt: the staged rows are damaged, or the map is not where the intent expects it.
            BlockedError: the store cannot be reached, or refuses the rows.
        """
        faults.point(f"p7.{number}.before")
        keeps_txid = self.state.kind != NON_TRANSACTIONAL
        rows = staged_rows(checked_bytes(self.path, table.staged), intent.timeline, keeps_txid=keeps_txid)
        if (marked := self._marked()) is not None:
            marked.put(rows, table, intent, epoch)
        else:
            with reached(f"map {self.state.name!r}", f"put txids {intent.first}-{intent.last}"):
                self.state.backend.multi_put(rows)
        faults.point(f"p7.{number}.written")
        self.last = intent.last
        faults.point(f"p7.{number}.after")

    def group(self) -> MapGroup:
        """Fresh unpublished rows."""
        return MapGroup(self.state, self._owner.timeline)

    def close(self) -> None:
        """Nothing to do: the store is the user's."""

    def _marked(self) -> Marked[Mapping[str, MapRow | None]] | None:
        backend = self.state.backend
        if not (self.state.marked and isinstance(backend, MarkedMapBackend)):
            return None
        label = f"map {self.state.name!r}"
        return Marked(label, "database", self.ref.uri, self._owner, backend.mark, backend.put_marked, {})
