"""Topologies with one bolt that reads all streams of one spout, which by default a test feeds."""

from collections.abc import Iterable
from typing import Any

from txstorm import TransactionalTopologyBuilder
from txstorm.testing import FeedSpout


def fed_bolt(
    name: str, bolt: Any, streams: Any, by: Iterable[str] = (), tasks: int = 1, *, spout: Any = None, **feed: Any
) -> TransactionalTopologyBuilder:
    """Return a builder with a bolt that reads `streams` of ``feed`` by the fields `by`, or else all in one task."""
    builder = TransactionalTopologyBuilder("t", "feed", spout or FeedSpout(streams, **feed))
    declarer = builder.set_bolt(name, bolt, tasks)
    for stream in streams:
        if by:
            declarer.fields_grouping("feed", stream, list(by))
        else:
            declarer.global_grouping("feed", stream)
    return builder
