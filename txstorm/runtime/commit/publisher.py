"""P6 to P8 of a group: decide its intent (the commit point), publish its rows, complete it in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from txstorm.books.books import Books
from txstorm.errors import BlockedError, ConflictError, FencedError, TableCorrupt
from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete, Op
from txstorm.storage.tables.history import history_rows
from txstorm.storage.tables.intent import Intent

Housekeeping = Callable[[int], list[Op]]


class PublishTarget(Protocol):
    """Port to the tables, maps and outlets that receive published groups. Implementations: `StateStore`, simulation."""

    def last_txids(self) -> dict[str, int]:
        """Return the last published txid of each table, keyed by table."""

    def publish(self, intent: Intent, epoch: int) -> dict[str, int]:
        """Publish a decided group to all its tables, maps and outlets; return table → new version. Idempotent."""

    def forget(self, before: int) -> None:
        """Release the staged rows of the groups before the txid `before`."""


class timed:  # noqa: N801 - a context manager, used like a function
    """Context manager that measures a step and adds its duration to the step's entry in `milliseconds`."""

    def __init__(self, milliseconds: dict[str, float], step: str, monotonic: Callable[[], float]) -> None:
        self._milliseconds = milliseconds
        self._step = step
        self._monotonic = monotonic

    def __enter__(self) -> None:
        self._started = self._monotonic()

    def __exit__(self, *exc: object) -> None:
        took, before = (self._monotonic() - self._started) * 1000, self._milliseconds.get(self._step, 0.0)
        self._milliseconds[self._step] = before + took


def pause_after(attempt: int) -> float:
    """Return the back-off, in seconds, after a failed attempt to publish; `attempt` counts from 0."""
    return float(min(5.0, 0.05 * 2**attempt))


class Publisher:
    """Decides, publishes and completes commit groups (P6 to P8), one at a time.

    Args:
        store: the tables, maps and outlets.
        books: the ledger's content.
        keep_intents: number of completed intents to keep in the ledger.
        blocked: called with the cause while a decided group cannot be published, and with None once it can be.
        sleep: waits some seconds between attempts; returns True if the run is to stop.
        monotonic: a clock in seconds, for the durations of the steps.
    """

    TRIES = 8
    """Maximum number of attempts to publish a group before the run ends with the error."""

    def __init__(
        self,
        store: PublishTarget,
        books: Books,
        *,
        keep_intents: int,
        blocked: Callable[[str | None], None],
        sleep: Callable[[float], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._books = books
        self._keep = keep_intents
        self._blocked = blocked
        self._sleep = sleep
        self._monotonic = monotonic
        self._tables = dict(store.last_txids())
        self._kept = books.kept_intents()

    def conclude(
        self,
        intent: Intent,
        tuples: Mapping[int, int],
        housekeeping: Housekeeping,
        *,
        published: Callable[[int], None],
        milliseconds: dict[str, float],
    ) -> None:
        """Decide, publish and complete the group of `intent` (P6 to P8).

        Args:
            intent: the intent of the group, which names its staged rows; all of them are durable.
            tuples: txid → number of tuples, for the history.
            housekeeping: returns further ledger operations for the completion (P8), given the group's last txid.
            published: called with the group's last txid between P7 and P8.
            milliseconds: receives the duration of each step.

        Raises:
            FencedError: another coordinator has taken over.
            BlockedError: the group is decided but cannot be published; the next start rolls it forward.
        """
        versions = self._decide_and_publish(intent, milliseconds)
        last = intent.last
        published(last)
        touched = [table.uri for table in intent.tables if table.uri in self._tables]
        self._tables.update(dict.fromkeys(touched, last))
        with self._timed(milliseconds, "complete"):
            ops = [*housekeeping(last), *self._old_intents(intent)]
            self._books.complete(last, self._tables, history_rows(intent, versions, tuples), ops)
            self._store.forget(before=self._kept[0] if self._kept else last)

    def _decide_and_publish(self, intent: Intent, milliseconds: dict[str, float]) -> dict[str, int]:
        """Run P6 (decide) and P7 (publish); a group that changes no table skips both and is committed by P8 alone."""
        if not intent.tables:
            return {}
        with self._timed(milliseconds, "decide"):
            self._books.decide(intent)
        with self._timed(milliseconds, "publish"):
            return self._publish(intent)

    def _timed(self, milliseconds: dict[str, float], step: str) -> timed:
        return timed(milliseconds, step, self._monotonic)

    def _publish(self, intent: Intent) -> dict[str, int]:
        """Publish a decided intent, which can no longer be rolled back; retry, up to `TRIES` attempts."""
        for attempt in range(self.TRIES):
            self._books.check_lease()
            try:
                versions = self._store.publish(intent, self._books.epoch)
            except FencedError:
                raise
            except (BlockedError, TableCorrupt, ConflictError, OSError) as error:
                self._blocked(str(error))
                cause = error
            else:
                self._blocked(None)
                return versions
            if self._sleep(pause_after(attempt)):
                break
        raise BlockedError(
            f"txids {intent.first}-{intent.last} are decided but cannot be published: {cause}; fix the cause and "
            "start the topology again, which rolls them forward"
        ) from cause

    def _old_intents(self, intent: Intent) -> list[Op]:
        """Return the deletions of intents beyond those to keep; after a start that completed one there are more."""
        if intent.tables:
            self._kept.append(intent.last)
        old, self._kept = self._kept[: -self._keep], self._kept[-self._keep :]
        return [Delete(names.intent_path(txid)) for txid in old]
