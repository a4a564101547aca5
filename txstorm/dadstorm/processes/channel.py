"""Channel: JSON messages over one TCP connection, whose ends have shown each other that they have the same key."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from itertools import chain, islice
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from txstorm.dadstorm.values import Fields
from txstorm.lanes import THREADS, Lanes

HANDSHAKE = 5
"""Seconds that the other end has to connect, and for each step of showing that it has the key."""
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
WrongKeyError = AuthenticationError


def reason(error: Exception) -> str:
    """Return why a connection failed, in the words of the system."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or "it has ended the connection"


def packed(tuples: Sequence[Fields]) -> tuple[int | list[int], str | list[str]]:
    """Return tuples as JSON that is made and read faster than lists of lists: their sizes, and all fields."""
    sizes, fields = list(map(len, tuples)), list(chain.from_iterable(tuples))
    text = "\n".join(fields)
    size = sizes[0] if sizes and sizes[0] and sizes.count(sizes[0]) == len(sizes) else sizes
    return size, text if fields and text.count("\n") == len(fields) - 1 else fields


def unpacked(sizes: int | list[int], fields: str | list[str]) -> list[Fields]:
    """Return the tuples that `packed` was given."""
    found = iter(fields.split("\n") if isinstance(fields, str) else fields)
    if isinstance(sizes, int):
        return list(zip(*[found] * sizes, strict=True))
    return [tuple(islice(found, size)) for size in sizes]


class Channel:
    """One end of a connection. Any thread may send; one at a time receives.

    Args:
        connected: the socket.
        key: the key of both ends.
        accepted: whether this end was connected to.
        lanes: what its threads are.

    Raises:
        WrongKeyError: the other end has another key.
        OSError, EOFError: it speaks another protocol, or has ended.
    """

    def __init__(self, connected: socket.socket, key: bytes, *, accepted: bool, lanes: Lanes = THREADS) -> None:
        # A header and a long message are two writes, the second of which would wait for an answer to the first.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(True)
        self._socket = connected
        self._connection = Connection(os.dup(connected.fileno()))
        self._lock = lanes.lock()
        try:
            self._patience(HANDSHAKE)
            for step in (deliver_challenge, answer_challenge)[:: 1 if accepted else -1]:
                step(self._connection, key)
            self._patience(0)
        except AssertionError as error:  # `answer_challenge` expects a challenge
            self.close()
            raise OSError("the other end speaks another protocol") from error
        except BaseException:
            self.close()
            raise

    def _patience(self, seconds: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))

    @classmethod
    def connect(cls, host: str, port: int, key: bytes) -> Channel:
        """Connect to a door at this address; raises as the constructor does."""
        return cls(socket.create_connection((host, port), HANDSHAKE), key, accepted=False)

    def peer(self) -> str:
        """Return the host at the other end."""
        return str(self._socket.getpeername()[0])

    def send(self, *message: Any) -> None:
        """Send a message; blocks while the other end does not receive; `OSError`: it has ended."""
        data = _encode(message).encode("ascii")
        with self._lock:
            self._connection.send_bytes(data)

    def receive(self) -> list[Any]:
        """Return the next message; `EOFError`: the other end has ended, or this one is cut."""
        try:
            data = self._connection.recv_bytes()
        except OSError:
            raise EOFError from None
        message: list[Any] = json.loads(data)
        return message

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._connection.fileno()

    def cut(self) -> None:
        """End the connection: threads that send or receive return with their errors."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended

    def close(self) -> None:
        """End and release the connection, which no other thread receives from."""
        self.cut()
        with self._lock:
            self._connection.close()
            self._socket.close()
