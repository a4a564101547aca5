"""Named fault points in the shipped code, for crash tests.

A point does nothing unless it is armed by ``TXSTORM_FAULT=point:action:nth`` (several separated by commas),
where *action* is ``kill`` (SIGKILL to this process), ``freeze`` (SIGSTOP: SIGCONT wakes it up), ``raise``
(`InjectedFault`) or ``hang`` (sleep for an hour), and *nth* is the number of the passage, counted from 1, at which the
point acts. ``*`` for the point matches every point, ``point@NAME`` only those of the replica process NAME
(``replica.taken@OP2-0:kill:3``). A number in the name of a point counts tables from 1, then maps and outlets.
``TXSTORM_FAULT_TRACE=FILE`` appends the name of every passed point to FILE.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from txstorm.errors import InputError

ACTIONS = ("kill", "freeze", "raise", "hang")
POINTS = {
    "p0.before": "take-over: the lease is acquired, nothing is written",
    "p0.epoch": "take-over: the ledger's epoch is raised",
    "p0.N.raised": "take-over: table N has the new epoch",
    "p0.raised": "take-over: ledger and known tables have the new epoch and are checked; live intents come next",
    "p0.N.created": "start: table N, of a first run or a new state, is created",
    "p0.N.redefined": "start: table N, to which nothing was ever committed, has its new columns",
    "p0.N.begun": "start: table N, created by a start that was killed, now begins after the txids committed since",
    "p0.recorded": "start: the ledger records the present tables, and which ones are dropped",
    "p0.N.dropped": "start: dropped table N records the last txid for which it is valid",
    "p0.after": "start: the coordinator leads",
    "p1.before": "plan: txids are planned",
    "p1.after": "plan: the metadata of the txids are stored",
    "p2.before": "emit: the job of a pack is about to be submitted",
    "p2.after": "emit: the job of a pack is submitted",
    "p3.before": "process, in a task: a txid is about to be processed",
    "p3.after": "process, in a task: a txid is processed",
    "p4.before": "processed: a pack is processed",
    "p4.after": "processed: the real extents and digests of a pack are stored",
    "p5.before": "commit phase: the turn of a group has come",
    "p5.after": "commit phase: the committers of a group have finished",
    "p5.staged.before": "commit phase: a table's rows are about to be staged",
    "p5.staged.after": "commit phase: a table's rows are staged on the disk, referenced by nothing",
    "p6.before": "decide: everything is staged, nothing is decided",
    "p6.after": "decide: the intent is decided",
    "p7.N.before": "publish: table N is about to be published",
    "p7.N.written": "publish: the log entry of table N is written, the answer is lost",
    "p7.N.after": "publish: table N is published",
    "merge.staged": "publish: the new files of a table of the layout merge are written, referenced by nothing",
    "p8.before": "complete: all tables are published",
    "p8.after": "complete: currtx has advanced, records no longer needed are deleted",
    "ledger.before": "a ledger in a Delta table or in ZooKeeper is about to commit",
    "ledger.written": "a ledger in a Delta table or in ZooKeeper has committed, the answer is lost",
    "ledger.meta": "old metadata are deleted: not yet committed in SQLite; in ZooKeeper the answer is lost",
    "ledger.intent": "an old intent is deleted: not yet committed in SQLite; in ZooKeeper the answer is lost",
    "checkpoint.before": "a table's log is about to be shortened",
    "checkpoint.after": "a table's log is shortened",
    "archive.moved": "one more old entry of a table's log is in the archive",
    "history.before": "the ledger's history rows are about to move to the history table",
    "history.written": "history rows are in the history table, and still in the ledger",
    "history.after": "history rows are in the history table only",
    "compact.before": "compaction: a state table is about to be compacted",
    "compact.staged": "compaction: the new files of a state table are written, referenced by nothing",
    "compact.after": "compaction: a state table is compacted",
    "thin.removed": "a file of a superseded version of a state is removed",
    "gather.before": "small-file compaction: small files of a table are about to be merged",
    "gather.staged": "small-file compaction: the larger files are written, referenced by nothing",
    "gather.after": "small-file compaction: the larger files are part of the table",
    "retain.before": "retention: the start of the kept history is about to advance, nothing is removed",
    "retain.announced": "retention: the ledger records the new start of the kept history",
    "retain.pruned": "retention: older change rows are removed from a table, their files still exist",
    "retain.log": "retention: some older entries of an archived log are removed",
    "retain.files": "retention: some unreferenced files are removed",
    "retain.history": "retention: older rows are removed from the history table",
    "retain.after": "retention: all older history is removed",
    "rewind.before": "rewind: it leads and all decided groups are published; nothing of the rewind is written",
    "rewind.N.staged": "rewind: the rows to put back into table N are on the disk, referenced by nothing",
    "rewind.decided": "rewind: the rewind is decided",
    "rewind.N.restored": "rewind: table N is restored",
    "rewind.history": "rewind: tables and history are done, the history has the rows of the rewind",
    "rewind.after": "rewind: the ledger is done, too",
    "snapshot.chosen": "snapshot at a clock: it is about to be recorded that it is wanted",
    "snapshot.complete": "snapshot at a clock: the transaction with this clock is committed",
    "snapshot.written": "snapshot at a clock: the savepoint is recorded, and the clock is no longer wanted",
    "sweep.before": "sweep: unreferenced files are about to be removed",
    "sweep.removed": "sweep: one unreferenced file is removed",
    "sweep.after": "sweep: the unreferenced files are removed",
    "sweep.values": "sweep: unreferenced files of long ledger values are about to be removed",
    "file.written": "sink of a text file: the text is written, its mark is not",
    "begin.filled": "start: the states of a new directory that begins with a snapshot are there, its clock is not",
    "begin.after": "start: the clock at which a new directory begins is recorded",
    "snapshot.renamed": "snapshot store: the file of an instance has its name, which is not synced",
    "kafka.created": "Kafka sink: the topic of marks is created",
    "kafka.fenced": "Kafka sink: older producers are fenced, and their open transactions have ended",
    "kafka.begun": "Kafka sink: a transaction has begun, nothing is sent",
    "kafka.sent": "Kafka sink: the records and the mark of a transaction are sent, not committed",
    "kafka.committed": "Kafka sink: a transaction is committed, the answer is lost",
    "replica.received": "replica: a delivery is received; `raise` forgets it",
    "replica.taken": "replica: the next tuple of a delivery is taken, and not processed",
    "replica.processed": "replica: a tuple is processed, and not answered",
    "replica.answered": "replica: the answer for a tuple is sent",
}
"""All fault points: name → the state of the run when the point is passed."""


class InjectedFault(Exception):
    """Raised by an armed fault point with the action ``raise``."""


@dataclass
class _Armed:
    point: str
    action: str
    left: int
    process: str
    """The name of the process that it is for; empty: every one."""


def parse(text: str) -> list[_Armed]:
    """Parse the value of ``TXSTORM_FAULT``; raise `InputError` if it is malformed."""
    return [_parse_one(part) for part in text.split(",") if part]


def _parse_one(part: str) -> _Armed:
    fields = part.split(":")
    if len(fields) != 3 or fields[1] not in ACTIONS or not fields[2].isdecimal() or int(fields[2]) < 1:
        raise InputError(f"TXSTORM_FAULT: expected point:{'|'.join(ACTIONS)}:nth with nth >= 1, got {part!r}")
    name, _, process = fields[0].partition("@")
    if name != "*" and re.sub(r"\.[0-9]+\.", ".N.", name) not in POINTS:
        raise InputError(f"TXSTORM_FAULT: no fault point {name!r}; there are {', '.join(POINTS)}")
    return _Armed(name, fields[1], int(fields[2]), process)


_armed: list[_Armed] = parse(os.environ.get("TXSTORM_FAULT", ""))
_trace = os.environ.get("TXSTORM_FAULT_TRACE")
_watcher: Callable[[str], None] | None = None
_process = ""


def arm(text: str) -> None:
    """Arm fault points in this process, as ``TXSTORM_FAULT`` does at start-up; an empty string disarms all."""
    _armed[:] = parse(text)


def name_process(name: str) -> None:
    """Give this process the name by which fault points are armed in it only."""
    global _process
    _process = name


def is_armed(start: str) -> bool:
    """Return whether passing points whose names begin with `start` has an effect in this process."""
    here = (fault.point for fault in _armed if fault.process in ("", _process))
    return bool(_trace) or any(point.startswith((start, "*")) for point in here)


def watch(watcher: Callable[[str], None] | None) -> None:
    """Call `watcher` with the name of every point that is passed from now on, as simulated worlds do; None: stop."""
    global _watcher
    _watcher = watcher


def point(name: str) -> None:
    """Pass the fault point `name`: do nothing unless it is armed or watched."""
    if _watcher is not None:
        _watcher(name)
    if _trace:
        with open(_trace, "a", encoding="utf-8") as file:
            file.write(name + "\n")
    if _armed:
        _pass(name)


def _pass(name: str) -> None:
    for fault in _armed:
        if fault.point in (name, "*") and fault.process in ("", _process):
            fault.left -= 1
            if fault.left == 0:
                _act(fault.action, name)


def _act(action: str, name: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "freeze":
        # To this thread, which then takes the signal at once; one to the process may wait for another thread.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return
    if action == "hang":
        time.sleep(3600)
    raise InjectedFault(f"injected at {name}")
