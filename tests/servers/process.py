"""One server process: started, waited for, killed, frozen, and ended by its pid alone."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")

# Below the range systems take outgoing ports from. A port of that range may be taken while its server is down, even by
# a client that tries to reach it (TCP allows a socket to connect to itself).
PORTS = range(20_000, 32_000)

READY_WITHIN = 60.0  # seconds; a broker needs 2 on an idle machine
ENDS_WITHIN = 15.0  # seconds after SIGTERM


class ServerError(Exception):
    """A server did not do what it was asked to; the message ends with the end of its log."""


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 nothing listens on, that stay free while their server is down."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServerError(f"no {count} free ports in {PORTS.start}–{PORTS.stop}")


class ServerProcess:
    """A server that `start` starts with always the same command; its output goes to the end of `log`.

    It ends with the process that started it. With `detached` it goes on instead, in a session of its own.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, *, detached: bool = False) -> None:
        self.name = name
        self.log = log
        self.pid: int | None = None
        self._command = list(command)
        self._detached = detached
        self._started: subprocess.Popen[str] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process is there; a frozen one is."""
        return self._started is not None and self._started.poll() is None

    def start(self) -> None:
        """Start it; `wait_ready` waits until it serves."""
        if self.alive:
            raise ServerError(f"{self.name} runs already, pid {self.pid}")
        with self.log.open("ab") as log:
            if self._detached:
                self._started = self._popen(self._command, log.fileno(), log.fileno())
                self.pid = self._started.pid
            else:
                guarded = [sys.executable, "-I", "-S", str(GUARD), *self._command]
                self._started = self._popen(guarded, subprocess.PIPE, log.fileno())
                self.pid = self._told_pid()

    def _popen(self, command: list[str], stdout: int, stderr: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=self.log.parent,
            start_new_session=self._detached,
            text=True,
        )

    def _told_pid(self) -> int:
        assert self._started is not None and self._started.stdout is not None
        with self._started.stdout as told:
            line = told.readline()
        if not line:
            raise self.failure("could not be started")
        return int(line)

    def wait_ready(self, ready: Callable[[], bool], *, seconds: float = READY_WITHIN) -> None:
        """Return when `ready()`; raise ServerError when the process ended or the seconds are over."""
        until = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise self.failure("ended while it started")
            if time.monotonic() > until:
                raise self.failure(f"was not ready within {seconds:g} s")
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. One that is gone already stays so."""
        self._end(signal.SIGKILL, ENDS_WITHIN)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that was not enough; returns when the process is gone."""
        try:
            self._end(signal.SIGTERM, ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open and nothing is answered, as with a long pause of its machine."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: goes on where it was frozen."""
        self._signal(signal.SIGCONT)

    def _end(self, how: signal.Signals, seconds: float) -> None:
        if not self.alive:
            return
        assert self._started is not None
        self._signal(how)
        if how is not signal.SIGKILL:
            self._signal(signal.SIGCONT)  # a frozen process takes no other signal
        self._started.wait(seconds)

    def _signal(self, how: signal.Signals) -> None:
        if not self.alive or self.pid is None:
            raise ServerError(f"{self.name} does not run: no {how.name} can be sent")
        try:
            os.kill(self.pid, how)
        except ProcessLookupError:  # ended by itself, its guard is about to notice
            return

    def failure(self, what: str) -> ServerError:
        """An error that says what happened to this server, with the end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        return ServerError("\n".join([f"{self.name} {what}; the end of {self.log}:", *lines]))
