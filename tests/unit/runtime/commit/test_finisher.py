"""Finishing ahead: txids that finish before their turn, and what happens at their turn or if they are discarded."""

from __future__ import annotations

from typing import Any

import pytest

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.runtime.commit.finisher import EarlyFinish
from txstorm.runtime.commit.outcome import CommittedTxid, GroupOutcome, ProcessedBatch
from txstorm.runtime.commit.turn import CommitTurn

ROW = ErrorRow("commit", 0, "failed", "FailedException", "", "", "")


class Tables:
    """Fake tables that record the txids from which they were dropped."""

    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop_from(self, txid: int) -> None:
        self.dropped.append(txid)


def ready(txid: int, attempt: int = 0) -> ProcessedBatch:
    one = TransactionAttempt(txid, attempt or 100 + txid)
    return ProcessedBatch(TxidInput(one, None, 0), Processed(one), "", None)


class Line:
    """A queue of txids whose committers finish one after the other."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.tables: Any = Tables()
        self.ahead = EarlyFinish(
            lambda txid: CommitTurn(self.tables, GroupOutcome(), lambda: 0.0, ahead=True), allowed=allowed
        )

    def finish(self, txid: int, *, fails: bool = False) -> bool:
        one = ready(txid)
        turn = self.ahead.turn_of(one.attempt)
        if turn is None:
            return False
        if fails:
            turn.outcome.failed = (one.attempt, ROW)
            self.ahead.reached = txid - 1
        else:
            turn.outcome.committed.append(CommittedTxid(one, {}, ()))
            self.ahead.reached = txid
        return True


@pytest.fixture
def line() -> Line:
    made = Line()
    made.ahead.reached = 4  # the group that is published ends with txid 4
    return made


def tried(turn: CommitTurn | None) -> list[int]:
    return [] if turn is None else [one.txid for one in turn.tried]


def test_nothing_is_finished_ahead_of_the_first_group_nor_where_it_is_not_allowed():
    assert not Line().finish(1)
    line = Line(allowed=False)
    line.ahead.reached = 4
    assert not line.finish(5)


def test_only_what_follows_what_has_finished_last(line):
    assert not line.finish(6)
    assert line.finish(5)
    assert not line.finish(5)
    assert line.finish(6)


def test_the_turn_of_a_group_that_begins_with_what_has_finished(line):
    line.finish(5)
    line.finish(6)
    turn = line.ahead.take([ready(5), ready(6), ready(7)])
    assert tried(turn) == [5, 6]
    assert not turn.ahead
    assert line.tables.dropped == []
    assert line.ahead.take([ready(8)]) is None


def test_after_a_failure_nothing_more_is_finished_ahead(line):
    line.finish(5)
    assert line.finish(6, fails=True)
    assert not line.finish(6)
    assert not line.finish(7)
    turn = line.ahead.take([ready(5), ready(6), ready(7)])
    assert tried(turn) == [5, 6]
    assert turn.outcome.failed == (ready(6).attempt, ROW)


def test_what_is_discarded_is_void_with_all_behind_it(line):
    for txid in (5, 6, 7):
        line.finish(txid)
    line.ahead.forget({ready(6).attempt, ready(7).attempt})
    assert line.tables.dropped == [6]
    assert line.finish(6)  # the next attempt of it
    assert tried(line.ahead.take([ready(5), ready(6)])) == [5, 6]


def test_a_failed_attempt_that_is_discarded_is_done_with(line):
    line.finish(5, fails=True)
    line.ahead.forget({ready(5).attempt})
    assert line.finish(5)
    assert tried(line.ahead.take([ready(5)])) == [5]


def test_another_attempt_than_the_discarded_one_stays(line):
    line.finish(5)
    line.ahead.forget({TransactionAttempt(5, 1), TransactionAttempt(9, 1)})
    assert line.tables.dropped == []
    assert tried(line.ahead.take([ready(5)])) == [5]


@pytest.mark.parametrize("group", [[ready(5, 1)], [ready(5), ready(6, 1)], [ready(5)]])
def test_the_turn_of_other_attempts_starts_over(line, group):
    line.finish(5)
    line.finish(6)
    assert line.ahead.take(group) is None
    assert line.tables.dropped == [5]
