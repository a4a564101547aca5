"""The key index: the published rows of a state by key, behind a port, and in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.state.form import Key, KeyForm, Rows, Value, ValueForm, row_arrays
from txstorm.state.schema import OP, PREV, REMOVED, TXID, in_order
from txstorm.state.semantics import Row

Stored = tuple[Value, int, Value | None]
"""The fields of a `semantics.Row` in a plain tuple: the garbage collector soon stops looking at those."""


class KeyIndex(Protocol):
    """The published rows of one state, rebuildable from its tables at any time. Keys are what users see.

    `apply` may run while another thread reads: a reader sees each key before or after it, and looks first at the
    writes of its group, so it does not matter which.
    """

    @property
    def size(self) -> int:
        """The number of keys."""

    @property
    def last_txid(self) -> int:
        """The highest txid of a row that was ever applied; 0 at first."""

    def rows(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None where there is none."""

    def apply(self, changed: Iterable[tuple[Key, Stored]], removed: Iterable[Key], last: int) -> None:
        """Take over published rows, those of keys that are gone too; `last` is the highest txid of them."""

    def scan(self) -> Iterable[tuple[Key, Row[Value]]]:
        """All keys with their rows, in no particular order."""


class MemoryIndex:
    """A `KeyIndex` in a dictionary of this process."""

    def __init__(self, state: KeyedState) -> None:
        self._keys = KeyForm(state)
        self._values = ValueForm(state)
        self._rows: dict[Key, Stored] = {}
        self._last_txid = 0

    @property
    def size(self) -> int:
        """The number of keys."""
        return len(self._rows)

    @property
    def last_txid(self) -> int:
        """The highest txid of a row that was ever loaded or applied; 0 at first."""
        return self._last_txid

    def rows(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None where there is none."""
        return list(map(self._rows.get, keys))

    def scan(self) -> Iterable[tuple[Key, Row[Value]]]:
        """All keys with their rows, as of the call."""
        return [(key, Row._make(row)) for key, row in list(self._rows.items())]

    def apply(self, changed: Iterable[tuple[Key, Stored]], removed: Iterable[Key], last: int) -> None:
        """Take over published rows, those of keys that are gone too; `last` is the highest txid of them."""
        self._rows.update(changed)
        for key in removed:
            self._rows.pop(key, None)
        self._last_txid = max(self._last_txid, last)

    def load(self, table: pa.Table) -> None:
        """Take over the rows of a state table, or of a changes table over it.

        Called with the state table first, then with the later changes in txid order; a table may hold many txids.
        """
        if OP.name in table.column_names:
            table = in_order(table, [TXID.name])
            removed: Sequence[bool] = [op == REMOVED for op in table[OP.name].to_pylist()]
        else:
            removed = [False] * table.num_rows
        txids = table[TXID.name].to_pylist()
        values, before = self._values.of_table(table), self._values.of_struct(table[PREV])
        rows: Iterable[Stored] = zip(values, txids, before, strict=True)
        for key, row, gone in zip(self._keys.of_table(table), rows, removed, strict=True):
            if gone:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row
        self._last_txid = max(self._last_txid, max(txids, default=0))

    def to_table(self, schema: pa.Schema) -> pa.Table:
        """All rows as a table of `schema` (that of the state table), sorted by key."""
        items = list(self._rows.items())
        values, txids, before = zip(*(row for _, row in items), strict=True) if items else ((), (), ())
        rows = Rows([key for key, _ in items], values, txids, before)
        columns = row_arrays(self._keys, self._values, rows)
        return in_order(pa.table([columns[name] for name in schema.names], schema=schema), self._keys.names)
