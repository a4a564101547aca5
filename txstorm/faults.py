"""Named fault points in the shipped code, so that crash tests test what ships.

A point does nothing unless it is armed by ``TXSTORM_FAULT=point:action:nth`` (several separated by commas),
where *action* is ``kill`` (SIGKILL to this process), ``raise`` (`InjectedFault`) or ``hang`` (sleep for an hour)
and *nth* counts the passages of that point from 1. ``*`` for the point matches every point.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from txstorm.errors import InputError

ACTIONS = ("kill", "raise", "hang")


class InjectedFault(Exception):
    """Raised by an armed fault point with the action ``raise``."""


@dataclass
class _Armed:
    point: str
    action: str
    left: int


def parse(text: str) -> list[_Armed]:
    """Read the value of ``TXSTORM_FAULT``; raises `InputError` on anything malformed."""
    return [_parse_one(part) for part in text.split(",") if part]


def _parse_one(part: str) -> _Armed:
    fields = part.split(":")
    if len(fields) != 3 or fields[1] not in ACTIONS or not fields[2].isdigit() or int(fields[2]) < 1:
        msg = f"TXSTORM_FAULT: expected point:{'|'.join(ACTIONS)}:nth with nth >= 1, got {part!r}"
        raise InputError(msg)
    return _Armed(fields[0], fields[1], int(fields[2]))


_armed: list[_Armed] = parse(os.environ.get("TXSTORM_FAULT", ""))
_trace = os.environ.get("TXSTORM_FAULT_TRACE")


def arm(text: str) -> None:
    """Arm points in this process, as ``TXSTORM_FAULT`` would have; an empty text disarms all."""
    _armed[:] = parse(text)


def point(name: str) -> None:
    """Pass the point `name`; a no-op unless it is armed."""
    if _trace:
        with open(_trace, "a", encoding="utf-8") as file:
            file.write(name + "\n")
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    for fault in _armed:
        if fault.point in (name, "*"):
            fault.left -= 1
            if fault.left == 0:
                _act(fault.action, name)


def _act(action: str, name: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "hang":
        time.sleep(3600)
    msg = f"injected at {name}"
    raise InjectedFault(msg)
