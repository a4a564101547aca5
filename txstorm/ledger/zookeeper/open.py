"""Opening a ledger in ZooKeeper, with options from the settings and secrets from the environment."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from contextlib import closing

from txstorm.clients.zookeeper.operations import ZooKeeperOptions
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.errors import InputError
from txstorm.ledger.credentials import AUTH
from txstorm.ledger.zookeeper.ledger import ZooKeeperLedger
from txstorm.ledger.zookeeper.location import checked_chroot, checked_hosts
from txstorm.topology.settings import Settings

_log = logging.getLogger(__name__)

ACL = "TXSTORM_ZOOKEEPER_ACL"
"""Environment variable that may be set to `OPEN` instead of the setting ``zookeeper_acl``."""

OPEN = "open"

KEY_PASSWORD = "TXSTORM_ZOOKEEPER_KEY_PASSWORD"  # noqa: S105 - the name of a variable
"""Environment variable with the password of the client's key."""


def open_zookeeper(
    hosts: str, chroot: str, settings: Settings | None = None, *, create: bool, read_only: bool = False
) -> ZooKeeperLedger:
    """Open the ledger at the node `chroot` of the ensemble `hosts`.

    Args:
        hosts: ``host:port`` of the servers, separated by commas; the default port is ``settings.zookeeper_port``.
        chroot: the ledger's node; the leading slash may be missing.
        settings: only settings named ``zookeeper_…`` are used.
        create: whether to create a missing ledger and the nodes above it; otherwise that is an error.
        read_only: for readers beside a run.

    Raises:
        InputError: `hosts` or `chroot` is malformed, the credentials of the environment do not grant access, or it
            would be created without credentials although open nodes were not requested.
        DataDirectoryError: there is no ledger and `create` is false, the node is not a ledger, or its format is newer.
        TxstormError: no server responded in time; the message gives the cause.
    """
    settings = settings or Settings()
    root = checked_chroot(chroot)
    session = _session(hosts, settings)
    try:
        if not read_only:
            check_access(session, root, settings, create=create)
        return ZooKeeperLedger(session, root, create=create, read_only=read_only)
    except BaseException:
        session.close()
        raise


def zookeeper_is_there(hosts: str, chroot: str, settings: Settings | None = None) -> bool:
    """Return whether any node exists at `chroot`; raise the errors of `open_zookeeper` if that cannot be determined."""
    root = checked_chroot(chroot)
    with closing(_session(hosts, settings or Settings())) as session:
        return session.read([root])[0] is not None


def check_access(session: ZooKeeperSession, root: str, settings: Settings, *, create: bool) -> None:
    """Refuse to create nodes that every client may change, unless requested; warn about existing nodes of that kind."""
    if OPEN in (settings.zookeeper_acl, os.environ.get(ACL)):
        return
    if session.read([root])[0] is not None:
        if session.is_open(root):
            _log.warning(
                "ledger zookeeper:%s%s: every client of these servers may change and remove its nodes, which were "
                "made without credentials; copy it to a new one with %s set (txstorm ledger copy), or accept this: "
                "--set zookeeper_acl=open",
                session.hosts,
                root,
                AUTH,
            )
    elif create and not session.options.auth:
        raise InputError(
            f"ledger zookeeper:{session.hosts}{root}: expected credentials to make its nodes with, got none, so every "
            f"client of these servers could change and remove them; set {AUTH} to user:password in the environment, or "
            f"ask for open nodes: --set zookeeper_acl=open (or {ACL}=open in the environment)"
        )


def _session(hosts: str, settings: Settings) -> ZooKeeperSession:
    return ZooKeeperSession(checked_hosts(hosts, settings.zookeeper_port), zookeeper_options(settings, os.environ))


def zookeeper_options(settings: Settings, environ: Mapping[str, str]) -> ZooKeeperOptions:
    """Return the options of a session, taken from `settings`; secrets, which no setting holds, come from `environ`.

    Raises:
        InputError: the credentials are not ``user:password``.
    """
    auth = environ.get(AUTH, "")
    if auth and not re.fullmatch("[^:]+:.+", auth, re.DOTALL):
        raise InputError(
            f"{AUTH}: expected user:password, got {len(auth)} characters without a colon between two parts; correct it"
        )
    return ZooKeeperOptions(
        session_timeout=settings.zookeeper_session_timeout,
        connect_timeout=settings.zookeeper_connect_timeout,
        patience=settings.zookeeper_patience,
        auth=auth,
        tls=settings.zookeeper_tls or bool(settings.zookeeper_ca or settings.zookeeper_certificate),
        ca=_checked_file("zookeeper_ca", settings.zookeeper_ca),
        certificate=_checked_file("zookeeper_certificate", settings.zookeeper_certificate),
        key=_checked_file("zookeeper_key", settings.zookeeper_key),
        key_password=environ.get(KEY_PASSWORD, ""),
        check_hostname=settings.zookeeper_check_hostname,
    )


def _checked_file(setting: str, path: str) -> str:
    """Return `path` if it is readable; raise `InputError` otherwise, where ZooKeeper's client would retry forever."""
    if path and not os.access(path, os.R_OK):
        msg = f"setting {setting}: expected a PEM file that this user can read, got {path!r}; correct the path"
        raise InputError(msg)
    return path
