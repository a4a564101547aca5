"""Values of the ZooKeeper client: options, nodes, operations of a transaction, refusals, and errors."""

from __future__ import annotations

from dataclasses import dataclass, field

from txstorm.errors import TxstormError


@dataclass(frozen=True)
class ZooKeeperOptions:
    """Options of a session; `repr` does not show the secrets.

    Attributes:
        session_timeout: seconds without contact after which the servers end a session and free its lease.
        connect_timeout: maximum seconds to connect to a server at the start.
        patience: seconds that a call waits for a broken connection to be restored before it fails.
        auth: ``user:password`` for ZooKeeper's digest scheme; nodes are then created for this user only.
        tls: whether the connection is encrypted; the following options are for that.
        ca: file with the certificates of the authorities to trust; by default those of the system.
        certificate: file with the client's certificate, if the servers ask for one.
        key: file with the key of `certificate`.
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


@dataclass(frozen=True)
class Node:
    """A node that was read.

    Attributes:
        data: its data.
        version: number of changes of the data since it was created.
        changed: zxid of the last change of the data, which is unique.
        children: number of nodes directly below.
        owner: the session that an ephemeral node ends with; 0 for others.
    """

    data: bytes
    version: int
    changed: int
    children: int
    owner: int


@dataclass(frozen=True)
class Create:
    """Create a node; with `ephemeral` it ends with the session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True)
class Change:
    """Replace the data of a node, which must be at `version`."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Remove:
    """Remove a node, which must be at `version` and have no children."""

    path: str
    version: int


@dataclass(frozen=True)
class Verify:
    """Change nothing; the node must exist, at `version`."""

    path: str
    version: int


NodeOp = Create | Change | Remove | Verify


@dataclass(frozen=True)
class Refusal:
    """Refusal of a transaction, of which nothing was carried out.

    Attributes:
        index: the operation that was refused.
        reason: "exists", "absent", "version" or "children".
    """

    index: int
    reason: str


class AnswerLost(TxstormError):
    """The connection broke while a transaction was in flight: whether it was carried out is unknown."""


class SessionOver(TxstormError):
    """The session that a call was bound to has ended."""


class Unreachable(TxstormError):
    """No server could be reached in time."""
