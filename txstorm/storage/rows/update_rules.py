"""Update rules: pure functions for a row's value before a txid and the row after it.

A row remembers the txid that last changed it and the value before that (Storm's opaque value). So a batch can be
replayed with different content: the update starts from the value before the txid, whatever an earlier attempt wrote.
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
        value: the present value.
        txid: the transaction that last changed it.
        prev: the value before that transaction; None if there was no row.
    """

    value: V
    txid: int
    prev: V | None


def base(row: Row[V] | None, txid: int | None) -> V | None:
    """Return the value before `txid`: ``prev`` if the row carries `txid`, else its value; None if there was none.

    With a `txid` of None, return the present value. Raises `StateError` if the row carries a later txid.
    Source: Storm's ``OpaqueValue.get``.
    """
    if row is None:
        return None
    if txid is None:
        return row.value
    return row.prev if is_applied(row, txid) else row.value


def is_applied(row: Row[Any], txid: int) -> bool:
    """Whether `row` already carries `txid`; raises `StateError` if it carries a later one."""
    if row.txid > txid:
        msg = (
            f"state is ahead: expected a row of txid {txid} or earlier, got one of txid {row.txid}; another topology, "
            "or an older run of this one, wrote this table: use another state name or data directory"
        )
        raise StateError(msg)
    return row.txid == txid


def opaque(row: Row[V] | None, txid: int, change: Callable[[V | None], V]) -> Row[V]:
    """Return the row after `txid` if replays may differ: `change` is applied to the value before `txid`.

    Source: Storm's ``OpaqueValue.update``.
    """
    before = base(row, txid)
    return Row(change(before), txid, before)


def transactional(row: Row[V] | None, txid: int, change: Callable[[V | None], V]) -> Row[V]:
    """Return the row after `txid` if all replays are equal: a row that already carries `txid` is left unchanged.

    Each key has its own txid, so a retry may skip some keys and update others.
    Source: Storm's ``TransactionalMap`` (storm.apache.org, "Trident state").
    """
    if row is not None and is_applied(row, txid):
        return row
    return Row(change(None if row is None else row.value), txid, None)


Stored = tuple[Value, int, Value | None]
"""The fields of a `Row` as a plain tuple, which the garbage collector soon stops tracking."""


Gone = tuple[None, int, Value | None]
"""As `Stored`, for a key that the txid removed."""
