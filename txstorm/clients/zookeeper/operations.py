"""ZooKeeper nodes, the operations of a transaction on them, and the errors of a transaction."""

from __future__ import annotations

from dataclasses import dataclass

from txstorm.errors import TxstormError


@dataclass(frozen=True)
class Node:
    """A node as read from the servers.

    Attributes:
        data: the node's data.
        version: the number of changes of the data since the node was created.
        changed: the zxid (a unique transaction number) of the last change of the data.
        children: the number of child nodes.
        owner: the session that owns an ephemeral node, which is deleted with the session; 0 for other nodes.
    """

    data: bytes
    version: int
    changed: int
    children: int
    owner: int


@dataclass(frozen=True)
class Create:
    """Operation that creates a node; an `ephemeral` node is deleted when the session ends."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True)
class Change:
    """Operation that replaces the data of a node, which must be at `version`."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Remove:
    """Operation that removes a node, which must be at `version` and have no children."""

    path: str
    version: int


@dataclass(frozen=True)
class Verify:
    """Operation that changes nothing, but requires the node to exist at `version`."""

    path: str
    version: int


NodeOp = Create | Change | Remove | Verify


@dataclass(frozen=True)
class Refusal:
    """Refusal of a transaction, none of whose operations was carried out.

    Attributes:
        index: the index of the operation that was refused.
        reason: ``exists``, ``absent``, ``version`` or ``children``.
    """

    index: int
    reason: str


class AnswerLost(TxstormError):
    """The connection broke while a transaction was in flight; it is unknown whether the transaction was carried out."""


class SessionOver(TxstormError):
    """The session to which a call was bound has ended."""


class Unreachable(TxstormError):
    """No server could be reached in time."""
