"""What is said to ZooKeeper and what it answers, as values; and what can go wrong on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from txstorm.errors import TxstormError


@dataclass(frozen=True)
class ZooKeeperOptions:
    """How to speak to an ensemble; secrets are not shown by `repr`.

    Attributes:
        session_timeout: seconds without contact after which the servers end a session and free its lease.
        connect_timeout: seconds to find a server at the start.
        patience: seconds that a call waits for a connection that broke, before it fails.
        auth: ``user:password`` of ZooKeeper's digest scheme; what is created is then for this user only.
        tls: whether the connection is encrypted; the next four are for that.
        ca: file with the certificates of the authorities to trust; by default those of the system.
        certificate: file with the client's own certificate, with `key`, where the servers ask for one.
        key_password: opens `key`.
        check_hostname: whether the server's certificate must be of its host's name.
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
    """What is stored at a path.

    Attributes:
        version: changes of the data since it was created.
        changed: the zxid of the last change of the data, which no other change has.
        children: how many nodes are directly below.
        owner: the session it ends with; 0 where it does not.
    """

    data: bytes
    version: int
    changed: int
    children: int
    owner: int


@dataclass(frozen=True)
class Create:
    """Make a node; with `ephemeral` it ends with the session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True)
class Change:
    """Give a node that is at `version` other data."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True)
class Remove:
    """Remove a node that is at `version` and has no children."""

    path: str
    version: int


@dataclass(frozen=True)
class Verify:
    """Change nothing; the node must be there, at `version`."""

    path: str
    version: int


NodeOp = Create | Change | Remove | Verify


@dataclass(frozen=True)
class Refusal:
    """Why nothing of a transaction was carried out.

    Attributes:
        index: the operation that was refused.
        reason: of what kind: "exists", "absent", "version" or "children".
    """

    index: int
    reason: str


class AnswerLost(TxstormError):
    """The connection broke while a transaction was under way: it was carried out, or it was not."""


class SessionOver(TxstormError):
    """The session that a call was bound to has ended."""


class Unreachable(TxstormError):
    """No server could be reached in the time there was."""
