"""Check of a user-defined monoid: its laws, on states made of arbitrary tuples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txstorm.monoids.ready_made import Monoid, broken_law, restored, stored
from txstorm.testing.checks.rules import CheckFailed


def check_monoid(
    monoid: Monoid, tuples: Any, to_state: Callable[[Any], Any] | None = None, *, examples: int = 200
) -> None:
    """Check the laws of `monoid` on states that are made of up to eight tuples each, and that states can be stored.

    Example::

        check_monoid(Sum(), st.integers(-1000, 1000))

    Args:
        monoid: the monoid.
        tuples: a strategy of Hypothesis for what a state is made of: an argument of `to_state`; by default a value, or
            a tuple of values, for `Monoid.of`.
        to_state: returns the state of one of them.
        examples: number of examples to try.

    Raises:
        CheckFailed: a law does not hold; the message has it with the smallest states for which it fails.
        MissingDependency: Hypothesis is not installed.
    """
    from txstorm.errors import MissingDependency

    try:
        from hypothesis import given, settings
        from hypothesis import strategies as st
    except ImportError:
        raise MissingDependency("hypothesis", "hypothesis") from None
    make = to_state or (lambda one: monoid.of(*one) if isinstance(one, tuple) else monoid.of(one))

    def state(parts: list[Any]) -> Any:
        made = monoid.empty()
        for one in parts:
            made = monoid.merge(made, make(one))
        return made

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.lists(tuples, max_size=8), min_size=3, max_size=3))
    def holds(given_parts: list[list[Any]]) -> None:
        states = [state(parts) for parts in given_parts]
        fault = broken_law(monoid, states)
        if fault is not None:
            raise CheckFailed(fault)
        for one in states:
            again = restored(monoid, stored(monoid, one))
            if not monoid.equal(again, one):
                raise CheckFailed(f"{monoid.name}: load(dump(a)) = a does not hold for {one!r:.200}: {again!r:.200}")

    try:
        holds()
    except CheckFailed as error:
        raise CheckFailed(str(error)) from None  # without the notes of Hypothesis, which speak of the function above
