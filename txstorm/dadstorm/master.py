"""Puppet master: an operator network as a topology of one spout and one committer, carried by replica processes."""

from __future__ import annotations

from txstorm.dadstorm.companion import NetworkOptions
from txstorm.dadstorm.configuration import Configuration
from txstorm.topology.graph import Topology


def replica_topology(configuration: Configuration, options: NetworkOptions | None = None, id: str = "") -> Topology:  # noqa: A002
    """Return the topology that carries `configuration` by replicas; run without options, it is for replays.

    Args:
        configuration: the network.
        options: options of the run.
        id: name of the topology; default: the name of the configuration's file.
    """
    raise NotImplementedError


def replicas(path: str) -> Topology:
    """Return the topology of the configuration in a file: the target of replays, rewinds and audits."""
    raise NotImplementedError
