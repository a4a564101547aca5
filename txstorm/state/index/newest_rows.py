"""The newest row of each key in rows of a state's tables, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from txstorm.storage.rows.forms import Key, KeyForm, ValueForm
from txstorm.storage.rows.schema import OP, PREV, REMOVED, TXID
from txstorm.storage.rows.update_rules import Stored


class GatheredRows:
    """The rows of a state, gathered from its tables in memory; implements the writing part of `DiskRows`."""

    def __init__(self, keys: KeyForm, values: ValueForm) -> None:
        self._keys, self._values = keys, values
        self.found: dict[Key, Stored] = {}

    def put_table(self, table: pa.Table) -> None:
        """Add rows of a state table, or later change rows in txid order."""
        put, removed = newest_rows(self._keys, self._values, table)
        self.found.update(put)
        for key in removed:
            self.found.pop(key, None)

    def note(self, last: int) -> None:
        """See `DiskRows`."""


def newest_rows(
    keys: KeyForm, values: ValueForm, table: pa.Table
) -> tuple[Iterable[tuple[Key, Stored]] | Mapping[Key, Stored], Iterable[Key]]:
    """Return the rows of `table` to put, and the keys to remove."""
    found, before = values.of_table(table), values.of_struct(table[PREV])
    rows = zip(keys.of_table(table), zip(found, table[TXID.name].to_pylist(), before, strict=True), strict=True)
    ops = set(table[OP.name].unique().to_pylist()) if OP.name in table.column_names else set()
    if REMOVED not in ops:
        return rows, ()
    newest = {
        key: None if op == REMOVED else row for (key, row), op in zip(rows, table[OP.name].to_pylist(), strict=True)
    }
    kept = {key: row for key, row in newest.items() if row is not None}
    return kept, [key for key, row in newest.items() if row is None]
