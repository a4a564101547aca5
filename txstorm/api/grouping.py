"""Groupings: how the tuples of a stream are divided among the tasks of a bolt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


class CustomStreamGrouping(Protocol):
    """A user-defined grouping; its choices must depend only on the arguments of its methods.

    Every task uses a fresh copy of the object for every batch, so no attribute outlives the batch.
    """

    def prepare(self, component: str, stream: str, targets: int) -> None:
        """Set up for one source; called once per task and batch, with the number of receiving tasks."""

    def choose_tasks(self, source_task: int, values: Sequence[Any]) -> Sequence[int]:
        """Return the indices of the tasks that are to receive one tuple."""


@dataclass(frozen=True)
class Grouping:
    """The grouping of one subscription: the rule that assigns tuples to tasks.

    Attributes:
        kind: one of `KINDS`.
        fields: the grouping fields, for `fields` and `partial_key`.
        custom: the `CustomStreamGrouping`, for `custom`.
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
