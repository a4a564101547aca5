"""Hosts that secrets may be sent to: only those named by the operator, never those named only by a data directory.

A data directory records its ledger, so that commands need only the directory. Anyone who can write that record could
choose where ZooKeeper's password is sent. It is therefore sent only to hosts that this process knows from elsewhere:
an option, an argument or a setting in the topology's code, the environment, or a confirmation at a terminal.
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
"""Environment variable with ``user:password`` for the digest scheme."""

AUTH_HOSTS = "TXSTORM_ZOOKEEPER_AUTH_HOSTS"
"""Environment variable with the hosts that `AUTH` is for: ``host:port,tls://host:port,…``; without a port: any."""

CA = "TXSTORM_ZOOKEEPER_CA"
"""Environment variable with the PEM file of the authorities to trust for ``tls://`` hosts; default: the system's."""

STORES = ("s3", "s3a", "gs", "gcs", "az", "azure", "adl", "abfs", "abfss")
"""URI schemes whose hosts are the provider's or come from the environment, regardless of the bucket."""

_TLS = "tls://"
_named_hosts: set[str] = set()
_ask: Callable[[str], bool] = lambda question: False  # noqa: E731 - replaced by a function of the command line


class SecretRefused(InputError):
    """A secret was not sent, because only the record in a data directory names the destination host."""


def ask_with(ask: Callable[[str], bool]) -> None:
    """Set the function that asks the operator a yes-no question and returns True for yes (default: always False)."""
    global _ask
    _ask = ask


def named_ledger(text: str) -> LedgerSpec:
    """Parse the ledger name given by the operator; from now on this process may send secrets to the ledger's hosts."""
    spec = parse_ledger(text)
    _named_hosts.update(_hosts(spec))
    return spec


def check_named(spec: LedgerSpec, directory: Path | None, settings: Settings | None) -> None:
    """Raise `SecretRefused` if opening `spec` would send a secret to a host that only `directory` names."""
    if spec.kind == DELTA and (scheme := spec.place.partition("://")[0]) != spec.place:
        if scheme.lower() not in STORES and spec.place not in _named_hosts:
            raise SecretRefused(
                f"ledger {spec}: expected one of an object store ({', '.join(STORES)}), or a ledger that you name; "
                f"got it from {_source(directory)}: if it is right, add --ledger {shlex.quote(str(spec))}"
            )
        return
    if spec.kind != ZOOKEEPER or not os.environ.get(AUTH):
        return
    known = _named_hosts | {host.removeprefix(_TLS) for host in _allowed_hosts()}
    unnamed = [host for host in _with_ports(spec, settings) if not _is_listed(host, known)]
    if not unnamed:
        return
    user, shown = os.environ[AUTH].partition(":")[0], ",".join(unnamed)
    if _ask(f"{_source(directory)} says that its ledger is at {shown}. Send the password of user {user!r} there?"):
        _named_hosts.update(unnamed)
        return
    raise SecretRefused(
        f"ledger {spec}: the password in {AUTH} is not sent to {shown}, which only {_source(directory)} names. If that "
        f"is the right place, add --ledger {shlex.quote(str(spec))} to the command, or set {AUTH_HOSTS}={shown}"
    )


def over_tls(recorded: Settings, spec: LedgerSpec) -> Settings:
    """Return the `recorded` settings, with TLS enabled if the environment requests it for the hosts of `spec`."""
    guarded = {host.removeprefix(_TLS) for host in _allowed_hosts() if host.startswith(_TLS)}
    if not any(_is_listed(host, guarded) for host in _with_ports(spec, recorded)):
        return recorded
    ca = os.environ.get(CA, "")
    return recorded.model_copy(update={"zookeeper_tls": True, "zookeeper_check_hostname": True, "zookeeper_ca": ca})


def _hosts(spec: LedgerSpec) -> list[str]:
    return spec.hosts.lower().split(",") if spec.kind == ZOOKEEPER else [spec.place]


def _with_ports(spec: LedgerSpec, settings: Settings | None) -> list[str]:
    from txstorm.ledger.zookeeper.location import checked_hosts  # lazily: other kinds of ledgers do not need it
    from txstorm.topology.settings import Settings

    return checked_hosts(spec.hosts, (settings or Settings()).zookeeper_port).split(",")


def _allowed_hosts() -> list[str]:
    return [host.strip().lower() for host in os.environ.get(AUTH_HOSTS, "").split(",") if host.strip()]


def _is_listed(host: str, known: set[str]) -> bool:
    """Return whether `host`, which has a port, is among `known`; a known host without a port matches any port."""
    return host.lower() in known or re.sub(r":[0-9]+$", "", host.lower()) in known


def _source(directory: Path | None) -> str:
    return "a data directory" if directory is None else str(directory / "ledger.json")
