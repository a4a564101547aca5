"""Starts that are fenced while they create tables: they create nothing more, and what they left is taken over."""

import shutil
import stat
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from recovery_cases import ended

from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.books.books import Books
from txstorm.books.records import Identity
from txstorm.errors import FencedError
from txstorm.ledger import paths as names
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.open import open_ledger
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.rewind import rewind
from txstorm.operations.savepoints import create_savepoint
from txstorm.results.views import SinkView, StateView
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.tables.identity import table_ref
from txstorm.storage.tables.intent import STAGED
from txstorm.storage.tables.table import DeltaTableState, open_table

WORDS = [["a"], ["b"], ["a"], ["c"], ["a"], ["b"]]
NEW = ("changes/more", "state/more", "sinks/extra", "dead_letters")


def go(data_dir: Path, txids: int, *, new: bool = False, **options: Any) -> None:
    """Run the old code, or the new one, which has three more tables, until `txids` transactions are committed."""
    spout = MemoryTransactionalSpout({0: WORDS[:txids]}, ["word"], 1)
    builder = TransactionalTopologyBuilder("words", "words", spout)
    builder.set_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    if new:
        builder.set_bolt("more", CountByKey("word", table="more")).fields_grouping("words", ["word"])
        builder.set_committer_bolt("keep", DeltaSink("extra", {"word": str}), 1).global_grouping("words")
        options["settings"] = {"on_error": "dead_letter"}
    assert ended(builder.build_topology(), data_dir, **options).committed == txids


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a data directory in which a fenced start of the new code has left the named table.

    It slept between the ledger's answer and the creation, while an operator rewound to txid 1 and the old code
    committed up to txid 3.
    """

    def made(uri: str) -> Path:
        data_dir = tmp_path / "data"
        go(data_dir, 2, ledger="memory")
        real = DeltaTableState.create

        def late(*args: Any) -> DeltaTableState:
            if args[2].uri == uri:
                MemoryLedger(beside=open_ledger(data_dir, create=False)).expire()
                monkeypatch.setattr(DeltaTableState, "create", real)
                rewind(data_dir, 1)
                go(data_dir, 3)
            return real(*args)

        monkeypatch.setattr(DeltaTableState, "create", late)
        with pytest.raises(FencedError):
            go(data_dir, 4, new=True)
        assert open_table(data_dir, table_ref(uri)).owner.timeline == 0
        return data_dir

    return made


@pytest.mark.parametrize("leads", [True, False])
def test_a_start_whose_identity_was_written_by_another_start_goes_on_only_if_it_leads(tmp_path, monkeypatch, leads):
    real, data_dir = Books.write_identity, tmp_path / "data"

    def late(books: Books, identity: Identity, known: Identity | None) -> bool:
        monkeypatch.setattr(Books, "write_identity", real)
        ledger = MemoryLedger(beside=books.ledger)
        if not leads:
            ledger.expire()
            ledger.acquire("another")
        Books(ledger, data_dir / "intents").write_identity(Identity("words", "0a"), None)
        return books.write_identity(identity, known)

    monkeypatch.setattr(Books, "write_identity", late)
    with nullcontext() if leads else pytest.raises(FencedError):
        go(data_dir, 3, ledger="memory")
    assert Books(open_ledger(data_dir, create=False), data_dir / "intents").identity().incarnation == "0a"
    assert (data_dir / "format.json").exists() is leads


@pytest.mark.parametrize("uri", NEW)
def test_an_empty_table_that_a_fenced_start_left_is_taken_over(left, uri):
    data_dir = left(uri)
    create_savepoint(data_dir, "kept")
    go(data_dir, 5, new=True)
    _check_new(data_dir, uri, since=3)


@pytest.mark.parametrize("uri", NEW[:3])
def test_a_rewind_and_a_rebuilt_ledger_accept_what_a_fenced_start_left(left, uri):
    data_dir = left(uri)
    copy = data_dir.with_name("copy")
    shutil.copytree(data_dir, copy)
    recover(copy, ledger=f"sqlite:{copy}/ledger.db")
    go(copy, 5, new=True)
    _check_new(copy, uri, since=3)
    rewind(data_dir, 2)
    go(data_dir, 4, new=True)
    _check_new(data_dir, uri, since=2)


def _check_new(data_dir: Path, uri: str, since: int) -> None:
    """Check that the new tables hold what was committed after txid `since`, and that the table `uri` says so."""
    words = [word for (word,) in WORDS[since : since + 2]]
    assert StateView(data_dir, "more").to_pylist() == [{"word": word, "n": 1} for word in sorted(words)]
    assert [row["word"] for row in SinkView(data_dir, "extra").to_pylist()] == words
    table = open_table(data_dir, table_ref(uri))
    timeline = open_table(data_dir, table_ref("changes/counts")).owner.timeline
    assert (table.since(), table.owner.timeline) == (since, timeline)


class Fence:
    """Another coordinator raises the epoch again, `at` calls of the ledger after the start has; both are noted."""

    def __init__(self, data_dir: Path, at: int) -> None:
        self._data_dir, self._at = data_dir, at
        self.calls: list[str] = []
        self.before: dict[str, object] | None = None

    def called(self, ledger: SqliteLedger, name: str, first: Any) -> None:
        """Note a call that the start has made; it is fenced if the call is the one chosen."""
        raises = name == "commit" and first[-1].path == names.EPOCH
        if self.before is None and (self.calls or raises):
            self.calls.append(first if name == "get" else name)
            if len(self.calls) == self._at:
                self.before = content(self._data_dir)
                Books(ledger, self._data_dir / "intents").raise_epoch()


def content(data_dir: Path) -> dict[str, object]:
    """Return file or directory → what tells whether it was changed; without the ledger."""
    found = {path.relative_to(data_dir): path.stat() for path in data_dir.rglob("*")}
    return {
        str(path): None if stat.S_ISDIR(found[path].st_mode) else (found[path].st_ino, found[path].st_mtime_ns)
        for path in found
        if not path.name.startswith("ledger.db")
    }


def created(before: dict[str, object], after: dict[str, object]) -> set[str]:
    """Return the tables and files that were created, altered or removed, and that no epoch protects."""
    changed = {Path(path) for path, _ in before.items() ^ after.items()}
    tables = {path: "/".join(path.parts[: 1 if path.parts[0] == "dead_letters" else 2]) for path in changed}
    return {
        table
        for path, table in tables.items()
        if str(path) not in ("sinks", "dead_letters")  # their only table is counted
        and f"/{STAGED}/" not in str(path)
        and not (path.parent.name == "_delta_log" and f"{table}/_delta_log" in before)
    }


def _reported(name: str, report: Callable[[SqliteLedger, str, Any], None]) -> Callable[..., Any]:
    """Return the method `name` of a ledger, which calls `report` when it is done."""
    real = getattr(SqliteLedger, name)

    def call(ledger: SqliteLedger, first: Any, **options: Any) -> Any:
        answer = real(ledger, first, **options)
        report(ledger, name, first)
        return answer

    return call


def test_a_start_creates_nothing_after_an_answer_of_the_ledger_that_does_not_say_that_it_leads(tmp_path, monkeypatch):
    go(tmp_path / "base", 2)
    for name in ("get", "scan", "children", "commit"):
        monkeypatch.setattr(SqliteLedger, name, _reported(name, lambda *call: fence.called(*call)))
    data_dir, at, fenced = tmp_path / "data", 0, True
    while fenced:
        at += 1
        shutil.copytree(tmp_path / "base", data_dir)
        fence = Fence(data_dir, at)
        with suppress(FencedError):
            go(data_dir, 3, new=True)
        fenced = fence.before is not None
        made = created(fence.before, content(data_dir)) if fenced else set()
        # A pause between the answer and what relies on it cannot be excluded: one table, or one file, at most.
        assert len(made) <= (fence.calls[-1] == names.EPOCH), (at, fence.calls[-1], made)
        shutil.rmtree(data_dir)
    assert at > 20
