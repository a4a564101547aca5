"""Join store behind an HTTP API, such as that of ``txstorm store-server``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.errors import StateError
from txstorm.joins.stores.row_text import MAX_TIME, decoded, encoded, key_bytes, plain_value, row_parts, rows_of

if TYPE_CHECKING:
    from txstorm.clients.http import JsonClient

API = 1
"""Version of the API."""
MAX_BODY_BYTES = 16 << 20
"""The most bytes of a body that a server accepts by default, and that this client sends."""
SHORT = 1000
"""Length of keys that are small enough in any encoding."""
FRAME = 128
"""More bytes than surround the items in a body."""


class RestStore(JoinStore):
    """Join store behind the HTTP API of ``txstorm store-server``, or another server of the same API.

    Calls that fail are repeated, with increasing pauses; all of them are idempotent. Answers are checked: one that is
    no JSON, incomplete or outside what was asked counts as a failure.

    Args:
        url: ``http://HOST:PORT`` or ``https://…``, with a path if the API has one.
        token: the server's token, if it has one.
        timeout: seconds to connect, and for a complete answer.
        retry_for: seconds after which a call that fails is no longer repeated; 0: never.

    Raises:
        InputError: an argument is wrong.
        MissingDependency: the package httpx is not installed.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 5.0, retry_for: float = 10.0) -> None:
        from txstorm.clients.http import JsonClient

        self._client: JsonClient = JsonClient(url, "join store", token=token, timeout=timeout, retry_for=retry_for)
        self._limit = 0  # bytes of a body; 0: the server was not asked yet

    def __repr__(self) -> str:
        return f"RestStore({self.address!r})"

    @property
    def address(self) -> str:
        """URL of the store, without the token."""
        return self._client.url

    def check_rows(self, rows: Sequence[StoreRow]) -> None:
        """See `JoinStore`; asks the server once for the size of bodies that it accepts."""
        self._check_sizes([row.key for row in rows], [_item(row) for row in rows])

    def put_many(self, rows: Sequence[StoreRow]) -> None:
        """See `JoinStore`."""
        rows = list(rows)
        self._send("/rows", {"rows": [_item(row) for row in rows]}, [row.key for row in rows], _all_stored)

    def get_many(self, keys: Collection[Any], start: int | None, end: int | None) -> Mapping[Any, Sequence[StoreRow]]:
        """See `JoinStore`."""
        items, asked = [], list(keys)
        for key in asked:
            if type(key) is not str or len(key) > SHORT:
                key_bytes(key)
            items.append(plain_value(key))
        found: dict[Any, Sequence[StoreRow]] = {}
        parts = self._send("/lookups", {"keys": items, "start": start, "end": end}, asked, _Reader(start, end))
        for one in parts:
            found = one if len(parts) == 1 else found | one
        return found

    def expire(self, before: int) -> None:
        """See `JoinStore`."""
        self._call("POST", "/expiry", encoded({"before": before}), lambda content: _int(decoded(content)["before"]))

    def mark(self) -> Mark | None:
        """See `txstorm.api.join_store.MarkedJoinStore`."""
        found: Mark | None = self._call("GET", "/mark", None, _mark)[0]
        return found

    def replace_mark(self, expected: Mark | None, mark: Mark) -> bool:
        """See `txstorm.api.join_store.MarkedJoinStore`."""
        body = encoded({"expected": None if expected is None else asdict(expected), "mark": asdict(mark)})
        replaced, failed = self._call("PUT", "/mark", body, _is_replaced)
        # An attempt whose answer was lost may have replaced it.
        return replaced or (failed and self.mark() == mark)

    def close(self) -> None:
        """See `JoinStore`."""
        self._client.close()
        self._limit = 0

    def _send(
        self, path: str, document: dict[str, Any], keys: list[Any], read: Callable[[bytes, list[Any]], Any]
    ) -> list[Any]:
        """Post a document whose first field lists one item per key, in bodies that the server accepts.

        Returns what `read` makes of each answer, given its content and the keys of its request.
        """
        from txstorm.clients.http import TooLarge

        [field, items] = next(iter(document.items()))
        pending, answers = [(0, len(keys))] if keys else [], []
        while pending:
            first, last = pending.pop()
            body = encoded(document | {field: items[first:last]})
            if len(body) <= self._body_limit():
                try:
                    answers.append(self._call("POST", path, body, partial(_read, read, keys[first:last]))[0])
                    continue
                except TooLarge as error:  # a server or proxy that accepts less than it said
                    if last - first == 1:
                        raise self._too_large(keys[first], len(body)) from error
            self._check_sizes(keys[first:last], items[first:last])
            middle = (first + last) // 2
            pending += [(middle, last), (first, middle)]
        return answers

    def _check_sizes(self, keys: Sequence[Any], items: Sequence[Any]) -> None:
        """Raise StateError for an item that is too large for a body of its own."""
        for key, item in zip(keys, items, strict=True):
            size = len(encoded(item)) + FRAME
            if size > self._body_limit():
                raise self._too_large(key, size)

    def _too_large(self, key: Any, size: int) -> StateError:
        return StateError(
            f"join store {self.address}: key {str(key)[:40]!r}: the request for it alone has {size:,} bytes, "
            f"the server accepts {self._body_limit():,} at most; keep less in the row, or start the server with a "
            "larger --max-body"
        )

    def _body_limit(self) -> int:
        if not self._limit:
            self._limit = min(self._client.exchange("GET", "/store", None, _limit)[0], MAX_BODY_BYTES)
        return self._limit

    def _call(self, method: str, path: str, body: bytes | None, read: Callable[[bytes], Any]) -> tuple[Any, bool]:
        self._body_limit()
        return self._client.exchange(method, path, body, read)


def _item(row: StoreRow) -> list[Any]:
    key_bytes(row.key)
    key_bytes(row.id, "id")
    return [plain_value(row.key), *row_parts(row)]


def _read(read: Callable[[bytes, list[Any]], Any], keys: list[Any], content: bytes) -> Any:
    return read(content, keys)


# -- answers: KeyError, TypeError and ValueError of a function say that one is garbage ---------------------------------


def _limit(content: bytes) -> int:
    answer = decoded(content)
    if answer["api"] != API:
        raise ValueError(f"expected version {API} of the API, got {answer['api']!r}")
    return _int(answer["max_body_bytes"])


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, got {value!r}")
    return value


def _all_stored(content: bytes, keys: list[Any]) -> None:
    answer = decoded(content)
    if answer["rows"] != len(keys):
        raise ValueError(f"expected {len(keys)} rows to be stored, got {answer['rows']!r}")


class _Reader:
    """Reader of the answer to a look-up of times from `start` to `end`."""

    def __init__(self, start: int | None, end: int | None) -> None:
        self._start = -MAX_TIME if start is None else start
        self._end = MAX_TIME if end is None else end

    def __call__(self, content: bytes, keys: list[Any]) -> dict[Any, Sequence[StoreRow]]:
        lists = decoded(content)["rows"]
        if type(lists) is not list or len(lists) != len(keys):
            got = len(lists) if type(lists) is list else type(lists).__name__
            raise ValueError(f"expected lists of rows for {len(keys)} keys, got {got}")
        plain = content.count(b"{") - 1 == content.count(b"[") - 1 - len(lists) == sum(map(len, lists))
        start, end = self._start, self._end
        rows: dict[Any, Sequence[StoreRow]] = {}
        for key, found in zip(keys, lists, strict=True):
            for time, _, fields in found:
                if type(time) is not int or type(fields) is not dict or not start <= time <= end:
                    msg = f"expected rows [time, id, fields] from {start} to {end}, got {time!r}, {fields!r}"
                    raise ValueError(msg)
            rows[key] = rows_of(key, found, plain=plain) if found else []
        return rows


def _mark(content: bytes) -> Mark | None:
    mark = decoded(content)["mark"]
    return None if mark is None else Mark(**mark)


def _is_replaced(content: bytes) -> bool:
    replaced = decoded(content)["replaced"]
    if type(replaced) is not bool:
        raise TypeError(f"expected true or false, got {replaced!r}")
    return bool(replaced)
