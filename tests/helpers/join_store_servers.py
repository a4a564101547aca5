"""Servers of join stores: ``txstorm store-server`` as a process, and a proxy before it that injects faults."""

import contextlib
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from programs import Program, loaded
from servers.process import ServerProcess, free_ports

from txstorm.joins import StoreRow

Answer = tuple[int, bytes]
Fault = Callable[[str, str, Callable[[], Answer]], "Answer | None"]
"""Function of (method, path, forward) that returns the answer; None: close the connection without one."""


def row(key: Any, id_: Any, time: int, **value: Any) -> StoreRow:
    return StoreRow(key, id_, time, value)


def ids(found: Any) -> dict[Any, list[Any]]:
    return {key: [one.id for one in rows] for key, rows in found.items()}


def half(answer: Answer) -> Answer:
    """Cut an answer of a put or of a look-up to half of its rows."""
    document = json.loads(answer[1])
    rows = document.get("rows")
    if rows is not None:
        document["rows"] = rows // 2 if isinstance(rows, int) else rows[: len(rows) // 2]
    return answer[0], json.dumps(document).encode()


def asked(url: str, body: Any = None, method: str | None = None, **headers: str) -> tuple[int, Any]:
    """Return status and JSON of a request, made without txstorm's client; a POST if there is a body."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class ForkedServer(ServerProcess):
    """A server that is a fork of a process in which txstorm is loaded: to import a web server takes two seconds.

    Its log begins anew at each start.
    """

    _program: Program | None = None

    @property
    def alive(self) -> bool:
        return self._program is not None and self._program.poll() is None

    def _start(self, log: int) -> None:
        self._program = loaded().start(*self._command, cwd=self.log.parent, output=self.log, merged=True)
        self.pid = self._program.pid


class StoreServer:
    """The command ``txstorm store-server``, on the same port at each start."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        command = ["-m", "txstorm", "store-server", "--port", str(self.port), *options]
        self.process = ForkedServer("store server", command, directory / "log")
        self.start()

    def start(self) -> None:
        self.process.start()
        self.process.wait_ready(self._listens)

    def restart(self) -> None:
        self.process.kill()
        self.start()

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def close(self) -> None:
        self.process.kill()


class FaultyProxy:
    """HTTP proxy whose answers `fault` decides, by default those of the server behind it; it notes the requests."""

    def __init__(self, port: int) -> None:
        self.fault: Fault = lambda _method, _path, forward: forward()
        self.requests: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path))
                answer = proxy.fault(self.command, self.path, lambda: forwarded(port, self, body))
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer[1])))
                with contextlib.suppress(BrokenPipeError):  # the client no longer waits
                    self.end_headers()
                    self.wfile.write(answer[1])

            do_POST = do_PUT = do_GET  # noqa: N815 - names of the base class

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def forwarded(port: int, handler: BaseHTTPRequestHandler, body: bytes) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        headers = {name: handler.headers[name] for name in ("Authorization", "Content-Type") if name in handler.headers}
        connection.request(handler.command, handler.path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def store_server(directory: Path, *options: str) -> contextlib.closing[StoreServer]:
    return contextlib.closing(StoreServer(directory, *options))


def faulty(server: StoreServer) -> contextlib.closing[FaultyProxy]:
    return contextlib.closing(FaultyProxy(server.port))
