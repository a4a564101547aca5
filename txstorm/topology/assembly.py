"""Assembly: inspects all declarations of a topology and replaces assembled bolts by the components they consist of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from txstorm.api.assembly import AssembledBolt, Site, SiteInput, observer_id
from txstorm.api.composite import CompositeSpout
from txstorm.api.external import MapState, Outlet
from txstorm.api.grouping import Grouping
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.state import KeyedState, SinkTable
from txstorm.topology.components import ComponentInfo, inspect
from txstorm.topology.declarers import Declaration
from txstorm.topology.graph import Input, found_tables
from txstorm.user_code import misfits


def inspect_all(declarations: Sequence[Declaration]) -> list[ComponentInfo]:
    """Inspect all declarations of a topology, in order; an assembled bolt becomes its committer and its observer."""
    return _Inspection(declarations).run()


class _Inspection:
    """Inspection of one topology; the streams of an assembled bolt can depend on those of its inputs."""

    def __init__(self, declarations: Sequence[Declaration]) -> None:
        self._declarations = declarations
        self._by_id = {one.id: one for one in reversed(declarations) if isinstance(one.id, str)}
        self._done: dict[int, list[ComponentInfo]] = {}
        self._under_way: set[int] = set()

    def run(self) -> list[ComponentInfo]:
        return [info for one in self._declarations for info in self._infos(one)]

    def _infos(self, declaration: Declaration) -> list[ComponentInfo]:
        at = id(declaration)
        if at not in self._done:
            self._under_way.add(at)
            given = declaration.object
            assembled = isinstance(given, AssembledBolt) and declaration.role != "spout"
            self._done[at] = self._assembled(declaration) if assembled else [inspect(declaration)]
            self._under_way.discard(at)
        return self._done[at]

    def _assembled(self, declaration: Declaration) -> list[ComponentInfo]:
        bolt: AssembledBolt = declaration.object
        parallelism = declaration.parallelism
        inputs = tuple(self._input(one) for one in declaration.inputs)
        tables = tuple(one for kind in (KeyedState, SinkTable, MapState, Outlet) for one in found_tables(bolt, kind))
        tasks = parallelism if type(parallelism) is int else 1
        made = bolt.assemble(Site(str(declaration.id), tasks, inputs, tables))
        name = observer_id(str(declaration.id))
        subscriptions = list(declaration.inputs)
        if made.observer is not None:
            subscriptions.append(Input(name, DEFAULT_STREAM, Grouping("all")))
        info = inspect(replace(declaration, object=made.committer, role="committer", inputs=subscriptions))
        info.faults += [f"component {declaration.id!r}: {one}" for one in (*misfits(bolt, _base(bolt)), *made.faults)]
        info.warnings += [f"component {declaration.id!r}: {one}" for one in made.warnings]
        return [info] if made.observer is None else [info, self._observer(name, declaration, made.observer)]

    def _observer(self, name: str, declaration: Declaration, bolt: Any) -> ComponentInfo:
        inputs = [replace(one, grouping=Grouping("local_or_shuffle")) for one in declaration.inputs]
        sources = [self._by_id[one.component] for one in inputs if one.component in self._by_id]
        tasks = [one.parallelism for one in sources if type(one.parallelism) is int]
        return inspect(Declaration(name, bolt, max(tasks, default=1), "bolt", inputs))

    def _input(self, one: Input) -> SiteInput:
        source = self._by_id.get(one.component)
        streams = None
        if source is not None and id(source) not in self._under_way:
            streams = self._infos(source)[0].streams
        stream = (streams or {}).get(one.stream)
        return SiteInput(
            str(one.component),
            str(one.stream),
            None if stream is None else tuple(stream.fields),
            self._sources(one, frozenset()),
            str(one.grouping.kind),
            tuple(one.grouping.fields),
        )

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
