"""What an operator does to a topology of a simulated world: savepoints and rewinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.errors import DataDirectoryError
from txstorm.ledger.paths import savepoint_path
from txstorm.ledger.port import ABSENT, Check
from txstorm.recovery.rewind import Rewind, planned
from txstorm.recovery.rewinding import carry_out
from txstorm.simulation.delta.tables import SimRows, SimTable
from txstorm.simulation.expected import Violation
from txstorm.simulation.schedule import INCARNATION, PAUSE, TOPOLOGY
from txstorm.storage.tables.as_of import version_as_of
from txstorm.storage.tables.identity import Owner
from txstorm.storage.tables.intent import STATE

if TYPE_CHECKING:
    from txstorm.simulation.process import Process

RESTORING = 6
"""Steps of a rewind from its decision until about half of the tables are restored."""


def name_last(process: Process) -> None:
    """A savepoint of the last committed transaction; of its name there can be one only."""
    txid, path = process.books.committed(), savepoint_path(f"s{process.world.unique()}")
    if txid > process.world.judge.currtx - 1 or (
        txid < process.world.judge.currtx - 1 and process.world.leads(process)
    ):
        raise Violation(2, f"{process} takes txid {txid} for the last committed one")
    rows = [row for found in process.books.history().values() for row in found if row["txid"] == txid]
    if not rows:
        return
    where = {uri: SavedTable(_version(table, txid)) for uri, table in process.tables.items()}
    document, stamp = rows[0]["extents"], rows[0]["stamp"]
    made = Savepoint("s", TOPOLOGY, INCARNATION, process.owner.timeline, txid, document, stamp, 0, where)
    made_it = [process.books.put_if([Check(path, ABSENT)], {path: made.to_json()}) for _ in range(2)]
    if made_it != [True, False] or path not in process.world.entries.at:
        raise Violation(9, f"{process} makes {path} twice, and hears {made_it}")


def _version(table: SimTable, txid: int) -> int:
    """The version of a table that a savepoint names: of a state one that stays."""
    return version_as_of(table, txid, stays=True)[0] if table.ref.kind == STATE else table.version


def take_back(process: Process, share: float, *, asleep: bool) -> bool:
    """Take back what was committed after a txid, as `txstorm rewind`; False when nothing was.

    `asleep`: somebody wakes up meanwhile.
    """
    identity = process.lead()
    last = process.books.currtx() - 1
    if last < 1:
        return False
    txid = int(share * last)
    owner = Owner(identity.topology, identity.incarnation, identity.timeline)
    row = _row(process, identity.timeline, txid) if txid else None
    tables = tuple(
        planned(process.place.table(owner, stored.ref), txid, SimRows(process, stored))
        for stored in process.world.tables.values()
        if stored.versions
    )
    if asleep:
        process.world.arm(RESTORING, PAUSE)
    timeline = identity.timeline + 1
    decided = Rewind(TOPOLOGY, INCARNATION, timeline, process.books.epoch, txid, row, tables)
    process.books.decide_rewind(decided)
    carry_out(process.place, process.books, decided, process.world.clock)
    return True


def _row(process: Process, timeline: int, txid: int) -> dict[str, Any]:
    own = {"timeline": timeline + 1, "first": txid, "last": txid, "versions": {}}
    known = [*process.world.history, *(row for rows in process.books.history().values() for row in rows)]
    rows = [row for row in known if row["txid"] == txid]
    if not rows:  # as `history_row`: who was superseded may find that somebody else took it back
        raise DataDirectoryError(f"the history does not know txid {txid}")
    return {**rows[-1], **own}
