"""Process creation services: replicas as child processes, of the master itself or of a service on another machine."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context, spawn
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from txstorm.dadstorm.processes.channel import Channel, WrongKeyError, reason
from txstorm.dadstorm.processes.replica import serve
from txstorm.errors import InputError
from txstorm.lanes import THREADS, Lanes, Task

KEY_FILE = Path("~/.txstorm/dadstorm.key")
"""Where the key is, if nothing else is said."""
Ended = Callable[[int, int | None, str], None]
"""Called with the number of a replica that has ended, its exit code, if it is known, and why it did not start."""
_NAME = "dadstorm-replica"
_LOST = "its process creation service has ended"


class Service(Protocol):
    """Port: starts and kills replica processes, by the numbers of their starts; reports each end, once. Thread-safe."""

    def start(self, number: int, told: dict[str, Any]) -> None:
        """Start a process; returns at once."""

    def kill(self, number: int) -> None:
        """Kill a process by SIGKILL; without effect if it has ended."""

    def close(self) -> None:
        """Kill all, and wait until they have ended."""


class Spawner(Service):
    """Replicas as child processes of this one.

    Args:
        ended: see `Ended`; called on a lane of the replica.
        lanes: what its threads are.
    """

    def __init__(self, ended: Ended, lanes: Lanes = THREADS) -> None:
        self._ended, self._lanes = ended, lanes
        self._lock = lanes.lock()
        self._processes: dict[int, Any] = {}
        """None: it has yet to start."""
        self._tasks: dict[int, Task] = {}

    @override
    def start(self, number: int, told: dict[str, Any]) -> None:
        with self._lock:
            self._processes[number] = None
            self._tasks[number] = self._lanes.start(partial(self._live, number, json.dumps(told)), f"{_NAME}-{number}")

    @override
    def kill(self, number: int) -> None:
        with self._lock:
            process = self._processes.get(number)
            if process is None:
                self._processes.pop(number, None)  # so that it does not start
            else:
                process.kill()

    @override
    def close(self) -> None:
        with self._lock:
            tasks = list(self._tasks.values())
            for number in list(self._processes):
                self.kill(number)
        for task in tasks:
            task.join()

    def _live(self, number: int, told: str) -> None:
        """Start a process, and wait for its end."""
        process = get_context("spawn").Process(target=serve, args=(told,), name=f"{_NAME}-{number}", daemon=True)
        code, why = None, ""
        try:
            with self._lock:
                if number in self._processes:
                    process.start()
                    self._processes[number] = process
            if process.pid is not None:
                wait([process.sentinel])
                process.join()
                while (code := process.exitcode) is None:  # another thread is just taking it
                    self._lanes.sleep(0.01)
        except OSError as error:
            why = f"it cannot be started: {error}"
        with self._lock:
            self._processes.pop(number, None)
            self._tasks.pop(number, None)
        self._ended(number, code, why)


def _prepared(name: str) -> dict[str, Any]:
    """Return what a child process prepares; a replica does not import the main module of its parent."""
    prepared = _prepare(name)
    if name.startswith(_NAME):
        prepared = {key: one for key, one in prepared.items() if not key.startswith("init_main")}
    return prepared


_prepare = spawn.get_preparation_data
spawn.get_preparation_data = _prepared


class RemoteService(Service):
    """Replicas as child processes of a service on another machine.

    Args:
        host, port: where it listens.
        key: the key of service and master.
        ended: see `Ended`.
        lanes: what its threads are.

    Raises:
        WrongKeyError: the service has another key.
        OSError, EOFError: none answers there.
    """

    def __init__(self, address: tuple[str, int], key: bytes, ended: Ended, lanes: Lanes = THREADS) -> None:
        self._channel = Channel.connect(*address, key)
        self._ended = ended
        self._lock = lanes.lock()
        self._numbers: set[int] = set()
        self.lost = False
        """Whether the service has ended, and with it all its replicas."""
        self._task = lanes.start(self._receive, f"dadstorm-service-{address[0]}")

    @override
    def start(self, number: int, told: dict[str, Any]) -> None:
        with self._lock:
            lost = self.lost
            self._numbers.add(number)
        if lost:
            self._ended(number, None, _LOST)
        else:
            self._send("start", number, told)

    @override
    def kill(self, number: int) -> None:
        self._send("kill", number)

    @override
    def close(self) -> None:
        self._send("close")
        self._task.join(5)
        self._channel.cut()

    def _send(self, *message: Any) -> None:
        try:
            self._channel.send(*message)
        except OSError:
            self._channel.cut()

    def _receive(self) -> None:
        try:
            while True:
                number, code, why = self._channel.receive()
                with self._lock:
                    self._numbers.discard(number)
                self._ended(number, code, why)
        except EOFError:
            self._channel.close()
        with self._lock:
            self.lost = True
            numbers = sorted(self._numbers)
        for number in numbers:
            self._ended(number, None, _LOST)


class ProcessCreationService:
    """The service on a machine that is not the master's: it starts replicas for whoever has the key.

    Args:
        host, port: where it listens; port 0: any.
        key: the key of service and master.
        lanes: what its threads are.

    Attributes:
        address: host and port.

    Raises:
        InputError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, key: bytes, lanes: Lanes = THREADS) -> None:
        self._key, self._lanes = key, lanes
        try:
            self._socket = socket.create_server((host, port))
        except OSError as error:
            raise InputError(f"cannot listen at {host}:{port}: {reason(error)}") from None
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    def serve(self) -> None:
        """Serve masters until the process ends, and its replicas with it."""
        while True:
            connected, _ = self._socket.accept()
            self._lanes.start(partial(self._master, connected), "dadstorm-master")

    def _master(self, connected: socket.socket) -> None:
        """Serve one master until its connection ends, which ends its replicas."""
        try:
            channel = Channel(connected, self._key, accepted=True, lanes=self._lanes)
        except (OSError, EOFError, WrongKeyError):
            return
        spawner = Spawner(partial(self._report, channel), self._lanes)
        try:
            while True:
                kind, *rest = channel.receive()
                if kind == "start":
                    number, told = rest
                    spawner.start(number, {**told, "host": channel.peer()})
                elif kind == "kill":
                    spawner.kill(rest[0])
                else:
                    break
        except EOFError:
            pass
        spawner.close()
        channel.close()

    def _report(self, channel: Channel, number: int, code: int | None, why: str) -> None:
        try:
            channel.send(number, code, why)
        except OSError:
            channel.cut()


def read_key(path: Path | None = None, *, create: bool = False) -> bytes:
    """Return the key in a file, which only its owner may read.

    Args:
        path: the file; None: `KEY_FILE`.
        create: whether to make it, with a random key, if it is missing.

    Raises:
        InputError: it is missing, unreadable, too short, or others may read it.
    """
    path = (path or KEY_FILE).expanduser()
    try:
        if create and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32) + "\n")
        mode, key = path.stat().st_mode, path.read_bytes().strip()
    except FileNotFoundError:
        msg = f"there is no key file {path}: `txstorm dadstorm pcs` makes one; copy it to the other machines"
        raise InputError(msg) from None
    except OSError as error:
        raise InputError(f"key file {path}: {reason(error)}") from None
    if mode & 0o077:
        raise InputError(f"key file {path}: others may read it; run: chmod 600 {path}")
    if len(key) < 16:
        raise InputError(f"key file {path}: expected at least 16 bytes, found {len(key)}")
    return key
