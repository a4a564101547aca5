"""The group that is being finished before its turn, while the one before it is published."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from txstorm.api.attempt import TransactionAttempt
from txstorm.runtime.commit.outcome import Ready
from txstorm.runtime.commit.turn import Turn


class Ahead:
    """What has finished behind the group that is being published; used on the commit thread only.

    Order is kept by one number: a txid is finished ahead only if it follows the one that finished last. After a failure
    none does, until the failed txid has its next attempt.

    Args:
        begin: makes the turn of a group that begins with a txid.
        allowed: whether anything is to be finished ahead at all.

    Attributes:
        reached: the last txid that has finished, in its turn or ahead; None before the first.
    """

    def __init__(self, begin: Callable[[int], Turn], *, allowed: bool) -> None:
        self.reached: int | None = None
        self._begin = begin
        self._allowed = allowed
        self._turn: Turn | None = None

    def turn_of(self, attempt: TransactionAttempt) -> Turn | None:
        """The turn that `attempt` is to be finished in; None when it is not to be, now."""
        turn = self._turn
        if not self._allowed or self.reached is None or attempt.txid != self.reached + 1:
            return None
        if turn is None:
            self._turn = turn = self._begin(attempt.txid)
        return turn if turn.outcome.failed is None else None

    def take(self, group: Sequence[Ready]) -> Turn | None:
        """It is the turn of `group`: what of it has finished, from its first txid on; None when nothing has."""
        turn, self._turn = self._turn, None
        if turn is None:
            return None
        tried = turn.tried
        if tried and tried == [one.attempt for one in group[: len(tried)]]:
            turn.ahead = False
            return turn
        turn.tables.drop_from(min([*tried, group[0].attempt]).txid)
        return None

    def forget(self, attempts: Collection[TransactionAttempt]) -> None:
        """These attempts were discarded: what they and later ones finished is void."""
        turn = self._turn
        dead = [one for one in turn.tried if one in attempts] if turn is not None else []
        if turn is None or not dead:
            return
        first = min(dead).txid
        turn.tables.drop_from(first)
        turn.outcome.committed = [one for one in turn.outcome.committed if one.ready.attempt.txid < first]
        turn.outcome.failed = None
        self.reached = first - 1
        self._turn = turn if turn.outcome.committed else None
