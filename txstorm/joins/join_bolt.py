"""Join bolt: joins the streams in each window as SQL does; Storm's bolt of the same name.

It is one module, as a join is declared call by call, checked as a whole and then evaluated on the same value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any, Self

import pyarrow as pa

from txstorm.api.assembly import Assembly, Site, SiteInput
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM, near, stream_fault
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.tuples import Tuple
from txstorm.errors import InputError, StateError
from txstorm.joins.side import key_faults
from txstorm.joins.sql_joins import MISSING, Step, chain, numbered_keys
from txstorm.windows.bolt import WindowedBolt
from txstorm.windows.committer import WindowCommitter
from txstorm.windows.intake import Chunk
from txstorm.windows.plan import InputPlan
from txstorm.windows.records import progress_state
from txstorm.windows.rules.forms import BOUNDS, BoundNames
from txstorm.windows.window import TupleWindow

WINDOW = "window"
"""Name under which the start and end of the window can be selected."""
_OF_THE_USER = ("custom", "direct")
"""Groupings that can give all tuples of a key to one task, which is the user's affair."""

Path = tuple[str, ...]


class Selector(Enum):
    """Meaning of the names of a join bolt; Storm's enum of the same name."""

    STREAM = "stream"
    SOURCE = "source"


@dataclass(frozen=True)
class Wanted:
    """One selected field.

    Attributes:
        name: its name in the output.
        streams: the streams that have it, each with its path in their tuples; none: it is a time of the window.
        time: ``start`` or ``end`` of the window.
    """

    name: str
    streams: tuple[tuple[str, Path], ...] = ()
    time: str | None = None


@dataclass(frozen=True)
class JoinPlan:
    """Plan of a join bolt in its topology.

    Attributes:
        of_input: (component, stream) → the name under which it is joined.
        keys: name → path of the join field.
        wanted: the selected fields.
    """

    of_input: Mapping[tuple[str, str], str]
    keys: Mapping[str, Path]
    wanted: tuple[Wanted, ...]


class JoinBolt(WindowedBolt):
    """A windowed bolt that joins the tuples of each window, as SQL joins tables.

    Example::

        bolt = (
            JoinBolt("orders", "customer")
            .join("customers", "id", "orders")
            .left_join("payments", "customer", "customers")
            .select("customers:name, amount, payments:amount, window:end")
            .with_tumbling_window(Duration.minutes(10))
        )
        (builder.set_bolt("joined", bolt, 2)
            .fields_grouping("orders", ["customer"])
            .fields_grouping("customers", ["id"])
            .fields_grouping("payments", ["customer"]))

    A pair that is in two windows is joined in both; `IntervalJoin` emits it once. A key that is None matches nothing.
    Results are ordered by the first stream's tuples, then the second's, and so on, each by time and arrival.

    Args:
        stream: the stream that the join begins with: the name of a stream or, for a default stream, of its component.
            As in Storm, a `Selector` may come before it, which says what all names mean.
        field: its join field; ``a.b`` is the entry ``b`` of a dict in field ``a``.
        names: what ``window:start`` and ``window:end`` are called in the results, such as ``{"end": "until"}``.

    Raises:
        InputError: an argument is wrong.
    """

    Selector = Selector

    def __init__(self, stream: Any, field: str, *rest: str, names: Mapping[str, str] | None = None) -> None:
        given = (stream, field, *rest)
        self.selector = given[0] if isinstance(given[0], Selector) else None
        named = given[1:] if self.selector is not None else given
        if len(named) != 2:
            raise InputError(f"JoinBolt: expected a stream and its join field, got {', '.join(map(repr, given))}")
        self.first = _named("JoinBolt: stream", named[0])
        self.join_fields = {self.first: _field("JoinBolt", named[1])}
        self.bounds, self.renamed = BoundNames.of("JoinBolt", names), tuple(names or ())
        self.steps: tuple[Step, ...] = ()
        self.selected: tuple[str, ...] | None = None
        self.output_stream = DEFAULT_STREAM
        self._plan: JoinPlan | None = None

    def join(self, stream: str, field: str, other: str) -> Self:
        """Join `stream` to `other`, which was named before, where `field` equals the join field of `other`."""
        return self._joined(Step(stream, other, left=False), field)

    def left_join(self, stream: str, field: str, other: str) -> Self:
        """Join `stream` to `other` as `join` does, and keep the rows that have no match, with None for its fields."""
        return self._joined(Step(stream, other, left=True), field)

    def select(self, *names: str) -> Self:
        """Choose the fields of the results; without it they are all fields of all streams.

        Args:
            *names: fields, also several in one text, separated by commas. ``field`` is that of the first stream that
                has one which is not None, ``stream:field`` that of a stream, ``window:start`` and ``window:end`` are
                the times of the window. A name that occurs twice becomes ``stream_field``.
        """
        flat = [one for name in names for one in (name if isinstance(name, list | tuple) else [name])]
        if not flat or not all(isinstance(one, str) for one in flat):
            raise InputError(f"select: expected names of fields, such as 'a, stream:b', got {names!r}")
        given = tuple(one.strip() for text in flat for one in text.split(","))
        if not all(one.strip(":") for one in given):
            raise InputError(f"select: expected names of fields between commas, such as 'a, stream:b', got {names!r}")
        self.selected = given
        return self

    def with_output_stream(self, stream: str) -> Self:
        """Emit the results to `stream` instead of the default stream."""
        fault = stream_fault("with_output_stream: stream", stream)
        if fault:
            raise InputError(fault)
        self.output_stream = stream
        return self

    def _joined(self, step: Step, field: str) -> Self:
        what = "left_join" if step.left else "join"
        _named(f"{what}: stream", step.stream)
        if step.stream in self.join_fields:
            raise InputError(f"{what}: stream {step.stream!r} is joined already; join each stream once")
        if step.other not in self.join_fields:
            named = ", ".join(self.join_fields)
            msg = f"{what}: stream {step.other!r} is not joined yet; join to one of those named before: {named}"
            raise InputError(msg)
        self.join_fields = {**self.join_fields, step.stream: _field(what, field)}
        self.steps = (*self.steps, step)
        return self

    def __str__(self) -> str:
        """Return what is joined, in words."""
        names = "" if self.selector is None else f"{self.selector.value} "
        joined = [f"{names}{self.first} by {self.join_fields[self.first]}"]
        for one in self.steps:
            way = "left joined" if one.left else "joined"
            joined.append(f"{one.stream} by {self.join_fields[one.stream]} {way} to {one.other}")
        return ", ".join(joined)

    # -- assembly ------------------------------------------------------------------------------------------------------

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that buffers tuples and calls this bolt."""
        bolt = copy(self)
        streams = _Streams(self, site)
        bolt._plan = streams.plan  # noqa: SLF001 - a copy of this object
        made = super(JoinBolt, bolt).assemble(site)
        assert isinstance(made.committer, WindowCommitter)
        made.committer.checks += (partial(_check_keys, made.committer.plan.inputs, streams.plan),)
        plan = made.committer.plan
        made.committer.progress = progress_state(plan, {**plan.fixed(), "join": str(self)})
        end = next((one.name for one in streams.plan.wanted if one.time == "end"), None)
        if end is not None:
            made.committer.published = {self.output_stream: made.committer.plan.results(end)}
        return Assembly(made.committer, (*made.faults, *streams.faults), made.warnings)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the selected fields."""
        super().declare_output_fields(declarer)
        if self._plan is not None:
            declarer.declare_stream(self.output_stream, [one.name for one in self._plan.wanted])

    # -- windows -------------------------------------------------------------------------------------------------------

    def prepare(self, context: TaskContext, collector: Collector) -> None:
        """Keep the collector."""
        self.collector = collector

    def execute(self, window: TupleWindow) -> None:
        """Join the tuples of a window, and emit the results."""
        assert self._plan is not None
        plan, tuples = self._plan, {name: list[Tuple]() for name in self.join_fields}
        for one in window.get():
            name = plan.of_input.get((one.source_component, one.source_stream))
            if name is not None:  # an input that an earlier start has joined
                tuples[name].append(one)
        values = {name: _column(tuples[name], path) for name, path in plan.keys.items()}
        rows = chain(self.first, self.steps, numbered_keys(values))
        number = len(rows[self.first])
        columns = [_selected(one, window, tuples, rows, number) for one in plan.wanted]
        emit, stream = self.collector.emit, self.output_stream
        for row in zip(*columns, strict=True):
            emit(*row, stream=stream)

    # Storm's names of the same methods.
    leftJoin = left_join  # noqa: N815
    withOutputStream = with_output_stream  # noqa: N815


def _selected(
    wanted: Wanted,
    window: TupleWindow,
    tuples: Mapping[str, list[Tuple]],
    rows: Mapping[str, Any],
    number: int,
) -> list[Any]:
    """Return the values of a selected field in all result rows."""
    if wanted.time is not None:
        return [getattr(window, wanted.time)] * number
    made: list[Any] = []
    for stream, path in wanted.streams:
        values = [*_column(tuples[stream], path), None]
        assert MISSING == -1  # the index of the last value, None
        some = list(map(values.__getitem__, rows[stream].tolist()))
        made = [new if old is None else old for old, new in zip(made, some, strict=True)] if made else some
    return made


def _column(tuples: Sequence[Tuple], path: Path) -> list[Any]:
    """Return the value at `path` in each tuple; None where there is none."""
    name, *inner = path
    try:
        values = [one[name] for one in tuples]
    except KeyError:  # tuples of an input without the field
        values = [one[name] if name in one else None for one in tuples]
    for key in inner:
        values = [one.get(key) if isinstance(one, Mapping) else None for one in values]
    return values


def _check_keys(inputs: Sequence[InputPlan], plan: JoinPlan, chunk: Chunk) -> None:
    """Raise `StateError` for a tuple whose join field has a value that cannot be a key."""
    one = inputs[chunk.number]
    name = plan.of_input.get((one.component, one.stream))
    if name is None:
        return
    path = plan.keys[name]
    if not isinstance(chunk.values, list) and any(fits(chunk.values.column(path[0]).type) for fits in _SURE_KEYS):
        return
    at = one.fields.index(path[0])
    values = [row[at] for row in chunk.rows()]
    for key in path[1:]:
        values = [value.get(key) if isinstance(value, Mapping) else None for value in values]
    try:
        numbered_keys({name: values})
    except StateError as error:
        raise StateError(f"{error}, but is the value of the join field {name}:{'.'.join(path)}") from None


_SURE_KEYS = (pa.types.is_string, pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
"""Types of columns all of whose values can be keys."""


def _named(what: str, name: Any) -> str:
    fault = stream_fault(what, name)
    if fault:
        raise InputError(fault)
    return str(name)


def _field(what: str, field: Any) -> str:
    if not isinstance(field, str) or not field or ":" in field:
        raise InputError(f"{what}: expected the name of the join field, without its stream, got {field!r}")
    return field


class _Streams:
    """Streams of a join bolt, as its topology has them.

    Attributes:
        plan: the plan, as far as the declaration is right.
        faults: faults of the declaration, one sentence each.
    """

    def __init__(self, bolt: JoinBolt, site: Site) -> None:
        self._bolt = bolt
        self.faults: list[str] = []
        self._inputs: dict[str, list[SiteInput]] = {name: [] for name in bolt.join_fields}
        for one in site.inputs:
            self._place(one)
        for name, some in self._inputs.items():
            if not some:
                self.faults.append(f"no input is {self._kind} {name!r}; subscribe to it, such as with fields_grouping")
        keys = {name: self._key(name, field) for name, field in bolt.join_fields.items()}
        of_input = {(one.component, one.stream): name for name, some in self._inputs.items() for one in some}
        columns = bolt.options.columns or {}
        for step in bolt.steps:
            ours, theirs = (
                [(bolt.join_fields[name], columns.get(bolt.join_fields[name]))] for name in (step.stream, step.other)
            )
            self.faults += key_faults(ours, theirs)
        self.plan = JoinPlan(of_input, keys, tuple(self._wanted()))
        if site.parallelism > 1 and bolt.options.key is None:
            self._check_groupings()

    @property
    def _kind(self) -> str:
        return {None: "the stream, or the default stream of the component,", Selector.STREAM: "the stream"}.get(
            self._bolt.selector, "a stream of the component"
        )

    def _place(self, one: SiteInput) -> None:
        """Find the name under which an input is joined."""
        selector = self._bolt.selector
        by_stream = selector is Selector.STREAM or (selector is None and one.stream != DEFAULT_STREAM)
        name = one.stream if by_stream else one.component
        if name in self._inputs:
            kinds = {other.stream == DEFAULT_STREAM for other in self._inputs[name]}
            self._inputs[name].append(one)
            if selector is None and kinds == {one.stream != DEFAULT_STREAM}:
                self.faults.append(
                    f"{name!r} is the name of a stream, and of a component whose default stream it reads; say which, "
                    f"with Selector.STREAM or Selector.SOURCE, or rename one"
                )
        else:
            hint = near(name, list(self._inputs))
            self.faults.append(f"its input, {one.where}, is not joined{hint}; join {name!r}, or do not subscribe to it")

    def _path(self, stream: str, field: str) -> Path | None:
        """Return the path of a field in the tuples of a stream; None if none of its inputs has it."""
        fields = self._fields(stream)
        if fields is None or field in fields:
            return (field,)
        path = tuple(field.split("."))
        return path if path[0] in fields and all(path) else None

    def _fields(self, stream: str) -> tuple[str, ...] | None:
        """Return the fields of a stream; None if they are unknown, which is a fault of its own."""
        some = [one.fields for one in self._inputs[stream]]
        if not some or None in some:
            return None
        return tuple(dict.fromkeys(name for fields in some for name in fields or ()))

    def _key(self, stream: str, field: str) -> Path:
        path = self._path(stream, field)
        if path is None:
            self._missing(f"stream {stream!r} has no join field {field!r}", field, self._fields(stream) or ())
            return (field,)
        for one in self._inputs[stream]:
            if one.fields is not None and path[0] not in one.fields:
                self._missing(f"{one.where}, joined as {stream!r}, has no join field {field!r}", field, one.fields)
        return path

    def _missing(self, what: str, field: str, fields: Sequence[str]) -> None:
        self.faults.append(f"{what}{near(field, list(fields))}; it has {', '.join(dict.fromkeys(fields))}")

    # -- selected fields -----------------------------------------------------------------------------------------------

    def _wanted(self) -> list[Wanted]:
        bolt = self._bolt
        if bolt.selected is None:
            given = [f"{stream}:{field}" for stream in bolt.join_fields for field in self._fields(stream) or ()]
        else:
            given = list(bolt.selected)
        found = [(text, one) for text, one in zip(given, map(self._one, given), strict=True) if one is not None]
        selected = {one.time for _, (_, one) in found}
        for name in (one for one in bolt.renamed if one not in selected):
            self.faults.append(f"names: the results have no {WINDOW}:{name}; select it, or leave its name out")
        times = Counter(one.name for _, (_, one) in found if one.time not in bolt.renamed)
        made: dict[str, list[tuple[str, Wanted]]] = {}
        for text, (stream, one) in found:
            is_fixed = one.time in bolt.renamed or times[one.name] == 1
            name = one.name if is_fixed else f"{stream}_{one.name}"
            made.setdefault(name, []).append((text, replace(one, name=name)))
        for name, some in made.items():
            if len(some) > 1:
                texts = " and ".join(repr(text) for text, _ in some)
                self.faults.append(f"select: {texts} would both be called {name!r}; select one of them, or others")
        return [some[0][1] for some in made.values()]

    def _one(self, text: str) -> tuple[str, Wanted] | None:
        """Return the stream of a selected field, with it; None if there is no such field."""
        head, colon, tail = text.partition(":")
        stream, field = (head.strip(), tail.strip()) if colon and head.strip() else (None, (tail or head).strip())
        if stream is not None and stream not in self._inputs:
            if stream == WINDOW and field in tuple(BOUNDS):
                return WINDOW, Wanted(getattr(self._bolt.bounds, field), time=field)
            hint = "" if stream == WINDOW else near(stream, [*self._inputs, WINDOW])
            known = f"{', '.join(self._inputs)}, and {WINDOW} with {' and '.join(BOUNDS)}"
            self.faults.append(f"select: {text!r}: there is no {stream!r}{hint} with this field; there are {known}")
            return None
        among = self._inputs if stream is None else [stream]
        paths = [(name, self._path(name, field)) for name in among]
        found = tuple((name, path) for name, path in paths if path is not None)
        if not found:
            fields = [one for name in among for one in self._fields(name) or ()]
            self._missing(f"select: no stream has {text!r}" if stream is None else f"select: {text!r}: no such field",
                          field, fields)  # fmt: skip
            return None
        return found[0][0], Wanted(field, found)

    # -- groupings -----------------------------------------------------------------------------------------------------

    def _check_groupings(self) -> None:
        """Report inputs whose tuples may get into another task than those that they are to be joined with."""
        bolt = self._bolt
        parted = [(name, one) for name, some in self._inputs.items() for one in some if one.grouping != "all"]
        if all(name == bolt.first for name, _ in parted) and parted:
            return
        if parted and all(one.grouping == "global" for _, one in parted):
            return
        for one in self._inputs[bolt.first]:
            if one.grouping == "all":
                self.faults.append(
                    f"its first stream {bolt.first!r} goes to all tasks, so each of them would emit the results; use "
                    f"{self._remedy(bolt.first, one)}"
                )
        for name, one in parted:
            field = bolt.join_fields[name]
            by_field = one.grouping == "fields" and one.grouped_by == (field,)
            if not by_field and one.grouping not in _OF_THE_USER:
                self.faults.append(
                    f"its input {one.component!r}, joined as {name!r} by {field!r}, is grouped by {one.how}, so tuples "
                    f"of one key may get into different tasks; use {self._remedy(name, one)}"
                )

    def _remedy(self, name: str, one: SiteInput) -> str:
        """Return what brings all tuples of a key of an input to one task, in words."""
        if len(self.plan.keys[name]) == 1:
            return one.grouping_by([self._bolt.join_fields[name]])
        return "global_grouping, or emit the entry as a field and group by that"
