"""The ledger in ZooKeeper: nodes, under the paths that Storm uses, of an ensemble that several machines share."""

from __future__ import annotations

import json
import threading
import time
from collections import ChainMap
from collections.abc import Callable, Sequence
from contextlib import suppress

from txstorm import faults
from txstorm.clients.zookeeper.operations import AnswerLost, Create, Node
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.errors import ConflictError, DataDirectoryError, InputError, TxstormError
from txstorm.ledger.lease import Clock, this_process, utc_now
from txstorm.ledger.paths import REGISTRY
from txstorm.ledger.port import MAX_COMMIT, Entry, Op, check_ops, checked_path, name_order, op_size, pass_deleted
from txstorm.ledger.zookeeper.lease import ZooKeeperLease
from txstorm.ledger.zookeeper.nodes import (
    DIRECTORY,
    VALUE,
    WRITERS,
    Known,
    draft,
    entry_name,
    entry_of,
    known_of,
    needed,
    node_path,
    touched,
)

FORMAT = "txstorm-ledger"
FORMAT_VERSION = 1

# Maximum attempts at a commit or scan; losing against other writers more often than that indicates a fault.
TRIES = 1000


class ZooKeeperLedger:
    """A `Ledger` in the nodes below `root`.

    A commit is one ZooKeeper transaction: its operations, a mark that shows whether it happened if the response
    is lost, and the verification of the holder's lease. A scan is repeated until two readings agree. The servers always
    sync transactions: `durable` has no effect.

    Args:
        session: the ZooKeeper session, owned by this handle from now on.
        root: an absolute ZooKeeper path, not the root itself.
        create: whether to create a missing ledger; otherwise that is an error.
        read_only: for readers beside a run.
        clock: wall clock, for the time at which the lease was acquired.
        now: monotonic clock, for the time since the lease was confirmed.

    Raises:
        DataDirectoryError: the node is missing, not a ledger, or of a newer format.
        InputError: the credentials do not grant access.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        root: str,
        *,
        create: bool,
        read_only: bool = False,
        clock: Clock = utc_now,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._root = root
        self._read_only = read_only
        self._clock = clock
        self._lock = threading.RLock()
        self._known: dict[str, Known | None] = {}
        self._open = True
        self._name = f"ledger zookeeper:{session.hosts}{root}"
        self._lease = ZooKeeperLease(session, root, now)
        if create and not read_only:
            _make(session, root)
        self._check_format()

    def get(self, path: str) -> Entry | None:
        """Return the entry at `path`; None if there is none."""
        node = self._node(checked_path(path))
        found = self._read([node])[0]
        if found is not None and found.data == DIRECTORY and found.children:
            found = self._read([f"{node}/{VALUE}"])[0]
        return entry_of(found)

    def children(self, path: str) -> list[str]:
        """Return the names directly below `path`."""
        return self._names(self._node(checked_path(path, root=True)))

    def scan(self, path: str) -> dict[str, Entry]:
        """Return the entries directly below `path`."""
        node = self._node(checked_path(path, root=True))
        for _ in range(TRIES):
            found = self._scanned(node)
            if found is not None:
                return {name: found[name] for name in sorted(found, key=name_order)}
        msg = f"{self._name}: expected a moment without a change below {path!r}, got none in {TRIES}; try again"
        raise TxstormError(msg)

    def commit(self, ops: Sequence[Op], *, durable: bool = True) -> None:
        """Carry out `ops` atomically, in one ZooKeeper transaction."""
        self._check_writable()
        check_ops(ops)
        self._check_size(ops)
        with self._lock:
            if not ops:
                self._lease.check()
            elif not any(self._tried(ops, fresh=attempt > 0) for attempt in range(TRIES)):
                msg = f"{self._name}: expected to carry out a commit, got {TRIES} refusals; see what writes there"
                raise TxstormError(msg)

    def acquire(self, owner: str) -> None:
        """Acquire the lease."""
        self._check_writable()
        with self._lock:
            self._lease.acquire(this_process(owner, self._clock))

    def check_lease(self) -> None:
        """Raise `FencedError` if this handle has lost its lease."""
        self._check_open()
        self._lease.check()

    def wait_free(self, seconds: float) -> bool:
        """Block until the servers report that the lease is free, for at most `seconds`; return whether it is."""
        self._check_open()
        free = self._lease.wait_free(seconds, lambda: not self._open)
        self._check_open()
        return free

    def release(self) -> None:
        """Release the lease."""
        if self._open:
            with self._lock:
                self._lease.release()

    def holder(self) -> str | None:
        """Return the holder of the lease."""
        self._check_open()
        holder = self._lease.holder()
        return None if holder is None else str(holder)

    def close(self) -> None:
        """End the session, and with it the lease."""
        if self._open:
            self._open = False
            self._session.close()

    # -- reading ------------------------------------------------------------------------------------------------

    def _names(self, node: str) -> list[str]:
        below = self._below(node)
        found = self._read([f"{node}/{name}" for name in below])
        names = [below[name] for name, one in zip(below, found, strict=True) if self._is_visible(f"{node}/{name}", one)]
        return sorted(names, key=name_order)

    def _is_visible(self, node: str, found: Node | None) -> bool:
        """Return whether a node is an entry or has an entry below it; a directory that became empty is not visible."""
        if found is None or not found.children:
            return entry_of(found) is not None
        return entry_of(found) is not None or self._read([f"{node}/{VALUE}"])[0] is not None or bool(self._names(node))

    def _below(self, node: str) -> dict[str, str]:
        """Return node name → entry name for the entries and directories below `node`."""
        self._check_open()
        names, _ = self._session.children(node) or ([], (0, 0))
        return self._entry_names(node, names)

    def _entry_names(self, node: str, names: Sequence[str]) -> dict[str, str]:
        """Return node name → entry name for those of the nodes `names` below `node` that belong to the ledger."""
        own = [name for name in names if node != self._root or name != REGISTRY]
        return {name: entry for name in own if (entry := entry_name(name)) is not None}

    def _scanned(self, node: str) -> dict[str, Entry] | None:
        """Return the entries below `node`; None if any of them changed during the scan."""
        self._check_open()
        listed = self._session.children(node)
        if listed is None:
            return {}
        names = {f"{node}/{name}": entry for name, entry in self._entry_names(node, listed[0]).items()}
        values = {path: f"{path}/{VALUE}" for path in names}
        paths = list(names)
        found = dict(zip(paths, self._read(paths), strict=True))
        within = [values[path] for path in paths if _is_directory(found[path])]
        found |= dict(zip(within, self._read(within), strict=True))
        if not self._unchanged(node, listed[1], found):
            return None
        entries = {names[path]: entry_of(found.get(values[path]) or found[path]) for path in paths}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def _unchanged(self, node: str, stamp: tuple[int, int], found: dict[str, Node | None]) -> bool:
        now = self._session.stamps([node, *found])
        # The stamp of the children matters only at the node itself: entries further below are not part of this scan.
        changes = [None if stamps is None else stamps[0] for stamps in now[1:]]
        return now[0] == stamp and changes == [None if known is None else known.changed for known in found.values()]

    def _read(self, nodes: Sequence[str]) -> list[Node | None]:
        self._check_open()
        return self._session.read(nodes) if nodes else []

    # -- writing ------------------------------------------------------------------------------------------------

    def _tried(self, ops: Sequence[Op], *, fresh: bool) -> bool:
        """Attempt a commit; return False if the nodes were not in the state that this handle has cached."""
        known = ChainMap[str, Known | None]({}, self._known)
        try:
            self._gather(ops, known, fresh=fresh)
            nodes, after = draft(self._root, ops, known)
        except ConflictError:
            if fresh:
                raise
            return False  # according to cached states that may be stale
        faults.point("ledger.before")
        if self._lease.carry_out(nodes) is not None:
            return False
        faults.point("ledger.written")
        for op in ops:
            pass_deleted(op)
        self._remember({**known.maps[0], **after})
        return True

    def _gather(self, ops: Sequence[Op], known: ChainMap[str, Known | None], *, fresh: bool) -> None:
        if fresh:
            for node in {node for op in ops for node in touched(self._root, op)}:
                self._known.pop(node, None)
            # The conflicting change may be on another server, and not yet on this one.
            self._session.sync(self._root)
        # The second round reads the values of those paths that turn out to be directories.
        for _ in range(2):
            nodes = sorted({node for op in ops for node in needed(self._root, op, known, guess=not fresh)})
            known.update(zip(nodes, map(known_of, self._read(nodes)), strict=True))

    def _remember(self, after: dict[str, Known | None]) -> None:
        for node, found in after.items():
            if found is None:
                self._known.pop(node, None)
            else:
                self._known[node] = found

    def _node(self, path: str) -> str:
        return node_path(self._root, path)

    # -- checks -------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._open:
            msg = f"{self._name}: expected an open handle, got a closed one; open it again"
            raise TxstormError(msg)

    def _check_writable(self) -> None:
        self._check_open()
        if self._read_only:
            msg = f"{self._name}: expected a handle that may write, got one opened with read_only=True"
            raise InputError(msg)

    def _check_size(self, ops: Sequence[Op]) -> None:
        size = sum(map(op_size, ops))
        if size > MAX_COMMIT:
            msg = f"{self._name}: a commit has at most {MAX_COMMIT} bytes, got {size}; commit less"
            raise InputError(msg)

    def _check_format(self) -> None:
        node = self._session.read([self._root])[0]
        if node is None:
            msg = f"{self._name}: expected a ledger, got no such node; check the chroot, or run the topology first"
            raise DataDirectoryError(msg)
        found = _format(node.data)
        if found is None:
            msg = f"{self._name}: expected a txstorm ledger, got a node with {node.data[:40]!r}; choose another chroot"
            raise DataDirectoryError(msg)
        if found != FORMAT_VERSION:
            msg = f"{self._name}: expected format {FORMAT} {FORMAT_VERSION}, got {found}; use the txstorm that wrote it"
            raise DataDirectoryError(msg)


def _is_directory(node: Node | None) -> bool:
    return node is not None and node.data == DIRECTORY


def _format(data: bytes) -> object:
    """Return the format version in the `data` of a ledger's root node; None if the node is not a ledger."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("version") if isinstance(found, dict) and found.get("format") == FORMAT else None


def _make(session: ZooKeeperSession, root: str) -> None:
    """Create an empty ledger at `root`, unless another process creates it at the same moment."""
    names = root.split("/")
    above = ["/".join(names[:end]) for end in range(2, len(names))]
    data = json.dumps({"format": FORMAT, "version": FORMAT_VERSION}).encode()
    while True:
        found = session.read([*above, root])
        if found[-1] is not None:
            return
        missing = [path for path, node in zip(above, found, strict=False) if node is None]
        ops = [*(Create(path, b"") for path in missing), Create(root, data), Create(f"{root}/{WRITERS}", b"")]
        with suppress(AnswerLost):  # the next read shows whether it happened
            session.transact(ops)
