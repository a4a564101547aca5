"""Rules for commit marks: whether a coordinator may lead a map or outlet, and which rows it still has to write.

The rules are the same for maps and outlets. The mark serves the same purpose in an external system as version and app
transactions in a Delta table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from txstorm.api.external import Mark
from txstorm.errors import BlockedError, FencedError, ReportedFailedException, StateError, TableCorrupt, TxstormError
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import UNKNOWN, Intent, IntentTable
from txstorm.storage.tables.table_log import TRIES

R = TypeVar("R")


@contextmanager
def reached(label: str, what: str) -> Iterator[None]:
    """Context manager for calls to an external system: converts errors to `BlockedError`, so that they are retried.

    Args:
        label: the map or outlet, as named in messages.
        what: the attempted action, for messages.
    """
    try:
        yield
    except TxstormError:
        raise
    except Exception as cause:
        raise BlockedError(f"{label}: cannot {what}: {type(cause).__name__}: {cause}") from cause


class Replayed:
    """Context manager for calls to a store that may be away: the batch is then tried again until the store is back.

    Args:
        what: what cannot be done, for the message.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | BlockedError):
            raise ReportedFailedException(f"{self._what}: {error}; the batch is tried again until it can") from error


@dataclass(frozen=True)
class MarkedTarget(Generic[R]):
    """A map or outlet with a commit mark, to which the rules apply.

    Attributes:
        label: its name in messages.
        home: the name of its external system in messages.
        uri: its name in the ledger and in intents.
        owner: identity of the topology that may write to it.
        read: returns its current mark; None if it has none.
        write: compare-and-set, given rows, expected mark and new mark: writes rows and new mark if the current mark is
            as expected; returns whether it was.
        nothing: an empty set of rows.
    """

    label: str
    home: str
    uri: str
    owner: TopologyIdentity
    read: Callable[[], Mark | None]
    write: Callable[[R, Mark | None, Mark], bool]
    nothing: R

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> int:
        """Check that mark and ledger belong together, then set the mark's epoch to `epoch`; return the mark's txid.

        Called in P0 (take over). Stale coordinators are fenced from here on.

        Args:
            epoch: the coordinator's epoch.
            committed: the last decided txid.
            recorded: the target's txid according to the ledger; `UNKNOWN` if the ledger was rebuilt, None if the ledger
                does not record the target yet.
            live: the decided groups that are not completed.

        Raises:
            FencedError: a newer coordinator leads the target.
            StateError: the mark belongs to another topology or data directory.
            TableCorrupt: the mark is at a txid that is inconsistent with the ledger and the live intents.
            BlockedError: the external system cannot be reached.
        """
        for _ in range(TRIES):
            with reached(self.label, "take it over"):
                found = self.read()
            mark = self._led(found, epoch, committed, recorded, live)
            with reached(self.label, "take it over"):
                done = found == mark or self.write(self.nothing, found, mark)
            if done:
                return mark.txid
        raise self._busy("take it over")

    def put(self, rows: R, table: IntentTable, intent: Intent, epoch: int) -> None:
        """Write the rows of `intent` exactly once; idempotent, so it may be repeated after any failure.

        Raises:
            FencedError: a newer coordinator leads the target.
            TableCorrupt: the mark is not at the txid that the intent expects.
            BlockedError: the external system cannot be reached, or refuses the rows.
        """
        what = f"put txids {intent.first}-{intent.last}"
        mark = self._mark(epoch, intent.last, table.staged.digest)
        for _ in range(TRIES):
            with reached(self.label, what):
                found = self.read()
            if self._is_put(found, table, intent, epoch):
                return
            with reached(self.label, what):
                if self.write(rows, found, mark):
                    return
        raise self._busy(what)

    def _is_put(self, found: Mark | None, table: IntentTable, intent: Intent, epoch: int) -> bool:
        """Whether `intent` is already written; False if it is the next intent to write, `TableCorrupt` otherwise."""
        if found is not None:
            self._check_owner(found, epoch)
            if (found.timeline, found.txid, found.content) == (intent.timeline, intent.last, table.staged.digest):
                return True
            before = range(intent.first) if table.previous == UNKNOWN else (table.previous,)
            if found.timeline == intent.timeline and found.txid in before:
                return False
        where = "has no mark" if found is None else f"is at txid {found.txid} of timeline {found.timeline}"
        expected = f"before txid {intent.first}" if table.previous == UNKNOWN else f"at txid {table.previous}"
        raise TableCorrupt(
            f"{self.label}: expected to be {expected} before txids {intent.first} to {intent.last} are "
            f"put, but it {where}; restore data directory and {self.home} from the same moment"
        )

    def _led(
        self, found: Mark | None, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]
    ) -> Mark:
        """Return the mark of the new coordinator, which replaces `found`."""
        known = recorded not in (None, UNKNOWN)
        if found is None:
            if not known:
                return self._mark(epoch, committed, "")
            raise TableCorrupt(self._unmarked(recorded or 0))
        self._check_owner(found, epoch)
        if found.timeline < self.owner.timeline:
            # After a rewind, which is refused unless the content of maps and outlets may remain unchanged.
            return self._mark(epoch, recorded if known and recorded is not None else committed, "")
        if recorded is None and found.txid < committed:
            if found.content:
                raise StateError(self._left_out(found.txid, committed))
            return self._mark(epoch, committed, "")  # a start that was killed has led it, but wrote no rows
        allowed = _allowed(self.uri, committed, recorded, live)
        if found.txid not in allowed or found.timeline != self.owner.timeline:
            wanted = f"at most {max(allowed)}" if not known else " or ".join(map(str, sorted(allowed)))
            raise TableCorrupt(
                f"{self.label}: the ledger expects it at txid {wanted} of timeline {self.owner.timeline}, "
                f"found {found.txid} of timeline {found.timeline}; data directory and {self.home} are not from the "
                "same moment: restore both"
            )
        return replace(found, epoch=epoch)

    def _check_owner(self, found: Mark, epoch: int) -> None:
        owner, kind = self.owner, self.label.partition(" ")[0]
        article = "an" if kind == "outlet" else "a"
        if found.incarnation != owner.incarnation:
            raise StateError(
                f"{self.label}: its store belongs to topology {found.topology!r}, incarnation {found.incarnation}; "
                f"expected {owner.topology!r}, incarnation {owner.incarnation}; {article} {kind} has one owner: "
                "use another one"
            )
        if found.epoch > epoch:
            raise FencedError(
                f"{self.label}: a coordinator with epoch {found.epoch} has taken over from this one with epoch "
                f"{epoch}; stop this run, the other one continues"
            )

    def _mark(self, epoch: int, txid: int, content: str) -> Mark:
        owner = self.owner
        return Mark(owner.topology, owner.incarnation, epoch, owner.timeline, txid, content)

    def _unmarked(self, recorded: int) -> str:
        kind = self.label.partition(" ")[0]
        return (
            f"{self.label}: the ledger knows it at txid {recorded}, but the store has no mark of it; it is another "
            f"store or was emptied: restore it, or give the {kind} a new name"
        )

    def _left_out(self, txid: int, committed: int) -> str:
        kind = self.label.partition(" ")[0]
        return (
            f"{self.label}: its content is at txid {txid}, and the ledger does not record it: up to txid "
            f"{committed} was committed without it, which would be missing there; give the {kind} a new name and "
            "another place, or backfill into a new data directory (jobs/replay.py --into)"
        )

    def _busy(self, what: str) -> BlockedError:
        return BlockedError(f"{self.label}: cannot {what} in {TRIES} tries: another writer moves its mark")


def _allowed(uri: str, committed: int, recorded: int | None, live: Sequence[Intent]) -> set[int]:
    """Return the txids at which a mark may be; live intents may or may not have been written already."""
    allowed = set(range(committed + 1)) if recorded in (None, UNKNOWN) else {recorded}
    for intent in live:
        for table in intent.tables:
            if table.uri == uri and (table.previous in allowed or table.previous == UNKNOWN):
                allowed.add(intent.last)
    return allowed
