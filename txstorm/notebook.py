"""For notebooks: a run that shows itself while it goes on. Topologies, handles and tables show themselves anyway."""

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
    """Show `handle` as a table that is kept up to date, until the run ends or `seconds` are over.

    Interrupting the cell ends the watching, not the run; the table says so. Where output cannot be kept up to date (a
    script, a notebook that is executed by a program) the run is shown once: at its end, if it comes to its own end
    (`available_now`, `until_txid`), else at once.

    Args:
        handle: what `txstorm.run` returned.
        seconds: how long at most; until the end of the run when None.
        every: seconds between two looks.
        monotonic: seconds, for `seconds`.
        sleep: waits between two looks.

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


LEAVE = "Interrupt the cell to stop watching: the run goes on. handle.stop() ends the run."


def _is_live() -> bool:
    """Whether somebody looks at a notebook: programs that execute one cannot be asked for input."""
    return bool(getattr(getattr(_shell(), "kernel", None), "_allow_stdin", False))


def _shell() -> Any:
    """The session of IPython that this runs in, or None."""
    from IPython import get_ipython

    return get_ipython()


def _ipython() -> tuple[Any, Any]:
    try:
        from IPython.display import HTML, display
    except ImportError:
        raise MissingDependency("IPython", "notebook") from None
    return HTML, display
