"""Named fault points in the shipped code, for crash tests.

A point does nothing unless it is armed by ``TXSTORM_FAULT=point:action:nth`` (several separated by commas),
where *action* is ``kill`` (SIGKILL to this process), ``freeze`` (SIGSTOP: SIGCONT wakes it up), ``raise``
(`InjectedFault`) or ``hang`` (sleep for an hour), and *nth* counts the passages of that point from 1. ``*`` for the
point matches every point. A number in the name of a point counts tables from 1, maps and outlets after them.
``TXSTORM_FAULT_TRACE=FILE`` appends the name of every passed point to FILE.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass

from txstorm.errors import InputError

ACTIONS = ("kill", "freeze", "raise", "hang")
POINTS = {
    "p0.before": "the lease is taken, nothing is written",
    "p0.epoch": "the ledger's epoch is raised",
    "p0.N.raised": "table N has the new epoch",
    "p0.raised": "ledger and known tables have the new epoch and are checked; live intents come next",
    "p0.N.created": "a table of a first run, or of a new state, is made",
    "p0.N.redefined": "a table to which nothing was ever committed has other columns",
    "p0.N.begun": "one that a killed start has made begins after what was committed since",
    "p0.recorded": "the ledger records the tables there are, and what is dropped",
    "p0.N.dropped": "a dropped table says until which txid it is right",
    "p0.after": "the coordinator leads",
    "p1.before": "txids are planned",
    "p1.after": "their metadata is stored",
    "p2.before": "a pack is about to be emitted",
    "p2.after": "its job is submitted",
    "p3.before": "in a task: a txid is about to be processed",
    "p3.after": "in a task: it is processed",
    "p4.before": "a pack is processed",
    "p4.after": "its real extents and digests are stored",
    "p5.before": "it is a group's turn",
    "p5.after": "its committers have finished",
    "p5.staged.before": "a table's rows are about to be staged",
    "p5.staged.after": "they are on the disk, referenced by nothing",
    "p6.before": "all is staged, nothing is decided",
    "p6.after": "the intent is decided",
    "p7.N.before": "table N is about to be published",
    "p7.N.written": "its log entry is written, the answer is lost",
    "p7.N.after": "it is published",
    "merge.staged": "the new files of a table of the layout merge are written, referenced by nothing",
    "p8.before": "all tables are published",
    "p8.after": "currtx has moved on, what is done with is cleaned up",
    "ledger.before": "a commit of a ledger in a Delta table or in ZooKeeper is about to be made",
    "ledger.written": "it is made, the answer is lost",
    "ledger.meta": "old metadata are deleted: SQLite has not committed yet, of ZooKeeper the answer is lost",
    "ledger.intent": "so is an old intent",
    "checkpoint.before": "a table's log is about to be shortened",
    "checkpoint.after": "it is",
    "archive.moved": "one more old entry of a table's log is in the archive",
    "history.before": "the ledger's history rows are about to move to the history table",
    "history.written": "they are in the table, and still in the ledger",
    "history.after": "they are in the table only",
    "compact.before": "a state table is about to be brought up to date",
    "compact.staged": "its new files are written, referenced by nothing",
    "compact.after": "it is up to date",
    "thin.removed": "a file of a superseded version of a state is removed",
    "gather.before": "small files of a table are about to be gathered",
    "gather.staged": "the larger ones are written, referenced by nothing",
    "gather.after": "they are the table's",
    "retain.before": "the kept history is about to begin later, nothing is removed",
    "retain.announced": "the ledger says where it begins",
    "retain.pruned": "older change rows have left a table, their files are there",
    "retain.log": "some older entries of an archived log are removed",
    "retain.files": "some files that nothing refers to any more are removed",
    "retain.history": "older rows have left the history table",
    "retain.after": "what is older is removed",
    "rewind.before": "a rewind leads, all that is decided is published, nothing of it is written",
    "rewind.N.staged": "the rows of table N that have to be put back are on the disk, referenced by nothing",
    "rewind.decided": "the rewind is decided",
    "rewind.N.restored": "table N is where it was",
    "rewind.history": "the history has its rows, tables and history are done",
    "rewind.after": "so is the ledger",
    "sweep.before": "files that nothing refers to are about to be removed",
    "sweep.removed": "one of them is removed",
    "sweep.after": "they are removed",
    "sweep.values": "files of long ledger values that nothing in the ledger names are about to be removed",
    "kafka.created": "a Kafka sink's topic of marks is made",
    "kafka.fenced": "older producers of a Kafka sink are fenced, what they had begun has ended",
    "kafka.begun": "a Kafka transaction is begun, nothing is sent",
    "kafka.sent": "its records and mark are sent, not committed",
    "kafka.committed": "it is committed, the answer is lost",
}
"""All points, with the state of the run when each is passed."""


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
    if len(fields) != 3 or fields[1] not in ACTIONS or not fields[2].isdecimal() or int(fields[2]) < 1:
        msg = f"TXSTORM_FAULT: expected point:{'|'.join(ACTIONS)}:nth with nth >= 1, got {part!r}"
        raise InputError(msg)
    if fields[0] != "*" and re.sub(r"\.[0-9]+\.", ".N.", fields[0]) not in POINTS:
        msg = f"TXSTORM_FAULT: no fault point {fields[0]!r}; there are {', '.join(POINTS)}"
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
    if action == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    if action == "hang":
        time.sleep(3600)
    msg = f"injected at {name}"
    raise InjectedFault(msg)
