"""Update rules: pure functions that compute the value of a row before a txid, and the row after it.

A row records the txid that last changed it and the value before that (Storm's opaque value). So a batch may be replayed
with different content: the update starts from the value before the txid, whatever an earlier attempt has written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from txstorm.errors import StateError
from txstorm.storage.rows.forms import Value

V = TypeVar("V")


class Row(NamedTuple, Generic[V]):
    """A key's row: its value, the txid that last changed it, and the value before that.

    Attributes:
        value: the current value.
        txid: the transaction that last changed it.
        prev: the value before that transaction; None if there was no row.
    """

    value: V
    txid: int
    prev: V | None


def base(row: Row[V] | None, txid: int | None) -> V | None:
    """Return the value before `txid`: ``prev`` if the row carries `txid`, otherwise its value; None if there was none.

    If `txid` is None, return the current value. Raises `StateError` if the row carries a later txid.
    Modelled on Storm's ``OpaqueValue.get``.
    """
    if row is None:
        return None
    if txid is None:
        return row.value
    return row.prev if is_applied(row, txid) else row.value


def is_applied(row: Row[Any], txid: int) -> bool:
    """Whether `row` already carries `txid`; raises `StateError` if it carries a later one."""
    if row.txid > txid:
        raise StateError(
            f"state is ahead: expected a row of txid {txid} or earlier, got one of txid {row.txid}; another topology, "
            "or an older run of this one, wrote this table: use another state name or data directory"
        )
    return row.txid == txid


def opaque(row: Row[V] | None, txid: int, change: Callable[[V | None], V]) -> Row[V]:
    """Update a row from an opaque source, whose replays may differ: apply `change` to the value before `txid`.

    Returns the row after `txid`. Modelled on Storm's ``OpaqueValue.update``.
    """
    before = base(row, txid)
    return Row(change(before), txid, before)


def transactional(row: Row[V] | None, txid: int, change: Callable[[V | None], V]) -> Row[V]:
    """Update a row from a transactional source, whose replays are equal: skip a row that already carries `txid`.

    Returns the row after `txid`. Each key has its own txid, so a retry may skip some keys and update others.
    Modelled on Storm's ``TransactionalMap`` (storm.apache.org, "Trident state").
    """
    if row is not None and is_applied(row, txid):
        return row
    return Row(change(None if row is None else row.value), txid, None)


Stored = tuple[Value, int, Value | None]
"""Fields of a `Row` as a plain tuple, which the garbage collector stops tracking, unlike a named tuple."""


Gone = tuple[None, int, Value | None]
"""Tombstone: like `Stored`, for a key that the txid has removed."""
