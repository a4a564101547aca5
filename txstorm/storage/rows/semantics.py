"""Update rules: the value of a row before a txid, and the row after it. Pure functions.

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
    """One key's row.

    Attributes:
        value: the present value.
        txid: the transaction that last changed it.
        prev: the value before that transaction; None if there was no row.
    """

    value: V
    txid: int
    prev: V | None


def base(row: Row[V] | None, txid: int | None) -> V | None:
    """The value before `txid`: ``prev`` if the row carries `txid`, else its value; None if there was none.

    A `txid` of None asks for the present value. Raises `StateError` if the row is ahead of `txid`.
    Source: Storm's ``OpaqueValue.get``.
    """
    if row is None:
        return None
    if txid is None:
        return row.value
    return row.prev if is_applied(row, txid) else row.value


def is_applied(row: Row[Any], txid: int) -> bool:
    """Whether `row` carries `txid` already; raises `StateError` if it carries a later one."""
    if row.txid > txid:
        msg = (
            f"state is ahead: expected a row of txid {txid} or earlier, got one of txid {row.txid}; another topology, "
            "or an older run of this one, wrote this table: use another state name or data directory"
        )
        raise StateError(msg)
    return row.txid == txid


def opaque(row: Row[V] | None, txid: int, change: Callable[[V | None], V]) -> Row[V]:
    """The row after `txid` when a replay may differ: `change` is applied to the value before `txid`.

    Source: Storm's ``OpaqueValue.update``.
    """
    before = base(row, txid)
    return Row(change(before), txid, before)


def transactional(row: Row[V] | None, txid: int, change: Callable[[V | None], V]) -> Row[V]:
    """The row after `txid` when every replay is equal: a row that carries `txid` is left as it is.

    Every key is compared by its own txid, so a retry skips some keys and updates others.
    Source: Storm's ``TransactionalMap`` (storm.apache.org, "Trident state").
    """
    if row is not None and is_applied(row, txid):
        return row
    return Row(change(None if row is None else row.value), txid, None)


Stored = tuple[Value, int, Value | None]
"""The fields of a `Row` as a plain tuple, which the garbage collector soon stops tracking."""


Gone = tuple[None, int, Value | None]
"""As `Stored`, for a key that the txid removed."""
