"""Exactly-once ZooKeeper transactions: each is carried out once, even if its response is lost.

Every transaction of a handle creates or changes the handle's *mark*, an ephemeral node of its session, expecting its
current version. So the mark's version counts the handle's transactions: if read after a lost response, it shows
whether that transaction happened; and the same transaction cannot happen twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txstorm.clients.zookeeper.operations import AnswerLost, Change, Create, NodeOp, Refusal, SessionOver, Unreachable
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.ledger.zookeeper.nodes import WRITERS

TRIES = 20


@dataclass(frozen=True)
class _Mark:
    """The node that counts the transactions of one session; `version` is None before the first one."""

    path: str
    session: int
    version: int | None = None

    @property
    def after(self) -> int:
        return 0 if self.version is None else self.version + 1

    def step(self) -> NodeOp:
        return Create(self.path, b"", True) if self.version is None else Change(self.path, b"", self.version)


class Writer:
    """Writer of one handle's transactions; not thread-safe."""

    def __init__(self, session: ZooKeeperSession, root: str) -> None:
        self._session = session
        self._root = root
        self._mark: _Mark | None = None

    def carry_out(self, ops: Sequence[NodeOp], session: int | None = None) -> Refusal | None:
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
            mark = self._ours(session)
            try:
                refusal = self._session.transact([mark.step(), *ops], mark.session)
            except AnswerLost:
                if not self._happened(mark):
                    continue
                refusal = None
            # Only this handle changes its mark: a transaction that was considered lost has arrived in the meantime.
            if refusal is not None and refusal.index == 0 and self._happened(mark):
                refusal = None
            if refusal is None:
                self._mark = replace(mark, version=mark.after)
                return None
            if refusal.index > 0:
                return replace(refusal, index=refusal.index - 1)
            self._mark = None
            if session is not None:
                raise self._over(mark)
        msg = f"ZooKeeper {self._session.hosts}: expected the answer of a transaction, got none in {TRIES} tries"
        raise AnswerLost(msg)

    def _ours(self, session: int | None) -> _Mark:
        wanted = self._session.current() if session is None else session
        if self._mark is None or self._mark.session != wanted:
            self._mark = _Mark(f"{self._root}/{WRITERS}/{wanted:016x}", wanted)
        return self._mark

    def _happened(self, mark: _Mark) -> bool:
        try:
            # Another server may respond now, one that does not know of the transaction yet.
            self._session.sync(self._root)
            node = self._session.read([mark.path], mark.session)[0]
        except (SessionOver, Unreachable) as error:
            msg = f"{error}; whether the last commit was carried out is unknown: read again and decide again"
            raise type(error)(msg) from error
        return node is not None and node.version == mark.after

    def _over(self, mark: _Mark) -> SessionOver:
        return SessionOver(
            f"ZooKeeper {self._session.hosts}: the session {mark.session:#x} has ended, or its mark was removed"
        )
