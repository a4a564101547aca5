"""The files that a compaction, or gathering small ones, writes beside the commits of a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstorm.state.exchange import Exchange
from txstorm.state.intent import CHANGES
from txstorm.state.owner import TableRef
from txstorm.testing.simulation.content import frontier

if TYPE_CHECKING:
    from txstorm.testing.simulation.process import Process
    from txstorm.testing.simulation.tables import Row, SimTable


def compaction(process: Process, ref: TableRef) -> tuple[SimTable, Exchange] | None:
    """What brings a state up to date; None when nothing has changed."""
    changes = TableRef(CHANGES, ref.name)
    kept, later = process.place.table(process.owner, ref), process.place.table(process.owner, changes)
    base, as_of = kept.last_txid(), min(process.last[changes.uri], later.last_txid())
    if base >= as_of:
        return None
    partitions = process.world.schedule.partitions
    ends = frontier([row for row in _seen(later) if row[0] <= as_of], partitions, changes.uri)
    rows = tuple((as_of, part, 0, end) for part, end in enumerate(ends))
    removes = [file.path for file in kept.log.files()]
    return kept, Exchange([process.compacted(kept.stored, rows)], removes, 0, base, as_of)


def gathering(process: Process, ref: TableRef) -> tuple[SimTable, Exchange] | None:
    """What puts the files of a table together; None when there are fewer than two."""
    table = process.place.table(process.owner, ref)
    files = [(min(table.stored.rows[one.path]), one.path) for one in table.log.files()]
    paths = [path for _, path in sorted(files)]
    if len(paths) < 2:
        return None
    rows = tuple(sorted(row for path in paths for row in table.stored.rows[path]))
    return table, Exchange([process.compacted(table.stored, rows)], paths, 0)


def _seen(table: SimTable) -> list[Row]:
    return sorted(row for file in table.log.files() for row in table.stored.rows[file.path])
