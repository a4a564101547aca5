"""Transactions of a ledger in ZooKeeper, each carried out once, and its lease, which those of the holder verify.

The lease is a node that ends with the holder's session, and a persistent epoch node. Every transaction of the holder
verifies both, so that the servers refuse everything it sends after losing the lease.

Every transaction of a handle creates or changes the handle's *mark*, an ephemeral node of its session, expecting its
current version. So the mark's version counts the handle's transactions: if read after a lost response, it shows
whether that transaction happened; and the same transaction cannot happen twice.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from txstorm.clients.zookeeper.operations import (
    AnswerLost,
    Change,
    Create,
    Node,
    NodeOp,
    Refusal,
    Remove,
    SessionOver,
    Unreachable,
    Verify,
)
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.errors import FencedError, LedgerCorrupt, TxstormError
from txstorm.ledger.lease import Holder, held_error, lost_error
from txstorm.ledger.port import ABSENT
from txstorm.ledger.zookeeper.nodes import EPOCH, LEASE, WRITERS

FORMAT = 1
TRIES = 20
# Seconds between two checks whether the handle was closed, while waiting for the lease, which itself is watched.
_LOOK = 0.5


@dataclass
class _Held:
    """The lease that this handle has acquired.

    Attributes:
        session: the session with which the lease ends.
        epoch: version of the epoch node since the lease was acquired.
        confirmed: time of the request that last confirmed it; the servers keep it for one session timeout from then on.
        lost: why the lease was lost; empty while it is held.
    """

    session: int
    epoch: int
    confirmed: float
    lost: str = ""


class ZooKeeperLease:
    """The transactions and the lease of one handle on the ledger at `root`; `now` is a monotonic clock, in seconds."""

    def __init__(self, session: ZooKeeperSession, root: str, now: Callable[[], float]) -> None:
        self._session = session
        self._root = root
        self._marked: tuple[int | None, int] = (None, ABSENT)  # a session, and the version of this handle's mark in it
        self._paths = [f"{root}/{LEASE}", f"{root}/{EPOCH}"]
        self._what = f"the ledger zookeeper:{session.hosts}{root}"
        self._now = now
        self._held: _Held | None = None
        self._changed = threading.Event()

    def acquire(self, me: Holder) -> None:
        """Acquire the lease for `me`, with the next epoch; raise `HeldError` if it is held."""
        lease, epoch = self._paths
        while True:
            start, session = self._now(), self._session.current()
            holder, before = self._session.read(self._paths)
            if holder is not None:
                raise held_error(self._what, _holder(holder, self._what))
            version = 0 if before is None else before.version + 1
            data = json.dumps({"format": FORMAT, "epoch": version, **asdict(me)}).encode()
            raised = Change(epoch, data, version - 1) if version else Create(epoch, data)
            try:
                refusal = self._once([Create(lease, data, ephemeral=True), raised], session)
            except SessionOver:
                continue  # a lease acquired in that session ended with it
            if refusal is None:
                self._held = _Held(session, version, start)
                return
            # Another process was faster; this server may not know of it yet.
            self._session.sync(lease)

    def release(self) -> None:
        """Release the lease if this handle holds it."""
        held, self._held = self._held, None
        if held is None or held.lost:
            return
        try:
            self._once([*self._guards(held), Remove(self._paths[0], 0)], held.session)
        except SessionOver:
            return  # the lease ended with it

    def holder(self) -> Holder | None:
        """Return the holder of the lease; None if it is free."""
        node = self._session.read(self._paths[:1])[0]
        return None if node is None else _holder(node, self._what)

    def check(self) -> None:
        """Raise `FencedError` if this handle has lost its lease; query the servers unless it was confirmed recently."""
        held = self._held
        if held is None:
            return
        self._check_lost(held)
        age = self._now() - held.confirmed
        if not self._session.connected or age > self._session.options.session_timeout / 3:
            self._confirm(held)

    def wait_free(self, seconds: float, closed: Callable[[], bool]) -> bool:
        """Block until the lease is free, for at most `seconds`; return False if it is not, or if no server responds."""
        end, left = self._now() + seconds, seconds
        while not closed():
            self._changed.clear()
            try:
                if self._session.absent(self._paths[0], self._notify, max(left, 0.0)):
                    return True
            except Unreachable:
                return False
            if left <= 0:
                return False
            self._changed.wait(min(_LOOK, left))
            left = end - self._now()
        return False

    def _notify(self, event: object) -> None:
        # A method, since kazoo registers an identical watcher only once.
        self._changed.set()

    def carry_out(self, ops: Sequence[NodeOp]) -> Refusal | None:
        """Carry out `ops` exactly once; for the holder, only while it holds its lease.

        Raises:
            FencedError: this handle has lost the lease it acquired.
        """
        held = self._held
        if held is None:
            return self._once(ops)
        self._check_lost(held)
        start, guards = self._now(), self._guards(held)
        try:
            refusal = self._once([*guards, *ops], held.session)
        except (SessionOver, Unreachable) as error:
            raise self._lose(held, str(error)) from error
        if refusal is not None and refusal.index < len(guards):
            raise self._lose(held, "another epoch, or its node removed")
        held.confirmed = start
        return None if refusal is None else Refusal(refusal.index - len(guards), refusal.reason)

    def _once(self, ops: Sequence[NodeOp], session: int | None = None) -> Refusal | None:
        """Carry out `ops` atomically and exactly once; return None on success, otherwise the refusal.

        Args:
            ops: the operations, not empty; the index in a refusal refers to them.
            session: the session they must be carried out in; by default the current one.

        Raises:
            SessionOver: that session has ended; it may be unknown whether `ops` were carried out.
            Unreachable: the connection was not restored in time; it may be unknown whether `ops` were carried out.
            AnswerLost: the connection was lost in every attempt, and nothing was carried out.
        """
        for _ in range(TRIES):
            wanted = self._session.current() if session is None else session
            version = self._marked[1] if self._marked[0] == wanted else ABSENT
            mark = f"{self._root}/{WRITERS}/{wanted:016x}"
            step: NodeOp = Create(mark, b"", ephemeral=True) if version == ABSENT else Change(mark, b"", version)
            self._marked = (wanted, version)
            try:
                refusal = self._session.transact([step, *ops], wanted)
            except AnswerLost:
                if not self._happened(mark):
                    continue
                refusal = None
            # Only this handle changes its mark: a transaction that was considered lost has arrived in the meantime.
            if refusal is not None and refusal.index == 0 and self._happened(mark):
                refusal = None
            if refusal is None:
                self._marked = (wanted, version + 1)
                return None
            if refusal.index > 0:
                return replace(refusal, index=refusal.index - 1)
            self._marked = (None, ABSENT)
            if session is not None:
                raise SessionOver(
                    f"ZooKeeper {self._session.hosts}: the session {session:#x} has ended, or its mark was removed"
                )
        raise AnswerLost(
            f"ZooKeeper {self._session.hosts}: expected the answer of a transaction, got none in {TRIES} tries"
        )

    def _happened(self, mark: str) -> bool:
        """Return whether the transaction has happened that makes the next version of the `mark`."""
        session, version = self._marked
        try:
            # Another server may respond now, one that does not know of the transaction yet.
            self._session.sync(self._root)
            node = self._session.read([mark], session)[0]
        except (SessionOver, Unreachable) as error:
            raise type(error)(
                f"{error}; whether the last commit was carried out is unknown: read again and decide again"
            ) from error
        return node is not None and node.version == version + 1

    def _guards(self, held: _Held) -> list[NodeOp]:
        lease, epoch = self._paths
        return [Verify(lease, 0), Verify(epoch, held.epoch)]

    def _confirm(self, held: _Held) -> None:
        start = self._now()
        try:
            lease, epoch = self._session.read(self._paths, held.session)
        except (SessionOver, Unreachable) as error:
            raise self._lose(held, str(error)) from error
        if lease is None or lease.owner != held.session or epoch is None or epoch.version != held.epoch:
            raise self._lose(held, "another epoch, or its node removed")
        held.confirmed = start

    def _check_lost(self, held: _Held) -> None:
        if not held.lost and self._session.session != held.session:
            raise self._lose(held, f"the session {held.session:#x} has ended")
        if held.lost:
            raise lost_error(self._what, held.lost)

    def _lose(self, held: _Held, how: str) -> FencedError:
        held.lost = held.lost or how
        return lost_error(self._what, held.lost)


def _holder(node: Node, what: str) -> Holder:
    try:
        found = json.loads(node.data)
        if found.pop("format") > FORMAT:
            raise TxstormError(
                f"{what}: expected the lease in format {FORMAT}, got a newer one; use the txstorm that took it"
            )
        del found["epoch"]
        return Holder(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LedgerCorrupt(
            f"{what}: expected the lease as txstorm writes it, got {node.data[:80]!r}; is this another ledger?"
        ) from error
