"""What txids have written, column by column: by one call, by one txid, by a group of txids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import cast

from txstorm.state.index.row_cache import Gone, Stored
from txstorm.storage.rows.forms import Arrays, Key, Value


@dataclass(frozen=True)
class Bulk:
    """Rows that one call wrote: distinct keys, none removed.

    Attributes:
        before: the values before the txid; None when the call has not read them.
        key_arrays, value_arrays: the same as Arrow arrays, as far as they were made.
    """

    keys: list[Key]
    values: list[Value]
    before: list[Value | None] | None
    key_arrays: Arrays
    value_arrays: Arrays


@dataclass(frozen=True)
class Ended:
    """The writes of one txid that has ended, with the values before it.

    Attributes:
        values: None for a key that is removed.
        removals: whether there may be such.
        key_arrays, value_arrays: the same as Arrow arrays, as far as they were made.
    """

    txid: int
    keys: list[Key]
    values: list[Value | None]
    before: list[Value | None]
    removals: bool = False
    key_arrays: Arrays = ()
    value_arrays: Arrays = ()

    def rows(self) -> Iterable[tuple[Key, Stored | Gone]]:
        """Every key with its row."""
        return zip(self.keys, zip(self.values, repeat(self.txid), self.before), strict=False)  # type: ignore[arg-type]


def newest(ended: Sequence[Ended]) -> dict[Key, Stored | Gone]:
    """The last row of every key that changed in `ended`, txids in their order."""
    rows: dict[Key, Stored | Gone] = {}
    for one in ended:
        rows.update(one.rows())
    return rows


def settled(ended: Sequence[Ended], rows: Mapping[Key, Stored | Gone]) -> tuple[Mapping[Key, Stored], Sequence[Key]]:
    """The newest `rows` of `ended` for an index: the keys that have a value now, and those that have none any more."""
    if any(one.removals for one in ended):
        changed = {key: row for key, row in rows.items() if row[0] is not None}
        return changed, [key for key, row in rows.items() if row[0] is None]
    return cast("Mapping[Key, Stored]", rows), ()
