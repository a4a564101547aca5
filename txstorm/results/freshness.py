"""Consistency checks before every read: no table is missing, foreign, or older than the ledger."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from txstorm.errors import TableCorrupt
from txstorm.storage.tables.directory import check_there, placed
from txstorm.storage.tables.identity import TopologyIdentity, check_owner, tables_of
from txstorm.storage.tables.table import open_table


def check_not_behind(
    data_dir: Path, owner: TopologyIdentity, recorded: Mapping[str, int], names: Collection[str] | None = None
) -> tuple[int, int]:
    """Check that no table is older than the ledger, read earlier; return the newest timeline and txid of any table.

    Beside a live run a table may be ahead, or on a later timeline, if a run or a rewind was faster than the reader.
    `recorded`: table (``changes/…``, ``sinks/…``) → last txid published according to the ledger; of these only `names`
    are checked.

    Raises:
        TableCorrupt: a table is missing, damaged, or older than the ledger.
        DataDirectoryError: a table is foreign or of another incarnation.
    """
    newest = (0, 0)
    for ref in tables_of(uri for uri in recorded if names is None or uri in names):
        check_there(placed(data_dir), ref)
        table = open_table(data_dir, ref)
        check_owner(ref.uri, table.handle.properties, owner)
        # Nothing is recorded for ``state/…``: it follows ``changes/…``.
        expected, found = recorded.get(ref.uri, 0), table.last_txid()
        if (table.owner.timeline, found) < (owner.timeline, expected):
            raise TableCorrupt(
                f"table {data_dir / ref.uri}: according to the ledger it is at txid {expected} of timeline "
                f"{owner.timeline} or later, found {found} of timeline {table.owner.timeline}; ledger and tables are "
                "not from the same moment: restore both from the same copy"
            )
        newest = max(newest, (table.owner.timeline, found))
    return newest


def check_not_ahead(data_dir: Path, newest: tuple[int, int], known: tuple[int, int]) -> None:
    """Check that the tables' `newest` timeline and txid are not ahead of the ledger, read after opening the tables.

    Raises:
        TableCorrupt: the ledger is older than the tables.
    """
    if newest > known:
        raise TableCorrupt(
            f"data directory {data_dir}: its tables are at txid {newest[1]} of timeline {newest[0]}, the ledger knows "
            f"nothing after txid {known[1]} of timeline {known[0]}; they are not from the same moment: restore both "
            "from the same copy"
        )
