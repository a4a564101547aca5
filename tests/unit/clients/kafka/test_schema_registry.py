"""The password of a schema registry is sent only to the host configured in the topology's code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from txstorm.errors import SpoutError

pytest.importorskip("fastavro")
from txstorm.clients.kafka.schema_registry import SchemaRegistry


class Server(HTTPServer):
    """A fake registry that returns no subjects or redirects to `elsewhere`, and records the credentials it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.elsewhere = ""
        self.heard: list[str | None] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.heard.append(self.headers.get("Authorization"))
        if self.server.elsewhere and self.path == "/subjects":
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, *arguments: object) -> None:
        """Suppress logging."""


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    made = Server(), Server()
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


def test_a_redirect_to_another_host_is_not_followed(servers: tuple[Server, Server]) -> None:
    named, other = servers
    registry = SchemaRegistry(named.url, ("me", "hunter2"))
    registry.check()
    named.elsewhere = f"{named.url}/moved"
    registry.check()
    assert len(named.heard) == 3
    named.elsewhere = f"{other.url}/subjects"
    with pytest.raises(SpoutError, match=r"expected an answer, got a redirect to .*use that address"):
        registry.check()
    assert other.heard == []
