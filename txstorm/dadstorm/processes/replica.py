"""Replica: a process that does the work of one operator, tuple by tuple, for the master that it is connected to.

Its main thread works, so that user code finds itself where it expects to be. Another one receives, answers pings and
ends the process, whatever the user's code does meanwhile. To the master go ``hello``, ``ready`` or ``refused``, then
``answer`` and ``failed``; from it come ``deliver``, ``withdraw``, ``interval``, ``ping`` and ``end``.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from txstorm import faults
from txstorm.dadstorm.configuration import Configuration, Operator
from txstorm.dadstorm.operators import Work, failure, load_code
from txstorm.dadstorm.processes.channel import Channel, reason, unpacked
from txstorm.dadstorm.rep_info import RepInfo
from txstorm.dadstorm.values import Fields
from txstorm.errors import InputError
from txstorm.lanes import THREADS

GIVEN_UP = 3
"""Exit code of a replica that has lost its service or master, or that they have given up."""
PIECE = 0.1
"""Seconds of work after which results are sent, though the delivery goes on."""
_CHUNK = 256
"""Tuples at most between looks at the clock."""
PASSED, DROPPED = 1, 0
"""Sent for the most frequent results: the tuple itself, and nothing."""


_WHY = {
    errno.EADDRINUSE: "another program has this address; end it, or start the run with --local",
    errno.EADDRNOTAVAIL: "the service that should start it runs on a machine without this address",
}


def serve(told: str) -> None:
    """Run a replica until the master ends it, or it has lost its service or master; the body of a process.

    Args:
        told: JSON of what the fleet tells it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the master
    os.dup2(2, 1)  # standard output belongs to the command that has started the run
    sys.stdout = sys.stderr
    document = json.loads(told)
    info = RepInfo.from_json(document["info"])
    faults.name_process(f"{info.operator_id}-{info.replica}")
    try:
        channel = Channel.connect(document["host"], document["port"], bytes.fromhex(document["key"]))
        channel.send("hello", document["number"], os.getpid())
    except (OSError, EOFError):
        sys.exit(GIVEN_UP)
    replica = _Replica(channel, info.replica, document["interval"], document["ping"])
    try:
        held = address(info) if document["bind"] else None  # noqa: F841 - held while the process lives
        work = load_code(_operator(info), _configuration(info), document["allow"])
    except InputError as error:
        channel.send("refused", str(error))
        os._exit(0)
    try:
        replica.run(_operator(info), work)
    except OSError:  # the connection has ended
        os._exit(GIVEN_UP)


def _operator(info: RepInfo) -> Operator:
    return Operator(
        id=info.operator_id,
        sources=(),
        replicas=1,
        routing="primary",
        routing_field=None,
        addresses=(info.my_url,),
        type=info.operator_spec,  # type: ignore[arg-type]
        params=info.operator_param,
    )


def _configuration(info: RepInfo) -> Configuration:
    return Configuration(info.semantics, info.logging_lvl, (), (), directory=Path(info.directory))  # type: ignore[arg-type]


def address(info: RepInfo) -> socket.socket | None:
    """Bind the port of a replica's address, to which nothing is sent; None: it has none.

    It is shared with other replicas of this user: those of another run, or of a master that is frozen.

    Raises:
        InputError: another program has it, or another machine.
    """
    from urllib.parse import urlsplit

    host = urlsplit(info.my_url).hostname
    if not info.port or not host:
        return None
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind((host, info.port))
    except OSError as error:
        bound.close()
        raise InputError(_WHY.get(error.errno or 0, reason(error))) from None
    return bound


class _Replica:
    def __init__(self, channel: Channel, index: int, interval: int, ping: float) -> None:
        self._channel, self._index, self._interval, self._ping = channel, index, interval, ping
        self._deliveries: dict[int, list[Fields]] = {}
        """Those that are not finished or withdrawn."""
        self._numbers: SimpleQueue[int | None] = SimpleQueue()
        THREADS.start(self._receive, "dadstorm-receive")

    def run(self, operator: Operator, work: Work) -> None:
        self._channel.send("ready")
        # One tuple at a time where a test wants to stop the process after the n-th one.
        single = faults.is_armed("replica.")
        while (number := self._numbers.get()) is not None:
            self._process(number, operator, work, single=single)
            self._deliveries.pop(number, None)

    def _process(self, number: int, operator: Operator, work: Work, *, single: bool) -> None:
        """Process a delivery in chunks, which grow while they are fast; a withdrawn one ends at the next chunk."""
        every = self._deliveries.get(number, [])
        results: list[Any] = []
        first = index = 0
        size, misfits, sent = 1, work.misfits, THREADS.monotonic()
        while index < len(every) and number in self._deliveries:
            chunk = every[index : index + (1 if single or self._interval else size)]
            begun, failed, made = THREADS.monotonic(), "", list[Sequence[Fields]]()
            try:
                faults.point("replica.taken")
                work.many(chunk, made)
                faults.point("replica.processed")
            except BaseException as error:  # noqa: BLE001 - also `sys.exit` in user code
                del made[len(chunk) - 1 :]  # if it is the last point
                failed = failure(operator, chunk[len(made)], error, self._index)
            results += [
                DROPPED if not some else PASSED if some[0] is fields and len(some) == 1 else some
                for fields, some in zip(chunk, made, strict=False)
            ]
            index = first + len(results)
            now = THREADS.monotonic()
            size = min(2 * size, _CHUNK) if now - begun < PIECE / 10 else 1
            if results and (failed or single or self._interval or now - sent > PIECE or index == len(every)):
                self._channel.send("answer", number, first, results, work.misfits - misfits)
                faults.point("replica.answered")
                first, results, misfits, sent = index, [], work.misfits, now
            if failed:
                self._channel.send("failed", number, index, failed)
                first = index = index + 1
            if self._interval:
                THREADS.sleep(self._interval / 1000)

    def _receive(self) -> None:
        """Receive until the connection or the parent has ended, which ends the process."""
        parent = parent_process()
        ends = [] if parent is None else [parent.sentinel]
        try:
            while True:
                # User code that keeps the interpreter to itself stops this thread: the system then ends the process.
                signal.setitimer(signal.ITIMER_PROF, 2 * self._ping)
                ready = wait([self._channel, *ends], self._ping / 2)  # type: ignore[list-item]
                if set(ready) & set(ends):
                    return
                if ready:
                    self._take(*self._channel.receive())
        except EOFError:
            return
        finally:
            os._exit(GIVEN_UP)

    def _take(self, kind: str, *rest: Any) -> None:
        if kind == "deliver":
            number, *every = rest
            try:
                faults.point("replica.received")
            except faults.InjectedFault:
                return  # the delivery is forgotten
            self._deliveries[number] = unpacked(*every)
            self._numbers.put(number)
        elif kind == "withdraw":
            self._deliveries.pop(rest[0], None)
        elif kind == "interval":
            self._interval = rest[0]
        elif kind == "end":
            self._numbers.put(None)
        else:
            self._channel.send("pong")
