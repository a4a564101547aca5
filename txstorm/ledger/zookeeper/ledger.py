"""The ledger in ZooKeeper: nodes, under the paths that Storm uses, of an ensemble that several machines share."""

from __future__ import annotations

import json
import time
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from txstorm import faults
from txstorm.clients.zookeeper.operations import AnswerLost, Create, Node
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.errors import ConflictError, DataDirectoryError, InputError, TxstormError
from txstorm.ledger.core import TRIES, StoredLedger
from txstorm.ledger.lease import Clock, Holder, this_process, utc_now
from txstorm.ledger.paths import REGISTRY
from txstorm.ledger.port import MAX_COMMIT, Entry, Op, op_size, pass_deleted, replace
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


class ZooKeeperLedger(StoredLedger):
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
        super().__init__(f"ledger zookeeper:{session.hosts}{root}", read_only=read_only)
        self._session = session
        self._root = root
        self._clock = clock
        self._known: dict[str, Known | None] = {}
        self._lease = ZooKeeperLease(session, root, now)
        if create and not read_only:
            _make(session, root)
        self._check_format()

    # -- reading ------------------------------------------------------------------------------------------------

    def _load(self, path: str, depth: int) -> Mapping[str, Entry]:
        if depth == 0:
            return self._entries({node_path(self._root, path): path})[0]
        for _ in range(TRIES):
            found = self._below(path, snapshot=depth == 1)
            if found is not None:
                return found
        raise TxstormError(
            f"{self._name}: expected a moment without a change below {path!r}, got none in {TRIES}; try again"
        )

    def _entries(self, nodes: Mapping[str, str]) -> tuple[dict[str, Entry], dict[str, Node | None]]:
        """Read the entries at `nodes` (node → path); return them, and all nodes that were read for that."""
        found = dict(zip(nodes, self._session.read(list(nodes)), strict=True))
        within = [f"{node}/{VALUE}" for node, one in found.items() if one is not None and one.data == DIRECTORY]
        found |= dict(zip(within, self._session.read(within) if within else [], strict=True))
        entries = {path: entry_of(found.get(f"{node}/{VALUE}") or found[node]) for node, path in nodes.items()}
        return {path: entry for path, entry in entries.items() if entry is not None}, found

    def _below(self, path: str, *, snapshot: bool) -> dict[str, Entry] | None:
        """Return all entries below `path`; with `snapshot`, those directly below it, or None if they have changed."""
        above = node_path(self._root, path)
        names, stamp = self._session.children(above) or ([], None)
        own = [name for name in names if above != self._root or name != REGISTRY]
        nodes = {f"{above}/{name}": entry for name in own if (entry := entry_name(name)) is not None}
        prefix = f"{path}/" if path else ""
        entries, found = self._entries({node: prefix + name for node, name in nodes.items()})
        if snapshot:
            # The stamp of the children matters only above: entries further below are not part of a scan.
            now, *later = self._session.stamps([above, *found])
            changes = [None if stamps is None else stamps[0] for stamps in later]
            same = changes == [None if one is None else one.changed for one in found.values()]
            return entries if now == stamp and same else None
        for node, name in nodes.items():
            if (one := found[node]) is not None and one.children:
                entries |= self._below(prefix + name, snapshot=False) or {}
        return entries

    # -- writing ------------------------------------------------------------------------------------------------

    def _write(self, ops: Sequence[Op], *, fresh: bool, durable: bool) -> bool:
        """Carry out `ops` in one ZooKeeper transaction, drafted on nodes that are cached, or else read."""
        size = sum(map(op_size, ops))
        if size > MAX_COMMIT:
            raise InputError(f"{self._name}: a commit has at most {MAX_COMMIT} bytes, got {size}; commit less")
        known = ChainMap[str, Known | None]({}, self._known)
        try:
            self._gather(ops, known, fresh=fresh)
            nodes, after = draft(self._root, ops, known)
        except ConflictError:
            if fresh:
                raise
            return False  # according to cached states that may be outdated
        faults.point("ledger.before")
        if self._lease.carry_out(nodes) is not None:
            return False
        faults.point("ledger.written")
        pass_deleted(ops)
        replace(self._known, {**known.maps[0], **after})
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
            known.update(zip(nodes, map(known_of, self._session.read(nodes) if nodes else []), strict=True))

    # -- the lease and the handle -------------------------------------------------------------------------------

    def _acquire(self, owner: str) -> None:
        self._lease.acquire(this_process(owner, self._clock))

    def _check_lease(self) -> None:
        self._lease.check()

    def _wait_free(self, seconds: float) -> bool:
        """Block until the servers report that the lease is free."""
        return self._lease.wait_free(seconds, lambda: not self._open)

    def _release(self) -> None:
        self._lease.release()

    def _holder(self) -> Holder | None:
        return self._lease.holder()

    def _close(self) -> None:
        """End the session, and with it the lease; a commit that waits for the servers does not delay that."""
        self._session.close()

    def _check_format(self) -> None:
        node = self._session.read([self._root])[0]
        if node is None:
            raise DataDirectoryError(
                f"{self._name}: expected a ledger, got no such node; check the chroot, or run the topology first"
            )
        found = _format(node.data)
        if found is None:
            raise DataDirectoryError(
                f"{self._name}: expected a txstorm ledger, got a node with {node.data[:40]!r}; choose another chroot"
            )
        if found != FORMAT_VERSION:
            raise DataDirectoryError(
                f"{self._name}: expected format {FORMAT} {FORMAT_VERSION}, got {found}; use the txstorm that wrote it"
            )


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
