"""Runs whose store is in trouble (A9 to A12): a pause or one clear error, then every left row once, and nothing lost."""

import threading
from time import monotonic, sleep

import pytest
from helpers.store_runs import compare, topology_of, write_lines
from join_store_servers import faulty, half, store_server

from txstorm import run
from txstorm.clients.redis.connection import redis as client
from txstorm.errors import TxstormError
from txstorm.joins import RedisStore, RestStore

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("lines"), 800)


def begin(store, lines, place):
    settings = {"retry_backoff_max": 0.2, "max_group_txids": 2, "max_spout_pending": 3}
    topology = topology_of(lines[0], store, rows=40)
    return run(topology, engine="local", data_dir=place / "data", end_of_input=True, settings=settings)


def reached(handle, least):
    deadline = monotonic() + 60
    while handle.committed < least:
        assert handle.isActive, handle.exception()
        assert monotonic() < deadline
        sleep(0.01)


def finish(handle, lines):
    handle.awaitTermination()
    compare(handle, lines)


def killed(server, _bare):
    server.kill()
    yield
    server.restart()


def slow(server, _bare):
    """Slower than the time-out once."""
    server.freeze()
    yield
    server.thaw()


def full(_server, bare):
    """Out of memory: `noeviction` refuses puts until there is room again."""
    bare.config_set("maxmemory", 1)
    yield
    bare.config_set("maxmemory", 0)


@pytest.mark.parametrize("trouble", [killed, slow, full])
def test_a_redis_in_trouble_costs_a_pause(own_redis, trouble, lines, tmp_path):
    """A9, A21: puts wait for it, look-ups are replayed."""
    bare = client.Redis("127.0.0.1", own_redis.ports[0])
    handle = begin(RedisStore(f"redis://{own_redis.address()}/0", timeout=0.5), lines, tmp_path)
    for least in (3, 12):
        reached(handle, least)
        spoilt = trouble(own_redis, bare)
        next(spoilt)
        sleep(1.0)
        before = handle.committed
        sleep(0.5)
        assert handle.committed <= before + 2  # a group that was decided
        next(spoilt, None)
    finish(handle, lines)


def test_a_redis_that_has_lost_rows_ends_the_next_start(own_redis, lines, tmp_path):
    """A9: one error that says what to do, before anything is read; the store is restored, and nothing is lost."""
    bare, url = client.Redis("127.0.0.1", own_redis.ports[0]), f"redis://{own_redis.address()}/0"
    handle = begin(RedisStore(url), lines, tmp_path)
    reached(handle, 5)
    handle.stop()
    (name, *_) = bare.scan_iter("*rows:*")
    copy = bare.dump(name)
    bare.delete(name)
    with pytest.raises(TxstormError, match="has lost rows"):
        begin(RedisStore(url), lines, tmp_path).awaitTermination()
    bare.restore(name, 0, copy)
    finish(begin(RedisStore(url), lines, tmp_path), lines)


def late(answer):
    sleep(1.2)
    return answer


ANSWERS = [
    ("half a batch", half, 6),
    ("500", lambda _answer: (500, b"oops"), 6),
    ("429", lambda _answer: (429, b""), 6),
    ("later than the time-out", late, 1),
    ("none, although it is done", lambda _answer: None, 6),
    ("garbage", lambda _answer: (200, b"<html>"), 6),
]
"""Wrong answers, each with how often it is given: more often than the client repeats a request by itself."""


class Troubles:
    """Wrong answers to one kind of request, each after five right ones: a group puts four times."""

    def __init__(self):
        self.to_come = [one for name, change, times in ANSWERS for one in [("", None, 5), (name, change, times)]]
        self._lock = threading.Lock()

    def change(self):
        """Return what changes the next answer; None if it is right."""
        with self._lock:
            if not self.to_come:
                return None
            name, change, times = self.to_come.pop(0)
            if times > 1:
                self.to_come.insert(0, (name, change, times - 1))
            return change


def test_an_api_in_trouble_costs_a_pause(tmp_path):
    """A10, A11: half a batch, 500, 429, slow, no answer, garbage, for longer than a request is repeated by itself."""
    lines, troubles = write_lines(tmp_path), {"/rows": Troubles(), "/lookups": Troubles()}

    def fault(_method, path, forward):
        answer = forward()
        change = troubles[path].change() if path in troubles else None
        return answer if change is None else change(answer)

    with store_server(tmp_path / "server", "--store", "memory") as server, faulty(server) as proxy:
        proxy.fault = fault
        finish(begin(RestStore(proxy.url, timeout=0.5, retry_for=0.2), lines, tmp_path), lines)
    assert {path: one.to_come for path, one in troubles.items()} == {"/rows": [], "/lookups": []}


def test_a_server_that_is_killed_and_comes_back_costs_a_pause(own_redis, lines, tmp_path):
    """A10: it keeps nothing itself; the Redis behind it does."""
    spec = f"redis:redis://{own_redis.address()}/0"
    with store_server(tmp_path / "server", "--store", spec) as server:
        handle = begin(RestStore(server.url, retry_for=0.2), lines, tmp_path)
        for least in (3, 15):
            reached(handle, least)
            server.restart()
        finish(handle, lines)


class From:
    """Fault of all requests after the first `requests` puts; `hit` is set by the first of them."""

    def __init__(self, requests, answer):
        self.requests, self.answer, self.hit = requests, answer, threading.Event()

    def __call__(self, _method, path, forward):
        self.requests -= path == "/rows"
        if self.requests >= 0:
            return forward()
        self.hit.set()
        return self.answer


def test_an_api_that_rejects_the_token_ends_the_run(lines, tmp_path):
    """One error, which says what to do; with the token mended, the next start goes on."""
    with store_server(tmp_path / "server", "--store", "memory", "--token", "right") as server, faulty(server) as proxy:
        proxy.fault = From(12, (401, b'{"detail":"no"}'))
        with pytest.raises(TxstormError, match=r"rejects the token .*mend the token"):
            begin(RestStore(proxy.url, token="right"), lines, tmp_path).awaitTermination()
        with pytest.raises(TxstormError, match=r"rejects the token .*mend the token"):
            begin(RestStore(server.url, token="wrong"), lines, tmp_path).awaitTermination()
        finish(begin(RestStore(server.url, token="right"), lines, tmp_path), lines)


def test_a_run_can_be_stopped_while_its_store_is_away(lines, tmp_path):
    with store_server(tmp_path / "server", "--store", "memory") as server, faulty(server) as proxy:
        proxy.fault = From(12, None)
        handle = begin(RestStore(proxy.url, retry_for=0.2), lines, tmp_path)
        assert proxy.fault.hit.wait(60)
        handle.stop()
        assert not handle.isActive
        finish(begin(RestStore(server.url), lines, tmp_path), lines)


@pytest.mark.long
def test_a_store_that_stays_away_ends_the_run_with_one_error(lines, tmp_path):
    """What is decided is put by the next start, once it reaches the store."""
    with store_server(tmp_path / "server", "--store", "memory") as server, faulty(server) as proxy:
        proxy.fault = From(12, (503, b""))
        with pytest.raises(TxstormError, match=r"the server answers 503.*start"):
            begin(RestStore(proxy.url, retry_for=0.2), lines, tmp_path).awaitTermination()
        with pytest.raises(TxstormError, match=r"the server answers 503.*start again when it is available"):
            begin(RestStore(proxy.url, retry_for=0.2), lines, tmp_path)
        finish(begin(RestStore(server.url), lines, tmp_path), lines)
