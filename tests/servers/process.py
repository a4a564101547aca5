"""Server processes: started, awaited, suspended, stopped and killed individually, by process id."""

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")

# Below the range of ephemeral ports. An ephemeral port could be taken while its server is down, even by a client that
# tries to connect to it (TCP allows a socket to connect to itself).
PORTS = range(20_000, 32_000)

READY_WITHIN = 120.0  # seconds; a broker needs 2 on an idle machine, 30 on a very busy one
ENDS_WITHIN = 20.0  # seconds after SIGTERM


class ServerError(Exception):
    """Raised if a server cannot be started, or did not do what was requested; usually with the tail of its log."""


def is_free(port: int) -> bool:
    """Return whether no process listens on `port` of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return `count` distinct unused ports of 127.0.0.1, outside the ephemeral range, or raise ServerError."""
    candidates = random.SystemRandom().sample(PORTS, len(PORTS))
    found = list(itertools.islice(filter(is_free, candidates), count))
    if len(found) < count:
        raise ServerError(f"{count} free ports are needed, there are {len(found)} in {PORTS.start}–{PORTS.stop}")
    return found


class ServerProcess(ABC):
    """A restartable server process: always the same command, with its output appended to `log`."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.pid: int | None = None
        self._command = list(command)

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Return whether the process exists, including when it is suspended."""

    def start(self) -> None:
        """Start the server without waiting until it is ready; raise ServerError if it is already running."""
        if self.alive:
            raise ServerError(f"{self.name} runs already, pid {self.pid}")
        with self.log.open("ab") as log:
            self._start(log.fileno())

    @abstractmethod
    def _start(self, log: int) -> None:
        """Start the process with its output redirected to the file descriptor `log`, and set `pid`."""

    def wait_ready(self, ready: Callable[[], bool], *, seconds: float = READY_WITHIN) -> None:
        """Wait until `ready()` is true; raise ServerError if the process ends or after `seconds`."""
        until = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                time.sleep(0.2)  # the command line of a new process may not be visible yet
                if not self.alive:
                    raise self.failure("ended while it started")
            if time.monotonic() > until:
                raise self.failure(f"was not ready within {seconds:g} s")
            time.sleep(0.05)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process has ended; no effect if it has already ended."""
        self._end(signal.SIGKILL, ENDS_WITHIN)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL if it does not end within 20 s; return when the process has ended."""
        try:
            self._end(signal.SIGTERM, ENDS_WITHIN)
        except ServerError:
            self.kill()

    def freeze(self) -> None:
        """Suspend the process with SIGSTOP: connections remain open without responses, as in a long GC pause."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _end(self, how: signal.Signals, seconds: float) -> None:
        if not self.alive:
            return
        self._signal(how)
        if how is not signal.SIGKILL:
            self._signal(signal.SIGCONT)  # a suspended process handles no other signal
        until = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > until:
                raise self.failure(f"did not end within {seconds:g} s after {how.name}")
            time.sleep(0.02)

    def _signal(self, how: signal.Signals) -> None:
        if not self.alive or self.pid is None:
            raise ServerError(f"{self.name} does not run: no {how.name} can be sent")
        try:
            os.kill(self.pid, how)
        except ProcessLookupError:  # it has just ended, which its guard has not noticed yet
            return

    def failure(self, what: str) -> ServerError:
        """Return an error that describes the failure of this server, with the tail of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        return ServerError("\n".join([f"{self.name} {what}; the end of {self.log}:", *lines]))


class GuardedProcess(ServerProcess):
    """A server process that ends with the process that started it, even if that is killed."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        super().__init__(name, command, log)
        self._guard: subprocess.Popen[str] | None = None

    @property
    def alive(self) -> bool:
        """Return whether the process exists, including when it is suspended."""
        return self._guard is not None and self._guard.poll() is None

    def _start(self, log: int) -> None:
        command = [sys.executable, "-I", "-S", str(GUARD), *self._command]
        self._guard = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd=self.log.parent, text=True
        )
        assert self._guard.stdout is not None
        with self._guard.stdout as told:
            line = told.readline()
        if not line:
            raise self.failure("could not be started")
        self.pid = int(line)


class DetachedProcess(ServerProcess):
    """A server process that outlives the process that started it; a pid file beside its log identifies it to others."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        super().__init__(name, command, log)
        self._file = log.with_name("pid")
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.pid = int(self._file.read_text())

    @property
    def alive(self) -> bool:
        """Return whether the process exists; a different process with a reused process id does not count."""
        return self.pid is not None and self._command[-1] in _command_line(self.pid)

    def _start(self, log: int) -> None:
        server = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.log.parent, start_new_session=True
        )
        self.pid = server.pid
        # The command line of a new process is briefly not visible.
        until = time.monotonic() + READY_WITHIN
        while server.poll() is None and not self.alive and time.monotonic() < until:
            time.sleep(0.001)
        # It is meant to outlive this process. If it ends earlier, this thread reaps it, so that it is no zombie.
        threading.Thread(target=server.wait, daemon=True).start()
        self._file.write_text(f"{server.pid}\n")


def _command_line(pid: int) -> list[str]:
    """Return the words of a process's command line; an empty list if there is no such process."""
    if Path("/proc/self/cmdline").exists():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        return []
    shown = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.split()
