"""Checkpoint machine: decides which checkpoint message is sent next, and what is stored before it. No clock, no I/O."""

from __future__ import annotations

from typing import Any

from txstorm.errors import InputError

COMMITTED, PREPARING, COMMITTING = "COMMITTED", "PREPARING", "COMMITTING"
STATUSES = (COMMITTED, PREPARING, COMMITTING)
INITSTATE, PREPARE, COMMIT, ROLLBACK = "INITSTATE", "PREPARE", "COMMIT", "ROLLBACK"
NONE = -1
"""The txid before the first checkpoint."""

Stored = tuple[int, str]
"""The txid and status of the last checkpoint; what survives a crash."""
Message = tuple[str, int]
"""Action and txid of a message to all tasks."""


class CheckpointMachine:
    """State machine of the checkpoints of a topology: prepare, commit, and recovery after a failure; Storm's.

    One message is outstanding at a time. Its answer, `ack` or `fail`, or the passing of time makes the next one due,
    which is sent at once: it is appended to `sent`. A new machine made from `stored` recovers: a prepared checkpoint is
    rolled back, one whose commit has begun is committed, then all tasks get their state.

    Attributes:
        stored: txid and status of the last checkpoint.
        sent: all messages sent, in order.

    Args:
        stored: as the previous machine left it; None: there was none.
        interval_ms: milliseconds between two checkpoints at least; 0: without pause.
    """

    def __init__(self, stored: Stored | None = None, interval_ms: float = 1000) -> None:
        self._interval = _milliseconds(interval_ms, "interval_ms")
        self.stored: Stored = (NONE, COMMITTED) if stored is None else _checked(stored)
        self.sent: list[Message] = []
        self._recovering = True
        self._outstanding = False
        self._started = False
        self._now = self._prepared_at = 0.0

    @property
    def recovering(self) -> bool:
        """Whether the tasks have not got their state since the start or the last failure."""
        return self._recovering

    def start(self) -> None:
        """Begin the recovery; called first."""
        self._started = True
        self._recovering = True
        self._proceed()

    def ack(self, txid: int) -> None:
        """Handle the acknowledgement of `txid` by all tasks; ignored unless a message with it is outstanding."""
        if not self._is_outstanding(txid):
            return
        _, status = self.stored
        if status == PREPARING:
            self.stored = (txid - 1, COMMITTED) if self._recovering else (txid, COMMITTING)
        elif status == COMMITTING:
            self.stored = (txid, COMMITTED)
        else:
            self._recovering = False
        self._proceed()

    def fail(self, txid: int) -> None:
        """Handle a failure of `txid` in a task; ignored unless a message with it is outstanding.

        A failed PREPARE starts the recovery, any other message is sent again.
        """
        if not self._is_outstanding(txid):
            return
        if self.stored[1] == PREPARING:
            self._recovering = True
        self._proceed()

    def pass_time(self, ms: float) -> None:
        """Let `ms` milliseconds pass."""
        self._now += _milliseconds(ms, "pass_time")
        if self._started and not self._outstanding:
            self._proceed()

    def _is_outstanding(self, txid: int) -> bool:
        return self._outstanding and txid == self.stored[0]

    def _proceed(self) -> None:
        """Send the message that is due, if there is one."""
        txid, status = self.stored
        self._outstanding = self._recovering or status != COMMITTED or self._now - self._prepared_at >= self._interval
        if not self._outstanding:
            return
        if status == COMMITTED and not self._recovering:
            self.stored = txid, status = txid + 1, PREPARING
            self._prepared_at = self._now
        actions = {COMMITTING: COMMIT, COMMITTED: INITSTATE, PREPARING: ROLLBACK if self._recovering else PREPARE}
        self.sent.append((actions[status], txid))


def _milliseconds(given: Any, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise InputError(f"checkpoint machine: {what} is {given!r}, expected a number of milliseconds from 0")
    return given


def _checked(stored: Any) -> Stored:
    match stored:
        case (int(txid), str(status)) if status in STATUSES and not isinstance(txid, bool):
            return txid, status
    raise InputError(f"checkpoint machine: stored is {stored!r}, expected (txid, {' or '.join(STATUSES)})")
