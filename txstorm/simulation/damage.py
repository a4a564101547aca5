"""Damage injected between runs, such as foreign or outdated tables; the next start must be refused before any write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

from txstorm.books.books import DECIDED
from txstorm.clients.delta.log import FOREIGN
from txstorm.errors import DataDirectoryError, LedgerCorrupt, StateError, TableCorrupt
from txstorm.ledger import paths as names
from txstorm.simulation import schedule as kinds
from txstorm.simulation.delta.tables import CHECKPOINTED, Stored, Version
from txstorm.simulation.expected import Violation
from txstorm.storage.tables.intent import SINK
from txstorm.storage.tables.table_log import COMMITTED

PATIENCE = 2000
"""Maximum number of choices of a lane until a start has refused."""

if TYPE_CHECKING:
    from txstorm.simulation.world import World


def damage(world: World) -> None:
    """End all processes, damage a table, check that a start is refused, and restore the table."""
    at, all_tables = world.entries.at, list(world.tables.values())
    stored = all_tables[world.below(len(all_tables))]
    if names.TABLES not in at or DECIDED in at or not stored.versions:
        return
    if stored.uri not in world.code or stored.uri.replace("state/", "changes/") not in _recorded(world):
        return  # dropped tables are not checked, nor those that have only been created
    before = copy(stored)
    stored.versions, stored.rows = list(stored.versions), dict(stored.rows)
    first = world.below(len(DAMAGES))
    done = (one(world, stored) for one in (*DAMAGES[first:], *DAMAGES[:first]))
    what = next(filter(None, done), None)  # not every kind of damage applies to every table
    if what is not None:
        for process in list(world.processes):
            world.ended(process, "is stopped")
        world.count(kinds.DAMAGE, f"{stored.uri} {what}")
        with world.calm():
            _try(world, f"{stored.uri} {what}")
    vars(stored).update(vars(before))


def refused(world: World, what: str) -> None:
    """Check that a start is refused if the code lacks a recorded table; do nothing if no table is recorded."""
    gone = _recorded(world).keys() - set(world.code) - world.drop if names.TABLES in world.entries.at else set()
    if gone and DECIDED not in world.entries.at:
        for process in list(world.processes):
            if not process.is_frozen:
                world.ended(process, "is stopped")
        if not world.processes:
            world.count(kinds.LEFT_OUT, what)
            with world.calm():
                _try(world, what)


def _try(world: World, what: str) -> None:
    process, sizes = world.process("c"), [len(one.versions) for one in world.tables.values()]
    entries = world.entries.at.copy()
    world.entries.holder = None
    refusals: list[Exception] = []

    def start() -> None:
        try:
            process.open()
        except (TableCorrupt, DataDirectoryError, LedgerCorrupt, StateError) as error:
            refusals.append(error)

    lane = process.lanes.start(start, "start")
    world.lets_run(PATIENCE, lambda: not lane.is_alive())
    if not refusals:
        raise Violation(8, f"{what}, and {process} leads")
    world.ended(process, f"refuses to start: {refusals[0]}")
    if entries != world.entries.at or sizes != [len(one.versions) for one in world.tables.values()]:
        raise Violation(8, f"{what}, and {process} has written before it noticed")


def _foreign(world: World, stored: Stored) -> str | None:
    """Replace a table with one from another data directory."""
    there, what = stored.properties, ("incarnation", "format")[world.below(2)]
    stored.properties = {**there, f"txstorm.{what}": "other"}
    return f"has another {what}"


def _stranger(world: World, stored: Stored) -> str | None:
    """Replace a table with one that txstorm did not create."""
    stored.properties = {}
    return "is none of txstorm"


def _missing(world: World, stored: Stored) -> str | None:
    if stored.ref.uri not in _recorded(world):
        return None
    stored.versions.clear()
    return "is missing"


def _behind(world: World, stored: Stored) -> str | None:
    """Replace a table with a copy older than the ledger."""
    recorded, app = _recorded(world).get(stored.uri, 0), world.judge.txid_app(stored)
    older = [number for number, one in enumerate(stored.versions) if one.apps.get(app, recorded) < recorded]
    if not older:
        return None
    del stored.versions[older[-1] + 1 :]
    return "is of an earlier moment"


def _ahead(world: World, stored: Stored) -> str | None:
    """Replace a table with a copy newer than the ledger."""
    app, last = world.judge.txid_app(stored), stored.versions[-1]
    if stored.uri not in _recorded(world) or app not in last.apps:
        return None
    stored.versions[-1] = last._replace(apps={**last.apps, app: last.apps[app] + 1000})
    return "is of a later moment"


def _torn(world: World, stored: Stored) -> str | None:
    """Truncate a log entry to zero length; the entries before and after it reveal the gap."""
    version = len(stored.versions) - 1
    since = version - version % CHECKPOINTED
    for number in range(since + 1, version):
        info = stored.versions[number].info
        before, after = (_same(stored.versions[one].info, info) for one in (number - 1, number + 1))
        if info.get("kind") == COMMITTED and before and after:
            stored.versions[number] = Version({}, stored.versions[number].apps, stored.versions[number].files)
            return "has lost an entry of its log"
    return None


def _same(found: Mapping[str, Any], info: Mapping[str, Any]) -> bool:
    return "last" in found and found.get("timeline") == info.get("timeline")


def _written(world: World, stored: Stored) -> str | None:
    """Change rows of a state, as another program might."""
    if stored.ref.kind == SINK:
        return None
    last = stored.versions[-1]
    stored.versions[-1] = last._replace(info={**last.info, FOREIGN: "DELETE"})
    return "was changed by another writer"


def _unstaged(world: World, stored: Stored) -> str | None:
    """Remove a staged file that a kept intent references, as a power failure might."""
    kept = world.entries.below.get(names.INTENTS, {})
    intents = [world.values.decode(entry.value, "") for _, entry in sorted(kept.items())]
    paths = [table["staged"]["path"] for one in intents for table in one["tables"] if table["uri"] == stored.uri]
    if not paths:
        return None
    del stored.rows[paths[world.below(len(paths))]]
    return "has lost a staged file"


def _recorded(world: World) -> Mapping[str, int]:
    found: Mapping[str, int] = world.values.decode(world.entries.at[names.TABLES].value, "")
    return found


DAMAGES: tuple[Callable[[World, Stored], str | None], ...] = (
    *(_torn, _torn, _torn),  # seldom possible
    _written,
    _foreign,
    _unstaged,
    _stranger,
    _behind,
    _missing,
    _ahead,
)
