"""Frame bolts: functions from DataFrames to a DataFrame, and the columns of what they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from txstorm.api.bolt import Component as Base
from txstorm.api.names import DEFAULT_STREAM, near
from txstorm.api.output import Grouping, OutputFieldsDeclarer
from txstorm.ddl import FrameColumn, frame_columns
from txstorm.errors import TxstormError
from txstorm.topology.declarers import Declaration
from txstorm.topology.graph import Component, Input, Topology
from txstorm.user_code import described

FRAME: Final = "frame"
"""Kind of a component that a frame bolt is, role of its declaration, and kind of the grouping of its inputs."""


class FrameBolt(Base):
    """A function of DataFrames as a component; made by `TransactionalTopologyBuilder.set_frame_bolt`.

    Attributes:
        function: the user's function; None in a worker, which only gets its rows.
        given: the columns of its result in Spark's DDL, as declared; None: the function is asked.
        columns: name → type of the columns of its result; empty until `inspect` has found them.
    """

    emits_frames = True
    given_names = True

    def __init__(self, function: Callable[..., Any], given: str | None) -> None:
        self.function: Callable[..., Any] | None = function
        self.given = given
        self.columns: dict[str, FrameColumn] = {}

    @property
    def class_name(self) -> str:
        """Name of the function, for pictures."""
        return str(getattr(self.function, "__name__", "function"))

    def inspect(self, inputs: Sequence[Mapping[str, FrameColumn]], session: Any) -> str | None:
        """Find the columns, by calling the function with empty DataFrames if they are not given; return a fault.

        `session`: the Spark session; None: that of the process. If there is none, return None: they are not known yet.
        """
        try:
            text = self.given
            if text is None:
                session = session or _spark().session_here()
                if session is None:
                    self.columns = {}
                    return None
                text = _spark().columns_of(session, self.function, inputs)
            self.columns = frame_columns(text)
        except TxstormError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - user code: any failure is a fault of the topology
            return f"its function raised {type(error).__name__} for DataFrames without rows: {error}"
        return ""

    def spark_plan(self, inputs: Sequence[Mapping[str, FrameColumn]]) -> str:
        """Return Spark's plan of the function for one transaction; empty without a classic session."""
        try:
            return str(_spark().plan_of(self.function, inputs))
        except Exception as error:  # noqa: BLE001 - user code, for rows that it has not seen at the build
            return f"not known: the function raised {type(error).__name__}: {error}"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the columns of the result."""
        declarer.declare(self.columns)

    def known_types(self) -> dict[str, Any]:
        """Return the types of the fields."""
        return {name: column.arrow for name, column in self.columns.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "function": None}


def _spark() -> ModuleType:
    """Return the module that uses Spark; loaded when it is called, as declaring a topology does without Spark."""
    return import_module("txstorm.engine.frames")


class FrameDeclarer:
    """Declares the inputs of one frame bolt."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration

    def reads(self, *components: str) -> FrameDeclarer:
        """Give the function the DataFrames of the frame spout, or of other frame bolts, in this order."""
        self._declaration.inputs += [Input(one, DEFAULT_STREAM, Grouping(FRAME)) for one in components]
        return self


def frame_faults(id: Any, given: FrameBolt, inputs: Sequence[Input], known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of a frame bolt; `known`: id → inspected component."""
    if not callable(given.function):
        yield f"frame bolt {id!r}: {described(given.function)} is no function of DataFrames"
    if not inputs:
        yield f"frame bolt {id!r} reads nothing; name its inputs, as in .reads({next(iter(known), 'spout')!r})"
    for one in inputs:
        source = known.get(one.component) if isinstance(one.component, str) else None
        if source is None:
            hint = near(str(one.component), list(known))
            yield f"frame bolt {id!r} reads {one.component!r}, which does not exist{hint}; known are {', '.join(known)}"
        elif not getattr(source.object, "emits_frames", False):
            yield (
                f"{one.component!r} → {id!r}: a frame bolt reads a frame spout or frame bolts, and {one.component!r} "
                "emits tuples; do this work on tuples, or before them"
            )


def frame_sink_faults(id: Any, inputs: Sequence[Input], known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the inputs of a frame sink; `known`: id → inspected component."""
    for one in inputs:
        source = known.get(one.component) if isinstance(one.component, str) else None
        if source is not None and not getattr(source.object, "emits_frames", False):
            yield (
                f"{one.component!r} → {id!r}: a FrameSink reads a frame spout or frame bolts, and {one.component!r} "
                "emits tuples; use a DeltaSink"
            )


def with_frame_spout(declarations: Sequence[Declaration]) -> Sequence[Declaration]:
    """Return the declarations, in which a spout that can emit DataFrames does so if a bolt or sink reads them."""
    if not any(one.role == FRAME or getattr(type(one.object), "reads_frames", False) for one in declarations):
        return declarations
    able = [one.role == "spout" and hasattr(type(one.object), "as_frames") for one in declarations]
    made = zip(declarations, able, strict=True)
    return [replace(one, object=one.object.as_frames()) if can else one for one, can in made]


def with_frame_tasks(topology: Topology) -> Topology:
    """Return `topology` with numbers of tasks that fit frames.

    Each frame component has as many as the largest number, since they share partitions, and a frame sink has one: its
    rows are staged where they are, or in the driver.
    """
    own = [one.parallelism for one in topology.components if getattr(one.object, "emits_frames", False)]

    def fitting(one: Component) -> Component:
        wanted = max(own) if getattr(one.object, "emits_frames", False) else 1 if one.reads_frames else one.parallelism
        return one if one.parallelism == wanted else replace(one, parallelism=wanted)

    return replace(topology, components=tuple(map(fitting, topology.components))) if own else topology
