"""Base class for clusters of servers of one kind."""

import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

from servers.process import ServerError, ServerProcess, free_ports, is_free

Some = TypeVar("Some", bound="Cluster")
Ports = dict[str, int]
"""Ports of one server, by name."""


class Cluster(AbstractContextManager["Cluster"]):
    """Cluster of numbered servers of one kind; their data is kept in `directory` when they end or are restarted."""

    PORTS = ("port",)
    """Names of the ports of one server; that of clients is the first."""

    def __init__(self, directory: Path, ports: Sequence[Ports], servers: list[ServerProcess]) -> None:
        self.directory = directory
        self.servers = servers
        self.ports = [server["port"] for server in ports]

    @classmethod
    def pick_ports(cls, servers: int, known: Sequence[int] = ()) -> list[Ports]:
        """Pick free ports for the servers, or raise ServerError; for clients, free ones of `known` are preferred."""
        free = free_ports(len(cls.PORTS) * servers)
        first = [*filter(is_free, known), *free[:servers]][:servers]
        every = [(port, *free[servers + i :: servers]) for i, port in enumerate(first)]
        return [dict(zip(cls.PORTS, ports, strict=True)) for ports in every]

    def address(self, i: int = 0) -> str:
        return f"127.0.0.1:{self.ports[i]}"

    @property
    def addresses(self) -> str:
        return ",".join(map(self.address, range(len(self.ports))))

    @abstractmethod
    def ready(self, i: int) -> bool:
        """Return whether server i is ready for clients."""

    def start(self) -> None:
        for server in self.servers:
            server.start()
        for i in range(len(self.servers)):
            self.wait_ready(i)

    def wait_ready(self, i: int) -> None:
        """Wait until server i is ready; raise ServerError if it ends or is not ready within two minutes."""
        self.servers[i].wait_ready(lambda: self.ready(i))

    def kill(self, i: int = 0) -> None:
        self.servers[i].kill()

    def restart(self, i: int = 0) -> None:
        """Restart server i with the same data and ports, killing it first if it runs; return when it is ready."""
        self.servers[i].kill()
        self.servers[i].start()
        self.wait_ready(i)

    def freeze(self, i: int = 0) -> None:
        self.servers[i].freeze()

    def thaw(self, i: int = 0) -> None:
        self.servers[i].thaw()

    def stop(self) -> None:
        """Shut down all servers with SIGTERM, as operators do; return when they have ended."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        for server in self.servers:
            server.kill()

    def __exit__(self, *raised: object) -> None:
        self.close()

    @staticmethod
    def listens(port: int) -> bool:
        """Return whether a process accepts connections on `port` of 127.0.0.1."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            return False

    @staticmethod
    def wait(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """Wait until `condition` returns true; after `seconds`, raise a ServerError whose message contains `what`."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise ServerError(f"waited {seconds:g} s in vain for {what}")
            time.sleep(0.05)


def started(cluster: Some) -> Some:
    """Start the cluster and return it once all servers are ready; if that fails, kill those that were started."""
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster
