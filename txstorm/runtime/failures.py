"""Retry policy, dead-letter limit, and the errors that end a topology.

A failed batch is replayed immediately, after a back-off, or without the failing records (dead letters); or it ends the
topology (R11, failures).
"""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import txstorm.errors
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import LIMIT, SOURCE, ErrorRow
from txstorm.engine.task.error_rows import error_row, message_of
from txstorm.errors import InputError, TooManyDeadLetters, TopologyError, TopologyFailed, TxstormError
from txstorm.storage.rows.dead_letters import TUPLE
from txstorm.topology.settings import HALF, Settings

LOST_RETRIES = 2
"""Maximum number of replays after a lost worker or a timeout, whose cause is often unrelated to the batch."""

NO_LETTERS = {"on_error": "fail_topology", "max_dead_letters": None}
"""Settings of a `RetryPolicy` under which no failure becomes a dead letter."""


@dataclass(frozen=True)
class Failure:
    """Record of the failures of one txid, kept until the txid is committed.

    Attributes:
        count: number of failures.
        cause: the most recent error.
        divert: kinds of errors whose records the next attempt dead-letters; see `TxidInput.divert`.
        tries: kind of error → number of failures since the last change of `divert`.
        row: the error that led to `divert`, without its traceback.
        pin: the documents of the txid and of the one before it, for an opaque spout whose whole batch is a dead letter;
            None otherwise.
    """

    count: int = 0
    cause: str = ""
    divert: tuple[str, ...] = ()
    tries: Mapping[str, int] = field(default_factory=dict)
    row: Mapping[str, Any] | None = None
    pin: tuple[Any, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON-serializable dictionary for the ledger."""
        return asdict(self)

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Failure:
        """Build a record from the result of `to_json`; fields not written by an older version get their defaults."""
        known = {name: recorded[name] for name in cls.__dataclass_fields__ if name in recorded}
        pin = known.get("pin")
        return cls(**{**known, "divert": tuple(known.get("divert", ())), "pin": pin and tuple(pin)})

    @property
    def error(self) -> ErrorRow:
        """The error that caused records, or the whole batch, to be diverted."""
        assert self.row is not None
        return ErrorRow(**self.row)


@dataclass(frozen=True)
class RetryDecision:
    """Decision on a failed txid: replay it, or end the topology.

    Attributes:
        delay: seconds until the replay; None: the topology fails.
        count: number of its failures so far.
    """

    delay: float | None
    count: int


SAMPLE = 1000
"""Rows from which on a share of them is judged."""


@dataclass(frozen=True)
class Tally:
    """Rows of a component in a part of a run, and how many of them have become dead letters.

    Attributes:
        rows: rows that it received, or a spout emitted, and those of them and of its results that it refused.
        letters: its dead letters.
        unfit: input and column → dead letters for values that do not fit its declared type.
        kept: input, ``COMPONENT/STREAM`` or a source of a composite spout → rows of it that are no dead letters.
    """

    rows: int = 0
    letters: int = 0
    unfit: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Tally) -> Tally:
        kept = Counter(self.kept)
        kept.update(other.kept)  # also what is 0
        return Tally(self.rows + other.rows, self.letters + other.letters, self.unfit + other.unfit, kept)

    def unfitting(self, sample: int) -> tuple[str, int] | None:
        """Return a column to which no value of an input fits, of at least `sample` rows, and their number; or None.

        Rows refused for other reasons say nothing of the column: if all rows are, none has fitted. Below `SAMPLE` rows
        all inputs must be refused: one of them may have had a single row.
        """
        for (of, column), times in self.unfit.items():
            kept = self.kept[of] if of in self.kept and times >= SAMPLE else self.rows - self.letters
            if times >= max(sample, 1) and kept <= 0:
                return column, times
        return None


def tallies(received: Mapping[str, int], letters: pa.Table | None) -> dict[str, Tally]:
    """Return the tally of each component in one txid, given the rows received and the dead letters.

    `received`: rows by component and, as ``COMPONENT/INPUT``, by what they came from.
    """
    found: dict[str, Tally] = {}
    for name, rows in received.items():
        component, _, of = name.partition("/")
        found[component] = found.get(component, Tally()) + (Tally(kept=Counter({of: rows})) if of else Tally(rows))
    names = ("component", "what", "source", "stream", "column")
    columns = () if letters is None else (letters[name].to_pylist() for name in names)
    for (component, what, source, stream, column), times in Counter(zip(*columns, strict=True)).items():
        if what == TUPLE:
            of, more = f"{source}/{stream}", Tally(0, times, kept=Counter({f"{source}/{stream}": -times}))
        else:  # what is no tuple was not received
            of, more = (column or "").partition("/")[0], Tally(times, times)
        more.unfit.update({(of, column): times} if column is not None else {})
        found[component] = found.get(component, Tally()) + more
    return found


class LetterLimit:
    """Enforces `max_dead_letters` in one run. Call on the commit thread only, but `at_end` only after it has ended.

    Dead letters and rows are counted in txid order; a new attempt at a txid replaces the counts of earlier ones. Until
    the run ends, a percentage is applied to at least `SAMPLE` rows, as the first few rows are not representative.
    Whatever the limit, a column to whose declared type no value fits is a fault of the declaration, and not of rows.

    Args:
        limit: a number of dead letters, a percentage of the input rows such as ``"1%"``, ``"half"`` for more than half
            of the rows of a component, judged from `SAMPLE` rows on, or None for no limit.
        spout: the component whose rows are the input rows.
    """

    def __init__(self, limit: int | str | None, spout: str = "") -> None:
        self.limit = limit
        self._spout = spout
        self._sums: dict[int, dict[str, Tally]] = {}

    def add(self, txid: int, found: Mapping[str, Tally]) -> ErrorRow | None:
        """Count the batch of `txid`, the next in order; return why the run must end before it, or None."""
        sums = dict(self._sums.get(txid - 1, {}))
        for name, tally in found.items():
            sums[name] = sums.get(name, Tally()) + tally
        self._sums[txid] = sums
        return self._judged(sums, SAMPLE)

    def settled(self, upto: int) -> None:
        """Discard the counts of the txids before `upto`, whose batches can no longer be replayed."""
        self._sums = {txid: sums for txid, sums in self._sums.items() if txid >= upto}

    def at_end(self, committed: int) -> ErrorRow | None:
        """Return the error of a run that ended at txid `committed` with too many dead letters, or None."""
        return self._judged(self._sums.get(committed, {}), 0)

    def _judged(self, sums: Mapping[str, Tally], sample: int) -> ErrorRow | None:
        for name, tally in sums.items():
            if (fault := tally.unfitting(sample)) is not None:
                counted = f"none of the {fault[1]:,} values of {fault[0]!r}"
                return _limit_row("TopologyFailed", f"{counted} that component {name!r} has received fits its type")
        if self.limit == HALF:
            for name, tally in sums.items():
                if tally.rows >= SAMPLE and 2 * tally.letters > tally.rows:
                    share = f"{tally.letters:,} of {tally.rows:,} rows of component {name!r} in this run"
                    return _limit_row("TooManyDeadLetters", f"{share}, more than max_dead_letters=half")
            return None
        return self._of_input(sum(tally.letters for tally in sums.values()), sums, sample)

    def _of_input(self, letters: int, sums: Mapping[str, Tally], sample: int) -> ErrorRow | None:
        if self.limit is None:
            return None
        rows = sums.get(self._spout, Tally()).rows
        percent = float(self.limit.rstrip("%")) if isinstance(self.limit, str) else None
        most = self.limit if percent is None else percent / 100 * max(rows, sample)
        if letters <= float(most):
            return None
        share = f"{letters:,} of {rows:,} input rows of this run"
        return _limit_row("TooManyDeadLetters", f"{share}, more than max_dead_letters={self.limit}")


def _limit_row(kind: str, message: str) -> ErrorRow:
    return ErrorRow("dead letters", 0, LIMIT, kind, message, "", "")


class Warnings:
    """Logs a warning about the first error of each cause, and at 10, 100, … how many there have been."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def say(self, component: str, kind: str, frame: str, text: str, times: int = 1) -> None:
        """Log `text` if it is the first of `times` errors of this class at this line of the component's code."""
        cause = component, kind, frame
        before = self._counts[cause]
        self._counts[cause] += times
        if not before:
            self._log.warning("%s", text)
        elif len(str(self._counts[cause])) > len(str(before)):
            self._log.warning("%s errors like this so far, %s: %s", f"{self._counts[cause]:,}", component, text)


class RetryPolicy:
    """Retry policy: durably counts the failures of each txid, and decides how to respond to each new failure.

    Args:
        settings: settings of the topology.
        record: called with a txid and its `Failure` record before the decision takes effect.
        known: txid → record of a txid that failed in earlier runs.
        pin: returns `Failure.pin` for a txid whose whole batch becomes a dead letter.
    """

    def __init__(
        self,
        settings: Settings,
        record: Callable[[int, Failure], None],
        known: Mapping[int, Failure],
        pin: Callable[[int], tuple[Any, Any] | None] = lambda txid: None,
    ) -> None:
        self._settings = settings
        self._record = record
        self._known = dict(known)
        self._pin = pin

    def judge(self, txid: int, row: ErrorRow, *, divertible: bool = True) -> RetryDecision:
        """Count a failed attempt at `txid`; decide whether it is replayed or ends the topology.

        Args:
            txid: txid of the failed attempt.
            row: the error row of the attempt.
            divertible: whether the error concerns records that can be dead-lettered.
        """
        before = self._known.get(txid, Failure())
        if row.kind == LIMIT:  # not a failure of the batch: the next run may have a higher limit
            return RetryDecision(None, before.count)
        kind = "failed" if row.kind == "reported" else row.kind
        tries = {**before.tries, kind: before.tries.get(kind, 0) + 1}
        after = replace(before, count=before.count + 1, cause=str(row), tries=tries)
        limit = _limit(self._settings, kind)
        if kind in before.divert or (limit is not None and tries[kind] > limit):
            divert = self._more(before.divert, kind) if divertible else None
            if divert is None:
                self._put(txid, after)
                return RetryDecision(None, after.count)
            pin = self._pin(txid) if SOURCE in divert else None
            stored = {name: one for name, one in asdict(row).items() if name != "column"}  # as other versions read it
            after = replace(after, divert=divert, tries={}, row={**stored, "traceback": ""}, pin=pin)
        self._put(txid, after)
        # The first replay is immediate, as in Storm; a batch that keeps failing backs off.
        times = sum(after.tries.values())
        delay = 0.0 if times <= 1 else self._settings.retry_backoff * 2.0 ** min(times - 2, 30)
        return RetryDecision(min(delay, self._settings.retry_backoff_max), after.count)

    def divert(self, txid: int) -> tuple[str, ...]:
        """Return the kinds of errors whose records the next attempt at `txid` dead-letters."""
        divert = self.failure(txid).divert
        return divert if divert and self._settings.dead_letters else ()

    def failure(self, txid: int) -> Failure:
        """Return the `Failure` record of `txid`; an empty one if it has not failed."""
        return self._known.get(txid, Failure())

    def pinned(self, txid: int, previous: Any) -> Any:
        """Return the pinned document of `txid`; None if the spout is to plan it.

        A batch stays a dead letter only as long as it is the same batch: if the document of the previous txid is no
        longer the one that was pinned along with it, the pin is removed.
        """
        failure = self._known.get(txid)
        if failure is None or failure.pin is None or not self._settings.dead_letters:
            return None
        document, before = failure.pin
        if before == previous:
            return document
        divert = tuple(kind for kind in failure.divert if kind != SOURCE)
        self._known[txid] = replace(failure, divert=divert, tries={}, pin=None)
        return None

    def forget(self, upto: int) -> list[int]:
        """Discard the failure records of the txids up to `upto`, which are committed; return those txids."""
        done = [txid for txid in list(self._known) if txid <= upto]
        for txid in done:
            del self._known[txid]
        return done

    def _more(self, divert: tuple[str, ...], kind: str) -> tuple[str, ...] | None:
        """Return `divert`, widened after an error of `kind`; None if it cannot be widened any further."""
        if not self._settings.dead_letters or SOURCE in divert:
            return None
        return (*divert, SOURCE if kind == "lost" or kind in divert else kind)

    def _put(self, txid: int, failure: Failure) -> None:
        self._known[txid] = failure
        self._record(txid, failure)


def _limit(settings: Settings, kind: str) -> int | None:
    """Return the maximum number of replays after errors of this kind; None: no limit."""
    if kind == "other":
        return settings.error_retries
    return max(LOST_RETRIES, settings.error_retries) if kind == "lost" else settings.max_retries


def batch_failure(attempt: TransactionAttempt, row: ErrorRow, count: int) -> TxstormError:
    """Build the error that ends the topology after `attempt`, the `count`-th failed attempt at its txid.

    For an `InputError` raised in a worker (a file has changed, an emit was invalid), the error is also of its class.
    """
    if row.kind == LIMIT:
        return TooManyDeadLetters(row.message) if row.type == "TooManyDeadLetters" else TopologyFailed(row.message)
    message = (
        f"txid {attempt.txid} (attempt {attempt.attempt_id}) failed {'once' if count == 1 else f'{count} times'}: {row}"
    )
    kind = getattr(txstorm.errors, row.type, None)
    if isinstance(kind, type) and issubclass(kind, InputError) and kind is not TopologyError:
        ending: type[TxstormError] = type(kind.__name__, (kind, TopologyFailed), {"__module__": kind.__module__})
        return ending(message)
    failure = TopologyFailed(message)
    if row.traceback:
        failure.add_note(row.traceback)
    return failure


def letters_command(data_dir: str | Path) -> str:
    """Return the shell command that shows the dead letters of a data directory."""
    path, here = Path(data_dir), Path.cwd()
    return f"txstorm dead-letters {shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))}"


def letters_failure(row: ErrorRow, data_dir: Path) -> TopologyFailed:
    """Build the error of a run that has committed everything but must not have all of its dead letters."""
    message = f"everything is committed, but {letters_text(row)}; see them: {letters_command(data_dir)}"
    return TooManyDeadLetters(message) if row.type == "TooManyDeadLetters" else TopologyFailed(message)


def letters_text(row: ErrorRow) -> str:
    """Return what is wrong with the dead letters, and what to do about it, if that depends on it."""
    if row.type == "TooManyDeadLetters":
        return f"the dead letters are {row.message}"
    return f"{row.message}: declare the type that the values have, or correct all of them"


def spout_row(error: BaseException, spout: str) -> ErrorRow:
    """Build the error row for an exception raised by the spout's coordinator during planning."""
    return error_row(f"coordinator of {spout}", 0, 0, error)


def spout_failure(error: BaseException, spout: str, txid: int) -> BaseException:
    """Build the error that ends the topology after the spout's coordinator raised `error` while planning `txid`."""
    if isinstance(error, TxstormError):
        return error
    said = f"{type(error).__name__}: {message_of(error)}"
    failure = TopologyFailed(f"txid {txid}: the coordinator of spout {spout!r} raised {said}")
    failure.__cause__ = error
    return failure


def system_failure(error: BaseException, data_dir: Path) -> BaseException:
    """Convert an `OSError` into an error with advice for the user; return other errors unchanged."""
    if not isinstance(error, OSError):
        return error
    failure = TxstormError(
        f"data directory {data_dir}: {error.filename or 'a file'}: {error.strerror or error}; nothing that was "
        "committed is lost: check disk space and permissions, then start the topology again"
    )
    failure.__cause__ = error
    return failure
