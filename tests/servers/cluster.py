"""Servers of one kind that belong together."""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from servers.process import ServerError, ServerProcess

Some = TypeVar("Some", bound="Cluster")


class Cluster(ABC):
    """Numbered servers; what they wrote stays in `directory` when they end, also in a restart."""

    def __init__(self, directory: Path, servers: list[ServerProcess]) -> None:
        self.directory = directory
        self.servers = servers

    @abstractmethod
    def ready(self, i: int) -> bool:
        """Whether server i serves clients."""

    def start(self) -> None:
        """Start all servers and return when all serve."""
        for server in self.servers:
            server.start()
        for i in range(len(self.servers)):
            self.wait_ready(i)

    def wait_ready(self, i: int) -> None:
        """Return when server i serves clients; ServerError when it ended or is not ready in two minutes."""
        self.servers[i].wait_ready(lambda: self.ready(i))

    def kill(self, i: int = 0) -> None:
        """SIGKILL to server i; returns when it is gone."""
        self.servers[i].kill()

    def restart(self, i: int = 0) -> None:
        """Start server i again with its data and ports, ending it first if it runs; returns when it serves."""
        self.servers[i].kill()
        self.servers[i].start()
        self.wait_ready(i)

    def freeze(self, i: int = 0) -> None:
        """SIGSTOP to server i."""
        self.servers[i].freeze()

    def thaw(self, i: int = 0) -> None:
        """SIGCONT to server i."""
        self.servers[i].thaw()

    def stop(self) -> None:
        """End all servers as their operators would, with SIGTERM; returns when they are gone."""
        for server in self.servers:
            server.stop()

    def close(self) -> None:
        """End all servers at once, with SIGKILL."""
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def listens(port: int) -> bool:
        """Whether something on 127.0.0.1 takes connections to the port."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
        except OSError:
            return False

    @staticmethod
    def wait(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
        """Return when the condition holds; ServerError, which says what was waited for, after `seconds`."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise ServerError(f"waited {seconds:g} s in vain for {what}")
            time.sleep(0.05)


def started(cluster: Some) -> Some:
    """The cluster when all its servers serve; when that fails none is left."""
    try:
        cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster
