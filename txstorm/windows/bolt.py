"""Windowed bolt: the base class of the user's, with the methods that declare its windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Self

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.context import TaskContext
from txstorm.api.names import near, stream_fault
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.errors import InputError
from txstorm.windows.committer import WindowCommitter
from txstorm.windows.plan import WindowOptions, WindowPlan
from txstorm.windows.rules.event_time import UNITS, ClockRule
from txstorm.windows.rules.forms import RIGHT, Count, Duration, WindowForm, duration, sessions, sliding, tumbling
from txstorm.windows.window import TupleWindow

POLICIES = ("min", "max")
ONE_TASK_PER_KEY = ("fields", "global", "custom", "direct")
"""Groupings that can give all tuples of a key to one task; what a custom one does is the user's affair."""


class WindowedBolt(AssembledBolt):
    """A bolt that is called for windows of tuples; each window is evaluated in exactly one committed transaction.

    Declare the windows with its ``with_…`` methods, which return the bolt, and override `execute`::

        class Sum(WindowedBolt):
            fields = ("end", "sum")
            def prepare(self, context, collector):
                self.collector = collector
            def execute(self, window):
                self.collector.emit(window.end, sum(t["value"] for t in window.get()))

        bolt = Sum().with_window(Duration.seconds(20), Duration.seconds(10)).with_timestamp_field("ts")
        builder.set_bolt("sum", bolt, 2).fields_grouping("numbers", ["sensor"])

    It is a committer. A new object is made for each task and transaction that fires; states and sinks declared as
    attributes can be used in all three methods, and keep what is to outlive a transaction.

    Attributes:
        options: what the ``with_…`` methods have declared.
        transient: names of attributes that `execute` may set although they are lost after the transaction.
    """

    options: WindowOptions = WindowOptions()
    transient: ClassVar[tuple[str, ...]] = ()

    def prepare(self, context: TaskContext, collector: Collector) -> None:
        """Set up for the windows of one task and transaction; keep the collector if `execute` emits."""

    def execute(self, window: TupleWindow) -> None:
        """Evaluate one window."""
        raise TypeError(f"{type(self).__name__} does not override execute(window)")

    def cleanup(self) -> None:
        """Finish the windows of one task and transaction."""

    # -- which windows -------------------------------------------------------------------------------------------------

    def with_window(self, length: Any, slide: Any = None, *, closed: str = RIGHT) -> Self:
        """Declare windows of `length`, each `slide` after the one before.

        Args:
            length: a `Duration` or `Count`.
            slide: a `Duration`, a `Count`, or a function of a tuple that returns whether the tuple fires a window;
                None: every tuple does.
            closed: what windows of a time slide hold: their end (``right``), as in Storm, or their start (``left``).

        Raises:
            InputError: (every ``with_…`` method) an argument is wrong, or contradicts an earlier call.
        """
        return self._form(sliding(length, slide, closed))

    def with_tumbling_window(self, length: Any, *, closed: str = RIGHT) -> Self:
        """Declare windows of `length`, a `Duration` or `Count`, without gaps and overlaps; `closed`: as above."""
        return self._form(tumbling(length, closed))

    def with_session_window(self, gap: Any) -> Self:
        """Declare sessions: a session ends when nothing has come for `gap`, a `Duration` or a function of a tuple."""
        return self._form(sessions(gap))

    def with_key(self, field: str, *fields: str, ttl: Duration | timedelta | None = None) -> Self:
        """Declare windows per key instead of per task.

        Args:
            field: the first field of the key; the bolt must be grouped by fields of the key.
            *fields: its other fields.
            ttl: the time without tuples, by stamps of transactions, after which a key is dropped.
        """
        names = (field, *fields)
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
            raise InputError(f"with_key: expected the names of different fields, got {names!r}")
        return self._set(key=names, ttl=None if ttl is None else duration(ttl, "with_key: ttl").microseconds)

    def with_early_results(self, every: Duration | timedelta) -> Self:
        """Also evaluate open windows that got tuples, `every` so often; their `final` is False."""
        return self._set(early=duration(every, "with_early_results").microseconds)

    def with_evictor(self, function: Callable[[Any], Any]) -> Self:
        """Let a function choose, before each evaluation, which tuples of a window stay: list of tuples → those."""
        if not callable(function):
            raise InputError(f"with_evictor: expected a function of a list of tuples, got {function!r}")
        return self._set(evictor=function)

    # -- event time ----------------------------------------------------------------------------------------------------

    def with_timestamp_field(self, name: str, unit: str = "ms") -> Self:
        """Take timestamps from a field: an int in `unit` (``s``, ``ms`` or ``us`` since 1970), or an aware datetime."""
        if not isinstance(name, str) or not name:
            raise InputError(f"with_timestamp_field: expected the name of a field, got {name!r}")
        if unit not in UNITS:
            raise InputError(f"with_timestamp_field: expected the unit {', '.join(map(repr, UNITS))}, got {unit!r}")
        self._check_first_timestamp()
        return self._set(time=replace(self.options.time, field=name, unit=unit))

    def with_timestamp_extractor(self, function: Callable[[Any], Any]) -> Self:
        """Take timestamps from a function of the tuple: ints in milliseconds, or aware datetimes."""
        if not callable(function):
            raise InputError(f"with_timestamp_extractor: expected a function of a tuple, got {function!r}")
        self._check_first_timestamp()
        return self._set(time=replace(self.options.time, extractor=function))

    def with_partition_field(self, name: str) -> Self:
        """Keep the newest timestamp per value of a field, and let the watermark follow the slowest of them."""
        if not isinstance(name, str) or not name:
            raise InputError(f"with_partition_field: expected the name of a field, got {name!r}")
        return self._set(time=replace(self.options.time, partition=name))

    def with_lag(self, lag: Duration | timedelta) -> Self:
        """Expect tuples to be out of order by at most `lag`."""
        return self._set_rule(lag=duration(lag, "with_lag", zero=True).microseconds)

    def with_watermark_interval(self, interval: Duration | timedelta) -> Self:
        """Advance the watermark only after `interval` has passed, by stamps of transactions."""
        return self._set_rule(interval=duration(interval, "with_watermark_interval", zero=True).microseconds)

    def with_watermark_policy(self, policy: str) -> Self:
        """Let the watermark follow the slowest (``min``, the default) or the fastest (``max``) input."""
        if policy not in POLICIES:
            raise InputError(f"with_watermark_policy: expected 'min' or 'max', got {policy!r}")
        return self._set_rule(policy=policy)

    def with_idle_timeout(self, timeout: Duration | timedelta) -> Self:
        """Leave out inputs and partitions without data for `timeout`, by stamps of transactions."""
        return self._set_rule(idle=duration(timeout, "with_idle_timeout").microseconds)

    def with_max_ahead(self, ahead: Duration | timedelta | None) -> Self:
        """Let a tuple more than `ahead` after the stamp of its transaction be an error.

        By default none is: one more than a day ahead stays in its windows, but moves the watermark by a day at most.
        None lets timestamps move the watermark as far as they say. The bound may change between starts.
        """
        clock = ClockRule.of(ahead, "with_max_ahead")
        return self._set(clock=replace(self.options.clock, ahead=clock.ahead, refuses=clock.refuses))

    def with_max_behind(self, behind: Duration | timedelta | None) -> Self:
        """Let a tuple more than `behind` before the stamp of its transaction be an error; None: none is, the default.

        One with the timestamp 0 can make every window end since 1970 due. The bound may change between starts.
        """
        most = None if behind is None else duration(behind, "with_max_behind", zero=True).microseconds
        return self._set(clock=replace(self.options.clock, behind=most))

    def with_late_tuple_stream(self, stream: str) -> Self:
        """Emit late tuples, with all their fields, to `stream`."""
        fault = stream_fault("with_late_tuple_stream: stream", stream)
        if fault:
            raise InputError(fault)
        return self._set(late_stream=stream)

    # -- buffered tuples -----------------------------------------------------------------------------------------------

    def with_columns(self, columns: Mapping[str, Any]) -> Self:
        """Buffer tuples in typed columns, field → type, instead of as text: smaller, faster, and easier to read."""
        if not isinstance(columns, Mapping) or not columns:
            raise InputError(f"with_columns: expected field → type, such as {{'value': int}}, got {columns!r}")
        return self._set(columns=dict(columns))

    def with_persistence(self) -> Self:
        """Keep buffered tuples in state, as all windowed bolts do; Storm's name for it, which a topology may keep."""
        return self

    def with_max_events_in_memory(self, number: int) -> Self:
        """Hold at most `number` tuples of a window in memory: `get()` reads more of them from the state as needed."""
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"with_max_events_in_memory: expected a whole number, at least 1, got {number!r}")
        return self._set(in_memory=number)

    def _form(self, form: WindowForm) -> Self:
        if self.options.form is not None:
            msg = f"{type(self).__name__}: windows are declared twice, as {self.options.form} and {form}; do it once"
            raise InputError(msg)
        return self._set(form=form)

    def _check_first_timestamp(self) -> None:
        if self.options.time.is_event_time:
            raise InputError(f"{type(self).__name__}: a second timestamp; give one field or one extractor")

    def _set(self, **changes: Any) -> Self:
        self.options = replace(self.options, **changes)
        return self

    def _set_rule(self, **changes: Any) -> Self:
        return self._set(rule=replace(self.options.rule, **changes))

    # -- assembly ------------------------------------------------------------------------------------------------------

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that buffers tuples and calls this bolt."""
        options = self.options
        owner_fields, transient = _owner_fields(options.key, site), frozenset(self.transient)
        form = options.form or sliding(Count(1))
        plan = WindowPlan.of(options, site, form, owner_fields=owner_fields, transient=transient)
        committer = WindowCommitter(plan, self, site.tables)
        return Assembly(committer, tuple(_faults(self, plan, site)), tuple(_warnings(plan)))

    # Storm's names of the same methods.
    withWindow = with_window  # noqa: N815
    withTumblingWindow = with_tumbling_window  # noqa: N815
    withSessionWindow = with_session_window  # noqa: N815
    withKey = with_key  # noqa: N815
    withEarlyResults = with_early_results  # noqa: N815
    withEvictor = with_evictor  # noqa: N815
    withTimestampField = with_timestamp_field  # noqa: N815
    withTimestampExtractor = with_timestamp_extractor  # noqa: N815
    withPartitionField = with_partition_field  # noqa: N815
    withLag = with_lag  # noqa: N815
    withWatermarkInterval = with_watermark_interval  # noqa: N815
    withWatermarkPolicy = with_watermark_policy  # noqa: N815
    withIdleTimeout = with_idle_timeout  # noqa: N815
    withMaxAhead = with_max_ahead  # noqa: N815
    withMaxBehind = with_max_behind  # noqa: N815
    withLateTupleStream = with_late_tuple_stream  # noqa: N815
    withColumns = with_columns  # noqa: N815
    withPersistence = with_persistence  # noqa: N815
    withMaxEventsInMemory = with_max_events_in_memory  # noqa: N815


BaseWindowedBolt = WindowedBolt
"""Storm's name of the same class."""


def timestamp_faults(options: WindowOptions, site: Site, **others: Any) -> list[str]:
    """Return faults of timestamps, or of options, and the `others`, that need some although tuples have none."""
    if options.time.is_event_time:
        return [fault for one in site.inputs for fault in one.time_faults(options.time.field)]
    given = {
        "with_late_tuple_stream": options.late_stream,
        **others,
        "with_lag": options.rule.lag,
        "with_max_ahead": options.clock.refuses or options.clock.ahead is None,
        "with_max_behind": options.clock.behind is not None,
        "with_idle_timeout": options.rule.idle,
        "with_watermark_interval": options.rule.interval,
        "with_partition_field": options.time.partition,
        "with_watermark_policy": None if options.rule.policy == "min" else options.rule.policy,
    }
    return [
        f"{name} needs timestamps; call with_timestamp_field or with_timestamp_extractor too"
        for name, value in given.items()
        if value
    ]


def _faults(bolt: WindowedBolt, plan: WindowPlan, site: Site) -> list[str]:
    """Return the faults of a declaration that only show in its topology."""
    options, faults = bolt.options, []
    if options.form is None:
        faults.append("it declares no windows; call with_window, with_tumbling_window or with_session_window")
    if type(bolt).execute is WindowedBolt.execute:
        faults.append(f"{type(bolt).__name__} does not override execute(window)")
    faults += [*plan.form.faults(), *timestamp_faults(options, site)]
    if plan.early is not None and not plan.form.is_session and plan.form.step is None:
        faults.append("early results need windows that slide by a duration, or sessions: others open with no known end")
    return [*faults, *_late_faults(bolt, plan), *_field_faults(plan, site), *_key_faults(plan, site)]


def _late_faults(bolt: WindowedBolt, plan: WindowPlan) -> list[str]:
    declarer = OutputFieldsDeclarer()
    bolt.declare_output_fields(declarer)
    own = declarer.streams.get(plan.late_stream or "")
    if own is None or own.fields == plan.union:
        return []
    return [
        f"with_late_tuple_stream: the stream {plan.late_stream!r} has the fields {', '.join(own.fields)}, late tuples "
        f"have {', '.join(plan.union)}; choose another name"
    ]


def _field_faults(plan: WindowPlan, site: Site) -> list[str]:
    needed = {
        "with_timestamp_field": (plan.time.field,),
        "with_partition_field": (plan.time.partition,),
        "with_key": plan.key or (),
    }
    faults = list[str]()
    for one in site.inputs:
        if one.fields is None:
            continue
        for method, names in needed.items():
            faults += one.missing(method, names)
        if plan.columns is not None:
            missing = [name for name in one.fields if name not in plan.columns]
            faults += [f"with_columns: no type for field {name!r} of {one.where}; add it" for name in missing]
        faults += [
            f"{one.where}: field {name!r} starts with 'window_', as columns of the buffer do; rename it"
            for name in one.fields
            if name.startswith("window_") and plan.columns is not None
        ]
    if plan.columns is not None and all(one.fields is not None for one in site.inputs):
        extra = [name for name in plan.columns if name not in plan.union]
        faults += [f"with_columns: no input has a field {name!r}{near(name, list(plan.union))}" for name in extra]
    return faults


def _key_faults(plan: WindowPlan, site: Site) -> list[str]:
    if plan.key is None or site.parallelism == 1:
        return []
    faults = []
    for one in site.inputs:
        by_key = one.grouping != "fields" or set(one.grouped_by) <= set(plan.key)
        if one.grouping not in ONE_TASK_PER_KEY or not by_key:
            faults.append(
                f"with_key: its input {one.component!r} is grouped by {one.how}, so two tasks may get tuples of one "
                f"key; use {one.grouping_by(plan.key)}"
            )
    return faults


def _owner_fields(key: tuple[str, ...] | None, site: Site) -> tuple[str, ...] | None:
    """Return the fields of the key by which all inputs are grouped; None if they are not grouped in one way."""
    ways = {(one.grouping, one.grouped_by) for one in site.inputs}
    if key is None or len(ways) != 1:
        return None
    [(kind, fields)] = ways
    return fields if kind == "fields" and set(fields) <= set(key) else None


def _warnings(plan: WindowPlan) -> list[str]:
    advice = "give with_key a ttl after which keys without tuples are dropped"
    if plan.keys_stay:
        return [f"its windows, of {plan.form}, keep the last tuples of every key forever; {advice}"]
    if plan.key is not None and plan.ttl is None and plan.event_time:
        return [f"its keys are only dropped by the watermark, and kept while it does not advance; {advice}"]
    return []
