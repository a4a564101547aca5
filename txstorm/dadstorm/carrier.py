"""Carrier: the committer that carries the tuples of a transaction through the network of replicas, and its tables."""

from __future__ import annotations

from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.state import CollectionState, KeyedState, SinkTable

HELD = "held"
"""Tuples that cannot go on yet: (operator, replica; -1: not routed yet) → tuples, by age."""
LOST = "lost"
"""Tuples given up under at-most-once."""
TRAFFIC = "traffic"
"""(operator, replica) → how many tuples it received, processed, emitted, … since the directory is there."""


def held() -> CollectionState:
    """Return the declaration of ``state/held``."""
    raise NotImplementedError


def lost() -> SinkTable:
    """Return the declaration of ``sinks/lost``."""
    raise NotImplementedError


def emitted(operator: str) -> SinkTable:
    """Return the declaration of ``sinks/OP_emitted``: replica, url, id, fields."""
    raise NotImplementedError


def seen(operator: str) -> KeyedState:
    """Return the declaration of ``state/OP_seen``."""
    raise NotImplementedError


def count(operator: str) -> KeyedState:
    """Return the declaration of ``state/OP_count``."""
    raise NotImplementedError


class Carrier(BatchBolt, Committer):
    """Committer that carries lines and held tuples through the network, over the fleet of the run or in this process."""
