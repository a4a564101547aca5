"""Error rows: what is kept of an exception that user code raised, and of what it was raised for."""

from __future__ import annotations

import traceback

from txstorm.engine.port import ErrorRow
from txstorm.errors import FailedException, ReportedFailedException
from txstorm.user_code import line_of

RAISED = (Exception, SystemExit)
"""What is caught of user code: ``sys.exit()`` in a bolt is meant for the batch, not for the worker."""

SHOWN = 300


class At:
    """Where one attempt is in one task: set when user code has raised, so it costs nothing while tuples flow.

    Attributes:
        input: the tuple at hand, shortened, or the rows of the record batch at hand; empty when it is neither.
    """

    __slots__ = ("input",)

    def __init__(self) -> None:
        self.input = ""


def kind_of(error: BaseException) -> str:
    """``failed``, ``reported`` or ``other``."""
    if isinstance(error, ReportedFailedException):
        return "reported"
    return "failed" if isinstance(error, FailedException) else "other"


def error_row(
    component: str, task: int, level: int, error: BaseException, given: str = "", *, trace: bool = True
) -> ErrorRow:
    """What is reported of an exception raised in user code.

    Args:
        component: whose code raised.
        task: index of its task.
        level: the stage.
        error: the exception.
        given: the tuple or rows it was raised for.
        trace: whether to keep the traceback, which takes most of the time.
    """
    return ErrorRow(
        component=component,
        task=task,
        kind=kind_of(error),
        type=type(error).__name__,
        message=_message(error),
        frame=line_of(error.__traceback__),
        traceback="".join(traceback.format_exception(error)) if trace else "",
        level=level,
        input=given,
    )


def shortened(value: object) -> str:
    """`value` as text of at most `SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _message(error: BaseException) -> str:
    """The message as text that can be stored, also when the exception cannot say it."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception as failure:  # noqa: BLE001 - a __str__ of the user's
        return f"(its message cannot be shown: {type(failure).__name__})"
