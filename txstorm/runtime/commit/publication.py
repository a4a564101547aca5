"""The end of P5, and P6 to P8: stage a group's rows, decide its intent (the commit point), publish it, complete it."""

from __future__ import annotations

from collections.abc import Callable

from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.errors import BlockedError, ConflictError, FencedError, TableCorrupt
from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete, Op
from txstorm.runtime.commit.turn import Turn
from txstorm.state.store import StateStore
from txstorm.storage.tables.history import history_rows
from txstorm.storage.tables.intent import Intent


def pause_after(attempt: int) -> float:
    """Return the back-off, in seconds, after a failed attempt to publish; `attempt` counts from 0."""
    return float(min(5.0, 0.05 * 2**attempt))


class Publisher:
    """Stages, decides, publishes and completes commit groups, one at a time. Call on the publishing thread only.

    Args:
        store: the tables, maps and outlets.
        books: the ledger's content.
        identity: identity of the topology in its data directory; written into every intent.
        keep_intents: number of completed intents to keep in the ledger.
        outlived: returns the ledger deletions that a group ending with this txid entails.
        blocked: called with the cause while a decided group cannot be published, and with None once it can be.
        sleep: waits some seconds between attempts; returns True if the run is to stop.
    """

    TRIES = 8
    """Maximum number of attempts to publish a group before the run ends with the error."""

    def __init__(
        self,
        store: StateStore,
        books: Books,
        identity: Identity,
        *,
        keep_intents: int,
        outlived: Callable[[int], list[Op]],
        blocked: Callable[[str | None], None],
        sleep: Callable[[float], bool],
    ) -> None:
        self._store, self._books, self._identity = store, books, identity
        self._keep, self._outlived, self._blocked, self._sleep = keep_intents, outlived, blocked, sleep
        self._tables = dict(store.last_txids())
        self._kept = books.kept_intents()

    def conclude(self, turn: Turn) -> None:
        """Stage, decide, publish and complete what is finished of a group (the end of P5, P6 to P8).

        Raises:
            FencedError: another coordinator has taken over.
            BlockedError: the group is decided but cannot be published; the next start rolls it forward.
        """
        books, txns = self._books, turn.finished
        records = [txn.record() for txn in txns]
        last = records[-1].txid
        if txns[-1].waiting:  # the next start, too, must know that further ones follow
            books.note_document(last, records[-1].extents)
        with turn.timed("stage"):
            tables = turn.tables.stage(records, books.epoch)
        identity = self._identity
        intent = Intent(
            topology=identity.topology,
            incarnation=identity.incarnation,
            timeline=identity.timeline,
            epoch=books.epoch,
            txids=tuple(records),
            tables=tuple(tables),
        )
        versions: dict[str, int] = {}
        if tables:  # a group that changes no table is committed by P8 alone
            with turn.timed("decide"):
                books.decide(intent)
            with turn.timed("publish"):
                versions = self._publish(intent)
            self._kept.append(last)
        turn.tables.apply(last)
        self._tables.update({table.uri: last for table in tables if table.uri in self._tables})
        with turn.timed("complete"):
            old, self._kept = self._kept[: -self._keep], self._kept[-self._keep :]  # more than one after a start
            ops = [*self._outlived(last), *(Delete(names.intent_path(txid)) for txid in old)]
            tuples = {txn.input.attempt.txid: sum(txn.counts.values()) for txn in txns}
            books.complete(last, self._tables, history_rows(intent, versions, tuples), ops)
            self._store.forget(before=self._kept[0] if self._kept else last)
        self._store.outside.settle()

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
