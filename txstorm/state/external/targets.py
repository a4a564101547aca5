"""A map in its store: taken over in P0, put in P7; every step is decided by what the mark says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from txstorm.api.external import NON_TRANSACTIONAL, MapRow, MapState, MarkedMapBackend
from txstorm.state.external.external import External
from txstorm.state.external.map_rows import staged_rows
from txstorm.state.external.maps import MapGroup
from txstorm.state.external.mark_rules import Marked, reached
from txstorm.storage.tables.intent import MAP, Intent, IntentTable
from txstorm.storage.tables.table import Owner, TableRef


class StoredMap(External):
    """One map: its declaration and its store."""

    def __init__(self, data_dir: Path, owner: Owner, component: str, state: MapState) -> None:
        super().__init__(data_dir, component, TableRef(MAP, state.name))
        self.state = state
        self._owner = owner

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Check that map and ledger belong together, then make `epoch` the map's; see `Marked.lead`."""
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
