"""ZooKeeper as values: the options of a session, nodes, the operations of a transaction on them, and its errors."""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class ZooKeeperOptions:
    """Options of a ZooKeeper session; `repr` does not show secrets.

    Attributes:
        session_timeout: seconds without contact after which the servers end a session and release its lease.
        connect_timeout: maximum number of seconds for connecting to a server at the start.
        patience: maximum number of seconds that a call waits for a broken connection to be restored.
        auth: ``user:password`` for ZooKeeper's digest scheme; only this user may access nodes that are created.
        tls: whether the connection is encrypted; the following options apply only then.
        ca: file with the certificates of the trusted authorities; empty: those of the system.
        certificate: file with the client's certificate, if the servers require one.
        key: file with the private key of `certificate`.
        key_password: password of `key`.
        check_hostname: whether the server's certificate must match its host name.
    """

    session_timeout: float = 10.0
    connect_timeout: float = 5.0
    patience: float = 30.0
    auth: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
