"""How far a decided group has come: which of its tables hold it, and which can be reached at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from txstorm.clients.delta.handle import is_table
from txstorm.errors import FencedError, TxstormError
from txstorm.recovery.table_checks import table_ref, tables_of
from txstorm.storage.tables.intent import OUTSIDE, Intent, IntentTable
from txstorm.storage.tables.table import DeltaTableState, Owner, TableRef

ELSEWHERE = "it is in a store of the user's own, which the topology's code alone knows how to reach"


@dataclass(frozen=True)
class Publication:
    """One table that an intent touches.

    Attributes:
        uri: the table.
        published: whether it holds the group; None when that cannot be told.
        cause: why it cannot be told, or why nothing can be there.
    """

    uri: str
    published: bool | None
    cause: str = ""


def publications(data_dir: Path, intent: Intent) -> list[Publication]:
    """Per table of `intent`, in the order in which they are published, whether it holds the group. Changes nothing."""
    owner = Owner(intent.topology, intent.incarnation, intent.timeline)
    return [_publication(data_dir, owner, table, intent) for table in intent.tables]


def raise_reachable(data_dir: Path, recorded: Iterable[str], owner: Owner, epoch: int) -> dict[str, str]:
    """Take over all tables that can be reached; returns table → cause for the others.

    Raises:
        FencedError: a newer coordinator leads a table.
    """
    names = list(recorded)
    unreached = {uri: ELSEWHERE for uri in names if table_ref(uri).kind in OUTSIDE}
    for ref in tables_of(names):
        try:
            DeltaTableState.open(data_dir, owner, ref).raise_epoch(epoch)
        except FencedError:
            raise
        except (TxstormError, OSError) as error:
            unreached[ref.uri] = str(error)
    return unreached


def _publication(data_dir: Path, owner: Owner, table: IntentTable, intent: Intent) -> Publication:
    if table.kind in OUTSIDE:
        return Publication(table.uri, None, ELSEWHERE)
    if not is_table(data_dir / table.uri):
        return Publication(table.uri, False, "there is no table")
    try:
        last = DeltaTableState.open(data_dir, owner, TableRef(table.kind, table.name)).last_txid()
    except (TxstormError, OSError) as error:
        return Publication(table.uri, None, str(error))
    return Publication(table.uri, last >= intent.last)
