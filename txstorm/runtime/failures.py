"""Retry policy, dead-letter limit, and the errors that end a topology.

A failed batch is replayed immediately, after a back-off, or without the failing records (dead letters); or it ends the
topology (R11, failures).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import txstorm.errors
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import LIMIT, SOURCE, ErrorRow
from txstorm.engine.task.error_rows import error_row
from txstorm.errors import InputError, TooManyDeadLetters, TopologyError, TopologyFailed, TxstormError
from txstorm.topology.settings import Settings

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


class LetterLimit:
    """Enforces `max_dead_letters` in one run. Call on the commit thread only, but `at_end` only after it has ended.

    Dead letters and input rows are counted in txid order; a new attempt at a txid replaces the counts of earlier ones.
    Until the run ends, a percentage is applied to at least `SAMPLE` rows, as the first few rows are not representative.

    Args:
        limit: a number of dead letters, a percentage of the input rows such as ``"1%"``, or None for no limit.
    """

    SAMPLE = 1000

    def __init__(self, limit: int | str | None) -> None:
        self.limit = limit
        self._sums: dict[int, tuple[int, int]] = {}

    def add(self, txid: int, letters: int, rows: int) -> str | None:
        """Count the batch of `txid`, the next in order; return a description if the limit is exceeded, else None."""
        before = self._sums.get(txid - 1, (0, 0))
        self._sums[txid] = (before[0] + letters, before[1] + rows)
        return self._excess(txid, self.SAMPLE) if letters else None

    def settled(self, upto: int) -> None:
        """Discard the counts of the txids before `upto`, whose batches can no longer be replayed."""
        self._sums = {txid: sums for txid, sums in self._sums.items() if txid >= upto}

    def at_end(self, committed: int) -> str | None:
        """Return an error message if a run that ended at txid `committed` has too many dead letters, else None."""
        return self._excess(committed, 0) if committed in self._sums else None

    def _excess(self, txid: int, sample: int) -> str | None:
        letters, rows = self._sums[txid]
        if self.limit is None:
            return None
        percent = float(self.limit.rstrip("%")) if isinstance(self.limit, str) else None
        most = self.limit if percent is None else percent / 100 * max(rows, sample)
        if letters <= float(most):
            return None
        return f"{letters:,} of {rows:,} input rows of this run, more than max_dead_letters={self.limit}"


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
            after = replace(after, divert=divert, tries={}, row=asdict(replace(row, traceback="")), pin=pin)
        self._put(txid, after)
        # The first replay is immediate, as in Storm; a batch that keeps failing backs off.
        times = sum(after.tries.values())
        delay = 0.0 if times <= 1 else self._settings.retry_backoff * 2.0 ** min(times - 2, 30)
        return RetryDecision(min(delay, self._settings.retry_backoff_max), after.count)

    def divert(self, txid: int) -> tuple[str, ...]:
        """Return the kinds of errors whose records the next attempt at `txid` dead-letters."""
        return self.failure(txid).divert if self._settings.dead_letters else ()

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
        return TooManyDeadLetters(row.message)
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


def letters_failure(excess: str, data_dir: Path) -> TooManyDeadLetters:
    """Build the error of a run that has committed everything but exceeded its dead-letter limit."""
    return TooManyDeadLetters(
        f"everything is committed, but the dead letters are {excess}; see them: {letters_command(data_dir)}"
    )


def spout_row(error: BaseException, spout: str) -> ErrorRow:
    """Build the error row for an exception raised by the spout's coordinator during planning."""
    return error_row(f"coordinator of {spout}", 0, 0, error)


def spout_failure(error: BaseException, spout: str, txid: int) -> BaseException:
    """Build the error that ends the topology after the spout's coordinator raised `error` while planning `txid`."""
    if isinstance(error, TxstormError):
        return error
    failure = TopologyFailed(f"txid {txid}: the coordinator of spout {spout!r} raised {type(error).__name__}: {error}")
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
