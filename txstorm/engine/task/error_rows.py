"""Error rows: records of exceptions raised by user code, with the tuple that was being handled."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Protocol
from weakref import ref

from txstorm.engine.port import ErrorRow
from txstorm.errors import FailedException, ReportedFailedException
from txstorm.masks import masked_text
from txstorm.misfits import shown
from txstorm.typed import misfit_behind
from txstorm.user_code import line_of

RAISED = (Exception, SystemExit)
"""Exceptions of user code that are caught: ``sys.exit()`` in a bolt ends the batch, not the worker."""

SHOWN = 300


class Work(Protocol):
    """Work of a task, which knows how many rows it has taken or emitted so far."""

    @property
    def taken(self) -> int:
        """The number of rows; may be read on any thread."""


class At:
    """Position of an attempt in a task: whose code runs and, once it has raised, with which input.

    Attributes:
        input: the current tuple, shortened, or the rows of the current record batch; empty if there is neither. Set
            only after user code has raised, to avoid a cost per tuple.
    """

    __slots__ = ("_component", "_task", "_work", "input")

    def __init__(self) -> None:
        self.input = ""
        self._component, self._task = "", 0
        self._work: Callable[[], Work | None] = lambda: None

    def begin(self, component: str, task: int, work: Work) -> None:
        """Note whose work begins; the work itself, which may refer to this object, is not kept alive."""
        self._component, self._task, self._work = component, task, ref(work)

    def place(self) -> tuple[str, int]:
        """Return the task at work, as ``component[task]``, and its number of rows; ("", 0) if there is none."""
        work = self._work()
        return ("", 0) if work is None else (f"{self._component}[{self._task}]", work.taken)


def kind_of(error: BaseException) -> str:
    """Return the kind of `error`: ``failed``, ``reported`` or ``other``."""
    if isinstance(error, ReportedFailedException):
        return "reported"
    return "failed" if isinstance(error, FailedException) else "other"


def error_row(
    component: str, task: int, level: int, error: BaseException, given: str = "", *, trace: bool = True
) -> ErrorRow:
    """Build the error row for an exception raised by user code.

    Args:
        component: the component whose code raised.
        task: index of its task.
        level: level of its stage.
        error: the exception.
        given: the tuple or rows for which it was raised.
        trace: whether to include the traceback, which is the slowest part to format.
    """
    misfit = misfit_behind(error)
    return ErrorRow(
        component=component,
        task=task,
        kind=kind_of(error),
        type=type(error).__name__,
        message=message_of(error),
        frame=line_of(error.__traceback__),
        traceback=masked_text("".join(traceback.format_exception(error))) if trace else "",
        level=level,
        input=given,
        column=None if misfit is None else misfit.column,
    )


def shortened(value: object) -> str:
    """Convert `value` to text of at most `SHOWN` characters."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        text = shown(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def message_of(error: BaseException) -> str:
    """Return the message of an exception as storable text without secrets, even if its `__str__` raises."""
    try:
        return masked_text(storable(str(error)))
    except Exception as failure:  # noqa: BLE001 - a user-defined __str__
        return f"(its message cannot be shown: {type(failure).__name__})"


def storable(text: str) -> str:
    """Return `text` with its surrogates escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
