"""Take-over (P0) of the tables, without the topology's code: check them, raise their epochs, roll groups forward.

It also determines how far a decided group is published: which of its tables contain it, and which are reachable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from txstorm import faults
from txstorm.clients.delta.log import is_table
from txstorm.errors import FencedError, TableCorrupt, TxstormError
from txstorm.storage.tables.directory import TableDirectory, check_there, placed
from txstorm.storage.tables.identity import TableRef, TopologyIdentity, tables_of
from txstorm.storage.tables.intent import Intent, IntentTable, is_outside
from txstorm.storage.tables.table import DeltaTableState
from txstorm.storage.tables.table_log import TransactionalTable


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
        _check_txid(table, recorded, live)


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
    are marked, the next one marks them. A table whose directory has been removed is skipped.

    Args:
        where: the data directory.
        dropped: table (``changes/…``, ``sinks/…``) → the last txid it is valid for.
        owner: the topology that the tables belong to.
        epoch: the epoch of this coordinator.

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


def check_raised(tables: Iterable[TransactionalTable], recorded: Mapping[str, int], live: Sequence[Intent]) -> None:
    """Repeat the txid check of `check_tables` after fencing: no other coordinator can publish to `tables` any more.

    `tables` is the result of `raise_epochs`, which fenced the previous coordinator, so they are not read again.

    Raises:
        TableCorrupt: a table is at an unexpected txid.
    """
    for table in tables:
        _check_txid(table, recorded, live)


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
    return {
        table.uri: _publish(place, owner, number, table, intent, epoch)
        for number, table in enumerate(intent.tables, start=1)
        if not table.outside
    }


def _publish(
    place: TableDirectory, owner: TopologyIdentity, number: int, table: IntentTable, intent: Intent, epoch: int
) -> int:
    found = place.table(owner, TableRef(table.kind, table.name))
    found.check_staged(table)
    return found.publish(number, table, intent, epoch)


def _check_txid(checked: TransactionalTable, recorded: Mapping[str, int], live: Sequence[Intent]) -> None:
    uri = checked.ref.uri
    if uri not in recorded:
        return  # base table of a state, compacted from its change table
    allowed, found = {recorded[uri]}, checked.last_txid()
    for intent in live:
        for table in intent.tables:
            if table.uri == uri and table.previous in allowed:
                allowed.add(intent.last)
    if found not in allowed:
        raise TableCorrupt(
            f"table {uri}: the ledger expects it at txid {' or '.join(map(str, sorted(allowed)))}, found {found}; "
            "ledger and tables are not from the same moment: restore both from the same copy"
        )


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
    owner = TopologyIdentity(intent.topology, intent.incarnation, intent.timeline)
    return [_publication(data_dir, owner, table, intent) for table in intent.tables]


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


def _publication(data_dir: Path, owner: TopologyIdentity, table: IntentTable, intent: Intent) -> Publication:
    if table.outside:
        return Publication(table.uri, None, ELSEWHERE)
    if not is_table(data_dir / table.uri):
        return Publication(table.uri, False, "there is no table")
    try:
        last = DeltaTableState.open(data_dir, owner, TableRef(table.kind, table.name)).last_txid()
    except (TxstormError, OSError) as error:
        return Publication(table.uri, None, str(error))
    return Publication(table.uri, last >= intent.last)
