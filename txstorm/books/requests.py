"""Requests of other processes to a run, and their answers, as entries of the ledger.

At most one request is open. It is written by compare-and-set at the path `paths.REQUEST`; the run removes it and writes
the answer in one commit, so that a request is carried out at most once: if the requester has withdrawn it meanwhile,
that commit conflicts. A request older than `STALE` seconds was left by a requester that died; the next process that
finds it removes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from txstorm.errors import LedgerCorrupt
from txstorm.lanes import utc_time
from txstorm.ledger import paths as names
from txstorm.ledger.port import ABSENT, Delete, Entry, Ledger, Op, Put
from txstorm.ledger.values import decode_value, encode_value

FORMAT, VERSION = "txstorm-request", 1
PATIENCE = 10.0
STALE = 15.0
ACTIVATE, DEACTIVATE, REBALANCE, KILL = "activate", "deactivate", "rebalance", "kill"
ACCEPT_CLOCK = "accept-clock"
WANT, CANCEL = "snapshot.want", "snapshot.cancel"


@dataclass(frozen=True)
class Request:
    """One request to a run.

    Attributes:
        id: identifies the request and its answer.
        command: name of the command; the run refuses a command for which it has no handler.
        arguments: arguments of the command, as JSON values, which the run validates.
        asker: description of the requesting process.
        asked_at: time of the request, ISO 8601 in UTC.
    """

    id: str
    command: str
    arguments: Mapping[str, Any]
    asker: str
    asked_at: str

    def age(self, now: datetime) -> float:
        """Return the age of the request in seconds; negative if a clock was set back."""
        return (now - datetime.fromisoformat(self.asked_at)).total_seconds()

    def stale(self, now: datetime) -> bool:
        """Return whether the request is so old that the requester can no longer be waiting for an answer."""
        return abs(self.age(now)) > STALE

    def __str__(self) -> str:
        return f"{self.command} (asked by {self.asker} at {self.asked_at})"


@dataclass(frozen=True)
class Answer:
    """Outcome of a request.

    Attributes:
        answered_at: time of the answer, ISO 8601 in UTC.
        result: the result of the command, as JSON values.
        error: the reason for a refusal; None if the command was carried out.
    """

    answered_at: str
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def stale(self, now: datetime) -> bool:
        """Return whether the answer is so old that the requester can no longer be waiting for it."""
        return abs((now - datetime.fromisoformat(self.answered_at)).total_seconds()) > STALE


def read_request(ledger: Ledger) -> tuple[Request | None, int]:
    """Return the open request, or None, and the version of its entry, to be expected by a change of the entry.

    Raises:
        LedgerCorrupt: the entry is not a request.
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
            request.age(utc_time(0))  # raises an error unless `asked_at` is a time
    except (KeyError, TypeError, ValueError) as error:
        raise _unknown(names.REQUEST, repr(error)) from error
    return request, entry.version


def put_request(request: Request, expect: int) -> Put:
    """Build the operation that opens `request`; `expect`: version of the entry, which has no request or a stale one."""
    return _put(asdict(request), expect)


def no_request(expect: int | None) -> Put:
    """Build the operation that removes the request at entry version `expect`.

    The entry itself stays, so that its version continues to increase: a later request in it has another version.
    """
    return _put(None, expect)


def _put(request: Mapping[str, Any] | None, expect: int | None) -> Put:
    value = {"format": FORMAT, "version": VERSION, "request": request}
    return Put(names.REQUEST, encode_value(None, value, names.REQUEST), expect)


def answer_ops(ledger: Ledger, request: str, answer: Answer, now: datetime) -> list[Op]:
    """Build the operations that store `answer` and delete stale answers that were never read."""
    path = names.answer_path(request)
    old = [name for name, entry in ledger.scan(names.ANSWERS).items() if _answer(name, entry).stale(now)]
    return [Put(path, encode_value(None, asdict(answer), path)), *(Delete(names.answer_path(name)) for name in old)]


def read_answer(ledger: Ledger, request: str) -> Answer | None:
    """Return the answer to the request with this id; None if there is none yet."""
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
