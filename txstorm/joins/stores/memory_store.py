"""Join store in the memory of the process: for tests, and behind a store server whose rows may be lost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from operator import attrgetter
from threading import RLock
from typing import Any

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.joins.stores.row_text import checked_time, in_order, key_bytes

_TIME = attrgetter("time")


class MemoryStore(JoinStore):
    """Join store that lives as long as the object. Thread-safe."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._rows: dict[bytes, tuple[list[StoreRow], set[bytes]]] = {}  # key → rows by time, and their ids
        self._oldest: list[tuple[int, bytes]] = []  # heap with an entry at or below the oldest time of each key
        self._mark: Mark | None = None

    def __repr__(self) -> str:
        return "MemoryStore()"

    def check_rows(self, rows: Sequence[StoreRow]) -> None:
        """See `JoinStore`."""
        for row in rows:
            checked_time(row)
            key_bytes(row.key)
            key_bytes(row.id, "id")

    def put_many(self, rows: Sequence[StoreRow]) -> None:
        """See `JoinStore`."""
        checked = [(key_bytes(row.key), key_bytes(row.id, "id"), checked_time(row), row) for row in rows]
        with self._lock:
            for key, id_, time, row in checked:
                of_key, ids = self._rows.setdefault(key, ([], set()))
                if id_ in ids:
                    continue
                ids.add(id_)
                if not of_key or time < of_key[0].time:
                    heappush(self._oldest, (time, key))
                insort(of_key, row, key=_TIME)

    def get_many(self, keys: Collection[Any], start: int | None, end: int | None) -> Mapping[Any, Sequence[StoreRow]]:
        """See `JoinStore`."""
        found: dict[Any, Sequence[StoreRow]] = {}
        with self._lock:
            for key in keys:
                of_key, _ = self._rows.get(key_bytes(key), ((), None))
                first = 0 if start is None else bisect_left(of_key, start, key=_TIME)
                last = len(of_key) if end is None else bisect_right(of_key, end, key=_TIME)
                found[key] = in_order(of_key[first:last])
        return found

    def expire(self, before: int) -> None:
        """See `JoinStore`; the rows are removed at once."""
        with self._lock:
            while self._oldest and self._oldest[0][0] < before:
                _, key = heappop(self._oldest)
                of_key, ids = self._rows.get(key, ([], set()))
                count = bisect_left(of_key, before, key=_TIME)
                ids.difference_update(key_bytes(row.id, "id") for row in of_key[:count])
                del of_key[:count]
                if of_key:
                    heappush(self._oldest, (of_key[0].time, key))
                else:
                    self._rows.pop(key, None)

    def mark(self) -> Mark | None:
        """See `txstorm.api.join_store.MarkedJoinStore`."""
        return self._mark

    def replace_mark(self, expected: Mark | None, mark: Mark) -> bool:
        """See `txstorm.api.join_store.MarkedJoinStore`."""
        with self._lock:
            if self._mark != expected:
                return False
            self._mark = mark
            return True
