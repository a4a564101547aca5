"""Composite spout: several sources in one spout, with all their positions in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from txstorm.api.bolt import Component
from txstorm.api.names import DEFAULT_STREAM, name_fault
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.api.spout import (
    Kept,
    OpaquePartitionedTransactionalSpout,
    PartitionedTransactionalSpout,
    Spout,
    TransactionalSpout,
)
from txstorm.api.state import KeyedState
from txstorm.user_code import described

_LONGEST = 64  # of a name
SPOUTS = (TransactionalSpout, PartitionedTransactionalSpout, OpaquePartitionedTransactionalSpout)


class CompositeSpout(Component):
    """A spout that reads several sources of any kind; a transaction takes a batch from each and stores all positions.

    Example::

        CompositeSpout({"orders": FileSpout("orders/*.csv"), "payments": Payments()})

    The default stream of a source is emitted as ``<source>``, any other stream of it as ``<source>-<stream>``. A
    transaction starts as soon as one source is ready; a source that is not ready contributes nothing and keeps its
    position. Every task of the spout is a task of every source.

    Args:
        sources: name → spout. Positions are stored by name, so a renamed source starts from its beginning.

    Attributes:
        opaque: whether any source is opaque; if so, an undecided transaction may be planned again, for all sources.
        external: whether the emitters of any source take part in the commit phase.
    """

    def __init__(self, sources: Mapping[str, Spout]) -> None:
        self.sources = dict(sources)

    @property
    def opaque(self) -> bool:  # noqa: D102 - described with the attributes
        return any(is_opaque(source) for source in self.spouts().values())

    @property
    def external(self) -> bool:  # noqa: D102 - described with the attributes
        return any(getattr(source, "external", False) for source in self.spouts().values())

    def spouts(self) -> dict[str, Spout]:
        """Return the sources that are spouts; the others are faults, and may have attributes of any meaning."""
        return {name: source for name, source in self.sources.items() if isinstance(source, SPOUTS)}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of all sources, under their names in this spout."""
        if not self.sources:
            declarer.faults.append("a composite spout without sources; give it a spout, or several")
        for name, source in self.sources.items():
            fault = name_fault("source", name) or _kind_fault(name, source)
            if fault:
                declarer.faults.append(fault)
            else:
                _declare(name, source, declarer)

    def streams_of(self, name: str) -> dict[str, str]:
        """Return the streams of source `name`, as a mapping from their names in the source to those in this spout."""
        made = OutputFieldsDeclarer()
        self.sources[name].declare_output_fields(made)
        return {stream: stream_name(name, stream) for stream in made.streams}


AnySpout = Spout | CompositeSpout


def stream_name(source: str, stream: str) -> str:
    """Return the name that `stream` of `source` has in a composite spout."""
    return source if stream == DEFAULT_STREAM else f"{source}-{stream}"


def kept_states(spout: object) -> dict[str, tuple[KeyedState, Kept]]:
    """Return source → the state in which it keeps rows; the source is empty if the spout is no composite one.

    As positions do, the name of the state depends on the name of the source, and not on the spout's id.
    """
    sources = spout.spouts() if isinstance(spout, CompositeSpout) else {"": spout}
    found = {name: kept for name, source in sources.items() if (kept := getattr(source, "kept_rows", None)) is not None}
    return {name: (_kept_state(name or "spout", kept), kept) for name, kept in found.items()}


def _kept_state(source: str, kept: Kept) -> KeyedState:
    name = f"{source}-{kept.what}"
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST - 17]}-{blake2b(name.encode(), digest_size=8).hexdigest()}"
    return KeyedState(name, dict(kept.key), dict(kept.value))


def is_opaque(spout: object) -> bool:
    """Return whether an undecided batch of `spout` may be replanned with other content after a failure or restart."""
    return isinstance(spout, OpaquePartitionedTransactionalSpout) or bool(getattr(spout, "opaque", False))


def has_given_names(component: object) -> bool:
    """Return whether the fields of a spout or bolt are columns of tables or DataFrames, named by others."""
    sources = component.sources.values() if isinstance(component, CompositeSpout) else (component,)
    return any(getattr(one, "given_names", False) for one in sources)


def is_live(spout: object, stream: str) -> bool:
    """Return whether the source that emits to `stream` of `spout` is live."""
    if not isinstance(spout, CompositeSpout):
        return bool(getattr(spout, "live", True))
    return any(
        is_live(one, stream) and stream in spout.streams_of(name).values() for name, one in spout.sources.items()
    )


def _declare(name: str, source: Spout, declarer: OutputFieldsDeclarer) -> None:
    made = OutputFieldsDeclarer()
    source.declare_output_fields(made)
    declarer.faults.extend(f"source {name!r}: {fault}" for fault in made.faults)
    for stream, declaration in made.streams.items():
        declarer.declare_stream(stream_name(name, stream), declaration.fields, direct=declaration.direct)


def _kind_fault(name: str, source: object) -> str | None:
    if isinstance(source, SPOUTS):
        if not getattr(source, "emits_frames", False):
            return None
        return f"source {name!r}: {described(source)} emits DataFrames, which a composite spout cannot join with others"
    return (
        f"source {name!r}: {described(source)} is not a spout; pass one that derives from TransactionalSpout, "
        "PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout"
    )
