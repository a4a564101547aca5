"""Windowed bolts whose work is one expression."""

from collections.abc import Callable
from typing import Any

from txstorm import WindowedBolt


class Emitting(WindowedBolt):
    """Emits `row` of each window; `fields` are separated by spaces."""

    def __init__(self, fields: str, row: Callable[[Any], Any]) -> None:
        self.fields = tuple(fields.split())
        self.row_of = row

    def prepare(self, context: Any, collector: Any) -> None:
        self.collector = collector

    def execute(self, window: Any) -> None:
        self.collector.emit(*self.row_of(window))
