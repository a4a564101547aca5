"""TCP proxy that simulates network failures between clients and a ZooKeeper server or a Kafka broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator

from servers.process import free_ports

Frame = bytes  # including its four-byte length prefix, the same in both protocols
NOTIFICATION = b"\xff\xff\xff\xff"  # request id of ZooKeeper's watch events


class LossyProxy(contextlib.AbstractContextManager["LossyProxy"]):
    """A proxy that forwards traffic between clients of `address` and the target; injected faults last until `heal`.

    It relies only on what both protocols have in common: each request and response is a frame, and responses are in the
    order of requests. This does not hold for `acks=0`, TLS, or ZooKeeper's four-letter commands.
    """

    def __init__(self, target_host: str, target_port: int, *, port: int | None = None) -> None:
        self.port = port or free_ports(1)[0]
        self.dropped = 0
        self._target = (target_host, target_port)
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._to_drop = 0
        self._matching: Callable[[Frame], bool] = _every
        self._passing = threading.Event()
        self._passing.set()
        self._listener: socket.socket | None = None
        self._listen()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop_answers(self, n: int = 1, matching: Callable[[Frame], bool] | None = None) -> None:
        """Drop the responses to the next `n` requests for which `matching(request)` is true (None: any requests).

        The server does process such a request, but the client's connection is closed; `dropped` counts these responses.
        """
        with self._lock:
            self._to_drop, self._matching = n, matching or _every

    def stall(self) -> None:
        """Hold back all traffic on open connections in both directions, like a network that drops all packets."""
        self._passing.clear()

    def cut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            _end(listener)
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def heal(self) -> None:
        """End all faults: forward all traffic, including what was held back, and accept connections."""
        with self._lock:
            self._to_drop = 0
        self._passing.set()
        if self._listener is None:
            self._listen()

    def close(self) -> None:
        self.cut()
        self._passing.set()

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True, name=f"proxy {self.port}").start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # the listener was closed
                return
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:  # the target is down, so clients are disconnected as well
                _end(client)
                continue
            server.settimeout(None)
            link = _Link(self, client, server)
            with self._lock:
                if self._listener is listener:
                    self._links.add(link)
                    link.start()
                    continue
            link.close()

    # --- called by links ---

    def forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def admit(self, request: Frame) -> bool:
        """Block until `request` may be forwarded; return whether its response must be dropped."""
        self._passing.wait()
        with self._lock:
            drop = self._to_drop > 0 and self._matching(request)
            self._to_drop -= drop
            return drop

    def admit_answer(self, *, drop: bool) -> None:
        """Block until a response may be forwarded or, if `drop`, is to be dropped and counted."""
        self._passing.wait()
        with self._lock:
            self.dropped += drop


class _Link:
    """A client's connection, paired with its connection to the server."""

    def __init__(self, proxy: LossyProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._asked: deque[bool] = deque()  # for each pending request, whether to drop its response

    def start(self) -> None:
        for pump in (self._pass_requests, self._pass_answers):
            threading.Thread(target=self._run, args=(pump,), daemon=True, name=f"proxy {self._proxy.port} link").start()

    def close(self) -> None:
        for end in (self._client, self._server):
            _end(end)
        self._proxy.forget(self)

    def _run(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except OSError:  # one side was closed, so both are
            pass
        finally:
            self.close()

    def _pass_requests(self) -> None:
        for request in _frames(self._client):
            self._asked.append(self._proxy.admit(request))
            self._server.sendall(request)

    def _pass_answers(self) -> None:
        for answer in _frames(self._server):
            drop = answer[4:8] != NOTIFICATION and bool(self._asked) and self._asked.popleft()
            self._proxy.admit_answer(drop=drop)
            if drop:
                return
            self._client.sendall(answer)


def _frames(source: socket.socket) -> Iterator[Frame]:
    with source.makefile("rb") as stream:
        while len(length := stream.read(4)) == 4:
            yield length + stream.read(int.from_bytes(length, "big"))


def _every(request: Frame) -> bool:
    return True


def _end(end: socket.socket) -> None:
    # A thread that blocks in a read is woken by a shutdown of the socket, but not by its close.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
