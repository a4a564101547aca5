"""Batch replay, the command run by jobs/replay.py: audit a range of committed txids, or backfill new tables from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from txstorm.books.origin import origin_of
from txstorm.cli.output import print_json, report, stderr
from txstorm.cli.replays import code_of, verdict_text
from txstorm.engine.program import program_of
from txstorm.plan.stages import compile_plan
from txstorm.replay.audit import audit
from txstorm.replay.backfill import backfill, check_into
from txstorm.replay.compare import ReplayVerdict
from txstorm.replay.recording import Recording, Result, Span, opened_source, span_of
from txstorm.replay.scratch_tables import ReplayTables
from txstorm.runtime.run import make_engine
from txstorm.topology.graph import Topology

LINE_SECONDS = 5.0
SHOWN_TXIDS = 10
"""Maximum number of differing txids shown row by row; the result lists all of them."""


@dataclass(frozen=True)
class BatchRequest:
    """Arguments of a batch replay.

    Attributes:
        data_dir: the data directory of the topology.
        from_txid, to_txid: the first and last transaction to replay; default: all committed ones.
        into: the new data directory of a backfill; None for an audit.
        topology: the target that names the code; None: the recorded one, after confirmation at a terminal.
        dry_run: check code, source and tables, but run nothing.
        engine: ``spark`` or ``local``.
    """

    data_dir: str | Path
    from_txid: int | None = None
    to_txid: int | None = None
    into: str | Path | None = None
    topology: str | None = None
    dry_run: bool = False
    engine: str = "spark"

    @property
    def command(self) -> list[str]:
        """The command line of jobs/replay.py for this request, without the option that names the code."""
        options = {
            "--data-dir": self.data_dir,
            "--from-txid": self.from_txid,
            "--to-txid": self.to_txid,
            "--into": self.into,
            "--engine": None if self.engine == "spark" else self.engine,
        }
        words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        return ["python", "jobs/replay.py", *words, *(["--dry-run"] if self.dry_run else [])]


def replay_batch(request: BatchRequest) -> int:
    """Replay a range of txids, showing progress; print the result as the last line and return the exit code."""
    console = stderr()
    started = time.monotonic()
    try:
        result = _replayed(request, console)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - reported to the user
        return report(error, as_json=True, debug=False)
    print_json(result.to_json(time.monotonic() - started))
    return 1 if result.different else 0


def _replayed(request: BatchRequest, console: Console) -> Result:
    code = code_of(request.data_dir, request.topology, request.command)
    topology = code.topology
    recording = Recording(request.data_dir)
    recording.check_topology(topology)
    span = span_of(recording, request.from_txid, request.to_txid)
    into = None if request.into is None else check_into(recording, request.into, span)
    what = "an audit" if into is None else f"a backfill into {into}"
    console.print(f"{topology.id}: {what}, txids {span.first} to {span.last} of {recording.data_dir}", soft_wrap=True)
    if request.dry_run:
        _check(topology, recording, span, into)
        console.print("dry run: code, source and tables are available; nothing was run", soft_wrap=True)
        return Result(topology.id, span, into=into)
    engine = make_engine(request.engine, None, topology.settings.max_jobs)
    with _progress(console, len(span)) as shown:
        if into is None:
            return audit(topology, recording, span, engine, shown.judged)
        return backfill(topology, recording, span, into, engine, origin_of(topology, code.target), shown.advance)


def _check(topology: Topology, recording: Recording, span: Span, into: Path | None) -> None:
    """Check source and tables; raise the errors that a replay would raise before running anything."""
    topology = topology.completed()
    with opened_source(topology, program_of(compile_plan(topology)), recording):
        if into is None:
            ReplayTables(recording.data_dir, topology, span.first - 1, recording.committed)


class _Shown:
    """Progress display: a bar in a terminal, a line every few seconds elsewhere; shows the first differences."""

    def __init__(self, console: Console, bar: Progress | None, total: int) -> None:
        self._console = console
        self._bar = bar
        self._task = None if bar is None else bar.add_task("txids", total=total)
        self._total = total
        self._done = 0
        self._different = 0
        self._next = time.monotonic() + LINE_SECONDS

    def advance(self, txid: int) -> None:
        """Count one more replayed txid."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            self._console.print(f"txid {txid}: {self._done:,} of {self._total:,}, {self._different:,} different")

    def judged(self, verdict: ReplayVerdict) -> None:
        """Count one more audited txid, and show its differences."""
        if not verdict.equal:
            self._different += 1
            if self._different <= SHOWN_TXIDS:
                for text in verdict_text(verdict):
                    self._console.print(text, soft_wrap=isinstance(text, str))
        self.advance(verdict.txid)


@contextmanager
def _progress(console: Console, total: int) -> Iterator[_Shown]:
    if not console.is_terminal:
        yield _Shown(console, None, total)
        return
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield _Shown(console, bar, total)
