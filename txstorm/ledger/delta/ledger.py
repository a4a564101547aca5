"""The ledger in a Delta table, for drivers with neither ZooKeeper nor a disk that outlives them.

Its lease is a row that expires unless its holder renews it by writing. Clock rules: every version that the holder
writes is a heartbeat (a renewal); if it has nothing to write, it writes one after a third of the lease's length. A
process that wants the lease waits, by its own monotonic clock, one full length after it has *seen* the last heartbeat,
and then acquires the lease with a compare-and-set on the version it has seen. The holder counts from *before* it wrote
its last heartbeat, trusts the lease for `TRUSTED` of its length, and queries the store after that. Thus the clocks of
two machines are never compared. Even a wrong clock does not let two processes write: the ledger's versions and the
tables' epochs prevent that; the lease only saves them from trying.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from txstorm.clients.delta.control_log import ControlTable
from txstorm.errors import ConflictError, FencedError, TxstormError
from txstorm.lanes import THREADS, start_thread
from txstorm.ledger.core import StoredLedger
from txstorm.ledger.delta.content import TRIES, DeltaContent, Pause
from txstorm.ledger.delta.versions import COMMIT, LEASE, Content, LeaseRow, document_of
from txstorm.ledger.lease import (
    POLL,
    Clock,
    Holder,
    held_error,
    lost_error,
    machine_mark,
    not_held_by_us,
    poll_free,
    process_has_ended,
    process_mark,
    this_process,
    utc_now,
)
from txstorm.ledger.port import Entry, Op, changes_of

log = logging.getLogger(__name__)

RACES = 50
"""Maximum number of attempts at the lease that lose against other writers."""

SECONDS = 10.0
"""Seconds that a lease lasts after its holder's last heartbeat."""

TRUSTED = 0.8
"""Fraction of a lease's length during which its holder trusts it without querying the store."""

SILENT = 6
"""Number of lease lengths, by the wall clock, after which a silent holder on another machine is no longer shown."""


@dataclass
class HeldRow:
    """The lease that this handle has acquired.

    Attributes:
        row: the lease as stored in the ledger.
        renewed: time, by the boot-time clock, just before the last heartbeat was written.
        lost: why the lease was lost; empty while it is held.
        ended: set when the lease is released.
    """

    row: LeaseRow
    renewed: float
    lost: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def trusted(self, now: float) -> bool:
        """Return whether it is certain that no other process has acquired the lease by `now` (boot-time seconds)."""
        return now - self.renewed < self.row.seconds * TRUSTED


class DeltaLedger(StoredLedger):
    """A `Ledger` in the Delta table at `uri`: every commit is one version, appended by compare-and-set.

    Args:
        uri: an absolute path, or a URI that delta-rs supports; credentials come from the environment.
        create: whether to create a missing table; otherwise that is an error.
        read_only: for readers beside a run.
        lease_seconds: seconds that a lease of this handle lasts after the holder's last heartbeat.
        clock: wall clock, for display.
        monotonic: a monotonic clock, in seconds.
        pause: function that sleeps for a number of seconds.

    Raises:
        DataDirectoryError: the table is missing, not a ledger, unreadable, or of a newer format.
        LedgerCorrupt: the table is damaged.
    """

    def __init__(
        self,
        uri: str,
        *,
        create: bool,
        read_only: bool = False,
        lease_seconds: float = SECONDS,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = THREADS.boot,
        pause: Pause = time.sleep,
    ) -> None:
        super().__init__(f"ledger {uri}", read_only=read_only)
        self._millis = int(lease_seconds * 1000)
        self._clock = clock
        self._now = monotonic
        self._pause = pause
        self._held: HeldRow | None = None
        self._seen: tuple[str, int] | None = None  # the holder's token, and its last version, as this handle saw them
        self._seen_at = 0.0
        self._store = DeltaContent(uri, create=create and not read_only, at=clock().isoformat(), pause=pause)
        self._look()

    @staticmethod
    def is_there(uri: str) -> bool:
        """Return whether any Delta table exists at `uri`; raise `DataDirectoryError` if that cannot be determined."""
        return ControlTable.open(uri) is not None

    # -- entries ------------------------------------------------------------------------------------------------

    def _load(self, path: str, depth: int) -> Mapping[str, Entry]:
        self._catch_up()
        return self._content.entries

    def _write(self, ops: Sequence[Op], *, fresh: bool, durable: bool) -> bool:
        """Decide on cached content as long as the lease is trusted: other processes rarely write."""
        known = not fresh and self._held is not None and self._held.trusted(self._now())
        if not known:
            self._catch_up()
        self._check_lost()
        try:
            changed = changes_of(ops, self._content.entries)
        except ConflictError:
            if known:
                return False
            raise
        # What changes nothing appends no version that could conflict: the content may have changed meanwhile.
        return self._append(COMMIT, changed, durable=durable) if changed else not known

    def _append(
        self,
        kind: str,
        changed: Mapping[str, Entry | None] | None = None,
        lease: LeaseRow | None = None,
        *,
        by: str | None = None,
        durable: bool = True,
    ) -> bool:
        """Append the next version, which is also the holder's heartbeat; return False if another writer was faster.

        Raises:
            FencedError: this handle is known to have lost its lease, before or after the attempt.
        """
        # A stale holder may since have read, and passed, the version in which it lost its lease.
        self._check_lost()
        started, held = self._now(), self._held
        token = by if by is not None else "" if held is None else held.row.token
        wall = self._clock().isoformat()
        document = document_of(kind, uuid.uuid4().hex, at=wall, by=token, changes=changed, lease=lease)
        made = self._store.append(document, durable=durable)
        self._look()
        self._check_lost()
        if made:
            if held is not None:
                held.renewed = started
            self._store.tidy(self._clock, token)
        return made

    # -- the lease ----------------------------------------------------------------------------------------------

    def _acquire(self, owner: str) -> None:
        """Acquire the lease.

        If a process on another machine holds it, block until that process sends a heartbeat or the lease has expired.
        """
        if self._held is not None and self._held.lost:
            self._held = None
        self._await_sign()
        me, token = this_process(owner, self._clock), uuid.uuid4().hex
        row = LeaseRow(token, me.owner, me.pid, me.host, me.since, self._millis, process_mark())
        for _ in range(RACES):
            self._catch_up()
            other = self._content.lease
            if other is not None and not self._is_free():
                raise held_error(self._name, other.holder())
            started = self._now()
            self._store.distrust()
            if self._append(LEASE, lease=row, by=token):
                self._held = held = HeldRow(row, started)
                start_thread(self._keep_renewing, held, name="txstorm-lease")
                return
        raise held_error(self._name, me)

    def _check_lease(self) -> None:
        """Query the store if the last heartbeat is old."""
        held = self._held
        if held is not None and not held.lost and held.trusted(self._now()):
            return
        with self._lock:
            self._check_lost()
            self._renew_or_fail()

    def _wait_free(self, seconds: float) -> bool:
        return poll_free(self._looks_free, seconds, pause=self._pause, now=self._now)

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        held.ended.set()
        try:
            for _ in range(TRIES):
                self._catch_up()
                row = self._content.lease
                if row is None or row.token != held.row.token or self._append(LEASE, by=held.row.token):
                    return
        except TxstormError as error:
            log.warning("%s: the lease could not be released and will expire: %s", self._name, error)

    def _holder(self) -> Holder | None:
        self._catch_up()
        row, sign = self._content.lease, self._content.written_at
        if row is None or self._is_free():
            return None
        silent = sign and self._clock() - datetime.fromisoformat(sign) > timedelta(seconds=SILENT * row.seconds)
        return None if silent else row.holder()

    def _await_sign(self) -> None:
        """Block until a holder on another machine sends a heartbeat, or has sent none for the length of its lease.

        Until then it is unknown whether that process is alive.
        """
        self._catch_up()
        row, sign, place = self._content.lease, self._content.sign, machine_mark()
        if row is None or (place and row.process.startswith(f"{place}/")):
            return  # for a process on this machine, it is known whether it is alive
        while self._content.lease == row and self._content.sign == sign and not self._is_free():
            self._pause(min(POLL, row.seconds / 10))
            self._catch_up()

    def _looks_free(self) -> bool:
        self._check_usable()
        with self._lock:
            self._catch_up()
            return self._is_free()

    def _keep_renewing(self, held: HeldRow) -> None:
        """Renew the lease by heartbeats while there is nothing else to write; the thread ends with the lease."""
        while not held.ended.wait(held.row.seconds / 12):
            with self._lock:
                if self._held is not held or held.lost:
                    return
                if self._now() - held.renewed >= held.row.seconds / 3:
                    self._renew(held)

    def _renew(self, held: HeldRow) -> None:
        try:
            while not self._append(LEASE, lease=held.row, durable=False):
                pass  # another process wrote; the next attempt is at the newest version
        except FencedError as error:
            log.warning("%s", error)
        except TxstormError as error:
            log.warning("%s: the lease cannot be renewed: %s", self._name, error)

    def _renew_or_fail(self) -> None:
        """Write a heartbeat; while the store does not respond, retry until the lease expires."""
        held = self._held
        if held is None or held.trusted(self._now()):
            return
        end = self._now() + held.row.seconds
        while True:
            try:
                self._catch_up()
                self._check_lost()
                if self._append(LEASE, lease=held.row, durable=False):
                    return
            except FencedError:
                raise
            except TxstormError as error:
                if self._now() >= end:
                    held.lost = f"a store that did not answer for {held.row.seconds:g} s ({error})"
                    raise lost_error(self._name, held.lost) from error
                self._pause(POLL)

    def _check_lost(self) -> None:
        held = self._held
        if held is None:
            return
        row = self._content.lease
        if not held.lost and (row is None or row.token != held.row.token):
            held.lost = not_held_by_us(None if row is None else row.holder())
        if held.lost:
            raise lost_error(self._name, held.lost)

    # -- the content --------------------------------------------------------------------------------------------

    @property
    def _content(self) -> Content:
        return self._store.content

    def _catch_up(self) -> None:
        self._store.catch_up()
        self._look()

    def _look(self) -> None:
        """Note when this handle has seen a new heartbeat; called whenever the content has been read."""
        lease = self._content.lease
        seen = None if lease is None else (lease.token, self._content.sign)
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._now()

    def _is_free(self) -> bool:
        """Return whether the lease in the content may be acquired."""
        lease = self._content.lease
        return lease is None or process_has_ended(lease.process) or self._now() - self._seen_at >= lease.seconds
