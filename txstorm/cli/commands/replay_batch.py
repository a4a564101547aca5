"""Batch replays: an audit of a range of committed txids, or a backfill with them; what jobs/replay.py does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from txstorm.books.origin import origin_of
from txstorm.cli.commands.replay import code_of, verdict_text
from txstorm.cli.output import print_json, report, stderr
from txstorm.engine.program import program_of
from txstorm.plan.stages import compile_plan
from txstorm.replay.audit import audit
from txstorm.replay.backfill import backfill, check_into
from txstorm.replay.compare import ReplayVerdict
from txstorm.replay.ranges import Result, Span, span_of
from txstorm.replay.recording import Recording, opened_source
from txstorm.replay.scratch_tables import ReplayTables
from txstorm.runtime.run import make_engine
from txstorm.topology.graph import Topology

LINE_SECONDS = 5.0
TOLD = 10
"""Differing txids that are shown row by row; the result names all."""


@dataclass(frozen=True)
class BatchRequest:
    """What to replay, and how.

    Attributes:
        data_dir: where the topology ran.
        from_txid, to_txid: which transactions; all that are committed by default.
        into: the new data directory of a backfill; None for an audit.
        topology: the code; what the run recorded is used only after a yes at a terminal.
        dry_run: look at everything, run nothing.
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
        """The words of jobs/replay.py that ask for this, but for the code."""
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
    """Replay a range, show how far it is, print the result as the last line; returns the exit code."""
    console = stderr()
    started = time.monotonic()
    try:
        result = _replayed(request, console)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - one way to tell the user
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
        _look(topology, recording, span, into)
        console.print("dry run: code, source and tables are there; nothing was run", soft_wrap=True)
        return Result(topology.id, span, into=into)
    engine = make_engine(request.engine, None, topology.settings.max_jobs)
    with _progress(console, len(span)) as shown:
        if into is None:
            return audit(topology, recording, span, engine, shown.judged)
        return backfill(topology, recording, span, into, engine, origin_of(topology, code.target), shown.advance)


def _look(topology: Topology, recording: Recording, span: Span, into: Path | None) -> None:
    """What can be wrong before anything is run."""
    with opened_source(topology, program_of(compile_plan(topology)), recording):
        if into is None:
            ReplayTables(recording.data_dir, topology, span.first - 1, recording.committed)


class _Shown:
    """Progress: a bar in a terminal, a line now and then elsewhere; and what differs."""

    def __init__(self, console: Console, bar: Progress | None, total: int) -> None:
        self._console = console
        self._bar = bar
        self._task = None if bar is None else bar.add_task("txids", total=total)
        self._total = total
        self._done = 0
        self._different = 0
        self._next = time.monotonic() + LINE_SECONDS

    def advance(self, txid: int) -> None:
        """One more txid is done."""
        self._done += 1
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_SECONDS
            self._console.print(f"txid {txid}: {self._done:,} of {self._total:,}, {self._different:,} different")

    def judged(self, verdict: ReplayVerdict) -> None:
        """One more txid is audited."""
        if not verdict.equal:
            self._different += 1
            if self._different <= TOLD:
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
