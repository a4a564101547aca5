"""Serving of a FastAPI application: listening, bearer tokens, bounded bodies, and an end without loss on a signal."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    "FastAPI",
    "HTTPException",
    "JSONResponse",
    "Request",
    "Response",
    "TokenGuard",
    "bounded_body",
    "checked_token",
    "json_content",
    "refusals",
    "serve",
]

GRACE = 10
"""Seconds that requests in flight have to end after a signal."""
OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""Paths that need no token."""


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


def serve(app: FastAPI, host: str, port: int, listening: Callable[[str], None]) -> None:
    """Serve `app` until SIGTERM or SIGINT; requests in flight are answered first. Call from the main thread.

    Args:
        app: the application.
        host: the address to listen on.
        port: the port; 0: any free one.
        listening: called with the URL once connections are accepted.

    Raises:
        InputError: the address cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol: asyncio sends small answers at once (TCP_NODELAY) only on sockets that name it.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        msg = f"cannot listen on {host}:{port}: {error}; choose another --port or --host"
        raise InputError(msg) from None
    bound = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE, server_header=False
    )
    with listener:
        _Server(config, lambda: listening(f"http://{shown}:{bound}")).run(sockets=[listener])


def checked_token(token: str | None, host: str, option: str) -> str | None:
    """Return `token`, None if it is empty; raise `InputError` if it is no ASCII, or missing beyond this machine."""
    if token and not is_token(token):
        msg = f"{option}: the token has spaces around it, or characters that an HTTP header cannot have"
        raise InputError(msg)
    if not token and not _is_loopback(host):
        msg = f"host {host} can be reached from other machines: give a token ({option}), which every request must have"
        raise InputError(msg)
    return token or None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenGuard:
    """ASGI middleware that answers 401 to requests without the bearer token, and 503 to those that a stop cuts off.

    Args:
        app: the application behind it.
        token: the token; None: every request is accepted.
    """

    def __init__(self, app: Any, token: str | None) -> None:
        self._app = app
        self._expected = b"" if token is None else token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request, as ASGI says."""
        if scope["type"] == "http" and self._expected and scope["path"] not in OPEN_PATHS:
            scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self._expected):
                headers = {"WWW-Authenticate": "Bearer", "Connection": "close"}
                refusal = JSONResponse({"detail": "the token is missing or wrong"}, 401, headers)
                await refusal(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:  # the server stops, and `GRACE` is over
            await JSONResponse({"detail": "the server stops; repeat the call"}, 503)(scope, receive, send)


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


def refusals(causes: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    """Return what an OpenAPI document says of statuses that refuse a request: their causes, and the body."""
    return {status: {"description": cause, **json_content(Refusal)} for status, cause in causes.items()}


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
