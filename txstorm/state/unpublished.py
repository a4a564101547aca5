"""What one task has written to a state in one txid.

What txids have written, column by column: by one call, by one txid, by a group of txids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, cast

from txstorm.errors import StateError
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


Overlay = dict[Key, Value | None]


class TaskWrites:
    """The base of handles.

    Most committers write in one call with many rows: these stay the columns they came in until they are wanted by
    key.

    Attributes:
        active: whether `finish_batch` of this task is running; set by the commit runner.
        bulk: all that the task has written, when it did so in one call.
    """

    def __init__(self, name: str, component: str, task: int, txid: int, writes: Overlay) -> None:
        self.active = False
        self.bulk: Bulk | None = None
        self.task = task
        self._name = name
        self._writes = writes
        self._olds: Overlay = {}
        self._txid = txid
        self._where = f"{component}[{task}], txid {txid}"

    @property
    def wrote(self) -> bool:
        """Whether the task has written or removed anything."""
        return self.bulk is not None or bool(self._writes)

    @property
    def writes(self) -> Overlay:
        """What this task has written: key → value, None for removed."""
        self._spread()
        return self._writes

    @property
    def olds(self) -> Overlay:
        """The values before this txid of the keys it has read, so that nobody looks them up again."""
        self._spread()
        return self._olds

    def _check_active(self) -> None:
        if not self.active:
            msg = (
                f"state {self._name!r} of {self._where} used outside finish_batch; state is read and "
                "written in finish_batch of a committer only: collect in execute, write there"
            )
            raise StateError(msg)

    def _write(self, rows: Bulk, *, distinct: bool) -> None:
        """Keep `rows`; `distinct` when no key can be there twice."""
        if distinct and rows.keys and not self.wrote:
            self.bulk = rows
        else:
            self._spread()
            self._add(rows)

    def _spread(self) -> None:
        bulk, self.bulk = self.bulk, None
        if bulk is not None:
            self._add(bulk)

    def _add(self, rows: Bulk) -> None:
        self._writes.update(zip(rows.keys, rows.values, strict=True))
        if rows.before is not None:
            self._olds.update(zip(rows.keys, rows.before, strict=True))


def with_stamp(rows: Bulk, stamp: Any) -> Bulk:
    """`rows`, whose values are those that users see, with the stamp behind them."""
    values = [(*value, stamp) for value in rows.values]
    return Bulk(
        rows.keys, values, rows.before, rows.key_arrays, (*rows.value_arrays, None) if rows.value_arrays else ()
    )
