"""Hosts that a secret may be sent to: those the operator has named, never those that a data directory names.

A data directory remembers its ledger, so that commands need the directory alone. Whoever can write that file would
choose where the password of ZooKeeper goes. So it goes to hosts that this process was told by other means only: an
option, an argument or a setting of the topology's code, the environment, or a yes at a terminal.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from txstorm.errors import InputError
from txstorm.ledger.location import DELTA, ZOOKEEPER, LedgerSpec, parse_ledger

if TYPE_CHECKING:
    from txstorm.topology.settings import Settings

AUTH = "TXSTORM_ZOOKEEPER_AUTH"
"""The environment variable with ``user:password`` of the digest scheme."""

AUTH_HOSTS = "TXSTORM_ZOOKEEPER_AUTH_HOSTS"
"""The environment variable with the hosts that `AUTH` is for: ``host:port,tls://host:port,…``; no port: any."""

CA = "TXSTORM_ZOOKEEPER_CA"
"""The environment variable with the PEM file of the authorities to trust for ``tls://`` hosts; else the system's."""

STORES = ("s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss")
"""Schemes whose hosts are the provider's, or stand in the environment, wherever the bucket is."""

_TLS = "tls://"
_named: set[str] = set()
_ask: Callable[[str], bool] = lambda question: False  # noqa: E731 - replaced by a function of the command line


class SecretRefused(InputError):
    """A secret was not sent, as nobody but a file has named the host."""


def ask_with(ask: Callable[[str], bool]) -> None:
    """Have `ask` put a question to the operator; it returns whether the answer is yes. By default it is no."""
    global _ask
    _ask = ask


def named_ledger(text: str) -> LedgerSpec:
    """The ledger that the operator names; from now on this process may send it the secrets it needs."""
    spec = parse_ledger(text)
    _named.update(_hosts(spec))
    return spec


def check_named(spec: LedgerSpec, directory: Path | None, settings: Settings | None) -> None:
    """Raise `SecretRefused` if to open `spec` would send a secret where only `directory` says that it belongs."""
    if spec.kind == DELTA and (scheme := spec.place.partition("://")[0]) != spec.place:
        if scheme.lower() not in STORES and spec.place not in _named:
            msg = (
                f"ledger {spec}: expected one of an object store ({', '.join(STORES)}), or a ledger that you name; "
                f"got it from {_source(directory)}: if it is right, add --ledger {shlex.quote(str(spec))}"
            )
            raise SecretRefused(msg)
        return
    if spec.kind != ZOOKEEPER or not os.environ.get(AUTH):
        return
    known = _named | {one.removeprefix(_TLS) for one in _bound()}
    unnamed = [one for one in _with_ports(spec, settings) if not _is_in(one, known)]
    if not unnamed:
        return
    user, shown = os.environ[AUTH].partition(":")[0], ",".join(unnamed)
    if _ask(f"{_source(directory)} says that its ledger is at {shown}. Send the password of user {user!r} there?"):
        _named.update(unnamed)
        return
    msg = (
        f"ledger {spec}: the password in {AUTH} is not sent to {shown}, which only {_source(directory)} names. If that "
        f"is the right place, add --ledger {shlex.quote(str(spec))} to the command, or set {AUTH_HOSTS}={shown}"
    )
    raise SecretRefused(msg)


def over_tls(recorded: Settings, spec: LedgerSpec) -> Settings:
    """The settings that a directory has recorded, with TLS as the environment asks for it, if it does, for `spec`."""
    guarded = {one.removeprefix(_TLS) for one in _bound() if one.startswith(_TLS)}
    if not any(_is_in(host, guarded) for host in _with_ports(spec, recorded)):
        return recorded
    ca = os.environ.get(CA, "")
    return recorded.model_copy(update={"zookeeper_tls": True, "zookeeper_check_hostname": True, "zookeeper_ca": ca})


def _hosts(spec: LedgerSpec) -> list[str]:
    return spec.hosts.lower().split(",") if spec.kind == ZOOKEEPER else [spec.place]


def _with_ports(spec: LedgerSpec, settings: Settings | None) -> list[str]:
    from txstorm.ledger.zookeeper.location import checked_hosts  # loads what looking at other ledgers need not wait for
    from txstorm.topology.settings import Settings

    return checked_hosts(spec.hosts, (settings or Settings()).zookeeper_port).split(",")


def _bound() -> list[str]:
    return [one.strip().lower() for one in os.environ.get(AUTH_HOSTS, "").split(",") if one.strip()]


def _is_in(host: str, known: set[str]) -> bool:
    """Whether `host`, which has a port, is among `known`; without a port one is meant with any."""
    return host.lower() in known or re.sub(r":[0-9]+$", "", host.lower()) in known


def _source(directory: Path | None) -> str:
    return "a data directory" if directory is None else str(directory / "ledger.json")
