"""The books of a topology: the ledger entries that a coordinator writes, tested with the in-memory ledger."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from txstorm.books.books import Books
from txstorm.books.records import Identity, Meta, with_digests
from txstorm.errors import FencedError, LedgerCorrupt
from txstorm.ledger import paths as names
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import MAX_COMMIT, MAX_VALUE, Check, Delete, Op, Put
from txstorm.ledger.values import decode_value
from txstorm.storage.tables.intent import Intent, TxidRecord


def row(txid):
    """Return the history row written when a txid is completed (P8)."""
    return {"timeline": 0, "txid": txid, "attempt": txid, "stamp": txid, "first": txid, "last": txid}


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def books(ledger: MemoryLedger, tmp_path: Path) -> Books:
    made = Books(ledger, tmp_path)
    made.raise_epoch()
    return made


@pytest.fixture
def pair(ledger: MemoryLedger, tmp_path: Path) -> tuple[Books, Books]:
    """Return the books of two coordinators over one ledger."""
    return Books(ledger, tmp_path), Books(MemoryLedger(beside=ledger), tmp_path)


def intent(*txids: int, epoch: int = 1) -> Intent:
    records = tuple(TxidRecord(txid, txid * 10, f"d{txid}", {"at": txid}, txid) for txid in txids)
    return Intent("words", "0a", 0, epoch, records, ())


def test_a_new_ledger_knows_nothing_and_keeps_identity_failures_and_partitions_without_storms_paths(
    books: Books,
) -> None:
    assert books.identity() is None
    assert (books.currtx(), books.intents()) == (1, [])
    assert [books.metas(), books.tables(), books.history(), books.failures()] == [{}] * 4
    books.write_identity(Identity("words", "0a", 2, "f"), None)
    assert books.identity() == Identity("words", "0a", 2, "f")
    books.write_failure(3, {"count": 1, "cause": "first"})
    books.write_failure(3, {"count": 2, "cause": "x" * 10_000})
    assert books.failures() == {3: {"count": 2, "cause": "x" * 4000}}
    books.write_metas({1: Meta(parts(p0={"batch": 1}), 1)})
    assert books.ledger.children(names.USER) == []


def test_a_stale_coordinator_cannot_undo_a_rewind_by_writing_its_identity(books: Books, tmp_path: Path) -> None:
    old, rewound = Identity("words", "0a", 0, "f"), Identity("words", "0a", 1, "f")
    books.write_identity(old, None)
    Books(MemoryLedger(beside=books.ledger), tmp_path).write_identity(rewound, old)
    for known in (old, None):
        assert not books.write_identity(Identity("words", "0a", 0, "g"), known)
        assert books.identity() == rewound


def test_of_two_processes_claiming_a_new_ledger_concurrently_one_succeeds(ledger, pair, monkeypatch) -> None:
    (first, second), commit = pair, ledger.commit

    def later(ops: Sequence[Op], *, durable: bool = True) -> None:
        second.write_identity(Identity("words", "0b"), None)
        commit(ops, durable=durable)

    monkeypatch.setattr(ledger, "commit", later)
    assert not first.write_identity(Identity("words", "0a"), None)
    assert first.identity() == Identity("words", "0b")


def test_a_coordinator_that_pauses_after_raising_the_epoch_is_fenced_by_its_successor(
    ledger: MemoryLedger, pair: tuple[Books, Books], monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, second), commit = pair, ledger.commit

    def sleepy(ops: Sequence[Op], *, durable: bool = True) -> None:
        commit(ops, durable=durable)
        monkeypatch.setattr(ledger, "commit", commit)
        second.raise_epoch()

    monkeypatch.setattr(ledger, "commit", sleepy)
    assert (first.raise_epoch(), second.epoch) == (1, 2)
    with pytest.raises(FencedError, match="epoch 1 is no longer the newest"):
        first.decide(intent(1))


def test_every_coordinator_has_a_higher_epoch_and_fences_its_predecessor(books: Books, tmp_path: Path) -> None:
    second = Books(MemoryLedger(beside=books.ledger), tmp_path)
    assert (books.epoch, second.raise_epoch()) == (1, 2)
    writes = [
        lambda: books.write_metas({1: Meta({}, 1)}),
        lambda: books.decide(intent(1)),
        lambda: books.complete(1, {}, []),
        lambda: books.write_failure(1, {"count": 1, "cause": "no"}),
        lambda: books.write_tables({"a": 1}),
    ]
    for write in writes:
        with pytest.raises(FencedError, match="epoch 1 is no longer the newest"):
            write()
    assert second.currtx() == 1
    assert second.metas() == {}
    second.complete(1, {}, [])
    assert second.currtx() == 2


def test_of_two_coordinators_raising_the_epoch_concurrently_one_is_rejected(ledger, pair, monkeypatch) -> None:
    (first, second), get = pair, ledger.get

    def interrupted(path: str):
        found = get(path)
        monkeypatch.setattr(ledger, "get", get)
        second.raise_epoch()
        return found

    monkeypatch.setattr(ledger, "get", interrupted)
    with pytest.raises(FencedError, match="another coordinator has raised the epoch at the same time"):
        first.raise_epoch()
    assert second.epoch == 1


def test_metadata_survives_a_round_trip(books: Books) -> None:
    first = Meta({"starts": {"0": 0}}, 5)
    books.write_metas({9: first, 10: first, 11: first})
    books.write_metas({10: with_digests(first, {"real": 1}, {"0": "aa"})}, remove=[9])
    assert list(books.metas()) == [10, 11]
    assert books.metas()[10] == Meta({"real": 1}, 5, {"0": "aa"})


def test_pending_metadata_is_written_with_the_next_commit(books: Books) -> None:
    books.write_metas({txid: Meta({}, 1) for txid in (1, 2, 3)})
    read = {txid: Meta({}, 1, {"0": "aa"}) for txid in (1, 2, 3)}
    books.note_metas(read)
    assert books.metas()[2] == Meta({}, 1)
    books.write_metas({3: Meta({"later": 1}, 1)}, remove=[1])
    assert books.metas() == {2: read[2], 3: Meta({"later": 1}, 1)}
    books.decide(intent(2))
    assert books.metas()[2] == read[2]


def test_a_decision_is_made_once(books: Books) -> None:
    books.decide(intent(1, 2))
    assert books.live_intents() == [intent(1, 2)]
    with pytest.raises(FencedError):
        books.decide(intent(2))


def test_a_group_is_completed_in_one_write(books: Books) -> None:
    """Completing a group advances the current txid and writes all its records in one commit (conformance row T12)."""
    books.write_metas({txid: Meta({}, 1) for txid in (1, 2)})
    books.decide(intent(1, 2))
    books.complete(2, {"changes/a": 2}, [row(1), row(2)], [Delete(names.meta_path(1))])
    assert books.currtx() == 3
    assert books.tables() == {"changes/a": 2}
    assert books.history() == {2: [row(1), row(2)]}
    assert list(books.metas()) == [2]
    assert books.live_intents() == []
    assert books.intents() == [intent(1, 2)]
    books.forget_history([2])
    assert books.history() == {}


def test_long_metadata_is_stored_in_a_file_until_unreferenced(books: Books, tmp_path: Path) -> None:
    large = Meta({"files": "y" * MAX_VALUE}, 1)
    books.write_metas({1: large})
    assert len(list(tmp_path.iterdir())) == 1
    assert books.metas() == {1: large}
    books.sweep()
    assert books.metas() == {1: large}
    books.write_metas({}, remove=[1])
    books.sweep()
    assert list(tmp_path.iterdir()) == []


def test_an_intent_at_the_path_of_another_txid_is_corrupt(books: Books) -> None:
    books.decide(intent(1))
    value = books.ledger.get(names.intent_path(1))
    assert value is not None
    books.ledger.commit([Put(names.intent_path(7), value.value)])
    with pytest.raises(LedgerCorrupt, match=r"intents/7 holds the intent of txid 1"):
        books.intents()


class Counting(MemoryLedger):
    """An in-memory ledger that records the paths written by each commit."""

    def commit(self, ops, *, durable: bool = True) -> None:
        super().commit(ops, durable=durable)
        self.__dict__.setdefault("commits", []).append([op.path for op in ops if not isinstance(op, Check)])


def test_metadata_too_long_for_one_commit_is_written_in_several(tmp_path: Path) -> None:
    ledger = Counting()
    books = Books(ledger, tmp_path)
    books.write_metas({txid: Meta("x" * (MAX_VALUE - 1000), 1) for txid in range(1, 5)}, remove=[9])
    assert ledger.commits == [
        [names.meta_path(txid) for txid in range(1, MAX_COMMIT // MAX_VALUE + 1)],
        [names.meta_path(4), names.meta_path(9)],
    ]


def parts(**given: Any) -> dict[str, Any]:
    return {"parts": {name.removeprefix("p"): part for name, part in given.items()}}


def test_partitions_have_separate_entries_at_storms_paths(tmp_path: Path) -> None:
    ledger = Counting()
    books = Books(ledger, tmp_path)
    books.keep_partitions()
    books.write_metas({1: Meta({"parts": None}, 1), 2: Meta({"meta": 7}, 1)})
    assert ledger.children(names.USER) == []
    books.write_metas({1: Meta(parts(p0={"batch": [0, 5]}, p1={"kept": None}), 1)})
    books.write_metas({2: Meta(parts(p0={"batch": [5, 9]}, p1={"batch": "a"}), 1)})
    found = {txid: {p: ledger.get(names.user_path(p, txid)) for p in "01"} for txid in (1, 2)}
    assert [[p for p, entry in entries.items() if entry] for entries in found.values()] == [["0"], ["0", "1"]]
    assert decode_value(None, ledger.get("user/0/2").value) == [5, 9]
    # Partitions are written, replayed with different content, and removed in the same commit as the txid's metadata.
    assert ledger.commits[-1] == ["coordinator/meta/2", "user/0/2", "user/1/2"]
    books.write_metas({2: Meta(parts(p0={"batch": [5, 9]}, p1={"kept": None}), 1)})
    assert ledger.get("user/1/2") is None
    again = Books(ledger, tmp_path)
    again.keep_partitions()
    again.complete(2, {}, [], [Delete(names.meta_path(1))])
    assert ledger.commits[-1][-2:] == ["coordinator/meta/1", "user/0/1"]
    again.write_metas({}, remove=[2])
    assert ledger.scan("user/0") == ledger.scan("user/1") == {}
