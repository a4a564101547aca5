"""Displays in a notebook: a run that is kept up to date, with buttons, and a table as of any transaction.

Topologies, handles and tables have displays of their own. Buttons and sliders need ipywidgets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from txstorm.api.names import near
from txstorm.errors import InputError, MissingDependency
from txstorm.lanes import THREADS
from txstorm.monitor.live import Watcher, as_html, line
from txstorm.operations.lifecycle import activate, deactivate
from txstorm.results.views import SinkView, StateView, committed_txid, kept_txid, tables_of
from txstorm.runtime.handle import RunHandle

log = logging.getLogger(__name__)
LEAVE = "Interrupt the cell to stop watching; the run continues. handle.stop() ends the run."
MOVED = "Shown again by a later cell."
ACTIONS: dict[str, tuple[str, tuple[str, ...], Callable[[RunHandle], object]]] = {
    "stop": ("End the run now", ("running", "inactive"), lambda handle: handle.stop()),
    "drain": ("Commit what is in flight, then end", ("running",), lambda handle: handle.stop(drain=True)),
    "activate": ("Start transactions again", ("inactive",), lambda handle: activate(handle.data_dir)),
    "deactivate": ("Start no new transactions", ("running",), lambda handle: deactivate(handle.data_dir)),
}
"""Buttons: name → what it is for, the phases in which it can be clicked, and what it does."""


def watch(
    handle: RunHandle,
    seconds: float | None = None,
    every: float = 0.5,
    *,
    block: bool = True,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the run of `handle` as a live table until the run ends or `seconds` have passed.

    With `block`, the cell waits for that; interrupting it stops the display, not the run. Without, it returns at once,
    and its output is kept up to date while other cells run; with ipywidgets it has buttons that stop, drain, activate
    and deactivate the run. A run has one display: watching it again ends the earlier one.

    If output cannot be updated (in a script, on Databricks or, with `block`, in a notebook executed by a program), the
    run is shown once: at its end if the call waits and the run ends by itself (`available_now`, `until_txid`),
    otherwise at once.

    Args:
        handle: the handle that `txstorm.run` returned.
        seconds: the longest time to show it; None: until the run ends.
        every: interval between two updates, in seconds.
        block: wait until the display ends.
        monotonic: clock for `seconds`.
        sleep: function that waits between two updates.

    Raises:
        MissingDependency: IPython is not installed.
    """
    html, display = _ipython()
    moment = Watcher(handle)
    until = None if seconds is None else monotonic() + seconds
    if (before := _panels.get(handle)) is not None:
        before.close()
    if not block:
        if _has_output():
            _Panel(handle, until, every, monotonic).open()
        else:
            _show(as_html(moment()), f"{line(moment())}; a notebook keeps this up to date")
        return
    live = _is_live()
    shown = None
    try:
        shown = display(html(as_html(moment(), LEAVE)), display_id=True) if live else None
        while handle.isActive and (until is None or monotonic() < until) and (live or handle.ends):
            sleep(every)
            if shown is not None:
                shown.update(html(as_html(moment(), LEAVE)))
    except KeyboardInterrupt:
        return
    if shown is not None:
        shown.update(html(as_html(moment())))
    else:
        _show(as_html(moment()), f"{line(moment())}; a notebook keeps this up to date")


def explore(target: RunHandle | str | Path, name: str, txid: int | None = None) -> None:
    """Show the rows of a state or sink as of a transaction; with ipywidgets, a slider chooses the transaction.

    Args:
        target: the handle of a run, or a data directory; a run may be active.
        name: the state or sink.
        txid: the transaction shown first; None: the last committed one.

    Raises:
        InputError: there is no such state or sink.
        StateError: `txid` is not committed, or no longer kept.
        MissingDependency: IPython is not installed.
    """
    _ipython()
    directory = Path(target if isinstance(target, str | Path) else target.data_dir)
    states, sinks = tables_of(directory)
    if name not in (*states, *sinks):
        msg = f"{directory}: no state or sink {name!r}{near(name, [*states, *sinks])}; there are {[*states, *sinks]}"
        raise InputError(msg)
    view = StateView(directory, name) if name in states else SinkView(directory, name)
    chosen = committed_txid(directory) if txid is None else txid
    rows = view.as_of(chosen)
    text = rows._repr_html_()
    if (widgets := _widgets()) is None:
        _show(text, "\n".join([str(rows), *_lines(rows.to_pylist())]))
    else:
        _slider(widgets, view, chosen, text)


class _Panel:
    """The display of a run in the output of a cell, updated by a lane until the run ends."""

    def __init__(self, handle: RunHandle, until: float | None, every: float, monotonic: Callable[[], float]) -> None:
        self._handle, self._moment = handle, Watcher(handle)
        self._until, self._every, self._monotonic = until, every, monotonic
        self._closed = THREADS.event()
        self._note = ""
        self._buttons: dict[str, Any] = {}
        self._update: Callable[[str], None]

    def open(self) -> None:
        """Show the run in the output of the current cell, and start the lane."""
        html, display = _ipython()
        text = as_html(self._moment())
        if (widgets := _widgets()) is None:
            shown = display(html(text), display_id=True)
            self._update = lambda text: shown.update(html(text))
        else:
            table = widgets.HTML(text)
            self._buttons = {
                name: widgets.Button(description=name, tooltip=tip) for name, (tip, _, _) in ACTIONS.items()
            }
            for name, button in self._buttons.items():
                button.on_click(partial(self._click, name))
            display(widgets.VBox([widgets.HBox(list(self._buttons.values())), table]))
            self._update = partial(setattr, table, "value")
        _panels[self._handle] = self
        THREADS.start(self._body, "txstorm-watch")

    def close(self) -> None:
        """End the display, whose place another one takes."""
        self._note = MOVED
        self._closed.set()

    def _body(self) -> None:
        try:
            while self._handle.isActive and (self._until is None or self._monotonic() < self._until):
                self._refresh()
                if self._closed.wait(self._every):
                    break
            self._end()
        except Exception as error:  # the kernel is ending, perhaps: there is no place to show it
            log.debug("the display of %s has ended", self._handle.name, exc_info=error)

    def _end(self) -> None:
        if _panels.get(self._handle) is self:
            del _panels[self._handle]
        error = None if self._handle.isActive else self._handle.exception()
        if error is not None:
            self._note = f"ended by {type(error).__name__}: {error}"
        self._refresh(ended=True)

    def _refresh(self, *, ended: bool = False) -> None:
        phase = self._handle.phase
        self._update(as_html(self._moment(), self._note))
        for name, button in self._buttons.items():
            button.disabled = ended or phase not in ACTIONS[name][1]

    def _click(self, name: str, _: Any) -> None:
        """Act on a lane: a click must not wait, since no cell runs meanwhile."""
        for button in self._buttons.values():
            button.disabled = True
        THREADS.start(partial(self._act, name), f"txstorm-{name}")

    def _act(self, name: str) -> None:
        try:
            ACTIONS[name][2](self._handle)
        except Exception as error:  # noqa: BLE001 - shown where the button is
            self._note = f"{name}: {error}"
        else:
            self._note = ""


_panels: dict[RunHandle, _Panel] = {}
"""The displays that are kept up to date."""


def _slider(widgets: Any, view: StateView | SinkView, chosen: int, text: str) -> None:
    first, last = kept_txid(view.data_dir), committed_txid(view.data_dir)
    table = widgets.HTML(text)
    slider = widgets.IntSlider(chosen, min(first, chosen), last, description="txid", continuous_update=False)
    newest = widgets.Button(description="newest", tooltip="The last transaction committed by now")

    def show(change: Any) -> None:
        try:
            table.value = view.as_of(slider.value)._repr_html_()
        except Exception as error:  # noqa: BLE001 - shown where the table is
            table.value = f"{type(error).__name__}: {error}"

    def renew(_: Any) -> None:
        slider.max = committed_txid(view.data_dir)
        slider.value = slider.max

    slider.observe(show, "value")
    newest.on_click(renew)
    _, display = _ipython()
    display(widgets.VBox([widgets.HBox([slider, newest]), table]))


def _lines(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    return ("  ".join(f"{name}={value!r}" for name, value in row.items()) for row in rows)


def _show(html: str, text: str) -> None:
    """Show something that does not change: `html` in a notebook, else `text`."""
    if (databricks := _databricks()) is not None:
        databricks(html)
    elif getattr(_shell(), "kernel", None) is None:
        print(text)
    else:
        made, display = _ipython()
        display(made(html))


def _is_live() -> bool:
    """Return whether the notebook is interactive: only then can its user be asked for input."""
    return _has_output() and bool(getattr(_shell().kernel, "_allow_stdin", False))


def _has_output() -> bool:
    """Return whether the output of a cell can be updated later."""
    return getattr(_shell(), "kernel", None) is not None and _databricks() is None


def _databricks() -> Callable[[str], object] | None:
    """Return the function by which a notebook of Databricks shows HTML; None elsewhere."""
    found: Callable[[str], object] | None = getattr(_shell(), "user_ns", {}).get("displayHTML")
    return found


def _widgets() -> Any:
    """Return ipywidgets; None if it is not installed, or widgets cannot be shown."""
    return import_module("ipywidgets") if _has_output() and find_spec("ipywidgets") is not None else None


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
