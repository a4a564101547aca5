"""HTTP client of JSON services, with retries of idempotent calls. This is the only module that imports `httpx`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic_core import from_json

from txstorm.errors import InputError, MissingDependency, StateError
from txstorm.masks import masked_url

try:
    import httpx
except ModuleNotFoundError:
    raise MissingDependency("httpx", "http") from None

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
_JSON = {"Content-Type": "application/json"}
T = TypeVar("T")
_RETRIED = (408, 425, 429, 500, 502, 503, 504)


class GarbageError(OSError):
    """An answer that is no answer to the request; the service may answer properly later."""


class TooLarge(StateError):
    """The service refuses the size of a request."""


class NotServed(InputError):
    """Nothing is served at the path of a request."""


class JsonClient:
    """Client of one JSON service. Not thread-safe.

    A call that fails is repeated, with increasing pauses, until `retry_for` has passed: calls must be idempotent.

    Args:
        url: where the service is, ``http://HOST:PORT`` or ``https://…``, with a path if it has one.
        label: what is served there, in messages.
        token: bearer token; None: none.
        timeout: seconds to connect, and for a complete answer.
        retry_for: seconds after which a call that fails is no longer repeated; 0: never.

    Raises:
        InputError: the URL or a time is wrong.
    """

    def __init__(
        self, url: str, label: str, *, token: str | None = None, timeout: float = 5.0, retry_for: float = 10.0
    ) -> None:
        self.url = checked_url(url, label)
        self.label = f"{label} at {self.url}"
        times = (timeout, retry_for)
        if not all(isinstance(one, int | float) for one in times) or not (timeout > 0 and retry_for >= 0):
            msg = f"{self.label}: timeout {timeout!r}, retry_for {retry_for!r}; expected seconds above 0, and from 0"
            raise InputError(msg)
        if token is not None and not is_token(token):
            raise InputError(
                f"{self.label}: the token is empty, has spaces around it, or characters that an HTTP header cannot "
                "have; use the one that the server was given"
            )
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout, self._retry_for = timeout, retry_for
        self._client: httpx.Client | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def call(self, method: str, path: str, body: bytes | None = None, check: Any = None) -> tuple[Any, bool]:
        """Make a call; return the decoded answer, and whether an earlier attempt of the call had failed.

        `check` returns what is wrong with the decoded answer, as text; None if nothing is.

        Raises:
            InputError: the service rejects the token, or has no such path (`NotServed`).
            StateError: it refuses the content of the request; `TooLarge`, its size.
            OSError: it cannot be reached, fails, or its answer is garbage (`GarbageError`), until `retry_for` is over.
        """

        def read(content: bytes) -> Any:
            document = json_of(content)
            fault = None if check is None else check(document)
            if fault is not None:
                raise ValueError(fault)
            return document

        return self.exchange(method, path, body, read)

    def exchange(self, method: str, path: str, body: bytes | None, read: Callable[[bytes], T]) -> tuple[T, bool]:
        """Make a call, as `call` does, whose answer is what `read` makes of its content.

        A TypeError, ValueError, LookupError, AttributeError, ArithmeticError or RecursionError of `read` says that it
        is garbage.
        """
        until, pause, failed = time.monotonic() + self._retry_for, FIRST_PAUSE, False
        while True:
            try:
                return self._once(method, path, body, read), failed
            except OSError:
                failed = True
                wait = pause * random.uniform(0.5, 1)  # noqa: S311 - not a secret
                if time.monotonic() + wait >= until:
                    raise
                time.sleep(wait)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: bytes | None, read: Callable[[bytes], T]) -> T:
        where = f"{self.label}: {method} {path}"
        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout, headers=self._headers)
        late = f"{where}: no complete answer within {self._timeout:g} s"
        until = time.monotonic() + self._timeout
        try:
            with self._client.stream(method, self.url + path, content=body, headers=_JSON) as answer:
                parts = []
                for part in answer.iter_bytes():
                    parts.append(part)
                    if time.monotonic() > until:  # one that trickles would not exceed a time-out of single reads
                        raise TimeoutError(late)
            content = b"".join(parts)
        except httpx.TimeoutException as error:
            raise TimeoutError(late) from error
        except httpx.HTTPError as error:
            raise ConnectionError(f"{where}: {str(error) or type(error).__name__}") from error
        if answer.status_code != 200:
            raise _refusal(where, answer.status_code, content)
        try:
            return read(content)
        except KeyError as error:
            fault = f"it has no {error}"
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            fault = f"{error}"
        raise GarbageError(f"{where}: the answer is garbage: {fault}; begins {_shown(content)}")


def checked_url(url: str, label: str) -> str:
    """Return `url` without a slash at its end; raise `InputError`, which shows no password, if it is wrong."""
    fault = ""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
            fault = "expected http://HOST:PORT or https://HOST:PORT"
        elif parts.username or parts.password:
            fault = "it has a user or a password; pass a token instead"
        elif parts.query or parts.fragment:
            fault = "it has a query or a fragment; expected http://HOST:PORT, with a path if need be"
    except (ValueError, AttributeError, TypeError):
        fault = "expected http://HOST:PORT or https://HOST:PORT"
    if fault:
        shown = masked_url(url) if isinstance(url, str) else type(url).__name__
        raise InputError(f"{label}: URL {shown!r}: {fault}")
    return url.rstrip("/")


def is_token(token: Any) -> bool:
    """Whether `token` can be a bearer token: printable ASCII without spaces around it, and not empty."""
    return isinstance(token, str) and token.isascii() and token.isprintable() and token == token.strip() != ""


def json_of(content: bytes) -> Any:
    """Decode JSON; raise ValueError if it is none."""
    try:
        return from_json(content)
    except ValueError:
        return json.loads(content)  # texts with lone surrogates, or no JSON at all


def _refusal(where: str, status: int, content: bytes) -> Exception:
    """Return the error for an answer with a status other than 200."""
    try:
        detail = str(from_json(content)["detail"])[:500]
    except (ValueError, TypeError, KeyError, IndexError):
        detail = _shown(content)
    if status == 401:
        return InputError(f"{where}: the server rejects the token ({status}: {detail}); mend the token")
    if status == 403:
        return InputError(f"{where}: the server refuses this client ({status}: {detail}); mend the token or the URL")
    if status == 413:
        return TooLarge(f"{where}: the server refuses the size of the request ({detail})")
    if status in (404, 405):
        return NotServed(f"{where}: nothing is served there ({status}: {detail}); mend the URL")
    if status in _RETRIED:
        return ConnectionError(f"{where}: the server answers {status}: {detail}")
    if 400 <= status < 500:
        return StateError(f"{where}: the server refuses the request ({status}: {detail})")
    return GarbageError(f"{where}: expected status 200, got {status}: {detail}")


def _shown(content: bytes) -> str:
    return repr(content[:80].decode(errors="replace")) if content else "an empty body"
