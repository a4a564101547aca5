"""Plan of a windowed component: everything that its declaration and its place in the topology fix, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from txstorm.api.assembly import Results, Site, SiteInput
from txstorm.api.context import SourceFacts, TaskContext, WindowProgress
from txstorm.display import duration_text
from txstorm.keys import key_group, task_of
from txstorm.tagged import value_of
from txstorm.windows.rules.event_time import END, ClockRule, Facts, WatermarkRule, instant
from txstorm.windows.rules.forms import LEFT, RIGHT, WindowForm

NONE: Mapping[tuple[str, str], int] = {}


@dataclass(frozen=True)
class InputPlan:
    """One input.

    Attributes:
        component, stream: what is read.
        fields: the fields of its tuples.
        sources: the sources whose tuples reach it.
        frontier: the stream with the time that all later tuples exceed, in place of their newest timestamp and lag;
            None if there is none.
        ends_of: if their times are ends of windows, the side on which these are closed.
        shift: what is added to their times, and to the frontier, in microseconds: −1 for ends of windows that do not
            hold them, or that are read by windows which would not.
    """

    component: str
    stream: str
    fields: tuple[str, ...]
    sources: frozenset[str]
    frontier: str | None = None
    ends_of: str | None = None
    shift: int = 0

    @classmethod
    def of(cls, one: SiteInput, time: TimeSource, form: WindowForm | None = None) -> InputPlan:
        """Return the plan of an input: results whose time is read come with the frontier of their component."""
        made = cls(one.component, one.stream, one.fields or (), one.sources)
        if one.results is None or one.results.time != time.field:
            return made
        of = one.results.ends_of
        is_left = of is not None and LEFT in (of, RIGHT if form is None else form.closed)
        return replace(made, frontier=one.results.frontier, ends_of=of, shift=-is_left)


@dataclass(frozen=True)
class TimeSource:
    """Source of timestamps: a field with its unit, or a function of the tuple; neither is processing time."""

    field: str | None = None
    unit: str = "ms"
    extractor: Callable[[Any], Any] | None = None
    partition: str | None = None

    @property
    def is_event_time(self) -> bool:
        """Whether tuples have timestamps."""
        return self.field is not None or self.extractor is not None

    def described(self) -> dict[str, Any]:
        """Return the time source as JSON."""
        source = "function" if self.extractor is not None else self.field
        return {"timestamp": source, "unit": self.unit, "partition": self.partition}


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """Options of windows, as the ``with_…`` methods of a bolt set them; durations in microseconds.

    Attributes:
        form: form of the windows; None: not declared.
        rule: how the watermark follows the inputs.
        time: where timestamps come from.
        key: the fields of the key of each window; None for windows per task.
        ttl: the time without tuples after which a key is dropped; None: never.
        columns: column → type of buffered tuples; None: as tagged text.
        late_stream: the stream that late tuples are emitted to.
        early: the time between early results; None: no early results.
        evictor: function that returns which tuples of a window stay.
        in_memory: number of tuples of a window that are held in memory; None: all.
        clock: how far timestamps may be from the stamp; may differ from that of an earlier start.
    """

    form: WindowForm | None = None
    rule: WatermarkRule = field(default_factory=partial(WatermarkRule, 0))
    time: TimeSource = TimeSource()
    key: tuple[str, ...] | None = None
    ttl: int | None = None
    columns: Mapping[str, Any] | None = None
    late_stream: str | None = None
    early: int | None = None
    evictor: Callable[[Any], Any] | None = None
    in_memory: int | None = None
    clock: ClockRule = field(default_factory=ClockRule)


@dataclass(frozen=True, kw_only=True)
class WindowPlan(WindowOptions):
    """Plan of a windowed component: its options, with what its place in the topology adds.

    Attributes:
        id: the component's id.
        parallelism: number of its tasks.
        inputs: its inputs, in the order of their declaration.
        owner_fields: the fields of the key by which tuples are distributed, so that keys can move to other tasks when
            the parallelism changes; None if they cannot.
        transient: attributes of the user's bolt that `execute` may rebind.
    """

    form: WindowForm
    id: str
    parallelism: int
    inputs: tuple[InputPlan, ...]
    owner_fields: tuple[str, ...] | None = None
    transient: frozenset[str] = frozenset()

    @classmethod
    def of(cls, options: WindowOptions, site: Site, form: WindowForm, **more: Any) -> WindowPlan:
        """Return the plan of a component with windows of `form`; `more`: other attributes than the options have."""
        inputs = tuple(InputPlan.of(one, options.time, form) for one in site.inputs)
        rule = replace(options.rule, inputs=len(inputs))
        there = {"id": site.id, "parallelism": site.parallelism, "inputs": inputs, "form": form, "rule": rule}
        return cls(**{**vars(options), **there, **more})

    @property
    def event_time(self) -> bool:
        """Whether windows are of event time."""
        return self.time.is_event_time

    @property
    def closed_by_time(self) -> bool:
        """Whether windows fire as time passes, without a tuple: those of processing time with a time slide."""
        return not self.event_time and (self.form.step is not None or self.form.is_session)

    @property
    def by_clock(self) -> bool:
        """Whether the time between transactions matters: a ttl, an idle time, or processing time."""
        measured = self.ttl is not None or self.rule.idle is not None
        return measured or self.closed_by_time or (not self.event_time and self.form.span is not None)

    @property
    def union(self) -> tuple[str, ...]:
        """The fields of all inputs, each once."""
        return tuple(dict.fromkeys(name for one in self.inputs for name in one.fields))

    @property
    def also_reads(self) -> tuple[tuple[str, str], ...]:
        """The streams with frontiers, each (component, stream)."""
        return tuple(dict.fromkeys((one.component, one.frontier) for one in self.inputs if one.frontier is not None))

    def facts(self, context: TaskContext, frontiers: Mapping[tuple[str, str], int] = NONE) -> Facts:
        """Return the facts about the inputs in a transaction; `frontiers`: (component, stream) → what it has sent."""
        known = context.sources
        of_input = [[known.get(name, SourceFacts()) for name in sorted(one.sources)] for one in self.inputs]
        partitions = {
            number: frozenset(part for one in sources for part in one.partitions)
            for number, sources in enumerate(of_input)
            if self.time.partition is not None
        }
        ended = frozenset(
            number
            for number, sources in enumerate(of_input)
            if sources and all(one.ended for one in sources) and not context.waits
        )
        followed = {
            number: self._reached(one, frontiers.get((one.component, one.frontier)))
            for number, one in enumerate(self.inputs)
            if one.frontier is not None
        }
        return Facts(partitions, ended, followed, context.end_of_input)

    def results(self, time: str) -> Results:
        """Return what is known of results whose times, in the field `time`, are the ends of its windows."""
        return Results(time, None, (), final=True, retractions=None, columns={}, ends_of=self.form.closed)

    def _reached(self, one: InputPlan, frontier: int | None) -> int | None:
        """Return the watermark that a frontier allows: later times exceed it, and may be its held time."""
        return frontier if frontier in (None, END) else self.form.held(frontier + one.shift)

    def stamped(self, watermark: int | None, stamp: int) -> int:
        """Return the held time of a transaction's tuples in processing time, by the watermark before it."""
        held = self.form.held(stamp)
        if self.form.step is None or watermark is None or watermark == END:
            return held
        return max(held, watermark // self.form.step * self.form.step + 1)

    def report(self, context: TaskContext, watermark: int | None, fired: int, late: int, **more: Any) -> None:
        """Report the progress of a task in a transaction; `more`: other attributes of `WindowProgress`."""
        if context.report is None:
            return
        if watermark is None:
            context.report(WindowProgress(None, None, fired, late, **more))
            return
        reached = instant(watermark)
        delay = None if watermark == END else context.now - reached
        context.report(WindowProgress(reached, delay, fired, late, **more))

    def about(self) -> dict[str, Any]:
        """Return what may change between starts, but helps to understand stored tuples and progress, as JSON."""
        inputs = [[one.component, one.stream, list(one.fields)] for one in self.inputs]
        return {"inputs": inputs, "lag": self.rule.lag}

    def declared(self) -> dict[str, Any]:
        """Return what must be the same at every start, as JSON."""
        declared: dict[str, Any] = {
            "windows": self.form.described(),
            "key": None if self.key is None else list(self.key),
            "time": self.time.described(),
            "policy": self.rule.policy,
            "columns": None if self.columns is None else list(self.columns),
        }
        return declared if self.owner_fields is not None else {**declared, "tasks": self.parallelism}

    def fixed(self) -> dict[str, str]:
        """Return what must be the same at every start, in words."""
        time = self.time
        stamp = "a function of the tuple" if time.extractor is not None else f"field {time.field!r} in {time.unit}"
        facts = {
            "windows": str(self.form),
            "key": "none" if self.key is None else ", ".join(self.key),
            "timestamp": stamp if self.event_time else "none (processing time)",
            "partition field": repr(time.partition) if time.partition is not None else "none",
            "watermark policy": self.rule.policy,
        }
        return facts if self.owner_fields is not None else {**facts, "tasks": str(self.parallelism)}

    def buffer_retention(self) -> str:
        """Describe for how long tuples are kept."""
        form, per = self.form, "task" if self.key is None else "key"
        if form.is_session:
            kept = "evicted when their session has fired"
        elif form.span is None:
            count = getattr(form.length, "value", 0)
            kept = f"evicted but for the last {count} that a window of the {per} had"
        elif form.step is None:
            kept = f"evicted when the next window of the {per} has fired without them"
        else:
            reach = duration_text(timedelta(microseconds=form.span + form.step))
            kept = f"evicted when {reach} (length and slide) behind the watermark"
        return f"{kept}{self._key_retention}"

    def record_retention(self) -> str:
        """Describe for how long the records of tasks and keys are kept."""
        return "one row per task" if self.key is None else f"one row per key{self._key_retention}"

    @property
    def keys_stay(self) -> bool:
        """Whether the passing of time alone does not drop a key: it has neither a ttl nor windows that it leaves."""
        bounded = self.form.is_session or (self.form.span is not None and self.form.step is not None)
        return self.key is not None and self.ttl is None and not bounded

    @property
    def _key_retention(self) -> str:
        if self.key is None:
            return ""
        if self.ttl is not None:
            return f", keys dropped after {duration_text(timedelta(microseconds=self.ttl))} without tuples"
        return ", keys kept forever (no ttl)" if self.keys_stay else ", keys dropped when no window has tuples of them"

    def owner(self, unit: str) -> int:
        """Return the task that gets the tuples of a key; only if `owner_fields` is not None."""
        assert self.key is not None and self.owner_fields is not None
        values = dict(zip(self.key, value_of(unit), strict=True))
        return task_of(key_group([values[name] for name in self.owner_fields]), self.parallelism)
