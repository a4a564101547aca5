"""A pipeline: a TOML file with sources, steps and sinks, and the topology that it describes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from txstorm.api.composite import CompositeSpout
from txstorm.api.names import DEFAULT_STREAM, name_fault, near
from txstorm.clients.config_files import (
    ClientSettings,
    ConfigFile,
    Part,
    Place,
    Servers,
    code_faults,
    kafka_faults,
    unless,
)
from txstorm.errors import TxstormError
from txstorm.joins.service.configuration import JoinService
from txstorm.pipelines.parts import PipelinePart, Site, SourcePart, Stream, named_in
from txstorm.pipelines.source_parts import SINKS, SOURCES
from txstorm.pipelines.step_parts import STEPS
from txstorm.topology.checks.validate import MAX_PARALLELISM
from txstorm.topology.graph import Topology
from txstorm.topology.program import Call, ComponentCall, Program
from txstorm.topology.settings import Settings

EXAMPLE = "txstorm example --pipeline"
SPOUT = "sources"
"""The component of several sources."""
KINDS: Mapping[str, Mapping[str, type[PipelinePart]]] = {"source": SOURCES, "step": STEPS, "sink": SINKS}


class Options(Part):
    """Options of a pipeline besides its parts."""

    name: str
    parallelism: int = Field(1, ge=1, le=MAX_PARALLELISM)
    servers: Servers | None = None
    source: dict[str, Any] = Field(min_length=1)
    step: dict[str, Any] = {}
    sink: dict[str, Any] = {}
    settings: dict[str, Any] = Field({}, repr=False)
    kafka: ClientSettings = Field({}, repr=False)

    @field_validator("name")
    @classmethod
    def _valid_name(cls, name: str) -> str:
        fault = name_fault("name", name)
        return unless([fault] if fault else [], name)

    @field_validator("kafka")
    @classmethod
    def _accepted(cls, kafka: dict[str, str]) -> dict[str, str]:
        return unless(kafka_faults(kafka, "servers, above the sections"), kafka)


class Pipeline:
    """A pipeline without code: reads its file, and builds the topology; also a ready-made join of two topics.

    Example::

        run(Pipeline.read("sales.toml").topology())
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @classmethod
    def read(cls, path: str | Path) -> Pipeline:
        """Read and check the file at `path`; nothing is started, and no server is asked.

        Raises:
            InputError: the file cannot be read; or it has faults, all of which are listed with their lines.
            MissingDependency: a client that a part needs is not installed.
        """
        file = ConfigFile.read(path, EXAMPLE)
        if LEFT_AND_RIGHT & file.values.keys():
            return cls(JoinService.of(file).program())
        made = _Reading(file)
        made.read()
        file.check()
        return cls(made.program())

    def topology(self) -> Topology:
        """Build the topology."""
        return self.program.topology()

    def python(self, path: str | Path) -> str:
        """Return the same as a Python program; `path` is the file, for its docstring."""
        return self.program.python(f"The pipeline of {Path(path).name}.")


LEFT_AND_RIGHT = {"left", "right"}


class _Reading:
    """The reading of one file: its parts, in an order in which each comes after those that it reads."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._options: Options | None = file.model(Options, file.values, secret=("kafka", "settings"))
        self._names: set[str] = set()
        self._parts: dict[str, tuple[str, PipelinePart]] = {}
        self._halves: list[Place] = []
        self._streams: dict[str, Stream] = {}
        self._bolts: list[ComponentCall] = []
        self._spouts: dict[str, Call] = {}
        self._tasks = 1

    def read(self) -> None:
        """Check all parts, and collect their components."""
        values = self._file.values
        # Settings one by one, for the lines of their faults; and then together.
        settings = self._options.settings if self._options is not None else {}
        single = {name: code_faults({name: one}) + Settings.read({name: one})[1] for name, one in settings.items()}
        for name, faults in single.items():
            for fault in faults:
                self._file.fault(("settings", name), fault)
        for fault in [] if any(single.values()) else Settings.read(settings)[1]:
            self._file.fault(("settings",), fault)
        for section, kinds in KINDS.items():
            given = values.get(section, {})
            for name, one in given.items() if isinstance(given, dict) else ():
                self._check(section, name, one, kinds)
        for name in self._ordered():
            section, part = self._parts[name]
            site = self._site(section, name, part)
            if isinstance(part, SourcePart):
                self._add_source(name, part, site)
            else:
                known = self._streams.get(name)
                part.build(site)
                self._bolts += site.components
                if self._streams.get(name) is known:
                    self._streams.pop(name, None)  # it emits nothing
        for place in self._halves:
            self._check_reads(place)
        if self._options is not None and not self._file.faults:
            self._check_whole()

    def program(self) -> Program:
        """Return the calls that build the topology."""
        assert self._options is not None
        return Program(self._options.name, self._spout(), self._bolts, self._options.settings)

    def _spout(self) -> ComponentCall:
        if len(self._spouts) == 1:
            name, call = next(iter(self._spouts.items()))
            return ComponentCall(name, call, self._tasks)
        return ComponentCall(SPOUT, Call(CompositeSpout, dict(self._spouts)), self._tasks)

    def _check(self, section: str, name: str, values: Any, kinds: Mapping[str, type[PipelinePart]]) -> None:
        """Read one part; note its faults, and as unknown what it would emit."""
        place = (section, name)
        if fault := name_fault("part", name):
            self._file.fault(place, fault)
        if name in self._names or (section != "source" and name == SPOUT):
            self._file.fault(place, f"there is another part {name!r} already; give each a name of its own")
            return
        kind = values.get("type") if isinstance(values, dict) else None
        self._names.add(name)
        if section != "sink":
            self._streams[name] = Stream(name, DEFAULT_STREAM, None)
        if not isinstance(kind, str) or kind not in kinds:
            listed, got = ", ".join(kinds), "none" if kind is None else f"{kind!r:.100}"
            hint = near(kind, list(kinds)) if isinstance(kind, str) else ""
            elsewhere = [f"[{other}.{name}]" for other, more in KINDS.items() if isinstance(kind, str) and kind in more]
            hint = hint or (f"; it belongs to {' or '.join(elsewhere)}" if elsewhere else "")
            self._file.fault((*place, "type"), f"expected one of {listed}, got {got}{hint}")
            return
        part = self._file.model(kinds[kind], values, place, secret=("kafka",))
        if part is not None:
            self._parts[name] = section, part
        else:
            self._halves.append(place)

    def _check_reads(self, place: Place) -> None:
        """Check what a part reads whose options are too few to make it."""
        site = self._site(str(place[0]), str(place[1]), None)
        for option in ("from", *(f"{side}.from" for side in sorted(LEFT_AND_RIGHT))):
            name = self._file.at((*place, *option.split(".")))
            if isinstance(name, str) and place[0] != "source":
                site.reads(name, option)

    def _site(self, section: str, name: str, part: PipelinePart | None) -> Site:
        options, place = self._options, (section, name)
        tasks = (part and part.parallelism) or (options.parallelism if options is not None else 1)
        flawed = frozenset(at[2] for at, _ in self._file.faults if at[:2] == place and at[2:])
        servers, kafka = (options.servers, options.kafka) if options is not None else ("127.0.0.1:9092", {})
        return Site(name, place, self._file, tasks, servers, kafka, self._streams, flawed)

    def _add_source(self, name: str, part: SourcePart, site: Site) -> None:
        call, types = part.spout(site)
        several = len(self._file.values["source"]) > 1
        if any(place[:3] == (*site.place, "fields") for place, _ in self._file.faults):
            types = None
        self._spouts[name] = call
        self._tasks = max(self._tasks, site.tasks)
        self._streams[name] = Stream(SPOUT if several else name, name if several else DEFAULT_STREAM, types)

    def _ordered(self) -> list[str]:
        """Return the parts so that each comes after those that it reads; note a fault for each in a circle."""
        done: list[str] = []
        waiting = dict(self._parts)
        while waiting:
            ready = [name for name, (_, part) in waiting.items() if not _read_by(part) & waiting.keys()]
            if not ready:
                while ends := waiting.keys() - {one for _, part in waiting.values() for one in _read_by(part)}:
                    waiting = {name: one for name, one in waiting.items() if name not in ends}
                for name, (section, _) in waiting.items():
                    self._file.fault((section, name, "from"), "it reads, through other parts, what it emits itself")
                return done
            done += ready
            for name in ready:
                del waiting[name]
        return done

    def _check_whole(self) -> None:
        """Build the topology once: what remains are faults of several parts together."""
        read = {part for _, one in self._parts.values() for part in _read_by(one)}
        for name, (section, _) in self._parts.items():
            if section == "source" and name not in read:
                self._file.fault((section, name), "no part reads it; remove it, or read it")
        if not self._bolts:
            self._file.fault((), "there is nothing but sources; add a sink")
        if self._file.faults:
            return
        try:
            self.program().topology()
        except TxstormError as error:
            for fault in getattr(error, "faults", None) or [str(error)]:
                self._file.fault(self._place_in(fault), fault)

    def _place_in(self, sentence: str) -> Place:
        """Return the place of the part that `sentence` names first, or of the option of it that it names."""
        name = next((one for one in re.findall("'([^']*)'", sentence) if one in self._parts), None)
        if name is None:
            return ()
        place = self._parts[name][0], name
        return (*place, *named_in(self._file.at(place), sentence))


def _read_by(part: PipelinePart) -> set[str]:
    """Return the names of the parts that `part` reads."""
    names = [
        getattr(part, "source", None),
        *(getattr(getattr(part, side, None), "source", None) for side in LEFT_AND_RIGHT),
    ]
    return {one.partition(".")[0] for one in names if one is not None}
