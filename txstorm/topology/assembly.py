"""Assembly: inspects all declarations of a topology, and replaces assembled bolts by the committers they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from txstorm.api.assembly import AssembledBolt, FilledBy, Site, SiteInput
from txstorm.api.bolt import Component
from txstorm.api.composite import CompositeSpout
from txstorm.api.external import MapState, Outlet
from txstorm.api.state import KeyedState, SinkTable
from txstorm.topology.components import ComponentInfo, inspect
from txstorm.topology.declarers import Declaration
from txstorm.topology.frames import FRAME, with_frame_spout
from txstorm.topology.graph import Input, found_tables
from txstorm.topology.settings import Settings
from txstorm.user_code import misfits


def inspect_all(declarations: Sequence[Declaration], settings: Settings, session: Any = None) -> list[ComponentInfo]:
    """Inspect all declarations of a topology, in order; an assembled bolt becomes its committer.

    `session`: the Spark session that knows the columns of frame bolts; None: that of the process, if there is one.
    """
    declarations = with_frame_spout(declarations)
    inspection = _Inspection(declarations, settings, session)
    return [inspection.info(one) for one in declarations]


class _Inspection:
    """Inspection of one topology; the streams of an assembled bolt can depend on those of its inputs."""

    def __init__(self, declarations: Sequence[Declaration], settings: Settings, session: Any) -> None:
        self._settings = settings
        self._session = session
        self._by_id = {one.id: one for one in reversed(declarations) if isinstance(one.id, str)}
        self._done: dict[int, ComponentInfo] = {}
        self._under_way: set[int] = set()

    def info(self, declaration: Declaration) -> ComponentInfo:
        """Return the inspected component of a declaration."""
        at = id(declaration)
        if at not in self._done:
            self._under_way.add(at)
            assembled = isinstance(declaration.object, AssembledBolt) and declaration.role != "spout"
            fault = self._frame_fault(declaration) if declaration.role == FRAME else ""
            info = self._done[at] = self._assembled(declaration) if assembled else inspect(declaration)
            info.deferred |= fault is None
            info.faults += [fault] if fault else []
            if fault or info.deferred:
                info.streams = None
            self._under_way.discard(at)
        return self._done[at]

    def _frame_fault(self, declaration: Declaration) -> str | None:
        """Find the columns of a frame bolt; return why that is impossible, unless its inputs have the fault.

        None: they cannot be known before there is a Spark session.
        """
        sources = [self._by_id.get(one.component) for one in declaration.inputs]
        known = [one for one in sources if one is not None and isinstance(one.object, Component)]
        frames = [one for one in known if getattr(one.object, "emits_frames", False)]
        if not frames or len(frames) < len(sources) or any(id(one) in self._under_way for one in frames):
            return ""
        infos = [self.info(one) for one in frames]
        if declaration.object.given is None and any(one.streams is None for one in infos):
            return None if any(one.deferred for one in infos) else ""
        fault = declaration.object.inspect([one.object.columns for one in frames], self._session)
        return f"frame bolt {declaration.id!r}: {fault}" if fault else fault

    def _assembled(self, declaration: Declaration) -> ComponentInfo:
        bolt: AssembledBolt = declaration.object
        inputs = tuple(self._input(one) for one in declaration.inputs)
        tables = (
            *found_tables(bolt, KeyedState),
            *found_tables(bolt, SinkTable),
            *found_tables(bolt, MapState),
            *found_tables(bolt, Outlet),
        )
        tasks = declaration.parallelism if type(declaration.parallelism) is int else 1
        site = Site(str(declaration.id), tasks, inputs, tables, self._settings, self._filled())
        made = bolt.assemble(site)
        info = inspect(replace(declaration, object=made.committer))
        info.assembled = bolt, site
        if any(self._is_deferred(one) for one in declaration.inputs):
            info.deferred, info.faults, made = True, [], replace(made, faults=(), warnings=())
        info.faults += [f"component {declaration.id!r}: {one}" for one in (*misfits(bolt, _base(bolt)), *made.faults)]
        info.warnings += [f"component {declaration.id!r}: {one}" for one in made.warnings]
        return info

    def _is_deferred(self, one: Input) -> bool:
        source = self._by_id.get(one.component)
        return source is not None and id(source) in self._done and self._done[id(source)].deferred

    def _input(self, one: Input) -> SiteInput:
        source = self._by_id.get(one.component)
        streams, results, types = None, None, dict[str, Any]()
        if source is not None and id(source) not in self._under_way:
            info = self.info(source)
            streams, types = info.streams, info.types(str(one.stream))
            results = info.results(one.stream)
        stream = (streams or {}).get(one.stream)
        return SiteInput(
            str(one.component),
            str(one.stream),
            None if stream is None else tuple(stream.fields),
            self._sources(one, frozenset()),
            str(one.grouping.kind),
            tuple(one.grouping.fields),
            results,
            None if source is None else source.object,
            types,
        )

    def _filled(self) -> tuple[FilledBy, ...]:
        """Return the join stores that components fill."""
        found = []
        for one in self._by_id.values():
            if isinstance(one.object, AssembledBolt) and one.object.fills is not None:
                store, component, stream = one.object.fills
                found.append(
                    FilledBy(str(one.id), one.object, store, component, stream, self._fields(component, stream))
                )
        return tuple(found)

    def _fields(self, component: str, stream: str) -> tuple[str, ...] | None:
        """Return the fields of a stream; None if it is not declared."""
        source = self._by_id.get(component)
        streams = None if source is None or id(source) in self._under_way else self.info(source).streams
        declared = (streams or {}).get(stream)
        return None if declared is None else tuple(declared.fields)

    def _sources(self, one: Input, seen: frozenset[str]) -> frozenset[str]:
        """Return the names of the sources whose tuples can reach an input."""
        declaration = self._by_id.get(one.component)
        if declaration is None or one.component in seen:
            return frozenset()
        if declaration.role != "spout":
            further = (self._sources(given, seen | {one.component}) for given in declaration.inputs)
            return frozenset[str]().union(*further)
        spout = declaration.object
        if not isinstance(spout, CompositeSpout):
            return frozenset({one.component})
        return frozenset(name for name in spout.sources if one.stream in spout.streams_of(name).values())


def _base(bolt: AssembledBolt) -> type:
    """Return the class of the framework that the user's bolt derives from."""
    return next(one for one in type(bolt).__mro__ if one.__module__.startswith("txstorm."))
