"""A small topology's tables, and a run over them whose ledger is a single JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crashes import crashing

from txstorm.api.state import KeyedState, SinkTable
from txstorm.recovery.table_checks import check_tables, raise_epochs, roll_forward
from txstorm.state.commit_group import CommitGroup
from txstorm.state.store import DeclaredResources, RecordedTables, StateStore, StoreSettings
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import Intent, TxidRecord

COUNTS = KeyedState("counts", key={"word": str}, value={"n": int})
TOTALS = KeyedState("totals", key={}, value={"n": int, "mean": float})
OUT = SinkTable("out", {"word": str, "n": int})
TOPOLOGY, INCARNATION = "words", "0a1b2c"
# What the txids of the crash tests do: word → how much it is counted up; None removes it.
PLAN: Mapping[int, Mapping[str, int | None]] = {
    1: {"a": 1, "b": 2},
    2: {"a": 1, "c": 5},
    3: {"b": None, "d": 1},
    4: {"b": 7},
}


def record(txid: int, attempt: int | None = None, digest: str = "d") -> TxidRecord:
    return TxidRecord(txid, attempt or txid * 10, f"{digest}{txid}", {"p": [txid, txid + 1]}, 1_000_000 * txid)


def open_store(data_dir: Path, *, create: bool = False, epoch: int | None = 1, **changes: Any) -> StateStore:
    """Open the store of these tables; `changes` override its arguments."""
    owner = TopologyIdentity(
        changes.pop("topology", TOPOLOGY), changes.pop("incarnation", INCARNATION), changes.pop("timeline", 0)
    )
    recorded = RecordedTables(create, changes.pop("committed", 0), changes.pop("recorded", None))
    spark = changes.pop("spark", None)
    settings = StoreSettings(
        **{key: changes.pop(key) for key in ("bounds", "log_retention", "max_lag") if key in changes}
    )
    resources = DeclaredResources(**{"states": {"count": [COUNTS, TOTALS]}, "sinks": {"count": [OUT]}, **changes})
    store = StateStore.open(data_dir, owner, resources, recorded, settings=settings, spark=spark)
    if epoch is not None:
        store.raise_epoch(epoch)
    return store


def crash_and_roll_forward(store: StateStore, intent: Intent, point: str) -> None:
    """Publish a decided group, crash at fault point `point`, and check that rolling it forward twice is idempotent."""
    recorded = store.last_txids()
    with crashing(point):
        store.publish(intent, 1)
    check_tables(store.data_dir, recorded, INCARNATION, [intent])
    raise_epochs(store.data_dir, recorded, TopologyIdentity(TOPOLOGY, INCARNATION), 2)
    assert roll_forward(store.data_dir, intent, 2) == roll_forward(store.data_dir, intent, 2)


def add(group: CommitGroup, txid: int, counts: Mapping[str, int | None]) -> None:
    """Add one txid of one committer task to `group`: count words and their total, and write the words to the sink."""
    resources = group.begin_txid(txid)
    words, totals = resources.state("count", 0, "counts"), resources.state("count", 0, "totals")
    sink = resources.sink("count", 0, "out")
    group.activate(True)
    gone = [word for word, n in counts.items() if n is None]
    words.remove_many(gone)
    words.update_many({word: n for word, n in counts.items() if n is not None}, lambda old, n: (old or 0) + n)
    total = sum(n or 0 for n in counts.values())
    totals.update((), lambda old: {"n": (old or {"n": 0})["n"] + total, "mean": total / 2})
    for word, n in counts.items():
        sink.append(word, n)
    group.end_txid(txid)


def intent_of(group: CommitGroup, records: list[TxidRecord], epoch: int = 1) -> Intent:
    return Intent(TOPOLOGY, INCARNATION, 0, epoch, tuple(records), tuple(group.stage(records, epoch)))


def commit(store: StateStore, first: int, *plan: Mapping[str, int | None], epoch: int = 1) -> Intent:
    """Commit one group of transactions from `first` on, from the handles to the index; return its intent."""
    group = store.group(first)
    for txid, counts in enumerate(plan, start=first):
        add(group, txid, counts)
    intent = intent_of(group, [record(first + i) for i in range(len(plan))], epoch)
    store.publish(intent, epoch)
    group.apply(intent.last)
    tidy(store)
    return intent


def tidy(store: StateStore) -> None:
    """Run the upkeep of all tables that a run does between two groups."""
    for table in store.tables.values():
        table.tidy()


def staged_files(data_dir: Path) -> list[str]:
    return sorted(str(file.relative_to(data_dir)) for file in data_dir.glob("*/*/_txstorm/staged/*"))


class JsonLedger:
    """A ledger in one JSON file, durably replaced at each write: epoch, currtx, recorded tables and the live intent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        fresh = {"epoch": 0, "currtx": 1, "tables": {}, "intent": None, "known": False}
        self.now: dict[str, Any] = json.loads(path.read_text()) if path.exists() else fresh

    def write(self, **changes: Any) -> None:
        self.now = {**self.now, **changes}
        made = self._path.with_suffix(".tmp")
        made.write_text(json.dumps(self.now))
        made.replace(self._path)

    def live(self) -> list[Intent]:
        return [Intent.from_json(self.now["intent"])] if self.now["intent"] else []


def run(data_dir: Path, sizes: tuple[int, ...] = (1, 2, 1), attempts: Callable[[int], int] = os.getpid) -> StateStore:
    """Take the lead, roll forward, and commit the rest of `PLAN` in groups, compacting after each; return the store."""
    ledger = JsonLedger(data_dir / "ledger.json")
    known, recorded = ledger.now["known"], ledger.now["tables"]
    check_tables(data_dir, recorded, INCARNATION, ledger.live())
    ledger.write(epoch=ledger.now["epoch"] + 1, known=True)
    epoch = ledger.now["epoch"]
    raise_epochs(data_dir, recorded, TopologyIdentity(TOPOLOGY, INCARNATION), epoch)
    for intent in ledger.live():
        roll_forward(data_dir, intent, epoch)
        tables = {**recorded, **{table.uri: intent.last for table in intent.tables}}
        ledger.write(currtx=intent.last + 1, tables=tables, intent=None)
    committed = ledger.now["currtx"] - 1
    store = open_store(data_dir, create=not known, epoch=epoch, committed=committed, recorded=list(recorded))
    ledger.write(tables=store.last_txids())
    store.sweep(ledger.live())
    for size in sizes:
        txids = [txid for txid in sorted(PLAN) if txid >= ledger.now["currtx"]][:size]
        if txids:
            _commit_plan(store, ledger, txids, epoch)
    return store


def _commit_plan(store: StateStore, ledger: JsonLedger, txids: list[int], epoch: int) -> None:
    group = store.group(txids[0])
    for txid in txids:
        add(group, txid, PLAN[txid])
    intent = intent_of(group, [record(txid, os.getpid()) for txid in txids], epoch)
    ledger.write(intent=intent.to_json())
    store.publish(intent, epoch)
    group.apply(intent.last)
    ledger.write(currtx=intent.last + 1, tables=store.last_txids(), intent=None)
    store.upkeep.compact()


def main(data_dir: str) -> None:
    """Run the crash scenario "tables"."""
    run(Path(data_dir))
