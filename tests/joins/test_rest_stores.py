"""Join store behind the HTTP API: real servers that die, are slow or lie; the API itself; and what is refused."""

import functools
import operator
import signal
import time

import pytest
from join_store_servers import StoreServer, asked, faulty, half, ids, row, store_server

from txstorm.api.external import Mark
from txstorm.clients.http import GarbageError
from txstorm.clients.redis.connection import redis as client
from txstorm.errors import InputError, StateError
from txstorm.joins import MemoryStore, RestStore
from txstorm.web.data_delay import delay_app
from txstorm.web.store_server import store_app

pytestmark = pytest.mark.integration
MARK = Mark("topology", "1", 1, 0, 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with store_server(tmp_path_factory.mktemp("server"), "--store", "memory") as started:
        yield started


@pytest.fixture
def proxy(server):
    with faulty(server) as made:
        yield made


def test_the_api_as_it_is_documented(server):
    """A10, A11: every call, with another client, so that any storage can stand behind it."""
    url = server.url
    rows = [["api", 3, "b", {"v": 1}], ["api", 1, "a", {"d": {"D": "2026-01-31"}}], ["api", 9, "a", {}]]
    assert asked(f"{url}/rows", {"rows": rows}) == (200, {"rows": 3})
    found = {"rows": [[[1, "a", {"d": {"D": "2026-01-31"}}], [3, "b", {"v": 1}]], []]}
    assert asked(f"{url}/lookups", {"keys": ["api", "none"], "start": None, "end": None}) == (200, found)
    assert asked(f"{url}/lookups", {"keys": ["api"], "start": 2, "end": 3}) == (200, {"rows": [found["rows"][0][1:]]})
    assert asked(f"{url}/expiry", {"before": 2}) == (200, {"before": 2})
    assert asked(f"{url}/lookups", {"keys": ["api"], "start": None, "end": 2}) == (200, {"rows": [[]]})
    assert asked(f"{url}/lookups", {"keys": [{"n": "sNaN"}], "start": None, "end": None}) == (200, {"rows": [[]]})
    assert asked(f"{url}/health") == (200, {"status": "ok"})
    assert asked(f"{url}/store") == (200, {"api": 1, "store": "memory", "max_body_bytes": 16 << 20})
    paths = asked(f"{url}/openapi.json")[1]["paths"]
    assert set(paths) == {"/health", "/store", "/rows", "/lookups", "/expiry", "/mark"}
    assert set(paths["/mark"]["put"]["responses"]) == {"200", "401", "403", "409", "413", "415", "422", "503"}
    described = paths["/lookups"]["post"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"keys", "start", "end"}
    assert described["responses"]["200"]["content"]["application/json"]["schema"]["properties"]["rows"]


@pytest.mark.parametrize("make", [lambda: store_app(MemoryStore(), "memory"), delay_app])
def test_references_of_a_description_are_to_what_it_has(make):
    document = make().openapi()

    def references(part):
        if isinstance(part, dict):
            yield from [part["$ref"]] if "$ref" in part else []
            part = list(part.values())
        for one in part if isinstance(part, list) else []:
            yield from references(one)

    for reference in references(document):
        start, *names = reference.split("/")
        assert start == "#"
        functools.reduce(operator.getitem, names, document)


def test_the_mark_of_the_api(server):
    mark = {"topology": "t", "incarnation": "1", "epoch": 1, "timeline": 0, "txid": 5, "content": ""}
    before = asked(f"{server.url}/mark")[1]["mark"]
    for expected, new, replaced in ((before, mark, True), (before, mark, False), (mark, {**mark, "txid": 6}, True)):
        body = {"expected": expected, "mark": new}
        assert asked(f"{server.url}/mark", body, "PUT") == (200, {"replaced": replaced})
    assert asked(f"{server.url}/mark") == (200, {"mark": {**mark, "txid": 6}})


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/rows", b"", "Invalid JSON"),
        ("/rows", b"{", "Invalid JSON"),
        ("/rows", [], "body: Input should be an object"),
        ("/rows", {"rows": [["k", 1, 2]]}, "rows.0.3: Field required"),
        ("/rows", {"rows": [["k", "1", 2, {}]]}, "rows.0.1: Input should be a valid integer"),
        ("/rows", {"rows": [["k", 1, 2, {}]], "more": 1}, "more: Extra inputs"),
        ("/rows", {"rows": [[{"T": "x"}, 1, 2, {}]]}, "rows: a tagged value cannot be read"),
        ("/rows", {"rows": [["k", 1, 2, {"v": {"x": 1}}]]}, "rows: a tagged value cannot be read: KeyError: 'x'"),
        ("/rows", {"rows": [[{"b": "_-=="}, 1, 2, {}]]}, "rows: a tagged value cannot be read: Error: "),
        ("/rows", b'{"rows":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "Invalid JSON: recursion limit exceeded"),
        ("/rows", b'{"rows":[["k",1,2,{"v":' + b"[" * 5_000 + b"]" * 5_000 + b"}]]}", "recursion"),
        ("/lookups", {"keys": ["k"]}, "start: Field required"),
        ("/lookups", {"keys": [{"n": "x"}], "start": None, "end": None}, "keys: a tagged value cannot be read"),
        ("/expiry", {"before": True}, "before: Input should be a valid integer"),
        ("/expiry", {"before": 1.5}, "before: Input should be a valid integer"),
    ],
)
def test_a_body_that_is_not_as_described_is_answered_with_422(server, path, body, message):
    status, answer = asked(server.url + path, body)
    assert (status, message in answer["detail"]) == (422, True), answer


def test_what_the_store_refuses_is_answered_with_409(server):
    status, answer = asked(f"{server.url}/rows", {"rows": [["x" * 70_000, 1, 2, {}]]})
    assert (status, "expected at most 65,536" in answer["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("spoil", "call", "message"),
    [
        (
            lambda redis: redis.hset("{behind}:mark", "format", 9),
            lambda store: store.put_many([row("a", 1, 1)]),
            "refuses the request .409: join store 'behind'.*expected format 1, found 9: a newer txstorm wrote it",
        ),
        (
            lambda redis: redis.delete("{behind}:rows:skept"),
            lambda store: store.mark(),
            "409: join store 'behind'.*has lost rows: .*restore it, or use another prefix",
        ),
    ],
    ids=["newer format", "lost rows"],
)
def test_a_redis_behind_the_api_that_cannot_be_used_is_named(redis, tmp_path, spoil, call, message):
    spec = f"redis:redis://{redis.address()}/0"
    with store_server(tmp_path, "--store", spec, "--prefix", "behind") as server:
        store = RestStore(server.url, retry_for=0)
        store.put_many([row("kept", 1, 1)])
        spoil(client.Redis("127.0.0.1", redis.ports[0]))
        with pytest.raises(StateError, match=message):
            call(store)


def test_every_request_needs_the_token(tmp_path):
    with store_server(tmp_path, "--store", "memory", "--token", "se-cret") as server:
        for given in ("", "se-cret", "Bearer se-cre", "Bearer ä"):
            headers = {"Authorization": given.encode("utf-8").decode("latin-1")} if given else {}
            for path, method in (("/store", "GET"), ("/rows", "POST"), ("/mark", "GET"), ("/nothing", "GET")):
                body = None if method == "GET" else {}
                assert asked(server.url + path, body, method, **headers)[0] == 401
        assert asked(f"{server.url}/health")[0] == asked(f"{server.url}/openapi.json")[0] == 200
        for token in (None, "other"):
            with pytest.raises(InputError, match=r"GET /store: the server rejects the token \(401.*mend the token"):
                RestStore(server.url, token=token).put_many([row("a", 1, 1)])
        assert RestStore(server.url, token="se-cret").get_many(["a"], None, None) == {"a": []}


def test_servers_that_are_killed_and_restarted(own_redis, tmp_path):
    """A10: the API server and the Redis behind it die in turn; calls are repeated until both are back."""
    spec = f"redis:redis://{own_redis.address()}/0"
    with store_server(tmp_path / "server", "--store", spec) as server:
        store = RestStore(server.url, retry_for=0, timeout=10)
        store.put_many([row("a", 1, 1)])
        server.process.kill()
        for call in (lambda: store.put_many([row("a", 2, 2)]), lambda: store.get_many(["a"], None, None), store.mark):
            with pytest.raises(OSError, match=rf"join store at {server.url}: (GET|POST) /\w+: "):
                call()
        server.start()
        store.put_many([row("a", 2, 2)])
        own_redis.kill()
        with pytest.raises(OSError, match=r"answers 503: join store 'txstorm-join' in redis://.*cannot look"):
            store.get_many(["a"], None, None)
        assert asked(f"{server.url}/health")[0] == 200
        own_redis.restart()
        assert ids(store.get_many(["a"], None, None)) == {"a": [1, 2]}
        server.restart()
        assert ids(RestStore(server.url).get_many(["a"], None, None)) == {"a": [1, 2]}


def test_a_server_that_comes_back_in_time_is_waited_for(tmp_path):
    with store_server(tmp_path, "--store", "memory") as server:
        store = RestStore(server.url, retry_for=60)
        assert store.get_many(["a"], None, None) == {"a": []}
        server.process.kill()
        server.process.start()  # not awaited: it takes a second until it listens
        store.put_many([row("a", 1, 1)])
        assert ids(store.get_many(["a"], None, None)) == {"a": [1]}


def test_a_server_that_does_not_answer_in_time(tmp_path):
    with store_server(tmp_path, "--store", "memory") as server:
        store = RestStore(server.url, retry_for=0, timeout=0.5)
        store.put_many([row("a", 1, 1)])
        server.process.freeze()
        with pytest.raises(TimeoutError, match=r"POST /lookups: no complete answer within 0\.5 s"):
            store.get_many(["a"], None, None)
        server.process.thaw()
        again = RestStore(server.url, retry_for=60)
        assert ids(again.get_many(["a"], None, None)) == {"a": [1]}


GARBAGE = {
    "half a batch": (half, r"POST /lookups: the answer is garbage: expected lists of rows for 4 keys, got 2"),
    "cut off": (lambda answer: (200, answer[1][:-5]), 'is garbage: .*begins \'{"rows":'),
    "no JSON": (lambda _: (200, b"<html>"), "is garbage: .*begins '<html>'"),
    "empty": (lambda _: (200, b""), "is garbage: .*begins an empty body"),
    "null": (lambda _: (200, b"null"), "is garbage"),
    "other shape": (lambda _: (200, b'{"lines":[]}'), "is garbage: it has no 'rows'"),
    "a row of two": (lambda _: (200, b'{"rows":[[[1,"a"]],[],[],[]]}'), "is garbage"),
    "a text for the time": (lambda _: (200, b'{"rows":[[["1","a",{}]],[],[],[]]}'), "is garbage"),
    "a list for the fields": (lambda _: (200, b'{"rows":[[[1,"a",[]]],[],[],[]]}'), "is garbage"),
    "an unknown tag": (lambda _: (200, b'{"rows":[[[1,"a",{"v":{"?":1}}]],[],[],[]]}'), "is garbage"),
    "rows outside the bounds": (
        lambda _: (200, b'{"rows":[[[99,"a",{}]],[],[],[]]}'),
        r"expected rows \[time, id, fields\] from 0 to 50, got 99",
    ),
    "500": (lambda _: (500, b"oops"), "POST /lookups: the server answers 500: 'oops'"),
    "503": (lambda _: (503, b'{"detail":"later"}'), "the server answers 503: later"),
    "302": (lambda _: (302, b""), "expected status 200, got 302"),
    "no answer": (lambda _: None, "POST /lookups: "),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_an_answer_that_is_none_is_a_failure_and_repeated(proxy, name):
    """A11: half a batch, 500 and garbage, once and for ever: the rows are right, or there is an error that names it."""
    change, message = GARBAGE[name]
    RestStore(proxy.url).put_many([row(f"g{key}", key, key) for key in range(4)])
    failures = 2

    def fault(_method, path, forward):
        nonlocal failures
        answer = forward()
        if path == "/lookups" and failures:
            failures -= 1
            return change(answer)
        return answer

    proxy.fault = fault
    keys = [f"g{key}" for key in range(4)]
    assert ids(RestStore(proxy.url).get_many(keys, 0, 50)) == {f"g{key}": [key] for key in range(4)}
    assert proxy.requests.count(("POST", "/lookups")) == 3
    failures = 10**9
    with pytest.raises(OSError, match=message):
        RestStore(proxy.url, retry_for=0.2).get_many(keys, 0, 50)


def test_a_put_that_was_stored_by_half_is_repeated(proxy):
    """A12: every row is there once, whatever became of the attempts."""
    failures = [half, lambda _: None, lambda _: (500, b"")]

    def fault(_method, path, forward):
        answer = forward()
        return failures.pop(0)(answer) if path == "/rows" and failures else answer

    proxy.fault = fault
    store = RestStore(proxy.url)
    store.put_many([row("half", number, number, v=number) for number in range(4)])
    assert (failures, ids(store.get_many(["half"], None, None))) == ([], {"half": [0, 1, 2, 3]})
    failures[:] = [half] * 10**6
    with pytest.raises(GarbageError, match="expected 2 rows to be stored, got 1"):
        RestStore(proxy.url, retry_for=0).put_many([row("half", 5, 5), row("half", 6, 6)])


def test_a_mark_that_was_replaced_although_the_answer_was_lost(proxy):
    store = RestStore(proxy.url)
    before = store.mark()
    lost = [1]

    def fault(method, _path, forward):
        answer = forward()
        return None if method == "PUT" and lost and lost.pop() else answer

    proxy.fault = fault
    assert store.replace_mark(before, MARK)
    assert not lost
    assert not RestStore(proxy.url).replace_mark(before, Mark("other", "1", 1, 0, 5))
    assert store.mark() == MARK


def test_an_answer_that_trickles_is_too_late(proxy):
    RestStore(proxy.url).put_many([row("slow", 1, 1)])

    def fault(_method, path, forward):
        if path == "/lookups":
            time.sleep(0.6)
        return forward()

    proxy.fault = fault
    with pytest.raises(TimeoutError, match=r"no complete answer within 0\.3 s"):
        RestStore(proxy.url, timeout=0.3, retry_for=0.1).get_many(["slow"], None, None)


def test_requests_are_cut_to_the_size_that_the_server_accepts(tmp_path):
    with store_server(tmp_path, "--store", "memory", "--max-body", "2000") as server, faulty(server) as proxy:
        store = RestStore(proxy.url)
        rows = [row(f"k{number}", number, number, text="x" * 100) for number in range(100)]
        store.check_rows(rows)
        store.put_many(rows)
        assert 100 / 15 < proxy.requests.count(("POST", "/rows")) < 20
        keys = [f"k{number}" for number in range(1000)]
        found = store.get_many(keys, None, None)
        assert [key for key, one in found.items() if one] == keys[:100]
        large = row("large", 1, 1, text="x" * 3000)
        for call in (store.check_rows, store.put_many):
            with pytest.raises(StateError, match=r"key 'large': .* has 3,\d+ bytes, the server accepts 2,000 at most"):
                call([row("fine", 1, 1), large])
        detail = {"detail": "the body has 200,000 bytes, expected at most 2,000"}
        assert asked(f"{server.url}/rows", b" " * 200_000) == (413, detail)


def test_a_proxy_that_accepts_less_than_the_server_says(proxy):
    def fault(_method, path, forward):
        size = [request[1] for request in proxy.requests].count("/rows")
        return (413, b"<html>too large</html>") if path == "/rows" and size <= 2 else forward()

    proxy.fault = fault
    store = RestStore(proxy.url)
    store.put_many([row("cut", number, number) for number in range(8)])
    assert ids(store.get_many(["cut"], None, None)) == {"cut": list(range(8))}
    proxy.fault = lambda _method, path, forward: (413, b"") if path == "/rows" else forward()
    with pytest.raises(StateError, match="key 'cut': the request for it alone has"):
        store.put_many([row("cut", number, number) for number in range(8)])


def test_another_version_of_the_api_and_other_services(proxy):
    proxy.fault = lambda *_: (200, b'{"api":2,"store":"x","max_body_bytes":5}')
    with pytest.raises(OSError, match="expected version 1 of the API, got 2"):
        RestStore(proxy.url, retry_for=0).mark()
    with pytest.raises(InputError, match=r"/elsewhere: GET /store: nothing is served there \(404"):
        proxy.fault = lambda _method, _path, forward: forward()
        RestStore(f"{proxy.url}/elsewhere").mark()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((url, "expected http://HOST:PORT") for url in ("localhost:80", "redis://h", "http://", "http://h:0x", 5)),
        ("http://u:pw@h", "it has a user or a password; pass a token instead"),
        ("http://h?a=pw", "it has a query"),
    ],
)
def test_a_wrong_url(url, message):
    with pytest.raises(InputError, match=message):
        RestStore(url)


def test_wrong_times_and_tokens():
    for times in ({"timeout": 0}, {"retry_for": -1}, {"timeout": "5"}, {"retry_for": None}):
        with pytest.raises(InputError, match="expected seconds above 0, and from 0"):
            RestStore("http://h", **times)
    for token in ("", "ä", "secret\n", " secret", "se\ncret", 5):
        with pytest.raises(InputError, match="characters that an HTTP header cannot have") as refused:
            RestStore("http://h", token=token)
        assert not str(token).strip() or str(token).strip() not in str(refused.value)
    assert "secret" not in repr(RestStore("http://h", token="secret"))


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_the_command_ends_cleanly_on_a_signal(tmp_path, stop):
    server = StoreServer(tmp_path, "--store", "memory")
    try:
        store = RestStore(server.url)
        store.put_many([row("a", 1, 1)])  # the connection stays open
        server.process._end(stop, 20)
        log = server.process.log.read_text()
        assert log.startswith(f"listening on {server.url}: store memory, without a token; the API is described at ")
        assert (log.count("\n"), "Traceback" in log) == (1, False)
    finally:
        server.close()
