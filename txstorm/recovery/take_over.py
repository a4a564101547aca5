"""Take-over (P0) without the topology's code: check, raise epochs, check again, roll decided groups forward.

Also how far a decided group is published: which of its tables contain it, and which can be reached.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.clients.delta.log import is_table
from txstorm.errors import FencedError, TableCorrupt, TxstormError
from txstorm.ledger.paths import meta_path
from txstorm.ledger.port import Delete
from txstorm.storage.tables.directory import TableDirectory, check_there, placed
from txstorm.storage.tables.history import history_rows
from txstorm.storage.tables.identity import TableRef, TopologyIdentity, tables_of
from txstorm.storage.tables.intent import Intent, is_outside
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import TransactionalTable

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
    check_txids(tables, standing.tables, standing.live)
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


def check_tables(  # noqa: D417 - the rest is in the text
    where: Path | TableDirectory,
    recorded: Mapping[str, int],
    incarnation: str,
    live: Sequence[Intent],
    *,
    timeline: int = 0,
    topology: str = "",
) -> None:
    """Check, without writing, that the ledger and the tables belong together.

    Called in P0 (take over) before the epoch is raised; `check_raised` repeats the check afterwards. Every table must
    be at the txid that the ledger recorded, or at the last txid of a live intent.

    Args:
        recorded: table (``changes/…``, ``sinks/…``) → last txid published to it according to the ledger.
        live: the decided intents that may not be published yet, in txid order.

    Raises:
        TableCorrupt: a table is missing, damaged, or at an unexpected txid.
        TableRefused: a table has a Delta feature that txstorm does not support.
        DataDirectoryError: a table is foreign or of another incarnation.
    """
    owner, place = TopologyIdentity(topology, incarnation, timeline), placed(where)
    for ref in tables_of(recorded):
        check_there(place, ref)
        table = place.table(owner, ref)
        table.check_writable()
        check_txids([table], recorded, live)


def raise_epochs(
    where: Path | TableDirectory, recorded: Mapping[str, int], owner: TopologyIdentity, epoch: int
) -> list[TransactionalTable]:
    """Raise the epoch of every recorded table to `epoch`; return the tables.

    `recorded`: table name in the ledger → the last txid completed in it according to the ledger.

    Raises:
        FencedError: a newer coordinator has taken over.
        TableCorrupt, DataDirectoryError, BlockedError: a table is missing, damaged, foreign, or cannot be written.
    """
    tables = []
    for number, ref in enumerate(tables_of(recorded), start=1):
        table = placed(where).table(owner, ref)
        table.raise_epoch(epoch, recorded.get(ref.uri))
        tables.append(table)
        faults.point(f"p0.{number}.raised")
    return tables


def mark_dropped(where: Path | TableDirectory, dropped: Mapping[str, int], owner: TopologyIdentity, epoch: int) -> None:
    """Mark every dropped table with the last txid it is valid for, unless it is marked already.

    The ledger records the drop first, and nothing is committed in between: if the coordinator dies before the tables
    are marked, the next one marks them. A table whose directory has been removed is skipped. `dropped`: table
    (``changes/…``, ``sinks/…``) → the last txid it is valid for.

    Raises:
        FencedError: a newer coordinator has taken over.
        TableCorrupt, DataDirectoryError, BlockedError: a table is damaged, foreign, or cannot be written.
    """
    place = placed(where)
    recorded = {ref: uri for uri in dropped for ref in tables_of([uri])}
    for number, (ref, uri) in enumerate(recorded.items(), start=1):
        if place.has(ref):
            place.table(owner, ref).drop(dropped[uri], epoch)
            faults.point(f"p0.{number}.dropped")


def check_txids(tables: Iterable[TransactionalTable], recorded: Mapping[str, int], live: Sequence[Intent]) -> None:
    """Raise `TableCorrupt` if an open table is at another txid than the ledger and the `live` intents allow.

    Repeated with the result of `raise_epochs`, as no other coordinator can publish to these tables any more.
    """
    for table in tables:
        uri, found = table.ref.uri, table.last_txid()
        if uri not in recorded:
            continue  # base table of a state, compacted from its change table
        allowed = {recorded[uri]}
        for intent in live:
            allowed |= {intent.last for one in intent.tables if one.uri == uri and one.previous in allowed}
        if found not in allowed:
            raise TableCorrupt(
                f"table {uri}: the ledger expects it at txid {' or '.join(map(str, sorted(allowed)))}, found {found}; "
                "ledger and tables are not from the same moment: restore both from the same copy"
            )


def roll_forward(where: Path | TableDirectory, intent: Intent, epoch: int) -> dict[str, int]:
    """Publish a decided group from its intent alone, without user code or source; return table → version.

    Maps and outlets are skipped: their systems are known only once the topology's code is loaded.

    Called in P0 (take over) by the coordinator of `epoch` for every live intent in txid order; idempotent.

    Raises:
        TableCorrupt: a table or a staged file is missing or damaged.
        FencedError: a newer coordinator leads a table.
        BlockedError: a table cannot be committed to.
    """
    owner, place = TopologyIdentity(intent.topology, intent.incarnation, intent.timeline), placed(where)
    versions = {}
    for number, table in enumerate(intent.tables, start=1):
        if not table.outside:
            found = place.table(owner, TableRef(table.kind, table.name))
            found.check_staged(table)
            versions[table.uri] = found.publish(number, table, intent, epoch)
    return versions


ELSEWHERE = "it is in an external store, which only the topology's code can reach"


@dataclass(frozen=True)
class Publication:
    """Publication status of one table that an intent writes to.

    Attributes:
        uri: the table.
        published: whether the table contains the group; None if unknown.
        cause: the reason why the status is unknown, or why the table cannot contain the group.
    """

    uri: str
    published: bool | None
    cause: str = ""


def publications(data_dir: Path, intent: Intent) -> list[Publication]:
    """Determine for each table of `intent`, in publication order, whether it contains the group; write nothing."""
    owner, found = TopologyIdentity(intent.topology, intent.incarnation, intent.timeline), []
    for table in intent.tables:
        published, cause = None, ""
        try:
            if table.outside:
                cause = ELSEWHERE
            elif not is_table(data_dir / table.uri):
                published, cause = False, "there is no table"
            else:
                last = DeltaTableState.open(data_dir, owner, TableRef(table.kind, table.name)).last_txid()
                published = last >= intent.last
        except (TxstormError, OSError) as error:
            cause = str(error)
        found.append(Publication(table.uri, published, cause))
    return found


def raise_reachable(data_dir: Path, recorded: Iterable[str], owner: TopologyIdentity, epoch: int) -> dict[str, str]:
    """Raise the epoch of all reachable tables; return table → error for the others.

    Raises:
        FencedError: a newer coordinator leads a table.
    """
    names = list(recorded)
    unreached = {uri: ELSEWHERE for uri in names if is_outside(uri)}
    for ref in tables_of(names):
        try:
            DeltaTableState.open(data_dir, owner, ref).raise_epoch(epoch)
        except FencedError:
            raise
        except (TxstormError, OSError) as error:
            unreached[ref.uri] = str(error)
    return unreached
