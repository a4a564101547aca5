"""Monoid bolt: keeps one state of a monoid per key or per task, and emits states that have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from typing import Any, ClassVar, Literal

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.names import name_fault, near
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import KeyedState, StateHandle
from txstorm.api.tuples import Tuple
from txstorm.errors import InputError, StateError
from txstorm.keys import any_text
from txstorm.monoids.ready_made import Monoid, restored, stored
from txstorm.typed import stacked

STATE, INSTANCE = "state", "instance"
"""Column and field of a state, and of the number of the task that keeps it if there is no key."""
Emit = Literal["batch", "tuple"]
TRIED = 4
"""Number of states that the setting `check_laws` tries the laws on."""
_ANYWHERE = ("shuffle", "none", "local_or_shuffle", "global", "partial_key")
"""Groupings that may send a tuple to any task, so that tuples can be merged before they are sent."""


class MonoidBolt(AssembledBolt):
    """A bolt with states of a commutative monoid, saved with every transaction, exactly once.

    For each tuple the state of its key becomes ``merge(state, to_state(tuple))``. Where only the last state of a
    transaction matters, the tuples of a task are merged before they are sent, which is what commutativity allows::

        builder.set_bolt("counts", MonoidBolt("counts", Sum(), "tag", to_state="n"), 2).fields_grouping("tags", ["tag"])

    The states are in the table ``state/<table>``: the key columns and ``state``; without a key one row per task, with
    the column ``instance``. If there are fewer tasks than before, task i mod n takes over the state of task i.

    Instead of giving functions, a subclass may override `empty`, `merge`, `to_state` and `transform`; Hailstorm's names
    of them (``emptyState``, ``mergeFn``, ``tupleToStateConverter``, ``transformTupleFn``) work as well.

    Args:
        table: name of the state.
        monoid: the monoid; None for a subclass that overrides `empty` and `merge`.
        key: as for `CountByKey`: the fields of the key, or a mapping field → type; empty: one state per task.
        to_state: a function of a `txstorm.Tuple` that returns its state, or the field, or fields, of whose values the
            monoid makes one (`Monoid.of`). Default: the only field that is not in the key; none for a `Count`.
        transform: a function of a tuple and the state after it, which returns the values to emit, or None to emit
            nothing. Default: the key (or the instance) and the state as it is stored.
        fields: names of the values that `transform` returns.
        emit: ``"batch"``: what `transform` returns for the last tuple of each key (without a key: of each task) in a
            transaction; ``"tuple"``: for every tuple, in the order of the source; None: nothing.

    Raises:
        InputError: an argument is none of the above.
    """

    storm_names: ClassVar[Mapping[str, str]] = {
        "declareOutputFields": "declare_output_fields",
        "emptyState": "empty",
        "mergeFn": "merge",
        "tupleToStateConverter": "to_state",
        "transformTupleFn": "transform",
    }
    column: ClassVar[Any] = None

    def __init__(
        self,
        table: str,
        monoid: Monoid | None = None,
        key: str | Sequence[str] | Mapping[str, Any] = (),
        *,
        to_state: Callable[[Tuple], Any] | str | Sequence[str] | None = None,
        transform: Callable[[Tuple, Any], Sequence[Any] | None] | None = None,
        fields: Sequence[str] | str = (),
        emit: Emit | None = "batch",
    ) -> None:
        fault = name_fault("MonoidBolt: table", table)
        if fault is None and monoid is None and type(self).empty is MonoidBolt.empty:
            fault = "MonoidBolt: give a monoid, such as Sum(), or override empty and merge in a subclass"
        if fault is None and monoid is not None and not isinstance(monoid, Monoid):
            fault = f"MonoidBolt: monoid: expected a Monoid, such as Sum(), got {monoid!r}"
        if fault is None and emit not in ("batch", "tuple", None):
            fault = f'MonoidBolt: emit: expected "batch", "tuple" or None, got {emit!r}'
        if fault is not None:
            raise InputError(fault)
        self.table, self.emit = table, emit
        self.monoid = _OwnMonoid(self) if monoid is None else monoid
        self.keys = _typed(key)
        self.given = to_state
        self.transforms = transform or (self.transform if type(self).transform is not MonoidBolt.transform else None)
        self.emitted = (fields,) if isinstance(fields, str) else tuple(fields or self.fields)

    def empty(self) -> Any:
        """Return the state of no tuples."""
        return self.monoid.empty()

    def merge(self, a: Any, b: Any) -> Any:
        """Return the state of the tuples of both `a` and `b`, neither of which may be changed."""
        return self.monoid.merge(a, b)

    def to_state(self, tuple: Tuple) -> Any:  # noqa: A002 - Storm's word
        """Return the state of one tuple."""
        raise NotImplementedError

    def transform(self, tuple: Tuple, state: Any) -> Sequence[Any] | None:  # noqa: A002 - Storm's word
        """Return the values to emit for `tuple`, given the state after it; None: nothing."""
        raise NotImplementedError

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that merges the states."""
        reads, faults = _reads(self, site)
        faults += _faults(self, site)
        plan = MonoidPlan(site.id, self, site.parallelism, reads, tuple(one.grouping for one in site.inputs))
        made = ColumnCommitter if plan.way == "columns" else MonoidCommitter
        return Assembly(made(plan), tuple(faults))


class _OwnMonoid(Monoid):
    """The monoid of a bolt that overrides `empty` and `merge` itself."""

    def __init__(self, bolt: MonoidBolt) -> None:
        self._bolt = bolt
        self.column = type(bolt).column

    def empty(self) -> Any:
        return self._bolt.empty()

    def merge(self, a: Any, b: Any) -> Any:
        return self._bolt.merge(a, b)

    @property
    def name(self) -> str:
        return type(self._bolt).__name__


def _typed(key: str | Sequence[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(key, Mapping):
        return dict(key)
    return dict.fromkeys([key] if isinstance(key, str) else key, str)


def _reads(bolt: MonoidBolt, site: Site) -> tuple[tuple[str, ...] | None, list[str]]:
    """Return the fields of which the monoid makes a state, or None if a function of the tuple does; and the faults."""
    given = bolt.given
    if callable(given) or type(bolt).to_state is not MonoidBolt.to_state:
        return None, []
    if given is not None:
        names = (given,) if isinstance(given, str) else tuple(given)
        return names, list(_unknown(site, names, "to_state"))
    if bolt.monoid.how == "count":
        return (), []
    fields: tuple[str, ...] = next((one.fields for one in site.inputs if one.fields is not None), ())
    others = [name for name in fields if name not in bolt.keys]
    if len(others) == 1 or not fields:
        return tuple(others), []
    has = ", ".join(others) or "none"
    return (), [f"MonoidBolt: the fields besides the key are {has}; say with to_state which of them make a state"]


def _unknown(site: Site, names: Sequence[str], what: str) -> Iterator[str]:
    for one in site.inputs:
        for name in names if one.fields is not None else ():
            if name not in one.fields:
                where = f"stream {one.stream!r} of {one.component!r}"
                yield (
                    f"MonoidBolt: {what}: {where} has no field {name!r}{near(name, list(one.fields))}; it has "
                    f"{', '.join(one.fields)}"
                )


def _faults(bolt: MonoidBolt, site: Site) -> Iterator[str]:
    """Yield the faults of a declaration that only show in its topology."""
    yield from _unknown(site, tuple(bolt.keys), "key")
    if STATE in bolt.keys or INSTANCE in bolt.keys:
        yield f"MonoidBolt: {STATE!r} and {INSTANCE!r} are columns of its table; rename the key field upstream"
    if bolt.transforms is not None and bolt.emit is not None and not bolt.emitted:
        yield "MonoidBolt: say with fields what the values are called that transform returns"
    if bolt.transforms is None and bolt.emitted:
        yield "MonoidBolt: fields name what transform returns; give both or neither"
    if not bolt.keys or site.parallelism == 1:
        return
    for one in site.inputs:
        by_key = one.grouping == "fields" and set(one.grouped_by) <= set(bolt.keys)
        if one.grouping not in ("global", "custom") and not by_key:
            yield (
                f"MonoidBolt: its input {one.component!r} is grouped by {one.grouping}, so two tasks may get tuples of "
                f"one key; use {one.grouping_by(list(bolt.keys))}"
            )


@dataclass(frozen=True)
class MonoidPlan:
    """Plan of a monoid bolt.

    Attributes:
        id: its id.
        bolt: its declaration.
        tasks: its parallelism.
        reads: the fields of which the monoid makes a state; None: a function of the tuple does.
        groupings: the kinds of grouping of its inputs.
    """

    id: str
    bolt: MonoidBolt
    tasks: int
    reads: tuple[str, ...] | None
    groupings: tuple[str, ...]

    @property
    def monoid(self) -> Monoid:
        """The monoid."""
        return self.bolt.monoid

    @property
    def key(self) -> tuple[str, ...]:
        """The fields of the key."""
        return tuple(self.bolt.keys)

    @property
    def way(self) -> str:
        """How tuples become states.

        ``columns``: the state folds columns of numbers; ``merged``: the tuples of a task of the source are merged
        there, and the committer merges these partial states; ``tuples``: the committer takes tuple by tuple, in their
        order.
        """
        if self.bolt.emit == "tuple" or self.bolt.transforms is not None:
            return "tuples"
        if self.key and self.reads is not None and self.monoid.how is not None:
            return "columns"
        # Other groupings choose a task by values that partial states do not have.
        known = (*_ANYWHERE, "fields") if self.key else _ANYWHERE
        return "merged" if all(kind in known for kind in self.groupings) else "tuples"

    def state(self) -> KeyedState:
        """Return the declaration of the table of states."""
        column = str if self.monoid.column is None else self.monoid.column
        fixed = {"monoid": self.monoid.name}
        return KeyedState(self.bolt.table, self.bolt.keys or {INSTANCE: int}, {STATE: column}, fixed=fixed)

    def state_of(self, tuple: Tuple) -> Any:  # noqa: A002 - Storm's word
        """Return the state of one tuple."""
        if self.reads is not None:
            return self.monoid.of(*(tuple[name] for name in self.reads))
        make = self.bolt.given if callable(self.bolt.given) else self.bolt.to_state
        return make(tuple)

    def key_of(self, row: Any) -> Any:
        """Return the key of a tuple, in the form that states take: a plain value, or a tuple of several."""
        return row[self.key[0]] if len(self.key) == 1 else tuple(row[name] for name in self.key)


def broken_law(monoid: Monoid, states: Sequence[Any]) -> str | None:
    """Return which law some states of a monoid break, with the states; None if none.

    It also notices a merge that changes its arguments.
    """
    before = [stored(monoid, one) for one in states]
    for law, operands, (left, right) in _laws(monoid, states):
        given = ", ".join(f"{name} = {monoid.dump(one)!r:.200}" for name, one in zip("abc", operands, strict=False))
        if not monoid.equal(left, right):
            sides = f"{monoid.dump(left)!r:.200} and {monoid.dump(right)!r:.200}"
            return f"{monoid.name}: {law} does not hold for {given}: {sides}"
        if [stored(monoid, one) for one in states] != before:
            return f"{monoid.name}: merge changes its arguments, of {given}; let it return a new state"
    return None


def _laws(monoid: Monoid, states: Sequence[Any]) -> Iterator[tuple[str, tuple[Any, ...], tuple[Any, Any]]]:
    """Yield each law with its operands and the two states that it demands to be equal."""
    merge = monoid.merge
    for a in states:
        yield "merge(empty(), a) = a", (a,), (merge(monoid.empty(), a), a)
    for a, b in combinations(states, 2):
        yield "merge(a, b) = merge(b, a)", (a, b), (merge(a, b), merge(b, a))
    for a, b, c in combinations(states, 3):
        yield "merge(merge(a, b), c) = merge(a, merge(b, c))", (a, b, c), (merge(merge(a, b), c), merge(a, merge(b, c)))


class PartialStates(BatchBolt):
    """Map-side stage: the states of the tuples of one task, merged per key."""

    def __init__(self, plan: MonoidPlan) -> None:
        self._plan = plan

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the key and the partial state."""
        declarer.declare(*self._plan.key, STATE)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector = collector
        self._rows: dict[str, tuple[tuple[Any, ...], list[Any]]] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple."""
        self._take([tuple[name] for name in self._plan.key], self._plan.state_of(tuple))

    def _take(self, key: Sequence[Any], part: Any) -> None:
        self._rows.setdefault(any_text(key), (tuple(key), []))[1].append(part)

    def finish_batch(self) -> None:
        """Emit one partial state per key, in the order of their first tuples."""
        for key, parts in self._rows.values():
            self._collector.emit(*key, stored(self._plan.monoid, self._merged(parts)))

    def _merged(self, parts: Sequence[Any]) -> Any:
        return reduce(self._plan.monoid.merge, parts, self._plan.monoid.empty())


class FoldedFields(PartialStates):
    """Map-side stage of a monoid that makes its states of fields: no state is made of a single tuple."""

    def __init__(self, plan: MonoidPlan, fields: Sequence[str]) -> None:
        super().__init__(plan)
        self._reads = tuple(fields)
        self.needed_fields = (*plan.key, *fields)

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take one tuple; called only if a value has no Arrow type."""
        self._take([tuple[name] for name in self._plan.key], [tuple[name] for name in self._reads])

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch."""
        nothing: list[Any] = [()] * batch.num_rows
        keys, rows = (
            list(zip(*(batch.column(name).to_pylist() for name in names), strict=True)) if names else nothing
            for names in (self._plan.key, self._reads)
        )
        for key, row in zip(keys, rows, strict=True):
            self._take(key, row)

    def _merged(self, parts: Sequence[Any]) -> Any:
        return self._plan.monoid.fold(parts)


class MonoidCommitter(BatchBolt, Committer):
    """Committer that takes the place of a `MonoidBolt`: merges what a transaction brings into the states."""

    def __init__(self, plan: MonoidPlan) -> None:
        self.plan = plan
        self.state = plan.state()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields that are emitted."""
        bolt = self.plan.bolt
        if bolt.emit is not None:
            declarer.declare(bolt.emitted if bolt.transforms is not None else (*self._columns, STATE))

    def known_types(self) -> Mapping[str, Any]:
        """Return the types of the key and the state, unless a function makes what is emitted."""
        return {} if self.plan.bolt.transforms is not None else {**self.state.key, **self.state.value}

    @property
    def _columns(self) -> tuple[str, ...]:
        return tuple(self.state.key)

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt | None:
        """Return the stage that merges the tuples of a task of the source; None where their order matters."""
        if self.plan.way != "merged":
            return None
        return PartialStates(self.plan) if self.plan.reads is None else FoldedFields(self.plan, self.plan.reads)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._collector, self._context = collector, context
        self._handle: StateHandle = context.state(self.state.name)
        self._tuples: list[tuple[Any, Any, Tuple]] = []
        self._parts: dict[Any, list[Any]] = {}

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take a tuple, or a partial state of a key."""
        plan = self.plan
        key = plan.key_of(tuple) if plan.key else self._context.task
        if plan.way == "merged":
            self._parts.setdefault(key, []).append(restored(plan.monoid, tuple[STATE]))
        else:
            self._tuples.append((key, plan.state_of(tuple), tuple))

    def finish_batch(self) -> None:
        """Merge into the states, and emit those that have changed."""
        plan = self.plan
        if not plan.key:
            self._take_over()
        if plan.way == "merged":
            merge, empty = plan.monoid.merge, plan.monoid.empty
            self._check_laws([one for parts in self._parts.values() for one in parts])
            old = self._old(self._parts)
            new = {key: reduce(merge, parts, old.get(key, empty())) for key, parts in self._parts.items()}
            self._emit_states(self._put(new))
        else:
            self._check_laws([state for _, state, _ in self._tuples])
            self._one_by_one()

    def _old(self, keys: Iterable[Any]) -> dict[Any, Any]:
        found = self._handle.get_many(keys)
        return {key: restored(self.plan.monoid, value) for key, value in found.items()}

    def _put(self, new: Mapping[Any, Any]) -> dict[Any, Any]:
        values = {key: stored(self.plan.monoid, state) for key, state in new.items()}
        self._handle.put_many(values)
        return values

    def _emit_states(self, values: Mapping[Any, Any]) -> None:
        if self.plan.bolt.emit is None:
            return
        several = len(self._columns) > 1
        for key, value in values.items():
            self._collector.emit(*(key if several else (key,)), value)

    def _one_by_one(self) -> None:
        """Merge tuple by tuple, in their order."""
        bolt, monoid = self.plan.bolt, self.plan.monoid
        states = self._old(dict.fromkeys(key for key, _, _ in self._tuples))
        last: dict[Any, Tuple] = {}
        for key, state, row in self._tuples:
            states[key] = monoid.merge(states.get(key, monoid.empty()), state)
            last[key] = row
            if bolt.emit == "tuple":
                self._emit_one(key, row, states[key])
        values = self._put(states)
        if bolt.emit == "batch" and bolt.transforms is None:
            self._emit_states(values)
        elif bolt.emit == "batch":
            for key, row in last.items():
                self._emit_one(key, row, states[key])

    def _emit_one(self, key: Any, row: Tuple, state: Any) -> None:
        make = self.plan.bolt.transforms
        if make is None:
            self._emit_states({key: stored(self.plan.monoid, state)})
        elif (values := make(row, state)) is not None:
            self._collector.emit(*values)

    def _take_over(self) -> None:
        """Let this task have a state, and merge into it those of tasks that no longer exist.

        Every task has a state from the first transaction on, so that the states of former tasks are found one after the
        other.
        """
        monoid, task, tasks = self.plan.monoid, self._context.task, self.plan.tasks
        gone: dict[int, Any] = {}
        while old := self._old([task + (len(gone) + 1) * tasks]):
            gone.update(old)
        if gone or not self._handle.get_many([task]):
            own = self._old([task]).get(task, monoid.empty())
            self._put({task: reduce(monoid.merge, gone.values(), own)})
            self._handle.remove_many(gone)

    def _check_laws(self, states: Sequence[Any]) -> None:
        every, attempt = self._context.settings.get("check_laws"), self._context.attempt
        if not every or not states or attempt is None or attempt.txid % every:
            return
        fault = broken_law(self.plan.monoid, states[:TRIED])
        if fault is not None:
            raise StateError(f"component {self.plan.id!r}: {fault}")


class ColumnCommitter(MonoidCommitter):
    """Committer of a monoid of numbers with a key: folds columns, without a Python object per row."""

    def __init__(self, plan: MonoidPlan) -> None:
        super().__init__(plan)
        self._reads = tuple(plan.reads or ())
        self.needed_fields = (*plan.key, *self._reads)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        super().prepare(context, collector, attempt)
        self._batches: list[Any] = []

    def execute_batch(self, batch: Any) -> None:
        """Buffer a record batch until the txid's turn to commit."""
        self._batches.append(batch)

    def finish_batch(self) -> None:
        """Fold the columns into the states, and emit those that have changed."""
        tables, how = list(stacked(self._batches, self.needed_fields)), self.plan.monoid.how or ""
        values: dict[Any, Any] = {}
        for table in tables:
            try:
                names = [*self.plan.key, STATE][: table.num_columns]
                found = self._handle.merge(table.rename_columns(names), {STATE: how})
            except StateError as error:
                error.rows = error.rows if len(tables) == 1 else ()  # else they are no rows of the input
                raise
            values.update(found)
        self._emit_states(values)
