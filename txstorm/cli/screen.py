"""Progress display of a run: a live table in a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
from typing import Protocol

from rich.console import Console
from rich.live import Live

from txstorm.monitor.live import Moment, line, table

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
