"""The ledger in a Delta table, for drivers with neither ZooKeeper nor a disk that outlives them."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from txstorm.clients.delta.control_log import ControlTable
from txstorm.errors import ConflictError, FencedError, TxstormError
from txstorm.lanes import THREADS, start_thread
from txstorm.ledger.core import StoredLedger
from txstorm.ledger.delta.content import TRIES, DeltaContent, Pause
from txstorm.ledger.delta.lease import SECONDS, Held, Watch, is_silent
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
    process_mark,
    utc_now,
)
from txstorm.ledger.port import Entry, Op, changes_of

log = logging.getLogger("txstorm.ledger")

RACES = 50
"""Maximum number of attempts at a commit that loses against other writers."""


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
        self._held: Held | None = None
        self._watch = Watch(monotonic)
        self._store = DeltaContent(uri, create=create and not read_only, at=self._wall(), pause=pause)
        self._watch.look(self._content)

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
        document = document_of(kind, uuid.uuid4().hex, at=self._wall(), by=token, changes=changed, lease=lease)
        made = self._store.append(document, durable=durable)
        self._watch.look(self._content)
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
        row = self._row(owner)
        for _ in range(RACES):
            self._catch_up()
            self._check_free()
            started = self._now()
            self._store.distrust()
            if self._append(LEASE, lease=row, by=row.token):
                self._held = held = Held(row, started)
                start_thread(self._keep_renewing, held, name="txstorm-lease")
                return
        raise held_error(self._name, row.holder())

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
            self._release_row(held)
        except TxstormError as error:
            log.warning("%s: the lease could not be released and will expire: %s", self._name, error)

    def _holder(self) -> Holder | None:
        self._catch_up()
        row = self._content.lease
        if row is None or self._watch.is_free(self._content) or is_silent(self._content, self._clock()):
            return None
        return row.holder()

    def _row(self, owner: str) -> LeaseRow:
        since = self._clock().isoformat(timespec="seconds")
        return LeaseRow(uuid.uuid4().hex, owner, os.getpid(), socket.gethostname(), since, self._millis, process_mark())

    def _check_free(self) -> None:
        row = self._content.lease
        if row is not None and not self._watch.is_free(self._content):
            raise held_error(self._name, row.holder())

    def _await_sign(self) -> None:
        """Block until a holder on another machine sends a heartbeat, or has sent none for the length of its lease.

        Until then it is unknown whether that process is alive.
        """
        self._catch_up()
        row, sign, place = self._content.lease, self._content.sign, machine_mark()
        if row is None or (place and row.process.startswith(f"{place}/")):
            return  # for a process on this machine, it is known whether it is alive
        while self._content.lease == row and self._content.sign == sign and not self._watch.is_free(self._content):
            self._pause(min(POLL, row.seconds / 10))
            self._catch_up()

    def _looks_free(self) -> bool:
        with self._using():
            self._catch_up()
            return self._watch.is_free(self._content)

    def _keep_renewing(self, held: Held) -> None:
        """Renew the lease by heartbeats while there is nothing else to write; the thread ends with the lease."""
        while not held.ended.wait(held.row.seconds / 12):
            with self._lock:
                if self._held is not held or held.lost:
                    return
                if held.quiet(self._now()):
                    self._renew(held)

    def _renew(self, held: Held) -> None:
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

    def _release_row(self, held: Held) -> None:
        for _ in range(TRIES):
            self._catch_up()
            row = self._content.lease
            if row is None or row.token != held.row.token or self._append(LEASE, by=held.row.token):
                return

    def _check_lost(self) -> None:
        held = self._held
        if held is None:
            return
        row = self._content.lease
        if not held.lost and (row is None or row.token != held.row.token):
            held.lost = not_held_by_us(None if row is None else row.holder())
        if held.lost:
            raise lost_error(self._name, held.lost)

    # -- the handle ---------------------------------------------------------------------------------------------

    @property
    def _content(self) -> Content:
        return self._store.content

    def _catch_up(self) -> None:
        self._store.catch_up()
        self._watch.look(self._content)

    def _wall(self) -> str:
        return self._clock().isoformat()
