"""Monoids: states that merge in any order and grouping, with an empty one; the base class and the ready-made ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from itertools import combinations
from typing import Any, ClassVar

import pyarrow as pa

from txstorm.errors import InputError, StateError
from txstorm.keys import any_text, plain


class Monoid:
    """A commutative monoid: what a state is, and how two states merge.

    Two laws must hold, which `txstorm.testing.check_monoid` tries: ``empty()`` merged with a state is that state, and
    neither the order nor the grouping of merges changes the result. Partial states can then be merged wherever they are
    made, in any order.

    Override `empty` and `merge`; the other methods and attributes have defaults.

    Attributes:
        column: type of a stored state, as for `txstorm.KeyedState`; None: JSON, stored as text.
        how: for a monoid whose states are single values of a column: the aggregation that folds a column of them, one
            of ``sum``, ``count``, ``min``, ``max``; None: there is none.
        exact: whether the laws hold exactly; False: within an error bound, as for floats.
    """

    column: Any = None
    how: str | None = None
    exact: bool = True

    def empty(self) -> Any:
        """Return the state of no tuples."""
        raise NotImplementedError(f"{type(self).__name__} does not override empty")

    def merge(self, a: Any, b: Any) -> Any:
        """Return the state of the tuples of both `a` and `b`, neither of which may be changed."""
        raise NotImplementedError(f"{type(self).__name__} does not override merge")

    def of(self, *values: Any) -> Any:
        """Return the state of one tuple, given the values of the fields that the bolt's `to_state` names."""
        (state,) = values
        return state

    def fold(self, rows: Iterable[tuple[Any, ...]]) -> Any:
        """Return the state of many tuples, each given as for `of`; override it where that is faster than merging."""
        return reduce(self.merge, (self.of(*row) for row in rows), self.empty())

    def merge_all(self, states: Sequence[Any]) -> Any:
        """Return the state of the tuples of all `states`; override it where that is faster than merging two by two."""
        return reduce(self.merge, states, self.empty())

    def dump(self, state: Any) -> Any:
        """Return the form in which a state is stored and emitted: a value of `column`, or JSON."""
        return state

    def load(self, stored: Any) -> Any:
        """Return the state that `dump` has given."""
        return stored

    def equal(self, a: Any, b: Any) -> bool:
        """Return whether two states are the same."""
        return bool(a == b)

    @property
    def name(self) -> str:
        """The name of its kind of state, recorded with the table: the code of a later run must have the same."""
        return type(self).__name__

    def __repr__(self) -> str:
        return self.name


def stored(monoid: Monoid, state: Any) -> Any:
    """Return a state as a value of its column."""
    dumped = monoid.dump(state)
    return json.dumps(dumped, sort_keys=True) if monoid.column is None else dumped


def restored(monoid: Monoid, value: Any) -> Any:
    """Return the state of a value of its column."""
    return monoid.load(json.loads(value) if monoid.column is None else value)


def broken_law(monoid: Monoid, states: Sequence[Any]) -> str | None:
    """Return which law some states of a monoid break, with the states; None if none.

    It also notices a merge that changes its arguments.
    """
    before = [stored(monoid, one) for one in states]
    for law, operands, (left, right) in _laws(monoid, states):
        given = ", ".join(f"{name} = {monoid.dump(one)!r:.200}" for name, one in zip("abc", operands, strict=False))
        if [stored(monoid, one) for one in states] != before:
            return f"{monoid.name}: merge changes its arguments, of {given}; let it return a new state"
        if not monoid.equal(left, right):
            sides = f"{monoid.dump(left)!r:.200} and {monoid.dump(right)!r:.200}"
            return f"{monoid.name}: {law} does not hold for {given}: {sides}"
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
        yield (
            "merge_all([a, b, c]) = merge(merge(a, b), c)",
            (a, b, c),
            (monoid.merge_all([a, b, c]), merge(merge(a, b), c)),
        )


class _Number(Monoid):
    """Base class of monoids over the numbers of one column."""

    kinds: ClassVar[tuple[type, ...]] = (int, float, Decimal)

    def __init__(self, column: type = int) -> None:
        if column not in self.kinds:
            names = ", ".join(one.__name__ for one in self.kinds)
            raise InputError(f"{type(self).__name__}: expected the type of its numbers, one of {names}, got {column!r}")
        self.column = column
        self.exact = column is not float

    def equal(self, a: Any, b: Any) -> bool:
        """Return whether two states are equal; of floats, up to the order of their sums."""
        if isinstance(a, float) and isinstance(b, float):
            return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))
        return bool(a == b)

    @property
    def name(self) -> str:
        """The name with the type of the numbers."""
        return f"{type(self).__name__}({self.column.__name__})"


class Sum(_Number):
    """The sum of numbers, of type int unless given: ``Sum(Decimal)``."""

    how = "sum"

    def empty(self) -> Any:
        """Return 0."""
        return self.column(0)

    def merge(self, a: Any, b: Any) -> Any:
        """Return the sum; None counts nothing."""
        return b if a is None else a if b is None else a + b


class Count(_Number):
    """The number of tuples."""

    how = "count"
    kinds = (int,)

    def empty(self) -> int:
        """Return 0."""
        return 0

    def merge(self, a: int, b: int) -> int:
        """Return the sum of both counts."""
        return a + b

    def of(self, *values: Any) -> int:
        """Return 1."""
        return 1


class _Extreme(_Number):
    pick: ClassVar[Callable[..., Any]]

    def __init__(self, column: type = int) -> None:
        super().__init__(column)
        self.exact = True

    def empty(self) -> None:
        """Return None."""
        return

    def merge(self, a: Any, b: Any) -> Any:
        """Return the one of both that the monoid keeps; None is the state of nothing."""
        return b if a is None else a if b is None else type(self).pick(a, b)


class Min(_Extreme):
    """The least number."""

    how = "min"
    pick = min


class Max(_Extreme):
    """The greatest number."""

    how = "max"
    pick = max


class Mean(Monoid):
    """The mean of numbers, kept as their sum and their number: ``{"sum": 10, "count": 4}``; `value` gives the mean.

    Sums of integers are exact at any size.
    """

    def empty(self) -> tuple[Any, int]:
        """Return the sum and the number of nothing."""
        return 0, 0

    def merge(self, a: tuple[Any, int], b: tuple[Any, int]) -> tuple[Any, int]:
        """Return the sum of both sums, and of both numbers."""
        return a[0] + b[0], a[1] + b[1]

    def of(self, *values: Any) -> tuple[Any, int]:
        """Return the state of one number; None counts nothing."""
        (value,) = values
        return (0, 0) if value is None else (value, 1)

    def dump(self, state: tuple[Any, int]) -> Any:
        """Return sum and count."""
        return {"sum": state[0], "count": state[1]}

    def load(self, stored: Any) -> tuple[Any, int]:
        """Return the state of sum and count."""
        return stored["sum"], stored["count"]

    def equal(self, a: tuple[Any, int], b: tuple[Any, int]) -> bool:
        """Return whether both states have the same number of values and, up to rounding of floats, the same sum."""
        return a[1] == b[1] and math.isclose(a[0], b[0], rel_tol=1e-9, abs_tol=1e-9)

    @staticmethod
    def value(state: tuple[Any, int]) -> float | None:
        """Return the mean; None of nothing."""
        return state[0] / state[1] if state[1] else None


class SetUnion(Monoid):
    """The set of the values seen: texts, numbers and booleans, stored as a sorted list; None counts nothing.

    Values of different types are different: 1, 1.0 and true.
    """

    def empty(self) -> dict[str, Any]:
        """Return the empty set: text of a value → the value."""
        return {}

    def merge(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
        """Return the union."""
        return {**a, **b}

    def of(self, *values: Any) -> dict[str, Any]:
        """Return the set of these values."""
        made = {any_text(one): plain(one) for one in values if one is not None}
        strange = [one for one in made.values() if type(one) not in (str, int, float, bool)]
        if strange:
            raise StateError(f"SetUnion: expected a text, a number or a boolean, got {strange[0]!r:.100}")
        return made

    def fold(self, rows: Iterable[tuple[Any, ...]]) -> dict[str, Any]:
        """Return the set of many values."""
        return self.of(*(value for row in rows for value in row))

    def dump(self, state: Mapping[str, Any]) -> list[Any]:
        """Return the values, sorted by type and value."""
        return sorted(state.values(), key=lambda one: (type(one).__name__, one))

    def load(self, stored: list[Any]) -> dict[str, Any]:
        """Return the set of a list."""
        return self.of(*stored)


class TopN(Monoid):
    """The `n` keys with the largest counts, by count falling, then key rising.

    The counts are running totals of their keys: of two counts of a key the larger one is kept, never their sum. Feed it
    with the output of a bolt that counts, with ``to_state=("tag", "state")``, or merge the results of several tasks,
    with ``to_state="state"``.

    Args:
        n: the number of keys that are kept.
        key: their type.
    """

    def __init__(self, n: int, key: Any = str) -> None:
        if type(n) is not int or n < 1:
            raise InputError(f"TopN: expected a number of keys, an int of at least 1, got {n!r}")
        from txstorm.api.state import arrow_type

        kind = arrow_type(key)
        if kind is None:
            raise InputError(f"TopN: key: expected a type of a column, such as str or int, got {key!r}")
        self.n = n
        self.column = pa.list_(pa.struct([("key", kind), ("count", pa.int64())]))

    @property
    def name(self) -> str:
        """The name with the type of the keys; their number may change, which takes effect at the next merge."""
        return f"TopN({self.column.value_type.field('key').type})"

    def empty(self) -> dict[Any, int]:
        """Return no keys."""
        return {}

    def merge(self, a: Mapping[Any, int], b: Mapping[Any, int]) -> dict[Any, int]:
        """Return the first `n` keys of both."""
        larger = {key: max(count, a.get(key, count)) for key, count in b.items()}
        return self._cut({**a, **larger})

    def of(self, *values: Any) -> dict[Any, int]:
        """Return the state of a key and its count, or of a stored state."""
        if len(values) == 1:
            return self.load(values[0])
        key, count = values
        return {key: count}

    def fold(self, rows: Iterable[tuple[Any, ...]]) -> dict[Any, int]:
        """Return the first `n` keys of many counts."""
        return self.merge_all([self.of(*row) for row in rows])

    def merge_all(self, states: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
        """Return the first `n` keys of all: what a merge would cut off cannot be among them."""
        found: dict[Any, int] = {}
        for state in states:
            for key, count in state.items():
                if found.get(key, count) <= count:
                    found[key] = count
        return self._cut(found)

    def dump(self, state: Mapping[Any, int]) -> list[dict[str, Any]]:
        """Return the keys with their counts, in order."""
        return [{"key": key, "count": count} for key, count in state.items()]

    def load(self, stored: Iterable[Mapping[str, Any]]) -> dict[Any, int]:
        """Return the state of keys with counts."""
        return {one["key"]: one["count"] for one in stored}

    def _cut(self, counts: Mapping[Any, int]) -> dict[Any, int]:
        ordered = sorted(counts, key=None if set(map(type, counts)) <= {str} else _rank)
        ordered.sort(key=counts.__getitem__, reverse=True)  # stable: equal counts stay in the order of their keys
        return {key: counts[key] for key in ordered[: self.n]}


def _rank(key: Any) -> Any:
    """Return what keys of one type are sorted by; keys of a type without an order are sorted by their texts."""
    return key if isinstance(key, str | int | float | bytes | Decimal) else any_text(key)
