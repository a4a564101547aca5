"""Join store in Redis: sorted sets by time, with the rows as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.errors import InputError, StateError
from txstorm.joins.stores.row_text import (
    DAMAGED,
    MAX_ROW_BYTES,
    MAX_TIME,
    decoded,
    encoded,
    key_bytes,
    row_parts,
    rows_of,
)

if TYPE_CHECKING:
    from txstorm.clients.redis.row_sets import RowSets

EXACT = 1 << 53
"""Microseconds from which on scores, which are floats, are rounded."""


class RedisStore(JoinStore):
    """Join store in a Redis server (6.2 or later), which should run with ``appendonly yes`` and without eviction.

    A put and a look-up of any number of rows take one round trip. The first call connects.

    Example::

        RedisStore("redis://:secret@redis1:6379/0", prefix="views")

    Args:
        url: ``redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]``, or ``rediss://…`` for TLS.
        prefix: what all keys of this store begin with; each store of a server needs its own.
        timeout: seconds to connect, and to wait for an answer.

    Raises:
        InputError: an argument is wrong.
        MissingDependency: the package redis is not installed.
    """

    def __init__(self, url: str, *, prefix: str = "txstorm-join", timeout: float = 5.0) -> None:
        from txstorm.clients.redis.connection import address_of

        self._address = address_of(url, timeout)
        if not isinstance(prefix, str) or not prefix or not prefix.isascii() or set(prefix) & {"{", "}", " ", "\n"}:
            raise InputError(f"RedisStore: prefix {prefix!r}: expected ASCII text without spaces and braces")
        self._prefix = prefix
        self._opened: RowSets | None = None

    def __repr__(self) -> str:
        return f"RedisStore({str(self._address)!r}, prefix={self._prefix!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def address(self) -> str:
        """Server and prefix, without credentials: equal for two objects of the same store."""
        return f"{self._address}#{self._prefix}"

    def check_rows(self, rows: Sequence[StoreRow]) -> None:
        """See `JoinStore`."""
        for row in rows:
            key_bytes(row.key)
            key_bytes(row.id, "id")
            _document(row)

    def put_many(self, rows: Sequence[StoreRow]) -> None:
        """See `JoinStore`."""
        self._sets().put([(key_bytes(row.key), key_bytes(row.id, "id"), row.time, _document(row)) for row in rows])

    def get_many(self, keys: Collection[Any], start: int | None, end: int | None) -> Mapping[Any, Sequence[StoreRow]]:
        """See `JoinStore`."""
        asked = list(keys)
        found = self._sets().get([key_bytes(key) for key in asked], start, end)
        try:
            rows = _parsed(asked, found)
        except DAMAGED as error:
            msg = f"join store {self.address}: a stored row is damaged ({error}); restore it, or use another prefix"
            raise StateError(msg) from error
        if all(time is None or abs(time) < EXACT for time in (start, end)):
            return rows
        lowest, highest = -MAX_TIME if start is None else start, MAX_TIME if end is None else end
        return {key: [row for row in one if lowest <= row.time <= highest] for key, one in rows.items()}

    def expire(self, before: int) -> None:
        """See `JoinStore`; the rows are removed at once."""
        self._sets().expire(before)

    def mark(self) -> Mark | None:
        """See `txstorm.api.join_store.MarkedJoinStore`."""
        found = self._sets().mark()
        if found is None:
            return None
        try:
            return Mark(**decoded(found.encode()))
        except DAMAGED as error:
            msg = f"join store {self.address}: its mark is damaged ({error}); restore it, or use another prefix"
            raise StateError(msg) from None

    def replace_mark(self, expected: Mark | None, mark: Mark) -> bool:
        """See `txstorm.api.join_store.MarkedJoinStore`."""
        return self._sets().replace_mark(None if expected is None else _text(expected), _text(mark))

    def close(self) -> None:
        """See `JoinStore`."""
        if self._opened is not None:
            self._opened.close()

    def _sets(self) -> RowSets:
        if self._opened is None:
            from txstorm.clients.redis.row_sets import RowSets

            self._opened = RowSets(self._address, self._prefix)
        return self._opened


def _parsed(keys: Sequence[Any], found: Sequence[Sequence[bytes]]) -> dict[Any, Sequence[StoreRow]]:
    """Return the rows of each key from their documents, all decoded at once, which is faster than one by one."""
    joined = b",".join([b",".join(one) for one in found if one])
    documents = decoded(b"[%b]" % joined)
    plain = joined.count(b"{") == joined.count(b"[") == len(documents)
    if len(documents) != sum(map(len, found)):
        raise ValueError(f"{sum(map(len, found))} documents decode to {len(documents)}")
    rows: dict[Any, Sequence[StoreRow]] = {}
    first = 0
    for key, one in zip(keys, found, strict=True):
        last = first + len(one)
        rows[key] = rows_of(key, documents[first:last], plain=plain) if one else []
        first = last
    return rows


def _document(row: StoreRow) -> bytes:
    document = encoded(row_parts(row))
    if len(document) > MAX_ROW_BYTES:
        raise StateError(
            f"join store: row {str(row.id)[:40]!r} of key {str(row.key)[:40]!r} has {len(document):,} bytes, expected "
            f"at most {MAX_ROW_BYTES:,}; keep less in it"
        )
    return document


def _text(mark: Mark) -> str:
    return encoded(asdict(mark)).decode()
