"""Execution of a run from start to end, for the command line and the demo: progress, signals, result."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, RenderableType
from rich.live import Live

from txstorm.api.names import counted
from txstorm.cli.interrupts import Interrupts
from txstorm.cli.output import Interrupted, PlainTable, exit_code_of, print_json, report, stderr, stdout
from txstorm.errors import TxstormError
from txstorm.monitor.live import Moment, Watcher, line, table
from txstorm.monitor.progress import Snapshot, windows_json
from txstorm.results.views import committed_txid
from txstorm.results.windowed_components import MOST_COUNTED, open_window_counts
from txstorm.results.windows import PROGRESS
from txstorm.runtime.failures import letters_command
from txstorm.runtime.handle import RunHandle
from txstorm.runtime.run import run
from txstorm.topology.graph import Topology

POLL = 0.2


@dataclass(frozen=True)
class Ending:
    """Result of a run."""

    document: Mapping[str, Any]
    error: BaseException | None
    data_dir: Path

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if the run succeeded."""
        return 0 if self.error is None else exit_code_of(self.error)


def execute(
    topology: Topology,
    console: Console | None = None,
    beside: Callable[[], Sequence[RenderableType]] = lambda: (),
    *,
    standby: bool = False,
    **options: Any,
) -> Ending:
    """Run `topology` to completion, with progress on `console` (default: standard error); a signal stops the run.

    `beside` returns what a front end shows below the live table; `options` are those of `txstorm.run`.

    Raises:
        TxstormError: the run could not start: bad input, or another run holds the data directory.
        KeyboardInterrupt: a signal arrived before the run started.
    """
    started = time.monotonic()
    screen = screen_for(console or stderr())
    with Interrupts(screen.say) as interrupts:
        handle = run(topology, standby=screen.say if standby else False, **options)
        interrupts.attach(handle)
        moment, ended = Watcher(handle, beside), threading.Event()
        handle.on_end(ended.set)
        screen.begin(moment())
        try:
            while handle.isActive:
                interrupts.act()
                screen.show(moment())
                ended.wait(POLL)
        finally:
            screen.end()
    document = document_of(handle, time.monotonic() - started)
    if handle.killed:
        document["killed_by"] = handle.killed
    error = handle.exception()
    if error is None and interrupts.interrupted:
        error = Interrupted(f"interrupted after txid {document['committed_txid']}; run it again to continue")
    return Ending(document, error, handle.data_dir)


def document_of(handle: RunHandle, seconds: float) -> dict[str, Any]:
    """Return the result of a run as ``--json`` prints it: committed txid, counts of this run, and table paths."""
    now = handle.progress
    states = sorted(one.name for found in handle.topology.states.values() for one in found)
    sinks = sorted(one.name for found in handle.topology.sinks.values() for one in found)
    return {
        "topology": handle.name,
        "engine": handle.engine,
        # A run that failed before its first step has no committed txid yet.
        "committed_txid": now.committed or committed_txid(handle.data_dir),
        "txids": now.txids,
        "input_rows": now.rows,
        "tuples": now.tuples,
        "seconds": round(seconds, 3),
        "replays": now.replays,
        "silent": silent(handle.topology, now),
        "dead_letters": now.dead_letters,
        "state": {name: str(handle.data_dir / "state" / name) for name in states},
        **({"windows": windows_json(now.windows)} if now.windows else {}),
        **({"open_windows": waiting} if (waiting := _open_windows(handle, states)) else {}),
        **({"see_dead_letters": letters_command(handle.data_dir)} if now.dead_letters else {}),
        "sinks": {name: str(handle.data_dir / "sinks" / name) for name in sinks},
    }


def _open_windows(handle: RunHandle, states: Sequence[str]) -> dict[str, int]:
    """Return windowed component → its open windows; reads tables only if a component has windows."""
    if not any(name.endswith(PROGRESS) for name in states):
        return {}
    try:
        return open_window_counts(handle.data_dir)
    except TxstormError:  # the run has ended with an error of its own, which matters more
        return {}


def silent(topology: Topology, now: Snapshot) -> list[str]:
    """Return the components that had input and subscribers but emitted nothing during the whole run."""
    emitted = now.emitted
    awaited = {one.component for bolt in topology.components for one in bolt.inputs}
    return [
        one.id
        for one in topology.components
        if one.id in awaited
        and emitted.get(one.id) == 0
        and any(emitted.get(source.component) for source in one.inputs)
    ]


def conclude(ending: Ending, *, as_json: bool, debug: bool = False) -> int:
    """Print the result of a run and return the exit code; with `as_json` the last line is one JSON object."""
    if ending.error is not None:
        return report(ending.error, as_json=as_json, debug=debug, run=ending.document)
    if as_json:
        print_json(ending.document)
    else:
        summarise(ending, stdout())
    return 0


def summarise(ending: Ending, console: Console) -> None:
    """Print a summary of a run, and the commands that show its tables."""
    done = ending.document
    rate = done["input_rows"] / done["seconds"] if done["seconds"] else 0.0
    letters = f", {counted(done['dead_letters'], 'dead letter')}" if done["dead_letters"] else ""
    rows = f"{counted(done['input_rows'], 'input row')} in {done['seconds']:.1f} s ({rate:,.0f} rows/s)"
    console.print(
        f"{done['topology']} on {done['engine']}: committed txid {done['committed_txid']}; in this run "
        f"{counted(done['txids'], 'txid')} with {rows}, {counted(done['tuples'], 'tuple')} in all, "
        f"{counted(done['replays'], 'replay')}{letters}",
        soft_wrap=True,
    )
    for name in done["silent"]:
        console.print(
            f"note: {name} emitted nothing, although other components subscribe to it; does it call emit?",
            soft_wrap=True,
        )
    for name, count in done.get("open_windows", {}).items():
        number = f"{MOST_COUNTED:,} windows or more" if count >= MOST_COUNTED else counted(count, "window")
        console.print(
            f"note: {name} has {number} open, with which the next run goes on; --end-of-input closes them",
            soft_wrap=True,
        )
    if "killed_by" in done:
        console.print(f"killed by {done['killed_by']}; run it again to continue", soft_wrap=True)
    shown = shortest(ending.data_dir)
    grid = PlainTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in done["state"]:
        grid.add_row("state", name, f"txstorm state {shown} {name}")
    for name, path in done["sinks"].items():
        grid.add_row("sink", name, path)
    if done["dead_letters"]:
        grid.add_row("dead letters", "", letters_command(ending.data_dir))
    grid.add_row("history", "", f"txstorm history {shown}")
    console.print(grid)


def shortest(path: Path) -> str:
    """Return `path` as text: relative if it is below the current directory, otherwise unchanged."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


LINE_SECONDS = 5.0


class Screen(Protocol):
    """Display of a run's progress, between `begin` and `end`."""

    def begin(self, moment: Moment) -> None:
        """Show the start of the run."""

    def show(self, moment: Moment) -> None:
        """Show the current progress; called several times a second."""

    def say(self, message: str) -> None:
        """Show a message."""

    def end(self) -> None:
        """Close the display; the run has ended."""


def screen_for(console: Console) -> Screen:
    """Return the progress display for `console`: a live table in a terminal, lines elsewhere."""
    return LiveScreen(console) if console.is_terminal and not console.is_dumb_terminal else LineScreen(console)


class LiveScreen:
    """Live progress table, redrawn in place; log lines and messages appear above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # Output of user code also goes above the table, but only if standard output is the terminal.
        shared = sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=shared)

    def begin(self, moment: Moment) -> None:
        """Draw the first table."""
        self._live.start()
        self.show(moment)

    def show(self, moment: Moment) -> None:
        """Redraw the table."""
        self._live.update(table(moment), refresh=True)

    def say(self, message: str) -> None:
        """Print a message above the table."""
        self._console.print(message, soft_wrap=True)

    def end(self) -> None:
        """Remove the table."""
        self._live.stop()


class LineScreen:
    """Progress display without a terminal: one line every `LINE_SECONDS` if something has changed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = LINE_SECONDS
        self._last: object = None

    def begin(self, moment: Moment) -> None:
        """Print the topology, phase and engine."""
        self.say(f"{moment.topology}: {moment.phase} on {moment.engine}")

    def show(self, moment: Moment) -> None:
        """Print a line if it is due and the progress has changed."""
        if moment.snapshot.seconds < self._next:
            return
        self._next = moment.snapshot.seconds + LINE_SECONDS
        if moment.snapshot != self._last:
            self._last = moment.snapshot
            self.say(line(moment))

    def say(self, message: str) -> None:
        """Print a message as a line."""
        self._console.print(message, soft_wrap=True)

    def end(self) -> None:
        """Do nothing: lines need no closing."""
