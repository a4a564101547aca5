"""The part of P0 that needs no code of the topology: check, raise the epochs, check again, roll forward."""

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
from txstorm.state.external.registry import waits_for_code
from txstorm.storage.tables.directory import TableDirectory, placed
from txstorm.storage.tables.history import history_rows
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import Intent

log = logging.getLogger("txstorm.open")
Decided = tuple[Intent, Mapping[str, int]]
"""A decided group, and the versions that its tables have it in."""


def check(where: Path | TableDirectory, books: Books, identity: Identity) -> None:
    """Check, without writing, that everything is there and belongs together; called before `take_over`.

    Raises:
        LedgerCorrupt, TableCorrupt, DataDirectoryError: what is not.
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
            # Nothing fences yet who led before: what it commits meanwhile is in the tables and not in what was read.
            before, standing = standing, books.standing()
            if standing == before:
                raise
    placed(where).check_history()
    check_kept(where, standing.intents)


def take_over(where: Path | TableDirectory, books: Books, identity: Identity) -> list[Decided]:
    """Raise the epoch of the ledger and of every table, and publish what is decided.

    Returns the groups that are published to all their tables, and wait for maps or outlets.

    Raises:
        FencedError: a newer coordinator has taken over, or a rewind come after `identity` was read.
        TableCorrupt, BlockedError: a table is not as it has to be, or cannot be written.
    """
    epoch = books.raise_epoch()
    faults.point("p0.epoch")
    _check_not_rewound(books, identity)
    owner = TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
    standing = books.standing()  # ours alone from here on: whoever led before is fenced
    tables = raise_epochs(where, standing.tables, owner, epoch)
    check_raised(tables, standing.tables, standing.live)
    mark_dropped(where, books.dropped().tables, owner, epoch)
    faults.point("p0.raised")
    return roll_tables_forward(where, books, standing.live)


def _check_not_rewound(books: Books, identity: Identity) -> None:
    """Nothing fences a rewind until the epoch is raised: who read the ledger and slept would go on before it.

    One that is carried out has left another timeline; one that is only decided is carried out by the next start.
    """
    found, rewind = books.identity(), books.rewind()
    timeline = rewind.timeline if rewind is not None else found.timeline if found is not None else identity.timeline
    if timeline != identity.timeline:
        msg = (
            f"topology {identity.topology!r}: expected timeline {identity.timeline}, as it was read at the start, "
            f"found {timeline} in the ledger: it was rewound meanwhile; start again"
        )
        raise FencedError(msg)


def check_kept(where: Path | TableDirectory, intents: Sequence[Intent]) -> None:
    """The files of the last intents must be as they were decided: what a power cut took shows here (R14)."""
    for intent in intents:
        for table in intent.tables:
            for staged in table.files:
                placed(where).check_staged(table.uri, staged)


def roll_tables_forward(where: Path | TableDirectory, books: Books, live: Sequence[Intent]) -> list[Decided]:
    """Publish the decided groups that are `live`: no spout, no bolt, no second look at the source (R1).

    Groups are completed up to the first one with maps or outlets. It and later ones are returned, with the versions of
    their tables: those come when the topology's stores are known.
    """
    waiting: list[Decided] = []
    for intent in live:
        books.check_lease()
        log.info("rolling txids %s-%s forward", intent.first, intent.last)
        versions = roll_forward(where, intent, books.epoch)
        if waiting or waits_for_code(intent):
            waiting.append((intent, versions))
        else:
            complete(books, intent, versions)
    return waiting


def complete(books: Books, intent: Intent, versions: Mapping[str, int]) -> None:
    """P8 of a group that was rolled forward."""
    known = books.tables()
    tables = {**known, **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}
    old = [Delete(meta_path(txid)) for txid in books.metas() if txid < intent.last]
    books.complete(intent.last, tables, history_rows(intent, versions), old)
