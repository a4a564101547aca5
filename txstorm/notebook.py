"""For notebooks: a run that shows itself while it goes on. Topologies, handles and tables show themselves anyway."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from txstorm.errors import MissingDependency
from txstorm.monitor.live import as_html
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.watching import Watcher


def watch(
    handle: RunHandle,
    seconds: float | None = None,
    every: float = 0.5,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show `handle` as a table that is kept up to date, until the run ends or `seconds` are over.

    Interrupting the cell ends the watching, not the run.

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
    shown = display(html(as_html(moment())), display_id=True)
    until = None if seconds is None else monotonic() + seconds
    try:
        while handle.isActive and (until is None or monotonic() < until):
            sleep(every)
            if shown is not None:  # None outside of a notebook
                shown.update(html(as_html(moment())))
    except KeyboardInterrupt:
        return


def _ipython() -> tuple[Any, Any]:
    try:
        from IPython.display import HTML, display
    except ImportError:
        raise MissingDependency("IPython", "notebook") from None
    return HTML, display
