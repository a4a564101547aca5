"""What one process asks of a run in another, and what is answered: entries of the ledger.

At most one request is open. It is written by compare-and-set under `names.REQUEST`; the run removes it and writes the
answer in one write, so that a request is carried out once or not at all: one that its asker has withdrawn meanwhile
conflicts. A request that is older than `STALE` has been left by an asker that died; whoever comes next removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from txstorm.errors import LedgerCorrupt
from txstorm.ledger import paths as names
from txstorm.ledger.lease import utc_now
from txstorm.ledger.port import ABSENT, Delete, Entry, Ledger, Op, Put
from txstorm.ledger.values import decode_value, encode_value

FORMAT, VERSION = "txstorm-request", 1
PATIENCE = 10.0
STALE = 15.0
ACTIVATE, DEACTIVATE, REBALANCE, KILL = COMMANDS = ("activate", "deactivate", "rebalance", "kill")


@dataclass(frozen=True)
class Request:
    """One question.

    Attributes:
        id: names it and its answer.
        command: one of `COMMANDS`.
        arguments: of the command, as JSON values.
        asker: who asks, in words.
        asked_at: when, ISO 8601 in UTC.
    """

    id: str
    command: str
    arguments: Mapping[str, Any]
    asker: str
    asked_at: str

    def age(self, now: datetime) -> float:
        """Seconds since it was asked; negative where a clock was set back."""
        return (now - datetime.fromisoformat(self.asked_at)).total_seconds()

    def stale(self, now: datetime) -> bool:
        """Whether its asker can no longer be waiting."""
        return abs(self.age(now)) > STALE

    def __str__(self) -> str:
        return f"{self.command} (asked by {self.asker} at {self.asked_at})"


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        result: what the command did, as JSON values.
        error: why it was refused; None when it was not.
        answered_at: when, ISO 8601 in UTC.
    """

    answered_at: str
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def stale(self, now: datetime) -> bool:
        """Whether its asker has not come for it and never will."""
        return abs((now - datetime.fromisoformat(self.answered_at)).total_seconds()) > STALE


def read_request(ledger: Ledger) -> tuple[Request | None, int]:
    """The open request, or None, and the version of its entry, to be expected when it is changed.

    Raises:
        LedgerCorrupt: the entry is no request.
        DataDirectoryError: it is in a newer format.
    """
    entry = ledger.get(names.REQUEST)
    if entry is None:
        return None, ABSENT
    found = decode_value(None, entry.value, names.REQUEST)
    try:
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise _unknown(names.REQUEST, f"format {found['format']} {found['version']}")
        request = None if found["request"] is None else Request(**found["request"])
        if request is not None:
            request.age(utc_now())  # raises where this is no time
    except (KeyError, TypeError, ValueError) as error:
        raise _unknown(names.REQUEST, repr(error)) from error
    return request, entry.version


def put_request(request: Request, expect: int) -> Put:
    """The operation that opens `request`; `expect` is the version of the entry without one, or with a stale one."""
    return _put(asdict(request), expect)


def no_request(expect: int | None) -> Put:
    """The operation that removes the request at version `expect`.

    The entry stays, so that its version counts on: a request that came in its place meanwhile has another one.
    """
    return _put(None, expect)


def _put(request: Mapping[str, Any] | None, expect: int | None) -> Put:
    value = {"format": FORMAT, "version": VERSION, "request": request}
    return Put(names.REQUEST, encode_value(None, value, names.REQUEST), expect)


def answer_ops(ledger: Ledger, request: str, answer: Answer, now: datetime) -> list[Op]:
    """The operations that store `answer` and remove those that nobody came for."""
    path = names.answer_path(request)
    kept = ledger.scan(names.ANSWERS)
    old = [name for name, entry in kept.items() if _answer(name, entry).stale(now)]
    return [Put(path, encode_value(None, asdict(answer), path)), *(Delete(names.answer_path(name)) for name in old)]


def read_answer(ledger: Ledger, request: str) -> Answer | None:
    """The answer to the request with this id; None while there is none."""
    entry = ledger.get(names.answer_path(request))
    return None if entry is None else _answer(request, entry)


def _answer(request: str, entry: Entry) -> Answer:
    path = names.answer_path(request)
    try:
        return Answer(**decode_value(None, entry.value, path))
    except TypeError as error:
        raise _unknown(path, repr(error)) from error


def _unknown(path: str, found: str) -> LedgerCorrupt:
    return LedgerCorrupt(f"ledger entry {path}: expected {FORMAT} {VERSION}, got {found}; use one txstorm for all")
