"""The place of a part in its pipeline: what it reads, and where it notes its components, streams and faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.clients.config_files import ClientSettings, ConfigFile, Place
from txstorm.errors import TxstormError
from txstorm.topology.program import Call, ComponentCall, Subscription

Types = Mapping[str, pa.DataType]


@dataclass(frozen=True)
class Stream:
    """A stream that parts may read.

    Attributes:
        component, stream: where it comes from in the topology.
        types: its fields with their types; None: unknown, as its part has faults.
    """

    component: str
    stream: str
    types: Types | None

    @property
    def names(self) -> tuple[str, ...]:
        """The arguments that name the stream to a declarer or a bolt."""
        return (self.component,) if self.stream == DEFAULT_STREAM else (self.component, self.stream)


@dataclass
class Site:
    """The place of one part.

    Attributes:
        id: the name of the part.
        place: where it is in the file.
        tasks: the number of its tasks.
        servers, kafka: the brokers and client settings of the pipeline.
        streams: the streams known so far, by the names that parts read them by.
    """

    id: str
    place: Place
    file: ConfigFile
    tasks: int
    servers: str | None
    kafka: ClientSettings
    streams: dict[str, Stream]
    components: list[ComponentCall] = field(default_factory=list)

    def fault(self, option: str, sentence: str) -> None:
        """Note a fault of one option of this part; of several levels with dots; "" for the part itself."""
        self.file.fault((*self.place, *(option.split(".") if option else ())), sentence)

    @contextmanager
    def naming(self, option: str = "") -> Iterator[None]:
        """Turn errors into faults of `option`."""
        try:
            yield
        except (TxstormError, ValueError, TypeError) as error:
            self.fault(option, str(error))

    def reads(self, name: str, option: str = "from") -> Stream | None:
        """Return the stream that `option` names; None if it is unknown, or its part has faults."""
        found = self.streams.get(name)
        if found is None:
            known = [one for one in self.streams if one.partition(".")[0] != self.id]
            listed = ", ".join(known)
            self.fault(option, f"there is no part or stream {name!r}{near(name, known) or f'; there are {listed}'}")
            return None
        return found if found.types is not None else None

    def has(self, stream: Stream, names: Sequence[str], option: str) -> bool:
        """Return whether `stream` has all fields `names`; note a fault of `option` for each that it lacks."""
        types = stream.types or {}
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                self.fault(option, f"{name!r} is there twice")
            if name not in types:
                listed = ", ".join(types)
                self.fault(option, f"{name!r} is none of the fields {listed}{near(name, list(types))}")
        return set(names) <= set(types) and len(set(names)) == len(names)

    def bolt(self, call: Call, *inputs: tuple[Any, ...], tasks: int | None = None) -> Any:
        """Add a bolt, each input the method that declares it, and the arguments of that; return one made on trial."""
        made = None
        with self.naming():
            made = call.made()
        subscriptions = tuple(Subscription(method, tuple(arguments)) for method, *arguments in inputs)
        self.components.append(ComponentCall(self.id, call, tasks or self.tasks, subscriptions))
        return made

    def emits(self, types: Types | None, stream: str = DEFAULT_STREAM, component: str | None = None) -> None:
        """Note what the part emits on `stream`, which others read as ``NAME`` or ``NAME.STREAM``."""
        name = self.id if stream == DEFAULT_STREAM or component is not None else f"{self.id}.{stream}"
        self.streams[name] = Stream(component or self.id, stream, types)


def local(stream: Stream) -> tuple[Any, ...]:
    """Return the subscription of a bolt that may have any tuples."""
    return ("local_or_shuffle_grouping", *stream.names)


def grouped(stream: Stream, fields: Sequence[str]) -> tuple[Any, ...]:
    """Return the subscription of a bolt that needs all tuples with the same values of `fields` in one task."""
    return ("fields_grouping", *stream.names, list(fields))


def single(stream: Stream) -> tuple[Any, ...]:
    """Return the subscription of a bolt with one task."""
    return ("global_grouping", *stream.names)
