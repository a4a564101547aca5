"""Registry of a run's external stores: its maps and outlets, taken over and published together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from txstorm import faults
from txstorm.api.external import MapState, Outlet
from txstorm.errors import StateError
from txstorm.state.external.targets import ExternalTarget, StoredMap, StoredOutlet
from txstorm.state.pending_table import PendingTable
from txstorm.state.unpublished import Unpublished
from txstorm.storage.tables.directory import unshared
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHECKPOINT, MAP, OUTLET, OUTSIDE, STORE, Intent, IntentTable
from txstorm.storage.upkeep.sweep import kept_by, sweep_unlogged

Patient = Callable[[Callable[[], None]], None]
"""Type of a function that makes a call and may retry it until the external system can be reached."""


def call(step: Callable[[], None]) -> None:
    """Call `step` once, without retrying if the external system cannot be reached."""
    step()


class ExternalStores:
    """All maps, outlets, stateful bolts and join stores of a run, in publication order: maps first."""

    def __init__(
        self,
        data_dir: Path,
        owner: TopologyIdentity,
        maps: Mapping[str, Sequence[MapState]],
        outlets: Mapping[str, Sequence[Outlet]] | None = None,
        managed: Sequence[ExternalTarget] = (),
    ) -> None:
        stored: list[ExternalTarget] = [
            StoredMap(data_dir, owner, component, one) for component, found in maps.items() for one in found
        ]
        stored += [
            StoredOutlet(data_dir, owner, component, one)
            for component, found in (outlets or {}).items()
            for one in found
        ]
        stored += managed
        self._stored = {one.ref.uri: one for one in stored}
        self._put: dict[str, list[tuple[int, str]]] = {uri: [] for uri in self._stored}

    def lead(
        self,
        epoch: int,
        committed: int,
        recorded: Mapping[str, int],
        live: Sequence[Intent],
        *,
        number: int = 1,
        known: Patient = call,
        check_leads: Callable[[], None] = unshared,
    ) -> None:
        """Take over all maps and outlets; see `MarkedTarget.lead`.

        Args:
            epoch: epoch of this coordinator.
            committed: the last decided txid.
            recorded: map or outlet → its last txid according to the ledger.
            live: the decided groups that are not completed.
            number: the number of the first fault point; each target adds 1.
            known: makes the call for targets that were led before, whose address is therefore known to be correct; may
                retry it.
            check_leads: raises `FencedError` unless this coordinator leads; called before a target creates files.
        """
        decided = {table.uri for intent in live for table in intent.tables}
        for place, one in enumerate(self._stored.values(), start=number):
            uri = one.ref.uri
            check_leads()
            lead = partial(one.lead, epoch, committed, recorded.get(uri), live)
            (known if uri in recorded or uri in decided else call)(lead)
            faults.point(f"p0.{place}.raised")

    def publish(self, number: int, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the staged rows of `intent` to the map or outlet named by `table`."""
        self._stored[table.uri].publish(number, table, intent, epoch)
        self._put[table.uri].append((intent.last, table.staged.path))

    def roll_forward(self, intent: Intent, epoch: int) -> None:
        """Write the rows of a decided group to all its maps and outlets; called once the topology's code is loaded."""
        for number, table in enumerate(intent.tables, start=1):
            if table.kind in OUTSIDE:
                self.publish(number, table, intent, epoch)

    def last_txids(self) -> dict[str, int]:
        """Return the last txid of each map and outlet, keyed by ``maps/…`` or ``outlets/…``.

        This is the txid of the mark; without a mark, it is the last txid known to be written.
        """
        return {uri: one.last for uri, one in self._stored.items() if one.keeps_rows}

    def groups(self) -> dict[str, Unpublished[Any]]:
        """Create the groups of unpublished rows, keyed by ``maps/…`` or ``outlets/…``."""
        return {uri: one.group() for uri, one in self._stored.items()}

    def of_kind(self, kind: str, groups: Mapping[str, Unpublished[Any]]) -> dict[str, tuple[str, Unpublished[Any]]]:
        """Map the name of each target of `kind` (map or outlet) to its component and its rows in `groups`."""
        found = {one.ref: (one.component, groups[uri]) for uri, one in self._stored.items()}
        return {ref.name: rows for ref, rows in found.items() if ref.kind == kind}

    def settle(self) -> None:
        """Raise what user code has raised while a group was published, once it is completed."""
        for one in self._stored.values():
            one.settle()

    def members(self, groups: Mapping[str, Unpublished[Any]]) -> dict[str, PendingTable]:
        """Create the pending tables, keyed by ``maps/…`` or ``outlets/…``."""
        found = ((self._stored[uri], group) for uri, group in groups.items())
        return {one.ref.uri: PendingTable(one.component, one.path, one.ref, group, one.last) for one, group in found}

    def forget(self, before: int) -> None:
        """Delete the staged files of groups that end before txid `before`, which are written and in no kept intent."""
        for uri, put in self._put.items():
            for last, path in put:
                if last < before:
                    (self._stored[uri].path / path).unlink(missing_ok=True)
            self._put[uri] = [one for one in put if one[0] >= before]

    def sweep(self, live: Sequence[Intent], epoch: int, members: Mapping[str, PendingTable]) -> list[str]:
        """Delete staged files that neither a kept intent nor this run references; return their paths."""
        removed = []
        for uri, one in self._stored.items():
            member = members.get(uri)
            kept = kept_by(live, uri) | (member.unpublished() if member else set())
            removed += [f"{uri}/{path}" for path in sweep_unlogged(one.path, epoch, kept)]
        return removed

    def close(self) -> None:
        """Close the connections of all writers."""
        for one in self._stored.values():
            one.close()


def declared_uris(
    maps: Mapping[str, Sequence[MapState]],
    outlets: Mapping[str, Sequence[Outlet]],
    managed: Collection[str] = (),
    fills: Collection[str] = (),
) -> set[str]:
    """Return the names (``maps/…``, …) of the maps, outlets, stateful bolts and filled stores of a topology."""
    uris = {TableRef(MAP, one.name).uri for found in maps.values() for one in found}
    uris |= {TableRef(CHECKPOINT, name).uri for name in managed}
    uris |= {TableRef(STORE, name).uri for name in fills}
    return uris | {TableRef(OUTLET, one.name).uri for found in outlets.values() for one in found}


def waits_for_code(intent: Intent) -> bool:
    """Whether `intent` has rows for maps or outlets, which can be written only by the topology's code."""
    return any(table.kind in OUTSIDE for table in intent.tables)


def check_declared(declared: Collection[str], live: Sequence[Intent]) -> None:
    """Raise `StateError` if `live` intents have rows for a map or outlet that the topology does not declare."""
    for intent in live:
        for table in intent.tables:
            if table.kind in OUTSIDE and table.uri not in declared:
                raise StateError(
                    f"{table.kind} {table.name!r}: txids {intent.first}-{intent.last} are decided and have rows for "
                    f"it, but the topology no longer declares it: start it once with the code that does, and the "
                    f"{table.kind}'s store"
                )
