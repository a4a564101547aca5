"""Upkeep beside the commits of a simulated world: compaction, gathering small files, removing superseded ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from txstorm.simulation import schedule as kinds
from txstorm.simulation.expected import frontier
from txstorm.storage.tables.as_of import SUPERSEDED_MILLIS, Versions
from txstorm.storage.tables.exchange import Exchange
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES

if TYPE_CHECKING:
    from txstorm.simulation.delta.tables import Row, SimTable
    from txstorm.simulation.process import Process


def compaction(process: Process, ref: TableRef) -> tuple[SimTable, Exchange] | None:
    """What brings a state up to date; None when nothing has changed."""
    changes = TableRef(CHANGES, ref.name)
    kept, later = process.place.table(process.owner, ref), process.place.table(process.owner, changes)
    base, as_of = kept.last_txid(), min(process.last[changes.uri], later.last_txid())
    if base >= as_of:
        return None
    rows = [row for row in _seen(later) if row[0] <= as_of]
    partitions = range(process.world.schedule.partitions)
    start = [next((row[2] for row in rows if row[1] == part), 0) for part in partitions]
    ends = frontier(rows, start, changes.uri)
    made = tuple((as_of, part, 0, end) for part, end in enumerate(ends) if end > start[part])
    removes = [file.path for file in kept.log.files()]
    return kept, Exchange([process.compacted(kept.stored, made)], removes, 0, base, as_of)


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


def exchanged(process: Process, table: SimTable, files: Exchange) -> bool:
    """Put the files of a compaction in their place; what leaves the table is superseded or stays."""
    uri = table.ref.uri
    versions = process.versions.pop(uri, None) or Versions(table, 0)
    about = versions.decide(files.removes, 0, 0, 0, stays=process.world.below(3) == 0)
    done = table.exchange(replace(files, about=about), process.books.epoch)
    if done:
        versions.made(table, about)
        process.versions[uri] = versions
    return done


def thin(process: Process) -> None:
    """Remove the files of superseded versions, at once: here nobody has just opened one."""
    for uri, versions in process.versions.items():
        rows, judge = process.world.tables[uri].rows, process.world.judge
        while versions.is_due(SUPERSEDED_MILLIS):
            for path in versions.due(SUPERSEDED_MILLIS):
                process.world.reads(process, "thin", uri)
                if rows.pop(path, None) is not None:
                    process.world.count(kinds.THINNING, f"{process} removes {path}")
                    judge.removed(process.world.tables[uri], path)
            versions.removed()
