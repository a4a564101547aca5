"""Early finish: committers finish txids before their commit turn; results are used in that turn or discarded."""

from types import SimpleNamespace
from typing import Any

import pytest

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.engine.program import program_of
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.plan.stages import compile_plan
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.commit.job import CommitJobs
from txstorm.runtime.commit.line import CommitLine, LineOptions
from txstorm.runtime.commit.turn import Turn

ROW = ErrorRow("commit", 0, "failed", "FailedException", "", "", "")


class Tables:
    """Fake tables that record the txids passed to `drop_from`."""

    def __init__(self) -> None:
        self.dropped: list[int] = []
        self.drop_from = self.dropped.append
        self.begin_txid = self.end_txid = self.resources = lambda *given: None

    def group(self, txid: int) -> Any:
        return self


def txn(txid: int, attempt: int = 0) -> Txn:
    one = TransactionAttempt(txid, attempt or 100 + txid)
    return Txn(TxidInput(one, None, 0), Processed(one))


class Line:
    """Test harness: a commit line whose committers finish at once, or fail."""

    def __init__(self, topology: Any, *, allowed: bool = True) -> None:
        self.tables: Any = Tables()
        self.tables.data_dir = "data"
        self.fails = False
        program, none = program_of(compile_plan(topology)), SimpleNamespace()
        options = LineOptions(ahead=allowed, run=self.run)
        jobs = CommitJobs(program, none, none, allowed=False)  # type: ignore[arg-type]
        self.line = CommitLine(program, self.tables, none, none, jobs, options)  # type: ignore[arg-type]
        self.line.reached = 4  # the group being published ends with txid 4

    def run(self, *given: Any) -> Any:
        def run() -> None:
            if self.fails:
                raise CommitFailed(ROW)

        at = SimpleNamespace(place=lambda: ("", 0))
        return SimpleNamespace(run=run, at=at, counts={}, reported=(), timers=(), windows={}, letters=(), received={})

    def finish(self, txid: int, *, fails: bool = False) -> bool:
        """Finish a txid early; return whether its committers were called."""
        self.fails, self.line.turn = fails, None
        self.line.finish_early(txn(txid))
        return self.line.turn is not None

    def take(self, *txns: Txn) -> Turn:
        """Finish a group, in which nothing fails any more."""
        self.fails = False
        return self.line.finish(txns)


@pytest.fixture
def line(topology: Any) -> Line:
    return Line(topology)


@pytest.fixture(scope="module")
def topology() -> Any:
    from topology_samples import word_count

    return word_count()


def finished(turn: Turn) -> list[TransactionAttempt]:
    return [one.attempt for one in turn.finished]


def test_only_the_txid_after_the_last_finished_one_may_finish_early(line, topology):
    assert not line.finish(6)
    assert line.finish(5)
    assert not line.finish(5)
    assert line.finish(6)
    first = Line(topology)
    first.line.reached = None
    assert not first.finish(1)  # nothing before the first group
    assert not Line(topology, allowed=False).finish(5)


def test_a_group_reuses_the_turn_of_its_early_finished_txids(line):
    line.finish(5)
    line.finish(6)
    early, group = line.line.turn, [txn(5), txn(6), txn(7)]
    turn = line.take(*group)
    assert turn is early
    assert finished(turn) == [one.attempt for one in group]
    assert not turn.early
    assert line.tables.dropped == []
    assert line.take(txn(8)) is not early


def test_a_failure_stops_early_finishing(line):
    line.finish(5)
    assert line.finish(6, fails=True)
    assert not line.finish(6)
    assert not line.finish(7)
    turn = line.take(txn(5), txn(6), txn(7))
    assert finished(turn) == [txn(5).attempt]
    assert turn.failed == (txn(6).attempt, ROW)


def test_discarding_a_txid_drops_its_results_and_those_of_later_txids(line):
    for txid in (5, 6, 7):
        line.finish(txid)
    early = line.line.turn
    line.line.drop({txn(6).attempt, txn(7).attempt})
    assert line.tables.dropped == [6]
    assert line.finish(6)  # the next attempt at txid 6
    assert line.take(txn(5), txn(6)) is early


def test_a_discarded_failed_attempt_can_be_retried_and_discarding_another_one_has_no_effect(line):
    line.finish(5, fails=True)
    line.line.drop({txn(5).attempt})
    assert line.finish(5)
    early, dropped = line.line.turn, list(line.tables.dropped)
    line.line.drop({TransactionAttempt(5, 1), TransactionAttempt(9, 1)})
    assert line.tables.dropped == dropped
    assert line.take(txn(5)) is early


@pytest.mark.parametrize("group", [[txn(5, 1)], [txn(5), txn(6, 1)], [txn(5)]])
def test_a_group_of_other_attempts_starts_a_new_turn(line, group):
    line.finish(5)
    line.finish(6)
    early = line.line.turn
    turn = line.take(*group)
    assert turn is not early
    assert finished(turn) == [one.attempt for one in group]
    assert line.tables.dropped == [5]
