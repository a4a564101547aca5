"""State that is nowhere: committers run against it as they are, and what they write is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from txstorm.engine.commit import CommitRun
from txstorm.engine.port import Pack, Processed
from txstorm.engine.program import Program


class _Nothing:
    """A `txstorm.api.state.StateHandle` that holds nothing, and a sink that keeps nothing."""

    def get(self, key: Any, default: Any = None) -> Any:
        return default

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        return {}

    def put(self, key: Any, value: Any) -> None:
        pass

    def put_many(self, values: Mapping[Any, Any]) -> None:
        pass

    def update(self, key: Any, function: Callable[[Any], Any]) -> Any:
        return function(None)

    def update_many(self, partials: Mapping[Any, Any], function: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        return {key: function(None, partial) for key, partial in partials.items()}

    def merge(self, batch: Any, how: Mapping[str, str]) -> dict[Any, Any]:
        return {}

    def remove(self, key: Any) -> None:
        pass

    def remove_many(self, keys: Iterable[Any]) -> None:
        pass

    def previous(self, key: Any) -> Any:
        return None

    def append(self, *values: Any) -> None:
        pass

    def append_batch(self, batch: Any) -> None:
        pass


class _NoTables:
    """`txstorm.engine.commit.Resources` without a table behind them."""

    def state(self, component: str, task: int, name: str) -> Any:
        return _Nothing()

    def sink(self, component: str, task: int, name: str) -> Any:
        return _Nothing()

    def activate(self, active: bool) -> None:
        pass

    def settle(self, component: str, task: int) -> None:
        pass

    def undo(self, component: str, task: int) -> None:
        pass


def finish(program: Program, pack: Pack, outcomes: Sequence[Processed]) -> None:
    """Run the committers of the txids of `pack` on what its job made, and drop what they write."""
    inputs = {one.attempt: one for one in pack.inputs}
    for outcome in outcomes:
        CommitRun(program, inputs[outcome.attempt], outcome.cargo, _NoTables()).run()
