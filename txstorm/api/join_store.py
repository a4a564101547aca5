"""Join store: port to an external store that holds the rows of one side of a join, by key and time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from txstorm.api.external import Mark, TargetDeclaration


@dataclass(frozen=True, slots=True)
class StoreRow:
    """One row of a join store.

    Attributes:
        key: the join key: a str, int, bool, bytes, datetime, date or Decimal; for several fields, a tuple of them.
        id: identity of the row among those of its key, of the same types.
        time: its time in UTC microseconds since 1970.
        value: field → value, of types that tuples may have; of rows that no `StoreFeed` puts, also one such value.
    """

    key: Any
    id: Any
    time: int
    value: Any


class JoinStore(ABC):
    """Port to an external store of rows by key and time; implement it for your own database.

    A key has many rows. Calls come from one thread at a time. Any call may be repeated after its answer was lost, so
    all must be idempotent. While the store cannot be reached, each should raise an `OSError` (`ConnectionError`,
    `TimeoutError`): after a failed look-up the batch is replayed, a failed put is retried until it succeeds. An
    `txstorm.errors.InputError` is for what only a change of settings can mend, such as a rejected token.
    `txstorm.testing.check_join_store` checks an implementation.
    """

    @abstractmethod
    def put_many(self, rows: Sequence[StoreRow]) -> None:
        """Store `rows` durably; a row whose (key, id) is stored already changes nothing."""

    @abstractmethod
    def get_many(self, keys: Collection[Any], start: int | None, end: int | None) -> Mapping[Any, Sequence[StoreRow]]:
        """Return, for each of `keys`, its rows from `start` to `end` by (time, id); an empty sequence if it has none.

        Both bounds, UTC microseconds since 1970, are included; None is open. Keys such as 1 and True, which are equal
        in Python but not as keys of a join, are asked for in different calls.
        """

    @abstractmethod
    def expire(self, before: int) -> None:
        """Remove the rows of all keys with times below `before`, which never decreases.

        From then on `get_many` does not return them, even if their space is freed later. Such rows that are put
        afterwards, as late repetitions are, may be returned until the next expiry.
        """

    def check_rows(self, rows: Sequence[StoreRow]) -> None:  # noqa: B027 - not every store has limits
        """Raise `txstorm.errors.StateError` for a row that the store can never hold, such as one that is too large.

        Called before the transaction of the rows is decided, without a request to the store if possible.
        """

    def close(self) -> None:  # noqa: B027 - not every store has something to release
        """Release connections; the store may be used again afterwards."""


@runtime_checkable
class MarkedJoinStore(Protocol):
    """Part of a join store that keeps a mark: by it a start notices another owner, and rows that were lost."""

    def mark(self) -> Mark | None:
        """Return the stored mark; None if there is none."""

    def replace_mark(self, expected: Mark | None, mark: Mark) -> bool:
        """Compare-and-set: if the stored mark equals `expected`, store `mark`; return whether it did."""


@dataclass(frozen=True)
class StoreUse(TargetDeclaration):
    """Use of a join store by a component, whether it fills the store or looks rows up in it.

    It is an attribute of the committer that the component becomes. The store, which may hold a password, stays in the
    driver: copies shipped to tasks have none.

    Attributes:
        name: id of the component.
        store: the store.
        fills: whether the component puts rows; they are staged with the transaction, and put after it is decided.
        batch_size: the most rows of one request.
    """

    committed_as = "store"
    name: str
    store: Any = field(default=None, repr=False, compare=False)
    fills: bool = False
    batch_size: int = 1

    @property
    def commits(self) -> bool:
        """Whether rows are put, and not only looked up."""
        return self.fills

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreUse, (self.name, None, self.fills, self.batch_size)


def same_store(one: Any, other: Any) -> bool:
    """Whether two objects are the same store: one object, or two with an equal `address`, however they are wrapped."""
    one, other = _inner(one), _inner(other)
    address = getattr(one, "address", None)
    return one is other or (address is not None and address == getattr(other, "address", None))


def _inner(store: Any) -> Any:
    """Return the store that wrappers around it, such as one that counts requests, have as their attribute `store`."""
    while isinstance(getattr(store, "store", None), JoinStore):
        store = store.store
    return store
