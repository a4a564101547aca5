"""The core of all ledgers: which calls a handle accepts, and how reads and commits follow from a store's entries.

A ledger in another kind of store is one subclass: `_load`, `_write` and a lease. Whatever the store, every read asks
it, as other processes may have written; what a back end remembers only serves to carry out a commit.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from txstorm.errors import FencedError, InputError, TxstormError
from txstorm.ledger.lease import Holder, poll_free
from txstorm.ledger.port import Entry, Op, check_ops, checked_path, child_names, name_order

TRIES = 1000
"""Attempts at one commit or read; losing against other writers more often than that indicates a fault."""


class StoredLedger(ABC):
    """A `Ledger` in some store. A copy of a handle in a forked process is void: it reads and writes nothing.

    Args:
        name: the ledger, in errors.
        read_only: for readers beside a run.
        lock: held while the store is read or written; by default one of this handle's own.
    """

    def __init__(
        self, name: str, *, read_only: bool = False, lock: AbstractContextManager[object] | None = None
    ) -> None:
        self._name = name
        self._read_only = read_only
        self._lock = threading.RLock() if lock is None else lock
        self._open = True
        self._pid = os.getpid()

    # -- the store ----------------------------------------------------------------------------------------------

    @abstractmethod
    def _load(self, path: str, depth: int) -> Mapping[str, Entry]:
        """Return all entries, or at least those at `path` (`depth` 0), directly below it (1), or all below it (2)."""

    @abstractmethod
    def _write(self, ops: Sequence[Op], *, fresh: bool, durable: bool) -> bool:
        """Carry out `ops`, not empty; return False, having changed nothing, if they were decided on outdated entries.

        Then it is called again with `fresh`, and reads the entries again. It raises the errors of `Ledger.commit`.
        """

    @abstractmethod
    def _acquire(self, owner: str) -> None: ...

    @abstractmethod
    def _check_lease(self) -> None:
        """Raise `FencedError` if the lease is lost; called without the lock, so as not to wait for a commit."""

    def _wait_free(self, seconds: float) -> bool:
        return poll_free(lambda: self.holder() is None, seconds)

    @abstractmethod
    def _release(self) -> None: ...

    @abstractmethod
    def _holder(self) -> Holder | None: ...

    def _close(self) -> None:
        """Release the lease and close the connection to the store; called without the lock."""
        with self._lock:
            self._release()

    # -- the handle ---------------------------------------------------------------------------------------------

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""
        checked_path(path)
        self._check_usable()
        with self._lock:
            return self._load(path, 0).get(path)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`."""
        checked_path(path, root=True)
        self._check_usable()
        with self._lock:
            return child_names(path, self._load(path, 2))

    def scan(self, path: str) -> dict[str, Entry]:
        """Return the entries directly below `path`."""
        prefix = f"{checked_path(path, root=True)}/" if path else ""
        start = len(prefix)
        self._check_usable()
        with self._lock:
            entries = self._load(path, 1).items()
            found = {name[start:]: entry for name, entry in entries if name.startswith(prefix)}
        return {name: found[name] for name in sorted(found, key=name_order) if "/" not in name}

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops` atomically: all or none."""
        check_ops(ops)
        self._check_usable(writes=True)
        with self._lock:
            if not ops:
                self._check_lease()
            elif not any(self._write(ops, fresh=number > 0, durable=durable) for number in range(TRIES)):
                raise TxstormError(
                    f"{self._name}: expected to carry out a commit, got {TRIES} refusals; see what writes there"
                )

    def acquire(self, owner: str) -> None:
        """Acquire the lease."""
        self._check_usable(writes=True)
        with self._lock:
            self._acquire(owner)

    def check_lease(self) -> None:
        """Raise `FencedError` if this handle has lost its lease."""
        self._check_usable()
        self._check_lease()

    def wait_free(self, seconds: float) -> bool:
        """Block until the lease is free, for at most `seconds`; return whether it is."""
        self._check_usable()
        free = self._wait_free(seconds)
        self._check_usable()
        return free

    def release(self) -> None:
        """Release the lease."""
        if self._open and self._pid == os.getpid():
            with self._lock:
                self._release()

    def holder(self) -> str | None:
        """Return the holder of the lease."""
        self._check_usable()
        with self._lock:
            holder = self._holder()
        return None if holder is None else str(holder)

    def close(self) -> None:
        """Release the lease and refuse further use of this handle."""
        if self._open and self._pid == os.getpid():
            self._open = False
            self._close()

    def _check_usable(self, *, writes: bool = False) -> None:
        if self._pid != os.getpid():
            found = f"a copy of that of process {self._pid}, which was forked"
            raise FencedError(f"{self._name}: expected a handle of this process, got {found}; open it again")
        if not self._open:
            raise TxstormError(f"{self._name}: expected an open handle, got a closed one; open it again")
        if writes and self._read_only:
            raise InputError(f"{self._name}: expected a handle that may write, got one opened with read_only=True")
