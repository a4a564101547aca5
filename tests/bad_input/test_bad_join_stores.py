"""Bad join stores and rows: one clear error each, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from join_store_servers import FaultyProxy, StoreServer, ids, row

from txstorm.clients.http import GarbageError
from txstorm.clients.redis.connection import redis as client
from txstorm.errors import InputError, StateError
from txstorm.joins import JoinStore, RedisStore, RestStore

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="scripts/redis --install installs it"),
]


class World(NamedTuple):
    """Real servers with the row ("kept", 1), and what spoils them.

    Attributes:
        redis: URL of a Redis server.
        client: a client of it.
        proxy: a proxy before a store server on that Redis; its token is ``right``.
    """

    redis: str
    client: Any
    proxy: FaultyProxy

    def rest(self, token: str | None = "right", retry_for: float = 0) -> RestStore:
        return RestStore(self.proxy.url, token=token, retry_for=retry_for, timeout=10)

    def stored(self) -> JoinStore:
        return RedisStore(self.redis, prefix="bad")

    def answers(self, status: int, body: bytes) -> RestStore:
        self.proxy.fault = lambda _method, path, forward: (status, body) if path == "/lookups" else forward()
        return self.rest()


@pytest.fixture(scope="module")
def servers(redis_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, StoreServer]]:
    url = f"redis://127.0.0.1:{redis_server.ports[0]}/7"
    options = ["--store", f"redis:{url}", "--prefix", "bad", "--token", "right", "--max-body", "100000"]
    server = StoreServer(tmp_path_factory.mktemp("server"), *options)
    yield url, server
    server.close()


@pytest.fixture
def world(servers: tuple[str, StoreServer]) -> Iterator[World]:
    url, server = servers
    redis = client.Redis.from_url(url)
    redis.flushdb()
    RedisStore(url, prefix="bad").put_many([row("kept", 1, 1)])
    proxy = FaultyProxy(server.port)
    yield World(url, redis, proxy)
    proxy.close()


def look_up(store: JoinStore) -> Any:
    return store.get_many(["kept"], None, None)


BAD: dict[str, tuple[Callable[[World], Any], type[Exception], str]] = {
    "a rejected token": (lambda w: look_up(w.rest("wrong")), InputError, "rejects the token .*mend the token"),
    "no token": (lambda w: look_up(w.rest(None)), InputError, "rejects the token .*mend the token"),
    "an API elsewhere": (lambda w: look_up(RestStore(f"{w.proxy.url}/v2", token="right")), InputError, "mend the URL"),
    "half a batch": (lambda w: look_up(w.answers(200, b'{"rows":[]}')), GarbageError, "for 1 keys, got 0"),
    "garbage": (lambda w: look_up(w.answers(200, b"<html>")), GarbageError, "is garbage.*begins '<html>'"),
    "an answer 500": (lambda w: look_up(w.answers(500, b"")), ConnectionError, "the server answers 500"),
    "a key too large for Redis": (lambda w: w.stored().put_many([row("x" * 70_000, 1, 1)]), StateError, "use a digest"),
    "a row too large for Redis": (
        lambda w: w.stored().put_many([row("a", 1, 1, v="x" * (17 << 20))]),
        StateError,
        "expected at most 16,777,216; keep less in it",
    ),
    "a row too large for the API": (
        lambda w: w.rest().put_many([row("fine", 1, 1), row("a", 1, 1, v="x" * 100_000)]),
        StateError,
        "key 'a': .*the server accepts 100,000 at most",
    ),
    "a value of an unknown type": (
        lambda w: w.rest().put_many([row("fine", 1, 1), row("a", 1, 1, v=object())]),
        StateError,
        "row 1 of key 'a': field 'v': a value of type object",
    ),
    "a newer format in Redis": (
        lambda w: [w.client.hset("{bad}:mark", "format", 9), w.stored().put_many([row("a", 1, 1)])],
        StateError,
        "expected format 1, found 9: a newer txstorm wrote it",
    ),
    "a newer format behind the API": (
        lambda w: [w.client.hset("{bad}:mark", "format", 9), w.rest().put_many([row("a", 1, 1)])],
        StateError,
        r"refuses the request \(409: join store 'bad'.*expected format 1, found 9",
    ),
    "lost rows in Redis": (
        lambda w: w.client.delete("{bad}:rows:skept") and w.stored().mark(),
        StateError,
        "has lost rows: .*restore it, or use another prefix",
    ),
    "lost rows behind the API": (
        lambda w: w.client.delete("{bad}:rows:skept") and w.rest().mark(),
        StateError,
        r"409: join store 'bad'.*has lost rows",
    ),
    "other content": (
        lambda w: w.client.set("{bad}:rows:sa", "x") and w.stored().put_many([row("a", 1, 1)]),
        StateError,
        "has other content .*use another prefix",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_stores_and_rows(name: str, world: World) -> None:
    spoil, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        spoil(world)
    world.client.hset("{bad}:mark", "format", 1)
    world.client.delete("{bad}:rows:sa")
    if "lost" not in name:
        assert ids(world.stored().get_many(["kept", "fine", "a"], None, None)) == {"kept": [1], "fine": [], "a": []}
