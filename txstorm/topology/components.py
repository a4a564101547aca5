"""Inspection of a declared component: its kind, output streams and tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from txstorm.api.assembly import AssembledBolt, AssembledCommitter, Results, Site
from txstorm.api.bolt import BasicBolt, BatchBolt, Committer, takes_batches
from txstorm.api.bolt import Component as Base
from txstorm.api.composite import SPOUTS, CompositeSpout
from txstorm.api.external import MapState, Outlet, OwnTarget
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import OutputFieldsDeclarer, StreamDeclaration
from txstorm.api.state import KeyedState, SinkTable, arrow_type
from txstorm.errors import TxstormError
from txstorm.topology.declarers import Declaration, Role
from txstorm.topology.graph import Component, Input, Kind, found_tables
from txstorm.user_code import described, misfits


@dataclass
class ComponentInfo:
    """A declared component after inspection: its declaration, and the kind, streams and tables of its object.

    Attributes:
        object: the spout or bolt; None if the object given is none.
        kind: kind of component; None if the object is not a spout or bolt, as `faults` explains.
        streams: the declared output streams; None if `declare_output_fields` raised an error, which is in `faults`.
        assembled: the user's bolt that the object was assembled from, with its place; None for others.
        deferred: whether it is a frame bolt whose columns are not known before there is a Spark session, or was
            assembled behind one.
        faults: faults of the object itself, one sentence each.
        warnings: possible mistakes in the object itself, one sentence each.
    """

    id: Any
    role: Role
    kind: Kind | None
    object: Any
    parallelism: Any
    inputs: tuple[Input, ...]
    streams: dict[str, StreamDeclaration] | None
    states: tuple[KeyedState, ...]
    sinks: tuple[SinkTable, ...]
    maps: tuple[MapState, ...]
    outlets: tuple[Outlet, ...]
    configuration: dict[str, Any]
    external: bool
    own: tuple[OwnTarget, ...] = ()
    assembled: tuple[AssembledBolt, Site] | None = None
    deferred: bool = False
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def results(self, stream: str) -> Results | None:
        """Return what is known of the tuples of a stream, if they are results of a ready-made bolt."""
        return self.object.published.get(stream) if isinstance(self.object, AssembledCommitter) else None

    def types(self, stream: str) -> dict[str, Any]:
        """Return field → Arrow type of a stream, as far as they are known."""
        results = self.results(stream)
        if results is not None:
            return dict(results.columns)
        found: dict[str, Any] = {}
        if stream == DEFAULT_STREAM and isinstance(self.object, Base):
            with suppress(TxstormError):  # found, and reported, where the fields are declared
                found = {name: arrow_type(kind) for name, kind in self.object.known_types().items()}
        return {name: kind for name, kind in found.items() if kind is not None}

    def component(self) -> Component:
        """Return the frozen component; call only if validation has found no faults."""
        assert self.kind is not None
        return Component(
            id=self.id,
            kind=self.kind,
            object=self.object,
            parallelism=self.parallelism,
            inputs=self.inputs,
            streams=dict(self.streams or {}),
            configuration=dict(self.configuration),
            external=self.external,
            assembled=self.assembled,
        )


def inspect(declaration: Declaration) -> ComponentInfo:
    """Inspect the declaration of one component, calling its `declare_output_fields` once; never raises."""
    faults: list[str] = []
    kind = _spout_kind(declaration, faults) if declaration.role == "spout" else _bolt_kind(declaration, faults)
    usable = kind is not None
    faults += [f"component {declaration.id!r}: {one}" for one in _misfits(declaration.object)] if usable else []
    return ComponentInfo(
        id=declaration.id,
        role=declaration.role,
        kind=kind,
        object=declaration.object if usable else None,
        parallelism=1 if declaration.parallelism is None else declaration.parallelism,
        inputs=tuple(declaration.inputs),
        streams=_streams(declaration, faults) if usable else None,
        states=found_tables(declaration.object, KeyedState) if usable else (),
        sinks=found_tables(declaration.object, SinkTable) if usable else (),
        maps=found_tables(declaration.object, MapState) if usable else (),
        outlets=found_tables(declaration.object, Outlet) if usable else (),
        configuration=declaration.configuration,
        external=usable and _external(declaration),
        own=found_tables(declaration.object, OwnTarget) if usable else (),
        faults=faults,
    )


def _misfits(given: object) -> Iterator[str]:
    if isinstance(given, CompositeSpout):
        for source in given.sources.values():
            yield from _misfits(source)
    for base in (*SPOUTS, BasicBolt, BatchBolt):
        if isinstance(given, base):
            yield from misfits(given, base)


def _external(declaration: Declaration) -> bool:
    given = declaration.external
    return bool(getattr(declaration.object, "external", False) if given is None else given)


def _spout_kind(declaration: Declaration, faults: list[str]) -> Kind | None:
    if _is_class(declaration, faults):
        return None
    if isinstance(declaration.object, (*SPOUTS, CompositeSpout)):
        return "spout"
    faults.append(
        f"spout {declaration.id!r}: {described(declaration.object)} is no spout; derive it from TransactionalSpout, "
        "PartitionedTransactionalSpout or OpaquePartitionedTransactionalSpout, or give several in a CompositeSpout"
    )
    return None


def _bolt_kind(declaration: Declaration, faults: list[str]) -> Kind | None:
    if declaration.role == "frame":
        return "frame"
    if _is_class(declaration, faults):
        return None
    bolt = declaration.object
    basic, batch = isinstance(bolt, BasicBolt), isinstance(bolt, BatchBolt)
    if basic == batch:
        what = "is both a BasicBolt and a BatchBolt" if basic else "is neither a BasicBolt nor a BatchBolt"
        faults.append(f"bolt {declaration.id!r}: {described(bolt)} {what}; derive it from one of the two")
        return None
    if not takes_batches(bolt) and type(bolt).execute in (BasicBolt.execute, BatchBolt.execute):
        faults.append(
            f"bolt {declaration.id!r}: {_class(declaration)} overrides neither execute nor execute_batch; "
            "write one of them"
        )
    committer = declaration.role == "committer" or isinstance(bolt, Committer)
    if basic and committer:
        faults.append(
            f"bolt {declaration.id!r}: {_class(declaration)} is a BasicBolt, which can never be a committer "
            "since it has no finish_batch; derive it from BatchBolt, or use set_bolt without the Committer marker"
        )
    return "basic" if basic else "committer" if committer else "batch"


def _is_class(declaration: Declaration, faults: list[str]) -> bool:
    given = declaration.object
    if not isinstance(given, type):
        return False
    word = "spout" if declaration.role == "spout" else "bolt"
    faults.append(
        f"{word} {declaration.id!r}: got the class {given.__name__} instead of an object; "
        f"write {given.__name__}(...) with its arguments"
    )
    return True


def _streams(declaration: Declaration, faults: list[str]) -> dict[str, StreamDeclaration] | None:
    given: Base = declaration.object
    declarer = OutputFieldsDeclarer()
    try:
        given.declare_output_fields(declarer)
    except Exception as error:  # noqa: BLE001 - user code: any failure is a fault of the topology
        faults.append(
            f"component {declaration.id!r}: declare_output_fields of {_class(declaration)} raised "
            f"{type(error).__name__}: {error}; mend it"
        )
        return None
    faults.extend(f"component {declaration.id!r}: {fault}" for fault in declarer.faults)
    return declarer.streams


def _class(declaration: Declaration) -> str:
    return type(declaration.object).__name__
