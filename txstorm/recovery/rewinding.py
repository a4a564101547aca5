"""Carrying a decided rewind out: by whoever decided it, or by the next coordinator, before it does anything else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from txstorm import faults
from txstorm.books.books import Books
from txstorm.recovery.rewind import Rewind, restore_table
from txstorm.storage.tables.directory import Place, placed

log = logging.getLogger("txstorm.rewind")


def finish_rewind(where: Path | Place, books: Books, clock: Callable[[], float] = time.time) -> Rewind | None:
    """Roll a decided rewind forward, if there is one; returns it. Called with the lease, before tables are checked.

    Raises:
        FencedError: a newer coordinator has taken over.
        TableCorrupt, BlockedError: a table cannot be restored.
    """
    if books.rewind() is None:
        return None
    books.raise_epoch()
    rewind = books.rewind()  # only from here on it is ours: another one may have carried it out meanwhile
    if rewind is None:
        return None
    log.warning("rolling the rewind to txid %s forward", rewind.txid)
    carry_out(where, books, rewind, clock)
    return rewind


def carry_out(where: Path | Place, books: Books, rewind: Rewind, clock: Callable[[], float] = time.time) -> None:
    """Restore every table, then the history, then the ledger; each step is made once, however often this is called."""
    place, now = placed(where), int(clock() * 1000)
    for number, table in enumerate(rewind.tables, start=1):
        books.check_lease()
        restore_table(place, rewind, table, books.epoch, now)
        faults.point(f"rewind.{number}.restored")
    place.append_history([row for rows in books.history().values() for row in rows])
    if rewind.row is not None:
        place.append_history([dict(rewind.row)])
    faults.point("rewind.history")
    books.rewound(rewind, dict.fromkeys(books.tables(), rewind.txid))
    faults.point("rewind.after")
    log.warning("rewound to txid %s, on timeline %s", rewind.txid, rewind.timeline)
