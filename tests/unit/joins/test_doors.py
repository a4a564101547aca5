"""Servers of joins: which requests come in, by host name, origin, token and content type; and the limit of names."""

import asyncio
import json
from typing import Any

import pytest

from txstorm.errors import InputError
from txstorm.joins import MemoryStore
from txstorm.web.data_delay import delay_app
from txstorm.web.serving import Door, Guard, checked_door
from txstorm.web.store_server import store_app

HOME = "localhost:8080"
JSON = {"content-type": "application/json"}
REPORT = {"reported_at": 1, "consumed_time": 1, "delay": 0, "partitions": {"p": dict.fromkeys(("consumed", "end"), 1)}}
REPORT["partitions"]["p"] |= {"time": 1, "caught_up": True}


def status(app: Any, path: str, body: Any = None, host: str | None = HOME, **headers: str) -> int:
    """Return the status of a call of an ASGI application; a POST if there is a body."""
    given = {} if host is None else {"host": host}
    given |= {name.replace("_", "-"): one for name, one in headers.items()}
    scope = {
        "type": "http",
        "method": "GET" if body is None else "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("host", "headers", "expected"),
    [
        ("127.0.0.1:8080", JSON, 200),
        ("[::1]:8080", {"content-type": "Application/JSON; charset=utf-8"}, 200),
        ("LOCALHOST", JSON, 200),
        ("box.lan:1", JSON, 200),  # --allow-host
        ("127.0.0.9:8080", JSON, 200),  # --host
        ("evil.example:8080", JSON, 403),
        ("localhost.evil.example", JSON, 403),
        ("", JSON, 403),
        (None, JSON, 403),
        (HOME, {**JSON, "origin": "http://localhost:8080"}, 200),
        ("localhost", {**JSON, "origin": "http://localhost"}, 200),
        ("localhost:80", {**JSON, "origin": "http://localhost"}, 200),
        ("box.lan", {**JSON, "origin": "https://box.lan"}, 200),
        (HOME, {**JSON, "origin": "http://localhost:8081"}, 403),
        (HOME, {**JSON, "origin": "https://evil.example"}, 403),
        (HOME, {**JSON, "origin": "null"}, 403),
        (HOME, {"content-type": "text/plain"}, 415),
        (HOME, {"content-type": "text/plain; application/json"}, 415),
        (HOME, {"content-type": "application/x-www-form-urlencoded"}, 415),
        (HOME, {}, 415),
    ],
)
@pytest.mark.parametrize(
    ("make", "path", "body"),
    [
        (lambda: store_app(MemoryStore(), "memory"), "/rows", {"rows": [["k", 1, 2, {}]]}),
        (delay_app, "/delay/clicks", REPORT),
    ],
    ids=["store", "delay"],
)
def test_a_page_of_another_site_cannot_write_to_a_server_on_loopback(make, path, body, host, headers, expected):
    app = make()
    guarded = Guard(app, checked_door("127.0.0.9", None, "--token", ["Box.lan"]))
    assert status(guarded, path, body, host, **headers) == expected
    if path == "/delay/clicks":
        assert status(app, path) == (200 if expected == 200 else 404)
    assert status(guarded, "/health", None, host) == (403 if host in ("", None) or "evil" in host else 200)


@pytest.mark.parametrize("listening", ["127.0.0.1", "0.0.0.0"])
def test_with_a_token_it_decides_and_beyond_loopback_it_alone(listening):
    guarded = Guard(delay_app(), checked_door(listening, "secret", "--token"))
    given = {**JSON, "authorization": "bearer secret"}
    foreign = 403 if listening == "127.0.0.1" else 200
    wrong = [{**given, "authorization": one} for one in ("secret", "Bearer x")]
    assert [status(guarded, "/delay/a", REPORT, **one) for one in wrong] == [401] * 2
    assert status(guarded, "/delay/a", REPORT, **given) == 200
    assert status(guarded, "/delay/a", REPORT, "box.lan", origin="http://evil.example", **given) == foreign
    assert status(guarded, "/delay/a", REPORT, **{**given, "content-type": "text/plain"}) == 415
    assert status(guarded, "/health") == 200


@pytest.mark.parametrize("name", ["", "http://box", "box:8080", "a b", "*"])
def test_a_host_name_that_is_none_is_refused(name):
    with pytest.raises(InputError, match="--allow-host: expected the name of a host"):
        checked_door("127.0.0.1", None, "--token", [name])


def test_a_request_that_a_stop_cuts_off_is_answered_with_503():
    async def cut_off(scope, receive, send):
        raise asyncio.CancelledError

    assert status(Guard(cut_off, Door("127.0.0.1")), "/health") == 503


def test_at_the_limit_of_names_one_unreported_for_a_day_gives_way(monkeypatch):
    """The one longest unreported, and never one that was reported in the last day."""
    monkeypatch.setattr("txstorm.web.data_delay.MOST_NAMES", 3)
    now = [0.0]
    app = delay_app(clock=lambda: now[0])

    def reported(name: str, at: float) -> int:
        now[0] = at
        return status(app, f"/delay/{name}", REPORT, **JSON)

    assert {reported(f"n{number}", number) for number in range(3)} == {200}
    assert reported("n0", 5000) == 200
    assert reported("new", 86_401) == 400  # n1 is a day old to the second
    assert reported("new", 86_401.5) == 200
    assert [status(app, f"/delay/{name}") for name in ("n0", "n1", "n2", "new")] == [200, 404, 200, 200]
