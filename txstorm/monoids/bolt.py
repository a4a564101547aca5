"""Monoid bolt: keeps one state of a monoid per key or per task, and emits states that have changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.names import name_fault
from txstorm.api.state import KeyedState, arrow_type
from txstorm.api.tuples import Tuple
from txstorm.errors import InputError, StateError
from txstorm.misfits import Misfit
from txstorm.monoids.ready_made import Monoid
from txstorm.typed import column_of, misfit

STATE, INSTANCE = "state", "instance"
"""Column and field of a state, and of the number of the task that keeps it if there is no key."""
Emit = Literal["batch", "tuple"]
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
        from txstorm.monoids.committer import COMMITTERS

        return Assembly(COMMITTERS[plan.way](plan), tuple(faults))


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
        return names, [fault for one in site.inputs for fault in one.missing("MonoidBolt: to_state", names)]
    if bolt.monoid.how == "count":
        return (), []
    fields: tuple[str, ...] = next((one.fields for one in site.inputs if one.fields is not None), ())
    others = [name for name in fields if name not in bolt.keys]
    if len(others) == 1 or not fields:
        return tuple(others), []
    has = ", ".join(others) or "none"
    return (), [f"MonoidBolt: the fields besides the key are {has}; say with to_state which of them make a state"]


def _faults(bolt: MonoidBolt, site: Site) -> Iterator[str]:
    """Yield the faults of a declaration that only show in its topology."""
    for one in site.inputs:
        yield from one.missing("MonoidBolt: key", bolt.keys)
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
        """The way in which tuples become states.

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
        of = "a function of the tuple" if self.reads is None else ", ".join(self.reads) or "the tuple"
        fixed = {"monoid": self.monoid.name, "state of": of}
        return KeyedState(self.bolt.table, self.bolt.keys or {INSTANCE: int}, {STATE: column}, fixed=fixed)

    def state_of(self, tuple: Tuple) -> Any:  # noqa: A002 - Storm's word
        """Return the state of one tuple; raise `StateError` if it is no number of the monoid's type."""
        if self.reads is not None:
            state = self.monoid.of(*(tuple[name] for name in self.reads))
        else:
            state = (self.bolt.given if callable(self.bolt.given) else self.bolt.to_state)(tuple)
        # A number of another type would spoil the sum of all tuples that it is merged with.
        kind = None if self.monoid.how is None else arrow_type(self.monoid.column)
        if kind is not None and (fault := _number_fault(kind, state)) is not None:
            raise StateError(f"state {self.bolt.table!r}: to_state: {fault}")
        return state

    def key_of(self, row: Any) -> Any:
        """Return the key of a tuple, in the form that states take: a plain value, or a tuple of several.

        Raises `StateError` if a value is not of its declared type: True would be merged into the state of 1.
        """
        values = tuple(row[name] for name in self.key)
        for value, (name, declared) in zip(values, self.bolt.keys.items(), strict=True):
            kind = arrow_type(declared)
            if kind is not None and (fault := misfit(kind, value)) is not None:
                raise StateError(f"state {self.bolt.table!r}, key column {name!r}: {fault}")
        return values[0] if len(values) == 1 else values


def _number_fault(kind: pa.DataType, value: Any) -> str | None:
    """Return why a number does not fit a column, also by its range; None if it does.

    Of a sum or a least number only the result reaches the column, on which it must not depend what is refused.
    """
    if type(value) is float or (type(value) is int and -(2**63) <= value < 2**63):
        return misfit(kind, value)
    try:
        column_of([value], kind)
    except Misfit as fault:
        return str(fault)
    return None
