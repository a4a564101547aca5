"""Txid ranges of the versions of a table, read from its commit infos; together they must cover the whole history."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from txstorm.clients.delta.log import is_table
from txstorm.errors import TableCorrupt
from txstorm.results.read import keeps_no_changes, list_sinks, list_states
from txstorm.storage.tables.declared import LETTERS_REF
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, SINK, STATE, TxidRecord
from txstorm.storage.tables.table import open_table


@dataclass(frozen=True, slots=True)
class TableRange:
    """The txids from `first` to `last` that a version of a table covers; the decided ones among them are in `txids`."""

    first: int
    last: int
    version: int
    txids: tuple[TxidRecord, ...]


def table_ranges(data_dir: Path) -> dict[str, list[TableRange]]:
    """Return the ranges of each table (key: its directory) on the current timeline, oldest first, as far as retained.

    Raises:
        TableCorrupt: the ranges of a table have a gap or overlap.
    """
    states = list_states(data_dir)
    refs = [TableRef(STATE if keeps_no_changes(data_dir, name) else CHANGES, name) for name in states]
    refs += [TableRef(SINK, name) for name in list_sinks(data_dir)]
    if is_table(data_dir / LETTERS_REF.uri):
        refs.append(LETTERS_REF)
    found = {ref.uri: _ranges(data_dir, ref) for ref in refs}
    for uri, ranges in found.items():
        check_tiling(uri, ranges)
    return found


def check_tiling(table: str, ranges: Sequence[TableRange]) -> None:
    """Raise `TableCorrupt` unless every range begins right after the end of the previous one."""
    for before, after in pairwise(ranges):
        if after.first != before.last + 1 or after.last < after.first:
            msg = (
                f"table {table}: version {before.version} ends with txid {before.last}, but version {after.version} "
                f"holds {after.first} to {after.last}; somebody else has written to it: restore it from a copy"
            )
            raise TableCorrupt(msg)


def _ranges(data_dir: Path, ref: TableRef) -> list[TableRange]:
    found = [
        TableRange(info["first"], info["last"], version, tuple(map(TxidRecord.from_json, info["txids"])))
        for version, info in open_table(data_dir, ref).commits()
    ]
    return found[::-1]
