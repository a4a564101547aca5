"""Live display of a run in a notebook; topologies, handles and tables have their own displays."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from txstorm.errors import MissingDependency
from txstorm.monitor.live import as_html, line
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.watch import Watcher


def watch(
    handle: RunHandle,
    seconds: float | None = None,
    every: float = 0.5,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the run of `handle` as a live table until the run ends or `seconds` have passed.

    Interrupting the cell stops the display, not the run. If output cannot be updated (in a script,
    or a notebook executed by a program), the run is shown once: at its end if it ends by itself (`available_now`,
    `until_txid`), otherwise at once.

    Args:
        handle: the handle that `txstorm.run` returned.
        seconds: the longest time to show it; None: until the run ends.
        every: interval between two updates, in seconds.
        monotonic: clock for `seconds`.
        sleep: function that waits between two updates.

    Raises:
        MissingDependency: IPython is not installed.
    """
    html, display = _ipython()
    moment = Watcher(handle)
    live, until = _is_live(), None if seconds is None else monotonic() + seconds
    shown = display(html(as_html(moment(), LEAVE)), display_id=True) if live else None
    try:
        while handle.isActive and (until is None or monotonic() < until) and (live or handle.ends):
            sleep(every)
            if shown is not None:
                shown.update(html(as_html(moment(), LEAVE)))
    except KeyboardInterrupt:
        return
    if shown is not None:
        shown.update(html(as_html(moment())))
    elif _shell() is None:
        print(f"{line(moment())}; a notebook keeps this up to date")
    else:
        display(html(as_html(moment())))


LEAVE = "Interrupt the cell to stop watching; the run continues. handle.stop() ends the run."


def _is_live() -> bool:
    """Return whether the notebook is interactive: only then can its user be asked for input."""
    return bool(getattr(getattr(_shell(), "kernel", None), "_allow_stdin", False))


def _shell() -> Any:
    """Return the current IPython session; None if there is none."""
    from IPython import get_ipython

    return get_ipython()


def _ipython() -> tuple[Any, Any]:
    try:
        from IPython.display import HTML, display
    except ImportError:
        raise MissingDependency("IPython", "notebook") from None
    return HTML, display
