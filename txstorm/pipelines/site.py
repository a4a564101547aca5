"""The place of a part in its pipeline: what it reads, and where it notes its components, streams and faults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.clients.config_files import ClientSettings, ConfigFile, Place
from txstorm.errors import TxstormError
from txstorm.topology.program import Call, ComponentCall, Subscription

_COMMON = {"type", "from", "by", "on", "id"}
"""Options whose names are words of any sentence."""

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
        flawed: the options with faults that were found when the part was read; no more is said about them.
    """

    id: str
    place: Place
    file: ConfigFile
    tasks: int
    servers: str | None
    kafka: ClientSettings
    streams: dict[str, Stream]
    flawed: frozenset[Any] = frozenset()
    components: list[ComponentCall] = field(default_factory=list)

    def fault(self, options: str, sentence: str, name: str = "") -> None:
        """Note a fault of one option of this part, unless it has one already.

        Args:
            options: the option, and with dots what is within it; "": the one that the sentence names, or the part.
            sentence: what is wrong.
            name: the key of the table which `options` is, if that is at fault.
        """
        inner = options.split(".") if options else named_in(self.file.at(self.place), sentence)
        if self.flawed.isdisjoint(inner[:1]):
            self.file.fault((*self.place, *inner, *([name] if name else [])), sentence)

    @contextmanager
    def naming(self, option: str = "", name: str = "") -> Iterator[None]:
        """Turn errors into faults of `option`."""
        try:
            yield
        except (TxstormError, ValueError, TypeError) as error:
            self.fault(option, str(error), name)

    def reads(self, name: str, option: str = "from") -> Stream | None:
        """Return the stream that `option` names; None if it is unknown, or its part has faults."""
        found = self.streams.get(name)
        part = found or self.streams.get(name.partition(".")[0])
        if part is not None and part.types is None:
            return None
        if found is None:
            known = [one for one in self.streams if one.partition(".")[0] != self.id]
            hint = near(name, known) or f"; there are {', '.join(known) or 'none'}"
            silent = any(self.file.at((section, name)) for section in ("step", "sink"))
            none = f"part {name!r} emits nothing" if silent else f"there is no part or stream {name!r:.100}"
            self.fault(option, f"{none}{hint}")
            return None
        return found

    def has(self, stream: Stream, names: Sequence[str], option: str) -> bool:
        """Return whether `stream` has all fields `names`; note a fault of `option` for each that it lacks."""
        types = stream.types or {}
        for name in dict.fromkeys(names):
            if list(names).count(name) > 1:
                self.fault(option, f"{name!r} is there twice")
            if name not in types:
                listed = ", ".join(types)
                self.fault(option, f"{name!r:.100} is none of the fields {listed}{near(name, list(types))}")
        return set(names) <= set(types) and len(set(names)) == len(names)

    def bolt(self, call: Call, *inputs: tuple[Any, ...], tasks: int | None = None) -> Any:
        """Add a bolt, each input the method that declares it, and the arguments of that; return one made on trial."""
        made = None
        with self.naming():
            made = call.made()
        subscriptions = tuple(Subscription(method, tuple(arguments)) for method, *arguments in inputs)
        self.components.append(ComponentCall(self.id, call, tasks or self.tasks, subscriptions))
        return made

    def emits(self, types: Types | None, stream: str = DEFAULT_STREAM) -> None:
        """Note what the part emits on `stream`, which others read as ``NAME`` or ``NAME.STREAM``."""
        name = self.id if stream == DEFAULT_STREAM else f"{self.id}.{stream}"
        self.streams[name] = Stream(self.id, stream, types)


def named_in(names: Iterable[Any], sentence: str) -> list[str]:
    """Return, in a list, the one of `names` that a sentence mentions first, outside of quotes; [] if there is none."""
    words = re.findall(r"[\w.-]*\w", re.sub(r"'[^']*'", "", sentence))
    return next(([one] for one in words if one in names and one not in _COMMON), [])


def local(stream: Stream) -> tuple[Any, ...]:
    """Return the subscription of a bolt that may have any tuples."""
    return ("local_or_shuffle_grouping", *stream.names)


def grouped(stream: Stream, fields: Sequence[str]) -> tuple[Any, ...]:
    """Return the subscription of a bolt that needs all tuples with the same values of `fields` in one task."""
    return ("fields_grouping", *stream.names, list(fields))


def single(stream: Stream) -> tuple[Any, ...]:
    """Return the subscription of a bolt with one task."""
    return ("global_grouping", *stream.names)
