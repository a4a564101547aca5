"""The ledger in memory, for tests and experiments; it outlives its handles, but not the process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from txstorm.ledger.core import StoredLedger
from txstorm.ledger.lease import Clock, Holder, held_error, lost_error, not_held_by_us, this_process, utc_now
from txstorm.ledger.port import Entry, Op, changes_of, replace

_NAME = "the ledger in memory"


@dataclass
class _Store:
    entries: dict[str, Entry] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=threading.Condition)
    holder: Holder | None = None
    held_by: MemoryLedger | None = None


class MemoryLedger(StoredLedger):
    """A `Ledger` in memory; with `beside`, a further handle on the entries and the lease of that ledger."""

    def __init__(self, beside: MemoryLedger | None = None, clock: Clock = utc_now) -> None:
        self._store: _Store = _Store() if beside is None else beside._store  # noqa: SLF001 - the same class
        super().__init__(_NAME, lock=self._store.lock)
        self._clock = clock
        self._took_lease = False

    def beside(self) -> MemoryLedger:
        """Return a further handle, as another process would open it."""
        return MemoryLedger(self, self._clock)

    def expire(self) -> None:
        """Expire the lease, as if the holder had sent no heartbeat; for tests."""
        with self._lock:
            self._free()

    def _load(self, path: str, depth: int) -> Mapping[str, Entry]:
        return self._store.entries

    def _write(self, ops: Sequence[Op], *, fresh: bool, durable: bool) -> bool:
        self._check_lease()
        entries = dict(self._store.entries)  # not in place: who took the entries earlier has them as they were then
        replace(entries, changes_of(ops, entries))
        self._store.entries = entries
        return True

    def _acquire(self, owner: str) -> None:
        if self._store.holder is not None:
            raise held_error(_NAME, self._store.holder)
        self._store.holder, self._store.held_by = this_process(owner, self._clock), self
        self._took_lease = True

    def _check_lease(self) -> None:
        if self._took_lease and self._store.held_by is not self:
            raise lost_error(_NAME, not_held_by_us(self._store.holder))

    def _wait_free(self, seconds: float) -> bool:
        with self._lock:
            return self._store.lock.wait_for(lambda: self._store.holder is None, seconds)

    def _release(self) -> None:
        if self._store.held_by is self:
            self._free()
        self._took_lease = False

    def _holder(self) -> Holder | None:
        return self._store.holder

    def _free(self) -> None:
        self._store.holder = self._store.held_by = None
        self._store.lock.notify_all()
