"""The ledger in memory, for tests and experiments; it outlives its handles, but not the process."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from txstorm.errors import TxstormError
from txstorm.ledger.lease import Clock, Holder, held_error, lost_error, not_held_by_us, this_process, utc_now
from txstorm.ledger.port import Entry, Op, check_ops, checked_path, child_names, outcome

_NAME = "the ledger in memory"


@dataclass
class _Store:
    entries: dict[str, Entry] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=threading.Condition)
    holder: Holder | None = None
    held_by: MemoryLedger | None = None


class MemoryLedger:
    """A `Ledger` in memory; with `beside`, a further handle on the entries and the lease of that ledger."""

    def __init__(self, beside: MemoryLedger | None = None, clock: Clock = utc_now) -> None:
        self._store: _Store = _Store() if beside is None else beside._store  # noqa: SLF001 - the same class
        self._clock = clock
        self._open = True
        self._took_lease = False

    def beside(self) -> MemoryLedger:
        """Return a further handle, as another process would open it."""
        return MemoryLedger(self, self._clock)

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""
        return self._entries().get(checked_path(path))

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`."""
        return child_names(checked_path(path, root=True), self._entries())

    def scan(self, path: str) -> dict[str, Entry]:
        """Return the entries directly below `path`."""
        entries = self._entries()
        prefix = f"{checked_path(path, root=True)}/" if path else ""
        names = child_names(path, entries)
        return {name: entries[prefix + name] for name in names if prefix + name in entries}

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops` atomically: all or none."""
        check_ops(ops)
        self._check_open()
        with self._store.lock:
            self._check_lease()
            entries = dict(self._store.entries)
            for op in ops:
                after = outcome(op, entries.get(op.path))
                if after is None:
                    entries.pop(op.path, None)
                else:
                    entries[op.path] = after
            self._store.entries = entries

    def acquire(self, owner: str) -> None:
        """Acquire the lease."""
        self._check_open()
        with self._store.lock:
            if self._store.holder is not None:
                raise held_error(_NAME, self._store.holder)
            self._store.holder, self._store.held_by = this_process(owner, self._clock), self
            self._took_lease = True

    def check_lease(self) -> None:
        """Raise `FencedError` if this handle has lost its lease."""
        self._check_open()
        self._check_lease()

    def wait_free(self, seconds: float) -> bool:
        """Block until the lease is released, for at most `seconds`; return whether it is free."""
        self._check_open()
        with self._store.lock:
            return self._store.lock.wait_for(lambda: self._store.holder is None, seconds)

    def expire(self) -> None:
        """Expire the lease, as if the holder had sent no heartbeat; for tests."""
        with self._store.lock:
            self._free()

    def release(self) -> None:
        """Release the lease."""
        with self._store.lock:
            if self._store.held_by is self:
                self._free()
            self._took_lease = False

    def holder(self) -> str | None:
        """Return the holder of the lease."""
        self._check_open()
        with self._store.lock:
            return None if self._store.holder is None else str(self._store.holder)

    def close(self) -> None:
        """Release the lease and refuse further use of this handle."""
        self.release()
        self._open = False

    def _free(self) -> None:
        self._store.holder = self._store.held_by = None
        self._store.lock.notify_all()

    def _check_lease(self) -> None:
        if self._took_lease and self._store.held_by is not self:
            raise lost_error(_NAME, not_held_by_us(self._store.holder))

    def _entries(self) -> dict[str, Entry]:
        """Return the current entries, as a snapshot that never changes: a commit replaces the dictionary."""
        self._check_open()
        return self._store.entries

    def _check_open(self) -> None:
        if not self._open:
            msg = f"{_NAME}: expected an open handle, got a closed one; make another one beside it"
            raise TxstormError(msg)
