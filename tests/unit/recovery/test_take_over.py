"""Checks made at a start, before it takes over from a coordinator that may still be committing."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from runs import counting, ended

from txstorm import open_ledger, rewind
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.errors import FencedError, TableCorrupt
from txstorm.operations import rewind as rewind_module
from txstorm.recovery import take_over as leading
from txstorm.recovery.rewind import finish_rewind


def count(data_dir: Path, txids: int) -> None:
    """Run a word count over `data_dir` until `txids` transactions are committed."""
    assert ended(counting("abcd"[:txids], take=1), data_dir).committed == txids


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    """Yield the books of a data directory with two committed transactions, opened read-only."""
    count(tmp_path / "data", 2)
    ledger = open_ledger(tmp_path / "data", create=False, read_only=True)
    yield Books(ledger, tmp_path / "data" / "intents")
    ledger.close()


@pytest.fixture
def identity(books: Books) -> Identity:
    """Return the identity in these books before the test changes it."""
    found = books.identity()
    assert found is not None
    return found


@pytest.fixture
def late(tmp_path: Path, books: Books) -> Iterator[Books]:
    """Yield the books that a coordinator has opened for writing."""
    ledger = open_ledger(tmp_path / "data", create=False)
    yield Books(ledger, tmp_path / "data" / "intents")
    ledger.close()


def test_commits_during_the_check_are_read_again(tmp_path, books, identity, monkeypatch) -> None:
    real, looked = leading.check_tables, []

    def slowly(*args: Any, **options: Any) -> None:
        looked.append(args[1])
        if len(looked) == 1:
            count(tmp_path / "data", 4)
        real(*args, **options)

    monkeypatch.setattr(leading, "check_tables", slowly)
    leading.check(tmp_path / "data", books, identity)
    # The second check is made by the run that commits meanwhile.
    assert [set(recorded.values()) for recorded in looked] == [{2}, {2}, {4}]


def test_tables_ahead_of_an_unchanged_ledger_are_rejected(tmp_path: Path, books: Books, identity: Identity) -> None:
    old = tmp_path / "old"
    leading.check(tmp_path / "data", books, identity)
    old.write_bytes((tmp_path / "data" / "ledger.db").read_bytes())
    count(tmp_path / "data", 4)
    books.ledger.close()
    for rest in (tmp_path / "data").glob("ledger.db*"):
        rest.unlink()
    old.rename(tmp_path / "data" / "ledger.db")
    ledger = open_ledger(tmp_path / "data", create=False, read_only=True)
    try:
        with pytest.raises(TableCorrupt, match="the ledger expects it at txid 2, found 4"):
            leading.check(tmp_path / "data", Books(ledger, tmp_path / "data" / "intents"), identity)
    finally:
        ledger.close()


def test_a_rewind_during_the_first_check_is_no_damage(tmp_path: Path, books: Books, identity: Identity) -> None:
    """The tables are at other txids of another timeline then (found by simulation seed 424242)."""
    rewind(tmp_path / "data", 1)
    with pytest.raises(FencedError, match="it was rewound meanwhile; start again"):
        leading.check(tmp_path / "data", books, identity)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_coordinator_that_paused_during_a_rewind_or_the_decision_to_rewind_is_fenced(
    tmp_path, books, identity, late, monkeypatch, carried_out
) -> None:
    """Fenced as soon as a rewind is decided (found by simulation seed 2026, in schedules 12,080 and 319,249)."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, nullcontext() if carried_out else pytest.raises(KeyboardInterrupt):
        patched.setattr(rewind_module, "carry_out", rewind_module.carry_out if carried_out else die)
        rewind(tmp_path / "data", 1)
    before = late.standing()
    with pytest.raises(FencedError, match="expected timeline 0, as it was read at the start, found 1"):
        leading.take_over(tmp_path / "data", late, identity)
    assert late.standing() == before
    late.ledger.close()
    count(tmp_path / "data", 4)
    assert books.identity().timeline == 1


def test_a_rewind_completed_by_another_process_is_left_alone(tmp_path, books, monkeypatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(books, "rewind", lambda: None if raised else object())
    monkeypatch.setattr(books, "raise_epoch", lambda: raised.append(1))
    assert finish_rewind(tmp_path / "data", books) is None
    assert raised == [1]
