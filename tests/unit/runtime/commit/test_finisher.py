"""Early finish: committers finish txids before their commit turn; results are used in that turn or discarded."""

from typing import Any

import pytest

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.lanes import THREADS
from txstorm.runtime.commit.finisher import EarlyFinish
from txstorm.runtime.commit.outcome import CommittedTxid, GroupOutcome, ProcessedBatch
from txstorm.runtime.commit.turn import CommitTurn

ROW = ErrorRow("commit", 0, "failed", "FailedException", "", "", "")


class Tables:
    """Fake tables that record the txids passed to `drop_from`."""

    def __init__(self) -> None:
        self.dropped: list[int] = []

    def drop_from(self, txid: int) -> None:
        self.dropped.append(txid)


def ready(txid: int, attempt: int = 0) -> ProcessedBatch:
    one = TransactionAttempt(txid, attempt or 100 + txid)
    return ProcessedBatch(TxidInput(one, None, 0), Processed(one), "", None)


class Line:
    """Test harness: finishes txids early, in order, as long as `EarlyFinish` admits them."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.tables: Any = Tables()
        self.ahead = EarlyFinish(
            lambda txid: CommitTurn(self.tables, GroupOutcome(), THREADS, ahead=True), allowed=allowed
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
    made.ahead.reached = 4  # the group being published ends with txid 4
    return made


def tried(turn: CommitTurn | None) -> list[int]:
    return [] if turn is None else [one.txid for one in turn.tried]


def test_only_the_txid_after_the_last_finished_one_may_finish_early(line):
    assert not line.finish(6)
    assert line.finish(5)
    assert not line.finish(5)
    assert line.finish(6)
    assert not Line().finish(1)  # nothing before the first group
    line = Line(allowed=False)
    line.ahead.reached = 4
    assert not line.finish(5)


def test_a_group_reuses_the_turn_of_its_early_finished_txids(line):
    line.finish(5)
    line.finish(6)
    turn = line.ahead.take([ready(5), ready(6), ready(7)])
    assert tried(turn) == [5, 6]
    assert not turn.ahead
    assert line.tables.dropped == []
    assert line.ahead.take([ready(8)]) is None


def test_a_failure_stops_early_finishing(line):
    line.finish(5)
    assert line.finish(6, fails=True)
    assert not line.finish(6)
    assert not line.finish(7)
    turn = line.ahead.take([ready(5), ready(6), ready(7)])
    assert tried(turn) == [5, 6]
    assert turn.outcome.failed == (ready(6).attempt, ROW)


def test_discarding_a_txid_drops_its_results_and_those_of_later_txids(line):
    for txid in (5, 6, 7):
        line.finish(txid)
    line.ahead.forget({ready(6).attempt, ready(7).attempt})
    assert line.tables.dropped == [6]
    assert line.finish(6)  # the next attempt at txid 6
    assert tried(line.ahead.take([ready(5), ready(6)])) == [5, 6]


def test_a_discarded_failed_attempt_can_be_retried_and_discarding_another_one_has_no_effect(line):
    line.finish(5, fails=True)
    line.ahead.forget({ready(5).attempt})
    assert line.finish(5)
    dropped = list(line.tables.dropped)
    line.ahead.forget({TransactionAttempt(5, 1), TransactionAttempt(9, 1)})
    assert line.tables.dropped == dropped
    assert tried(line.ahead.take([ready(5)])) == [5]


@pytest.mark.parametrize("group", [[ready(5, 1)], [ready(5), ready(6, 1)], [ready(5)]])
def test_a_group_of_other_attempts_starts_a_new_turn(line, group):
    line.finish(5)
    line.finish(6)
    assert line.ahead.take(group) is None
    assert line.tables.dropped == [5]
