"""Store server: an HTTP API before a join store, by which any storage can hold the rows of a join."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from txstorm.api.external import Mark
from txstorm.api.join_store import JoinStore, StoreRow
from txstorm.errors import InputError
from txstorm.joins.stores.rest_store import API, MAX_BODY_BYTES
from txstorm.joins.stores.row_text import (
    DAMAGED,
    decoded,
    encoded,
    plain_fields,
    plain_value,
    restored,
    restored_fields,
)
from txstorm.web.serving import (
    FastAPI,
    JSONResponse,
    Request,
    Response,
    bounded_body,
    json_content,
    refusals,
)

ABOUT = """\
Rows of one side of a join, by key and time. All calls are idempotent and may be repeated.

Keys, ids and values of fields are JSON. Types that JSON lacks are objects with one key, their tag: `{"b": BASE64}`
bytes, `{"T": MICROSECONDS}` datetime, `{"D": "2026-01-31"}` date, `{"n": "1.50"}` decimal, `{"f": "inf"}` float that is
not finite, `{"t": […]}` tuple, `{"d": [[KEY, VALUE], …]}` dict, `{"s": […]}` set, `{"S": […]}` frozenset. Times are
integers: UTC microseconds since 1970.

Errors are `{"detail": TEXT}`; after a 503 the call may be repeated.
"""
REFUSALS = {409: "The store refuses the call.", 503: "The store cannot be reached."}
_STRICT = ConfigDict(strict=True, extra="forbid")
_JSON = "application/json"


@with_config(_STRICT)
class Rows(TypedDict):
    """Rows to store, each ``[key, time, id, {field: value}]``."""

    rows: list[tuple[Any, int, Any, dict[str, Any]]]


class Stored(TypedDict):
    """Number of rows received, including those that were stored already."""

    rows: int


@with_config(_STRICT)
class Lookup(TypedDict):
    """Keys, and the times of the rows wanted; both bounds are included, null is open."""

    keys: list[Any]
    start: int | None
    end: int | None


class Found(TypedDict):
    """For each key, in the order of the keys, its rows ``[time, id, {field: value}]`` by (time, id)."""

    rows: list[list[tuple[int, Any, dict[str, Any]]]]


@with_config(_STRICT)
class Expiry(TypedDict):
    """Time below which rows may be removed."""

    before: int


@with_config(_STRICT)
class Progress(TypedDict):
    """Mark of the topology that writes to the store."""

    topology: str
    incarnation: str
    epoch: int
    timeline: int
    txid: int
    content: str


class Marked(TypedDict):
    """The stored mark; null if there is none."""

    mark: Progress | None


@with_config(_STRICT)
class Replacement(TypedDict):
    """A mark, stored if the present one equals `expected`."""

    expected: Progress | None
    mark: Progress


class Replaced(TypedDict):
    """Whether the mark was replaced."""

    replaced: bool


class Facts(TypedDict):
    """Version of the API, what is behind it, and the most bytes that the body of a request may have."""

    api: int
    store: str
    max_body_bytes: int


class Health(TypedDict):
    """Whether the server answers."""

    status: str


class _Calls:
    """The calls of the API on a store; one at a time, in a thread of their own."""

    def __init__(self, store: Any, max_body_bytes: int) -> None:
        self._store = store
        self._limit = max_body_bytes
        self._thread = ThreadPoolExecutor(1, "store")

    async def answer(self, request: Request, call: Callable[[Any, bytes], Any]) -> Response:
        """Answer a request by `call`, which is given the store and the body."""
        body = await bounded_body(request, self._limit)
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._called, call, body)

    def _called(self, call: Callable[[Any, bytes], Any], body: bytes) -> Response:
        try:
            return Response(encoded(call(self._store, body)), media_type=_JSON)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            return JSONResponse({"detail": f"{where}: {first['msg']}"}, 422)
        except _BadBody as error:
            return JSONResponse({"detail": str(error)}, 422)
        except InputError as error:
            return JSONResponse({"detail": str(error)}, 409)
        except OSError as error:
            return JSONResponse({"detail": str(error)}, 503)


class _BadBody(Exception):
    """A value in the body that its tag contradicts."""


_ROWS, _LOOKUP, _EXPIRY, _REPLACEMENT = (
    TypeAdapter(Rows),
    TypeAdapter(Lookup),
    TypeAdapter(Expiry),
    TypeAdapter(Replacement),
)


def _body(adapter: TypeAdapter[Any], body: bytes) -> Any:
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] != "json_invalid":
            raise
        try:
            document = decoded(body)  # texts with lone surrogates
        except (ValueError, RecursionError):
            raise error from None
    if isinstance(document, dict) and isinstance(document.get("rows"), list):
        document["rows"] = [tuple(one) if isinstance(one, list) else one for one in document["rows"]]
    return adapter.validate_python(document)


@contextmanager
def _tagged(what: str) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise _BadBody(f"{what}: a tagged value cannot be read: {type(error).__name__}: {error}") from None


def _put(store: JoinStore, body: bytes) -> Stored:
    rows = _body(_ROWS, body)["rows"]
    with _tagged("rows"):
        made = [StoreRow(restored(key), restored(id_), time, restored_fields(value)) for key, time, id_, value in rows]
    store.put_many(made)
    return {"rows": len(made)}


def _get(store: JoinStore, body: bytes) -> dict[str, Any]:
    asked = _body(_LOOKUP, body)
    with _tagged("keys"):
        keys = [restored(key) for key in asked["keys"]]
    found = store.get_many(keys, asked["start"], asked["end"])
    return {"rows": [[[row.time, plain_value(row.id), plain_fields(row)] for row in found[key]] for key in keys]}


def _expire(store: JoinStore, body: bytes) -> Expiry:
    before = _body(_EXPIRY, body)["before"]
    store.expire(before)
    return {"before": before}


def _mark(store: Any, _: bytes) -> dict[str, Any]:
    mark = store.mark()
    return {"mark": None if mark is None else asdict(mark)}


def _replace(store: Any, body: bytes) -> Replaced:
    asked = _body(_REPLACEMENT, body)
    expected = asked["expected"]
    return {"replaced": store.replace_mark(None if expected is None else Mark(**expected), Mark(**asked["mark"]))}


def store_app(store: JoinStore, name: str, *, max_body_bytes: int = MAX_BODY_BYTES) -> FastAPI:
    """Return the application of `store`, which must keep a mark (`MarkedJoinStore`); `serve` guards it.

    `name`: for `GET /store`, without credentials.
    """
    app = FastAPI(title="txstorm join store", version=str(API), description=ABOUT, redoc_url=None)
    calls = _Calls(store, max_body_bytes)
    facts = encoded({"api": API, "store": name, "max_body_bytes": max_body_bytes})

    @app.get("/health", **_described(Health))
    async def health() -> Response:
        """Answer as long as the server runs; needs no token."""
        return Response(b'{"status":"ok"}', media_type=_JSON)

    @app.get("/store", **_described(Facts))
    async def about() -> Response:
        """Return facts about the server."""
        return Response(facts, media_type=_JSON)

    for method, path, call, types, summary in (
        ("POST", "/rows", _put, (Stored, Rows), "Store rows; a row whose key and id are stored changes nothing."),
        ("POST", "/lookups", _get, (Found, Lookup), "Return the rows of many keys within a range of times."),
        ("POST", "/expiry", _expire, (Expiry, Expiry), "Remove the rows below a time, which never decreases."),
        ("GET", "/mark", _mark, (Marked,), "Return the mark of the topology that writes here."),
        ("PUT", "/mark", _replace, (Replaced, Replacement), "Replace the mark if it is the expected one."),
    ):
        app.add_api_route(path, _endpoint(calls, call), methods=[method], summary=summary, **_described(*types))
    return app


def _endpoint(calls: _Calls, call: Callable[[Any, bytes], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await calls.answer(request, call)

    endpoint.__name__ = call.__name__.strip("_")
    return endpoint


def _described(answer: Any, body: Any = None) -> dict[str, Any]:
    """Return the arguments of a route that describe its answer and its body in the OpenAPI document."""
    responses = {200: json_content(answer), **(refusals(REFUSALS) if answer is not Health else {})}
    found: dict[str, Any] = {"response_class": Response, "responses": responses}
    if body is not None:
        found["openapi_extra"] = {"requestBody": {"required": True, **json_content(body)}}
    return found
