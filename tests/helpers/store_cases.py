"""A small topology's tables, and steps of a run over them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crashes import crashing

from txstorm.api.state import KeyedState, SinkTable
from txstorm.recovery.take_over import check_tables, raise_epochs, roll_forward
from txstorm.state.commit_group import CommitGroup
from txstorm.state.store import RecordedTables, StateStore, StoreSettings
from txstorm.storage.tables.declared import declarations
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import Intent, TxidRecord

COUNTS = KeyedState("counts", key={"word": str}, value={"n": int})
TOTALS = KeyedState("totals", key={}, value={"n": int, "mean": float})
OUT = SinkTable("out", {"word": str, "n": int})
TOPOLOGY, INCARNATION = "words", "0a1b2c"


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
        **{key: changes.pop(key) for key in ("bounds", "log_retention", "log_entries", "max_lag") if key in changes}
    )
    declared = declarations(**{"states": {"count": [COUNTS, TOTALS]}, "sinks": {"count": [OUT]}, **changes})
    store = StateStore.open(Directory(data_dir), owner, declared, recorded, settings=settings, spark=spark)
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
    words.remove_many([word for word, n in counts.items() if n is None])
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
