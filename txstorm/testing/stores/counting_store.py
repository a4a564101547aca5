"""Join store that counts the requests to another one, for tests of how many a join makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from txstorm.api.join_store import JoinStore, StoreRow


class CountingStore(JoinStore):
    """Join store that passes every call to `store`, and counts puts and look-ups. What else `store` has is its own.

    Attributes:
        store: the store behind it.
        puts: number of calls of `put_many`.
        gets: number of calls of `get_many`.
    """

    def __init__(self, store: JoinStore) -> None:
        self.store = store
        self.puts = 0
        self.gets = 0

    def __repr__(self) -> str:
        return f"CountingStore({self.store!r})"

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.store, name)

    def put_many(self, rows: Sequence[StoreRow]) -> None:
        """Count one put, and pass it on."""
        self.puts += 1
        self.store.put_many(rows)

    def get_many(self, keys: Collection[Any], start: int | None, end: int | None) -> Mapping[Any, Sequence[StoreRow]]:
        """Count one look-up, and pass it on."""
        self.gets += 1
        return self.store.get_many(keys, start, end)

    def expire(self, before: int) -> None:
        """Pass an expiry on."""
        self.store.expire(before)

    def check_rows(self, rows: Sequence[StoreRow]) -> None:
        """Pass a check on."""
        self.store.check_rows(rows)

    def close(self) -> None:
        """Close the store."""
        self.store.close()
