"""Options of a ZooKeeper session: timeouts, credentials and encryption."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ZooKeeperOptions:
    """Options of a session; `repr` does not show the secrets.

    Attributes:
        session_timeout: seconds without contact after which the servers end a session and free its lease.
        connect_timeout: maximum seconds to connect to a server at the start.
        patience: seconds that a call waits for a broken connection to be restored before it fails.
        auth: ``user:password`` for ZooKeeper's digest scheme; nodes are then created for this user only.
        tls: whether the connection is encrypted; the options below apply only then.
        ca: file with the certificates of the trusted authorities; by default those of the system.
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
