"""Live display of a run: a table for terminals, one line for logs, HTML for notebooks."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txstorm.api.names import counted
from txstorm.monitor.progress import WINDOW, Snapshot, TransactionProgress

STEPS = ("finish", "stage", "decide", "publish", "complete")
COLUMNS = ("txid", "phase", "tuples", "process", *STEPS, "pack", "group")
COMMITTED_ROWS = 8
ACTIVE_ROWS = 4
WINDOW_ROWS = 6
FAILURE_LENGTH = 200


@dataclass(frozen=True)
class Moment:
    """State of a run at one point in time, for display.

    Attributes:
        phase: phase of the run; see `RunHandle.phase`.
        recent: the last committed transactions, oldest first.
        beside: what a front end shows below the table.
    """

    topology: str
    engine: str
    phase: str
    snapshot: Snapshot
    recent: Sequence[TransactionProgress] = ()
    beside: Sequence[RenderableType] = ()


class Watcher:
    """Callable that returns the current state of the run of `handle`, a `RunHandle`, as a `Moment`.

    `beside` returns what a front end shows below the table.
    """

    def __init__(self, handle: Any, beside: Callable[[], Sequence[RenderableType]] = lambda: ()) -> None:
        self._handle, self._beside = handle, beside

    def __call__(self) -> Moment:
        """Return the current state of the run."""
        handle = self._handle
        return Moment(handle.name, handle.engine, handle.phase, handle.progress, handle.recentProgress, self._beside())


def line(moment: Moment) -> str:
    """Format the run as one line."""
    now = moment.snapshot
    text = "; ".join([f"{moment.topology}: {_totals(moment)}", *_notes(now)])
    if now.blocked:
        text += f", BLOCKED({now.blocked})"
    return text + (f", last failure: {_short(now.last_failure)}" if now.last_failure else "")


def table(moment: Moment) -> RenderableType:
    """Format the run as a table: the last committed transactions, then the first transactions in flight."""
    now = moment.snapshot
    grid = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in COLUMNS:
        grid.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for row in rows(moment):
        grid.add_row(*row, style="dim" if row[1] == "committed" else "")
    head = Text.assemble((moment.topology, "bold"), f" on {moment.engine}, {moment.phase}: ", _totals(moment))
    parts: list[RenderableType] = [head, grid, *map(Text, _notes(now)), *moment.beside]
    if now.blocked:
        parts.append(Text(f"BLOCKED({now.blocked})", "bold red"))
    if now.last_failure:
        failure = f"last failure: {_short(now.last_failure)}"
        parts.append(Text(failure, "yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def rows(moment: Moment) -> list[tuple[str, ...]]:
    """Return one row with `COLUMNS` per displayed transaction; times are in milliseconds."""
    done = [_committed(progress) for progress in list(moment.recent)[-COMMITTED_ROWS:]]
    active = moment.snapshot.in_flight
    empty = ("",) * (len(COLUMNS) - 2)
    shown = [(str(txid), phase, *empty) for txid, _, phase in active[:ACTIVE_ROWS]]
    left = len(active) - len(shown)
    return done + shown + ([("", f"and {left} more", *empty)] if left else [])


def as_html(moment: Moment, hint: str = "") -> str:
    """Format the run as HTML for notebooks, with `hint` below it."""
    now = moment.snapshot
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(moment))
    title = html.escape(f"{moment.topology} on {moment.engine}, {moment.phase}: {_totals(moment)}")
    notes = [*_notes(now), *([f"BLOCKED({now.blocked})"] if now.blocked else [])]
    notes += [f"last failure: {_short(now.last_failure)}"] if now.last_failure else []
    notes += [hint] if hint else []
    below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def _committed(progress: TransactionProgress) -> tuple[str, ...]:
    steps = (f"{progress.commit_ms[step]:.1f}" if step in progress.commit_ms else "" for step in STEPS)
    tuples = f"{sum(progress.tuples.values()):,}"
    return (
        str(progress.txid),
        "committed",
        tuples,
        f"{progress.job_ms:.1f}",
        *steps,
        str(progress.pack),
        str(progress.group),
    )


def _totals(moment: Moment) -> str:
    now = moment.snapshot
    phases = Counter(phase for _, _, phase in now.in_flight)
    detail = f" ({', '.join(f'{count} {phase}' for phase, count in phases.items())})" if phases else ""
    letters = f", {counted(now.dead_letters, 'dead letter')}" if now.dead_letters else ""
    return (
        f"committed txid {now.committed}, {len(now.in_flight)} in flight{detail}, {counted(now.txids, 'txid')} with "
        f"{counted(now.rows, 'input row')} in {now.seconds:.1f} s, {now.rate:,.0f} rows/s "
        f"in the last {WINDOW:.0f} s, {now.average:,.0f} on average, "
        f"{counted(now.tuples, 'tuple')} in all, {counted(now.replays, 'replay')}{letters}"
    )


def _notes(now: Snapshot) -> list[str]:
    """Return a line for each transaction that takes long, and for each of the first windowed components."""
    working = [f"at work: {one}" for one in now.working]
    lines = [f"{one.label(component)}: {one}" for component, one in now.windows.items()]
    left = len(lines) - WINDOW_ROWS
    return working + (lines if left <= 0 else [*lines[:WINDOW_ROWS], f"and windows of {left} more"])


def _short(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= FAILURE_LENGTH else first[: FAILURE_LENGTH - 1] + "…"
