"""Windowed and stateful bolts whose work is one expression."""

from collections.abc import Callable
from typing import Any

from txstorm import StatefulBolt, WindowedBolt


class Emitting(WindowedBolt):
    """Emits `row` of each window; `fields` are separated by spaces."""

    def __init__(self, fields: str, row: Callable[[Any], Any]) -> None:
        self.fields = tuple(fields.split())
        self.row_of = row

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, window: Any) -> None:
        self.collector.emit(*self.row_of(window))


class Numbers(StatefulBolt):
    """Counts tuples per id."""

    fields = ("id",)

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, tuple: Any) -> None:
        self.state.put(tuple["id"], self.state.get(tuple["id"], 0) + 1)
