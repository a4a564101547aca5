"""Take-over (P0) without the topology's code: check, raise epochs, check again, roll decided groups forward."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.errors import FencedError, TableCorrupt
from txstorm.ledger.paths import meta_path
from txstorm.ledger.port import Delete
from txstorm.recovery.table_checks import check_raised, check_tables, mark_dropped, raise_epochs, roll_forward
from txstorm.storage.tables.directory import TableDirectory, placed
from txstorm.storage.tables.history import history_rows
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import Intent

log = logging.getLogger(__name__)
Decided = tuple[Intent, Mapping[str, int]]
"""A decided group, and table → the version that contains it."""


def check(where: Path | TableDirectory, books: Books, identity: Identity) -> None:
    """Check, without writing, that ledger, tables and staged files exist and belong together; call before `take_over`.

    Raises:
        LedgerCorrupt, TableCorrupt, DataDirectoryError: the ledger, a table or a file is missing, damaged or foreign.
        FencedError: a rewind was decided after `identity` was read.
    """
    standing = books.check()
    while True:
        try:
            check_tables(
                where,
                standing.tables,
                identity.incarnation,
                standing.live,
                timeline=identity.timeline,
                topology=identity.topology,
            )
            break
        except TableCorrupt:
            # The previous coordinator is not fenced yet: its tables may be ahead of the ledger values read earlier.
            before, standing = standing, books.standing()
            if standing == before:
                _check_not_rewound(books, identity)  # the tables of another timeline are no damage
                raise
    placed(where).check_history()
    check_kept(where, standing.intents)


def take_over(where: Path | TableDirectory, books: Books, identity: Identity) -> list[Decided]:
    """Raise the epoch of the ledger and of every table, and publish the decided groups.

    Returns the groups that are published to all their tables but still wait for maps or outlets.

    Raises:
        FencedError: a newer coordinator has taken over, or a rewind was decided after `identity` was read.
        TableCorrupt, BlockedError: a table is damaged or at an unexpected txid, or cannot be written.
    """
    epoch = books.raise_epoch()
    faults.point("p0.epoch")
    _check_not_rewound(books, identity)
    owner = TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
    standing = books.standing()  # from here on only this coordinator writes: the previous one is fenced
    tables = raise_epochs(where, standing.tables, owner, epoch)
    check_raised(tables, standing.tables, standing.live)
    mark_dropped(where, books.dropped().tables, owner, epoch)
    faults.point("p0.raised")
    return roll_tables_forward(where, books, standing.live)


def _check_not_rewound(books: Books, identity: Identity) -> None:
    """Raise `FencedError` if a rewind was decided after `identity` was read and before the epoch was raised.

    A completed rewind shows in the ledger as a new timeline; one that is only decided is completed by the next start.
    """
    found, rewind = books.identity(), books.rewind()
    timeline = rewind.timeline if rewind is not None else found.timeline if found is not None else identity.timeline
    if timeline != identity.timeline:
        raise FencedError(
            f"topology {identity.topology!r}: expected timeline {identity.timeline}, as it was read at the start, "
            f"found {timeline} in the ledger: it was rewound meanwhile; start again"
        )


def check_kept(where: Path | TableDirectory, intents: Sequence[Intent]) -> None:
    """Check that the staged files of the last intents are intact: a power cut may have lost some (R14, durability)."""
    for intent in intents:
        for table in intent.tables:
            for staged in table.files:
                placed(where).check_staged(table.uri, staged)


def roll_tables_forward(where: Path | TableDirectory, books: Books, live: Sequence[Intent]) -> list[Decided]:
    """Publish the decided groups `live` from their staged rows without running spouts or bolts (R1, recovery).

    Groups before the first one with rows for maps or outlets are completed. That group and later ones are returned with
    their table versions; they are completed once the topology's external stores are known.
    """
    waiting: list[Decided] = []
    for intent in live:
        books.check_lease()
        log.info("rolling txids %s-%s forward", intent.first, intent.last)
        versions = roll_forward(where, intent, books.epoch)
        if waiting or intent.waits_for_code:
            waiting.append((intent, versions))
        else:
            complete(books, intent, versions)
    return waiting


def complete(books: Books, intent: Intent, versions: Mapping[str, int]) -> None:
    """Complete (P8) a group that was rolled forward: record its last txid and history rows in the ledger."""
    known = books.tables()
    tables = {**known, **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}
    old = [Delete(meta_path(txid)) for txid in books.metas() if txid < intent.last]
    books.complete(intent.last, tables, history_rows(intent, versions), old)
