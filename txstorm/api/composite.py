"""Several sources in one spout, their positions in one transaction."""

from __future__ import annotations

from collections.abc import Mapping

from txstorm.api.bolt import Component
from txstorm.api.names import DEFAULT_STREAM, name_fault
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.api.spout import (
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Spout,
    TransactionalSpout,
)

SPOUTS = (TransactionalSpout, PartitionedTransactionalSpout, OpaquePartitionedTransactionalSpout)


class CompositeSpout(Component):
    """Reads several sources, of any kinds: a transaction takes a batch of each, and stores all positions together.

    Example::

        CompositeSpout({"orders": FileSpout("orders/*.csv"), "payments": Payments()})

    The default stream of a source is the stream named after it, another stream of it is ``<source>-<stream>``. A
    transaction starts when one source is ready; one that is not gives nothing and keeps its position. Every task of
    the spout is a task of every source.

    Args:
        sources: name → spout. A name stands for its source's position: one that is renamed starts anew.

    Attributes:
        opaque: whether a source is: an undecided transaction is planned anew for all of them then.
        external: whether the emitters of a source take part in the commit phase.
    """

    def __init__(self, sources: Mapping[str, Spout]) -> None:
        self.sources = dict(sources)

    @property
    def opaque(self) -> bool:  # noqa: D102 - described with the attributes
        return any(is_opaque(source) for source in self.sources.values())

    @property
    def external(self) -> bool:  # noqa: D102 - described with the attributes
        return any(getattr(source, "external", False) for source in self.sources.values())

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declares the streams of all sources under their names here."""
        if not self.sources:
            declarer.faults.append("a composite spout without sources; give it a spout, or several")
        for name, source in self.sources.items():
            fault = name_fault("source", name) or _kind_fault(name, source)
            if fault:
                declarer.faults.append(fault)
            else:
                _declare(name, source, declarer)

    def streams_of(self, name: str) -> dict[str, str]:
        """Stream as source `name` knows it → as it is called here."""
        made = OutputFieldsDeclarer()
        self.sources[name].declare_output_fields(made)
        return {stream: stream_name(name, stream) for stream in made.streams}


AnySpout = Spout | CompositeSpout


def stream_name(source: str, stream: str) -> str:
    """The name a stream of a source has in a composite spout."""
    return source if stream == DEFAULT_STREAM else f"{source}-{stream}"


def is_opaque(spout: object) -> bool:
    """Whether a batch of `spout` that is not decided yet may be planned anew after a failure or restart."""
    return isinstance(spout, OpaquePartitionedTransactionalSpout) or bool(getattr(spout, "opaque", False))


def _declare(name: str, source: Spout, declarer: OutputFieldsDeclarer) -> None:
    made = OutputFieldsDeclarer()
    source.declare_output_fields(made)
    declarer.faults.extend(f"source {name!r}: {fault}" for fault in made.faults)
    for stream, declaration in made.streams.items():
        declarer.declare_stream(stream_name(name, stream), declaration.fields, direct=declaration.direct)


def _kind_fault(name: str, source: object) -> str | None:
    if isinstance(source, SPOUTS):
        return None
    return (
        f"source {name!r}: {type(source).__name__} is no spout; give it one that derives from TransactionalSpout, "
        "PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout"
    )
