"""Planning: in txid order, with plans stored before use; a restart keeps plans of transactional spouts only."""

from pathlib import Path
from typing import Any

import pytest
from runtime_samples import Source

from txstorm.api.attempt import TransactionAttempt
from txstorm.books.books import Books
from txstorm.engine.port import ErrorRow, Processed
from txstorm.errors import SpoutError
from txstorm.ledger.memory import MemoryLedger
from txstorm.runtime.batches.planning import Planning


class Desk:
    """Test harness: an in-memory ledger that outlives its planners, so that a test can simulate a restart."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.ledger, self.now = directory, MemoryLedger(), 1000

    def planning(self, source: Source) -> Planning:
        self.books = Books(MemoryLedger(beside=self.ledger), self.directory)
        self.books.raise_epoch()
        return Planning(self.books, source, lambda: self.now)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def outcome(txid: int, **changes: Any) -> Processed:
    return Processed(TransactionAttempt(txid, 1), **changes)


ERROR = ErrorRow("bolt", 0, "failed", "FailedException", "no", "", "")


def test_each_txid_is_planned_from_its_predecessor_and_plans_are_stored_together(desk: Desk) -> None:
    source = Source(3)
    planning = desk.planning(source)
    assert [planning.plan(txid, replay=False) for txid in (1, 2, 3, 4)] == [True, True, True, False]
    assert source.asked == [(1, None, False), *((txid, {"taken": txid - 1}, False) for txid in (2, 3, 4))]
    assert desk.books.metas() == {}
    planning.save()
    documents = {txid: meta.document for txid, meta in desk.books.metas().items()}
    assert documents == {txid: {"taken": txid} for txid in (1, 2, 3)}


def planned(desk: Desk, source: Source, txids: int) -> Planning:
    """Return the planning of a source after it has planned `txids` transactions."""
    planning = desk.planning(source)
    for txid in range(1, txids + 1):
        assert planning.plan(txid, replay=False)
    return planning


def test_a_replay_uses_stored_metadata_only(desk: Desk) -> None:
    """A replay uses the stored metadata and does not call the source (T43)."""
    source = Source(5)
    planning = planned(desk, source, 2)
    desk.now = 2000
    assert planning.plan(1, replay=True)
    assert planning.plan(2, replay=True)
    assert len(source.asked) == 2
    given = planning.txid_input(TransactionAttempt(2, 9))
    assert (given.attempt, given.document, given.payload) == ((2, 9), {"taken": 2}, ["payload", 2])
    assert given.stamp == 1000


def test_an_opaque_replay_is_replanned_from_the_preceding_txid_and_timestamps_never_decrease(desk: Desk) -> None:
    source = Source(5, opaque=True)
    assert planned(desk, source, 2).plan(2, replay=True)
    assert source.asked[-1] == (2, {"taken": 1}, True)
    planning = desk.planning(Source(3))
    stamps = []
    for txid, now in ((1, 1000), (2, 400), (3, 1700)):
        desk.now = now
        planning.plan(txid, replay=False)
        stamps.append(planning.txid_input(TransactionAttempt(txid, 1)).stamp)
    assert stamps == [1000, 1000, 1700]


@pytest.mark.parametrize(("opaque", "kept"), [(False, (2, 3)), (True, ())], ids=["transactional", "opaque"])
def test_item_63_after_a_restart_undecided_plans_are_kept_or_dropped(opaque: bool, kept: tuple, desk: Desk) -> None:
    planned(desk, Source(5, opaque=opaque), 3).save()
    again = desk.planning(Source(5, opaque=opaque))
    assert again.open(2) == kept
    assert sorted(desk.books.metas()) == [1, *kept]
    assert again.document(1) == {"taken": 1}
    assert (again.document(2) is None) == opaque


def test_a_transactional_spout_that_replays_another_batch_is_rejected(desk: Desk) -> None:
    planning = planned(desk, Source(2), 1)
    planning.save()
    planning.processed([outcome(1, digests={"p": "aa", "q": "bb"})])
    planning.processed([outcome(1, digests={"p": "aa", "q": "bb"})])
    with pytest.raises(SpoutError, match=r"txid 1: .* another batch for q .*digest cc, expected bb"):
        planning.processed([outcome(1, digests={"p": "aa", "q": "cc"})])
    assert desk.books.metas()[1].digests == {}
    desk.books.write_status({})  # the next write to the ledger includes the pending digests
    again = desk.planning(Source(2))
    with pytest.raises(SpoutError, match="must replay exactly"):
        again.processed([outcome(1, digests={"p": "xx"})])


def test_an_opaque_spout_may_replay_another_batch(desk: Desk) -> None:
    planning = planned(desk, Source(2, opaque=True), 1)
    for digest in ("aa", "cc"):
        planning.processed([outcome(1, digests={"p": digest})])
    desk.books.write_status({})
    assert desk.books.metas()[1].digests == {"p": "cc"}


def test_digests_are_stored_at_once_for_committers_with_external_effects(desk: Desk) -> None:
    desk.planning(Source(2))
    planning = Planning(desk.books, Source(2), lambda: desk.now, external=True)
    planning.plan(1, replay=False)
    planning.save()
    planning.processed([outcome(1, digests={"p": "aa"})])
    assert desk.books.metas()[1].digests == {"p": "aa"}


def test_actual_extents_are_stored_once_the_tasks_have_reported(desk: Desk) -> None:
    planning = planned(desk, Source(2, parts=True), 1)
    planning.save()
    assert planning.carried(1) == {}
    planning.processed([outcome(1, parts={"0": {"batch": [0, 2]}})])
    assert desk.books.metas()[1].document == {"taken": 1, "parts": {"0": {"batch": [0, 2]}}}
    assert planning.carried(2) == {"0": {"batch": [0, 2]}}


@pytest.mark.parametrize("opaque", [False, True])
def test_extents_of_a_failed_txid_are_kept_if_its_replay_must_be_exact(opaque: bool, desk: Desk) -> None:
    planning = planned(desk, Source(2, opaque=opaque, parts=True), 1)
    planning.save()
    planning.emitted(outcome(1, parts={"0": {"batch": 7}}, error=ERROR))
    assert desk.books.metas()[1].document["parts"] == (None if opaque else {"0": {"batch": 7}})


def test_forget_returns_the_txids_of_removed_plans(desk: Desk) -> None:
    planning = planned(desk, Source(5), 3)
    assert planning.forget(3) == [1, 2]
    assert planning.forget(3) == []
    assert planning.document(3) == {"taken": 3}
