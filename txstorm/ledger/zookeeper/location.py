"""Location of a ledger in ZooKeeper: validated servers and root node. It does not need the ZooKeeper client."""

from __future__ import annotations

import re

from txstorm.errors import InputError
from txstorm.masks import masked_url
from txstorm.topology.settings import Settings

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?")
# Excludes ZooKeeper's own nodes, the names "." and "..", and characters that ZooKeeper accepts in no path.
_CHROOT = re.compile(r"(?!/zookeeper(/|$))(/(?!\.{1,2}(/|$))[^/%\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]+)+")


def zookeeper_spec(settings: Settings, topology: str) -> str | None:
    """Convert Storm's ZooKeeper settings to a ``--ledger`` value, ``zookeeper:HOSTS/ROOT/ID``; None without servers."""
    if not settings.zookeeper_servers:
        return None
    hosts = checked_hosts(settings.zookeeper_servers, settings.zookeeper_port)
    root = settings.zookeeper_root.rstrip("/")
    return f"zookeeper:{hosts}{checked_chroot(f'{root}/{topology}')}"


def checked_hosts(hosts: str, port: int) -> str:
    """Return ``host:port,…``, with `port` as the default; raise `InputError` if `hosts` is malformed."""
    found = [_HOST.fullmatch(host.strip()) for host in hosts.split(",")]
    if not all(found):
        shown = masked_url(hosts)
        msg = f"ZooKeeper servers {shown!r}: expected host:port,host:port,…; correct the setting or --ledger"
        raise InputError(msg)
    return ",".join(f"{match[1]}:{match[2] or port}" for match in found if match)


def checked_chroot(chroot: str) -> str:
    """Return `chroot` with a leading and no trailing slash; raise `InputError` if it is malformed or the root."""
    path = "/" + chroot.strip("/")
    if not _CHROOT.fullmatch(path):
        msg = f"ZooKeeper chroot {chroot!r}: expected a path such as /transactional/word-count, one for each topology"
        raise InputError(msg)
    return path
