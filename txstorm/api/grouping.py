"""Groupings: how the tuples of a stream are divided among the tasks of a bolt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


class CustomStreamGrouping(Protocol):
    """A user-defined grouping; must be a function of what it is given.

    Every task works with a copy of the object for every batch: nothing it remembers lasts longer.
    """

    def prepare(self, component: str, stream: str, targets: int) -> None:
        """Called once per task and batch with the source and the number of receiving tasks."""

    def choose_tasks(self, source_task: int, values: Sequence[Any]) -> Sequence[int]:
        """The indices of the receiving tasks of one tuple."""


@dataclass(frozen=True)
class Grouping:
    """How one subscription divides a stream.

    Attributes:
        kind: one of `KINDS`.
        fields: the fields that decide, for `fields` and `partial_key`.
        custom: the object that decides, for `custom`.
    """

    KINDS: ClassVar[tuple[str, ...]] = (
        "shuffle",
        "fields",
        "global",
        "all",
        "none",
        "direct",
        "local_or_shuffle",
        "partial_key",
        "custom",
    )

    kind: str
    fields: tuple[str, ...] = ()
    custom: Any = None

    def __str__(self) -> str:
        if self.kind == "custom":
            return f"custom {type(self.custom).__name__}"
        return f"{self.kind.replace('_', '-')}{' ' + ', '.join(self.fields) if self.fields else ''}"
