"""Early finish: committers finish txids before their commit turn; results are used in that turn or discarded."""

from types import SimpleNamespace
from typing import Any

import pytest
from topology_samples import word_count

from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import ErrorRow, Processed, TxidInput
from txstorm.engine.program import program_of
from txstorm.engine.task.commit_phase import CommitFailed
from txstorm.plan.stages import compile_plan
from txstorm.runtime.batches.txn import Txn
from txstorm.runtime.commit.job import CommitJobs
from txstorm.runtime.commit.line import CommitLine, LineOptions

ROW = ErrorRow("commit", 0, "failed", "FailedException", "", "", "")


def txn(text: str) -> Txn:
    """Return the transaction of a txid, or of "TXID/ATTEMPT"."""
    txid, _, attempt = text.partition("/")
    one = TransactionAttempt(int(txid), int(attempt or 1))
    return Txn(TxidInput(one, None, 0), Processed(one))


class Line:
    """Test harness: a commit line behind a group that ends with txid 4, whose committers finish at once, or fail."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.dropped: list[int] = []
        self.fails = ""
        tables = SimpleNamespace(data_dir="data", drop_from=self.dropped.append, group=lambda txid: tables)
        tables.begin_txid = tables.end_txid = lambda *given: None
        program: Any = program_of(compile_plan(word_count()))
        unused: Any = None
        jobs = CommitJobs(program, unused, unused, allowed=False)
        options = LineOptions(ahead=allowed, run=self.run)
        self.line = CommitLine(program, tables, unused, unused, jobs, options)  # type: ignore[arg-type]
        self.line.reached = 4

    def run(self, program: Any, given: TxidInput, *rest: Any) -> Any:
        def run() -> None:
            if str(given.attempt.txid) == self.fails:
                raise CommitFailed(ROW)

        at = SimpleNamespace(place=lambda: ("", 0))
        return SimpleNamespace(run=run, at=at, counts={}, reported=(), timers=(), windows={}, letters=(), received={})

    def early(self, *texts: str, fails: str = "") -> list[str]:
        """Finish txids early; return those whose committers were called."""
        called = []
        for text in texts:
            self.fails, self.line.turn = fails, None
            self.line.finish_early(txn(text))
            called += [text] if self.line.turn is not None else []
        self.turn = self.line._early_turn
        return called

    def takes(self, *texts: str) -> bool:
        """Finish a group, in which nothing more fails; return whether it takes the early turn over."""
        self.fails = ""
        turn = self.line.finish([txn(text) for text in texts])
        assert turn.tried == [txn(text).attempt for text in texts][: len(turn.tried) if turn.failed else None]
        assert not turn.early
        return turn is self.turn


def test_only_the_txid_after_the_last_finished_one_finishes_early_and_its_group_takes_the_turn_over():
    line = Line()
    assert line.early("6", "5", "5", "6") == ["5", "6"]
    assert line.takes("5", "6", "7")
    assert not line.takes("8")
    assert line.dropped == []
    assert Line(allowed=False).early("5") == []
    line.line.reached = None  # nothing before the first group
    assert line.early("9") == []


def test_a_failure_stops_early_finishing_until_its_attempt_is_discarded_and_what_is_discarded_finishes_again():
    line = Line()
    assert line.early("5", "6", "6", "7", fails="6") == ["5", "6"]
    assert line.takes("5", "6", "7")
    assert line.line.turn.failed == (txn("6").attempt, ROW)
    line = Line()
    line.early("5", fails="5")
    line.line.drop({txn("5").attempt})
    assert line.early("5") == ["5"]
    dropped = list(line.dropped)
    line.line.drop({txn("5/2").attempt, txn("9").attempt})
    assert line.dropped == dropped
    assert line.takes("5")
    line = Line()  # discarding a txid drops its results and those of later txids
    line.early("5", "6", "7")
    line.line.drop({txn("6").attempt, txn("7").attempt})
    assert line.dropped == [6]
    assert line.early("6") == ["6"]  # the next attempt
    assert line.takes("5", "6")


@pytest.mark.parametrize("group", [["5/2"], ["5", "6/2"], ["5"]])
def test_a_group_of_other_attempts_starts_a_new_turn(group):
    line = Line()
    line.early("5", "6")
    assert not line.takes(*group)
    assert line.dropped == [5]
