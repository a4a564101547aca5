"""What happens after a batch failed: again at once, again later, without some records, or the end (design.md, R11).

What ends a topology, as an error its user can act on.
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
"""A worker may die, or be slow, for reasons that have nothing to do with the batch it is at."""


@dataclass(frozen=True)
class Failure:
    """What is remembered of the failures of one txid, until it is committed.

    Attributes:
        count: how often it has failed.
        cause: the last error.
        divert: what the next attempt leaves out; see `TxidInput.divert`.
        tries: kind of error → how often, since `divert` was last decided on.
        row: the error that `divert` was decided for, without its traceback.
        pin: for an opaque spout whose batch is a dead letter as a whole: its document, and the one before it.
    """

    count: int = 0
    cause: str = ""
    divert: tuple[str, ...] = ()
    tries: Mapping[str, int] = field(default_factory=dict)
    row: Mapping[str, Any] | None = None
    pin: tuple[Any, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields, for the ledger."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Failure:
        """What `to_json` made, or a record of counts only."""
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        pin = known.get("pin")
        return cls(**{**known, "divert": tuple(known.get("divert", ())), "pin": pin and tuple(pin)})

    @property
    def error(self) -> ErrorRow:
        """The error that `divert` was decided for."""
        assert self.row is not None
        return ErrorRow(**self.row)


@dataclass(frozen=True)
class RetryDecision:
    """`delay` seconds until the txid is emitted again; None: the topology fails."""

    delay: float | None
    count: int


class LetterLimit:
    """The setting `max_dead_letters` of one run; the commit thread alone counts.

    Letters and input rows are summed up in txid order; what an earlier attempt at a txid had is forgotten. A percentage
    is taken of at least `SAMPLE` rows, until the run is at its end: the first few say little.
    """

    SAMPLE = 1000

    def __init__(self, limit: int | str | None) -> None:
        self.limit = limit
        self._sums: dict[int, tuple[int, int]] = {}

    def add(self, txid: int, letters: int, rows: int) -> str | None:
        """Count the batch of `txid`, which follows those counted before; returns what is too much, if it is."""
        before = self._sums.get(txid - 1, (0, 0))
        self._sums[txid] = (before[0] + letters, before[1] + rows)
        return self._excess(txid, self.SAMPLE) if letters else None

    def settled(self, upto: int) -> None:
        """Batches up to `upto` are not processed again."""
        self._sums = {txid: sums for txid, sums in self._sums.items() if txid >= upto}

    def at_end(self, committed: int) -> str | None:
        """What is too much of all that is committed, of which `committed` is the last txid."""
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
    """Counts failures per txid, durably, and judges the next one.

    Args:
        settings: the topology's.
        record: called with a txid and its failures before the verdict takes effect.
        known: from before a restart.
        pin: asked for `Failure.pin` of a txid whose batch becomes a dead letter as a whole.
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
        """What to do about a failed attempt at `txid`; `divertible`: whether there is a record to leave out."""
        before = self._known.get(txid, Failure())
        if row.kind == LIMIT:  # the batch did not fail: the next run may allow for it
            return RetryDecision(None, before.count)
        kind = "failed" if row.kind == "reported" else row.kind
        tries = {**before.tries, kind: before.tries.get(kind, 0) + 1}
        after = replace(before, count=before.count + 1, cause=str(row), tries=tries)
        limit = _limit(self._settings, kind)
        if kind in before.divert or (limit is not None and tries[kind] > limit):
            more = self._more(before.divert, kind) if divertible else None
            if more is None:
                self._put(txid, after)
                return RetryDecision(None, after.count)
            after = self._diverting(txid, after, more, row)
        self._put(txid, after)
        # The first replay is immediate, as Storm's; a batch that keeps failing backs off.
        times = sum(after.tries.values())
        delay = 0.0 if times <= 1 else self._settings.retry_backoff * 2.0 ** min(times - 2, 30)
        return RetryDecision(min(delay, self._settings.retry_backoff_max), after.count)

    def divert(self, txid: int) -> tuple[str, ...]:
        """What the next attempt at `txid` leaves out."""
        return self.failure(txid).divert if self._settings.dead_letters else ()

    def failure(self, txid: int) -> Failure:
        """What is remembered of `txid`."""
        return self._known.get(txid, Failure())

    def pinned(self, txid: int, previous: Any) -> Any:
        """The document that `txid` must have after the document `previous`; None when the spout is to plan it.

        A batch is a dead letter as a whole only as it was: when the one before it has changed, this is undone.
        """
        found = self._known.get(txid)
        if found is None or found.pin is None or not self._settings.dead_letters:
            return None
        document, after = found.pin
        if after == previous:
            return document
        rest = tuple(kind for kind in found.divert if kind != SOURCE)
        self._known[txid] = replace(found, divert=rest, tries={}, pin=None)
        return None

    def forget(self, upto: int) -> list[int]:
        """Txids up to `upto` are committed; returns those that had failures."""
        done = [txid for txid in list(self._known) if txid <= upto]
        for txid in done:
            del self._known[txid]
        return done

    def _more(self, divert: tuple[str, ...], kind: str) -> tuple[str, ...] | None:
        """What is left out next, when `divert` was not enough for an error of `kind`; None when nothing is left."""
        if not self._settings.dead_letters or SOURCE in divert:
            return None
        return (*divert, SOURCE if kind == "lost" or kind in divert else kind)

    def _diverting(self, txid: int, failure: Failure, divert: tuple[str, ...], row: ErrorRow) -> Failure:
        pin = self._pin(txid) if SOURCE in divert else None
        return replace(failure, divert=divert, tries={}, row=asdict(replace(row, traceback="")), pin=pin)

    def _put(self, txid: int, failure: Failure) -> None:
        self._known[txid] = failure
        self._record(txid, failure)


def _limit(settings: Settings, kind: str) -> int | None:
    """How many failures are followed by a replay; None: all."""
    if kind == "other":
        return settings.error_retries
    return max(LOST_RETRIES, settings.error_retries) if kind == "lost" else settings.max_retries


def batch_failure(attempt: TransactionAttempt, row: ErrorRow, count: int) -> TxstormError:
    """The error a topology ends with after `attempt` failed for the `count`-th time.

    An `InputError` raised in a worker (a file that changed, a wrong emit) stays what it was.
    """
    if row.kind == LIMIT:
        return TooManyDeadLetters(row.message)
    message = (
        f"txid {attempt.txid} (attempt {attempt.attempt_id}) failed {'once' if count == 1 else f'{count} times'}: {row}"
    )
    kind = getattr(txstorm.errors, row.type, None)
    if isinstance(kind, type) and issubclass(kind, InputError) and kind is not TopologyError:
        return kind(message)
    failure = TopologyFailed(message)
    if row.traceback:
        failure.add_note(row.traceback)
    return failure


def letters_command(data_dir: str | Path) -> str:
    """How to see the dead letters of a data directory, in a shell."""
    path, here = Path(data_dir), Path.cwd()
    return f"txstorm dead-letters {shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))}"


def letters_failure(excess: str, data_dir: Path) -> TooManyDeadLetters:
    """The error of a run that has committed all, and left out too much of it."""
    return TooManyDeadLetters(
        f"all is committed, but the dead letters are {excess}; see them: {letters_command(data_dir)}"
    )


def spout_row(error: BaseException, spout: str) -> ErrorRow:
    """The error row of an exception that the spout's coordinator raised while planning."""
    return error_row(f"coordinator of {spout}", 0, 0, error)


def spout_failure(error: BaseException, spout: str, txid: int) -> BaseException:
    """The error a topology ends with when the spout's coordinator raised while planning `txid`."""
    if isinstance(error, TxstormError):
        return error
    failure = TopologyFailed(f"txid {txid}: the coordinator of spout {spout!r} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def system_failure(error: BaseException, data_dir: Path) -> BaseException:
    """What the operating system refused, as an error its user can act on; other errors as they are."""
    if not isinstance(error, OSError):
        return error
    failure = TxstormError(
        f"data directory {data_dir}: {error.filename or 'a file'}: {error.strerror or error}; nothing that was "
        "committed is lost: check disk space and permissions, then start the topology again"
    )
    failure.__cause__ = error
    return failure
