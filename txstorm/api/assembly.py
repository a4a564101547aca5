"""Assembled bolts: bolts that the builder turns into one of the framework's, mostly a committer, that does the work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from txstorm.api.bolt import BatchBolt, Committer, Component
from txstorm.api.names import DEFAULT_STREAM, near


@dataclass(frozen=True)
class Results:
    """Results that a component emits to a stream, as components that read them can rely on them.

    Attributes:
        time: the field with their times.
        frontier: the stream to which the first task emits, in a transaction, a time in microseconds that the times of
            all later results exceed; None if later results can have any time.
        key: the fields that tell results of one time apart.
        final: whether each result is emitted once; otherwise, changed results are emitted again.
        retractions: the stream of results that no longer hold; None if there is none.
        columns: field → Arrow type.
        ends_of: if their times are ends of windows, the side on which these are closed; otherwise None.
        start: the field with the starts of these windows; None if there is none.
    """

    time: str
    frontier: str | None
    key: tuple[str, ...]
    final: bool
    retractions: str | None
    columns: Mapping[str, Any]
    ends_of: str | None = None
    start: str | None = None


@dataclass(frozen=True)
class SiteInput:
    """One input of an assembled bolt: a stream of a component.

    Attributes:
        fields: the fields of the stream; None if it is not declared, which is a fault of its own.
        sources: the sources whose tuples reach it.
        grouping: the kind of the grouping.
        grouped_by: the grouping fields.
        results: what is known of the tuples if they are results of a ready-made bolt.
        bolt: the component's object; None if there is no such component.
        types: field → Arrow type, as far as they are known.
    """

    component: str
    stream: str
    fields: tuple[str, ...] | None
    sources: frozenset[str]
    grouping: str
    grouped_by: tuple[str, ...] = ()
    results: Results | None = None
    bolt: Any = None
    types: Mapping[str, Any] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """Stream and component, for messages."""
        return f"stream {self.stream!r} of {self.component!r}"

    @property
    def how(self) -> str:
        """The grouping with its fields, for messages."""
        return f"{self.grouping} {', '.join(self.grouped_by)}".strip()

    def missing(self, what: str, names: Iterable[str | None]) -> Iterator[str]:
        """Yield a fault for each of `names`, but None, that is not among the fields; `what` needs them."""
        for name in names:
            if self.fields is not None and name is not None and name not in self.fields:
                hint = near(name, list(self.fields))
                yield f"{what}: {self.where} has no field {name!r}{hint}; it has {', '.join(self.fields)}"

    def grouping_by(self, fields: Sequence[str]) -> str:
        """Return the call that groups it by `fields`, for messages."""
        stream = "" if self.stream == DEFAULT_STREAM else f"{self.stream!r}, "
        return f"fields_grouping({self.component!r}, {stream}{list(fields)})"

    def time_faults(self, field: str | None) -> list[str]:
        """Return a fault if the field with the time has a known type whose values are no times."""
        kind = None if field is None else self.types.get(field)
        found = kind.value_type if kind is not None and pa.types.is_dictionary(kind) else kind
        if found is None or pa.types.is_integer(found) or (pa.types.is_timestamp(found) and found.tz is not None):
            return []
        return [
            f"field {field!r} of {self.component!r} has the type {kind}, but is taken as a time, which is an int or a "
            "datetime with a time zone; convert it before"
        ]


@dataclass(frozen=True)
class FilledBy:
    """A join store that a component of the topology fills with the tuples of a stream.

    Attributes:
        id: the component's id.
        bolt: the bolt that fills it.
        store: the store.
        component, stream: what the component reads.
        fields: the fields of that stream; None if it is not declared.
    """

    id: str
    bolt: AssembledBolt
    store: Any
    component: str
    stream: str
    fields: tuple[str, ...] | None


@dataclass(frozen=True)
class Site:
    """The place of an assembled bolt in its topology.

    Attributes:
        id: the component's id.
        parallelism: number of its tasks.
        inputs: its subscriptions, in the order of their declaration.
        tables: the states, sinks, maps and outlets that it declares as attributes.
        settings: the topology's settings.
        filled: the join stores that components of the topology fill.
    """

    id: str
    parallelism: int
    inputs: tuple[SiteInput, ...]
    tables: tuple[Any, ...]
    settings: Any = None
    filled: tuple[FilledBy, ...] = ()


@dataclass(frozen=True)
class Assembly:
    """The bolt that an assembled bolt becomes.

    Attributes:
        committer: takes the place of the bolt, with its id, inputs and parallelism; mostly a committer.
        faults: faults of the bolt's own declaration, one sentence each.
        warnings: possible mistakes, one sentence each.
    """

    committer: BatchBolt
    faults: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class AssembledCommitter(BatchBolt, Committer):
    """Base class of the committers that txstorm has: what the rest of it asks of them, and of no bolt of a user's.

    Attributes:
        internal_states: names of states whose keys are its own affair: whatever its inputs are grouped by, each key
            belongs to one of its tasks.
        published: output stream → what later components may rely on.
        stateful: whether it runs a stateful bolt, which reads keys of its state as it likes.
        also_reads: as for any batch bolt; here the streams with the frontiers of results that it reads.
    """

    internal_states: Collection[str] = ()
    published: Mapping[str, Results] = MappingProxyType({})
    stateful: ClassVar[bool] = False

    def retention(self, state: str) -> str | None:
        """Return for how long rows of a state that it manages are kept, in words; None: as the state declares."""
        return None


class PartialCommitter(AssembledCommitter):
    """Base class of committers whose `finish_batch` consists of parts, of which failing ones can be left out.

    If the error policy allows dead letters, a run of the task that fails is repeated without the part that failed.

    Attributes:
        bolt: the user's bolt, which it calls.
        skipped: names of the parts to leave out; set before `prepare`.
        failed: name of the part that has raised, with a description of it for the dead letter (JSON); None if none has.
    """

    bolt: Any
    skipped: frozenset[str] = frozenset()
    failed: tuple[str, dict[str, Any]] | None = None


class AssembledBolt(Component, ABC):
    """Base class of bolts that the builder assembles, such as windowed bolts.

    Attributes:
        fills: the join store that the bolt fills, with component and stream of what it puts there; None: it fills none.
    """

    fills: tuple[Any, str, str] | None = None

    @abstractmethod
    def assemble(self, site: Site) -> Assembly:
        """Return the bolt that does the work of this one; never raises for faults of its declaration."""
