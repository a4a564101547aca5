"""Serving of a FastAPI application: listening, who may call, bounded bodies, and an end without loss on a signal."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from txstorm.clients.http import is_token
from txstorm.errors import InputError, MissingDependency

try:
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse, Response
except ModuleNotFoundError as missing:
    raise MissingDependency(missing.name or "fastapi", "http") from None

__all__ = [
    "Door",
    "FastAPI",
    "Guard",
    "HTTPException",
    "JSONResponse",
    "Request",
    "Response",
    "bounded_body",
    "checked_door",
    "json_content",
    "refusals",
    "serve",
]

GRACE = 10
"""Seconds that requests in flight have to end after a signal."""
OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""Paths that need no token."""
_OWN_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_NAME = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_READING = ("GET", "HEAD", "OPTIONS")


class _Server(uvicorn.Server):
    """Server that calls `listening` once it accepts connections, and ends on SIGTERM and SIGINT with exit code 0."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals during the run; unlike uvicorn, do not raise them again at its end."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


@dataclass(frozen=True)
class Door:
    """Access rules of a server, and the address that it listens on; `checked_door` makes them.

    Attributes:
        host: the address to listen on.
        token: bearer token that every request must have; None: none.
        names: on loopback, the host names by which requests may call the server; elsewhere None: any.
    """

    host: str
    token: str | None = None
    names: frozenset[str] | None = None


def checked_door(host: str, token: str | None, option: str, allowed: Collection[str] = ()) -> Door:
    """Return the door of a server at `host`; an empty token is none.

    A browser sends requests of any page to loopback, and a page can make a name of its own point there. So there the
    name must be one of the machine, or of `allowed`.

    Raises:
        InputError: the token cannot be sent, or is missing beyond this machine; or a name of `allowed` is none.
    """
    if token and not is_token(token):
        raise InputError(f"{option}: the token has spaces around it, or characters that an HTTP header cannot have")
    for name in allowed:
        if not _NAME.fullmatch(name):
            raise InputError(f"--allow-host: expected the name of a host, without scheme and port, got {name!r}")
    if _is_loopback(host):
        names = {*_OWN_HOSTS, _bracketed(host), *allowed}
        return Door(host, token or None, frozenset(name.lower() for name in names))
    if not token:
        msg = f"host {host} can be reached from other machines: give a token ({option}), which every request must have"
        raise InputError(msg)
    return Door(host, token)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def serve(app: FastAPI, door: Door, port: int, listening: Callable[[str], None]) -> None:
    """Serve `app` behind `door` until SIGTERM or SIGINT; requests in flight are answered first.

    Call from the main thread. `listening` is called with the URL once connections are accepted; port 0 is any free one.

    Raises:
        InputError: the address cannot be used.
    """
    host = door.host
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol: asyncio sends small answers at once (TCP_NODELAY) only on sockets that name it.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {host}:{port}: {error}; choose another --port or --host") from None
    url = f"http://{_bracketed(host)}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        Guard(app, door),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE,
        server_header=False,
    )
    with listener:
        _Server(config, lambda: listening(url)).run(sockets=[listener])


class Guard:
    """ASGI application that passes on only requests that may come in; it answers those that a stop cuts off with 503.

    Whatever serves HTTP stands behind it. It answers 403 to a host name that is not the server's own, as a page has
    whose name was made to point here, and to the `Origin` of another site; 401 without the token; 415 to a request that
    may change something and is not declared as JSON, which no page can send elsewhere without being permitted to.
    """

    def __init__(self, app: Any, door: Door) -> None:
        self._app = app
        self._names = door.names
        self._expected = b"" if door.token is None else door.token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request, as ASGI says."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            status, detail = refusal
            headers = {"Connection": "close", **({"WWW-Authenticate": "Bearer"} if status == 401 else {})}
            await JSONResponse({"detail": detail}, status, headers)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and `GRACE` is over
            await JSONResponse({"detail": "the server stops; repeat the call"}, 503)(scope, receive, send)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """Return status and cause if the request may not come in."""

        def given(name: bytes) -> list[str]:
            return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]

        if self._names is not None:
            hosts = given(b"host")
            if len(hosts) != 1 or re.sub(":[0-9]*$", "", hosts[0].lower()) not in self._names:
                expected = "expected a name of this machine, or one given by --allow-host"
                return 403, f"the request is for the host {', '.join(hosts) or 'without a name'!r:.100}; {expected}"
            own = {f"{scheme}://{_without_port(hosts[0].lower(), scheme)}" for scheme in ("http", "https")}
            for origin in given(b"origin"):
                scheme, _, site = origin.lower().partition("://")
                if f"{scheme}://{_without_port(site, scheme)}" not in own:
                    return 403, f"the request comes from a page of {origin!r:.100}, not of this server"
        if self._expected and scope["path"] not in OPEN_PATHS:
            scheme, _, token = "".join(given(b"authorization")).partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.encode("latin-1"), self._expected):
                return 401, "the token is missing or wrong"
        kinds = [kind.partition(";")[0].strip().lower() for kind in given(b"content-type")]
        if scope["method"] not in _READING and kinds != ["application/json"]:
            return 415, f"expected a body with Content-Type: application/json, got {', '.join(kinds) or 'none':.100}"
        return None


def _without_port(host: str, scheme: str) -> str:
    """Return `host` without a port that is the usual one of the scheme, as browsers write it."""
    return host.removesuffix({"http": ":80", "https": ":443"}.get(scheme, ""))


class Refusal(TypedDict):
    """Cause of a refusal."""

    detail: str


def json_content(kind: Any) -> dict[str, Any]:
    """Return what an OpenAPI document says of a body: JSON, with the schema of the type `kind`."""
    schema = TypeAdapter(kind).json_schema()
    definitions = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:
        # A reference would be looked up from the top of the document, where the definitions are not.
        if isinstance(part, list):
            return [resolved(one) for one in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolved(definitions[part["$ref"].rpartition("/")[2]])
        return {name: resolved(one) for name, one in part.items()}

    return {"content": {"application/json": {"schema": resolved(schema)}}}


_REFUSALS = {
    401: "The token is missing or wrong.",
    403: "The host name or the origin is foreign.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "The body is not as described.",
}


def refusals(own: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return what an OpenAPI document says of statuses that refuse a request: those of all servers, and `own`."""
    causes = sorted({**_REFUSALS, **own}.items())
    return {status: {"description": cause, **json_content(Refusal)} for status, cause in causes}


async def bounded_body(request: Request, limit: int) -> bytes:
    """Return the body of `request`; answer 413 if it has more than `limit` bytes, without keeping it."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size <= limit:
            parts.append(part)
        else:
            parts.clear()  # read to its end, so that the client can read the answer
    if size > limit:
        raise HTTPException(413, f"the body has {size:,} bytes, expected at most {limit:,}")
    return b"".join(parts)
