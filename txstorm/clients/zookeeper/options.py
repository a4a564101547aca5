"""Options of a ZooKeeper session: timeouts, credentials and encryption."""

from __future__ import annotations

from dataclasses import dataclass, field


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
