"""Upkeep with small bounds, so that little makes much of it; its scenario commits, with upkeep after each txid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from store_cases import JsonLedger, commit, open_store

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.storage.tables import rewrite as rewriting
from txstorm.storage.upkeep import compaction as compact
from txstorm.storage.upkeep import small_files as gathering

LAST = 8


def small(patch: Any) -> None:
    """Have `patch` (object, name, value) make the bounds small."""
    for module, name, value in (
        (rewriting, "FILE_ROWS", 8),
        (compact, "WINDOW_ROWS", 6),
        (compact, "LEAST_ROWS", 1),
        (gathering, "LEAST_FILES", 3),
        (gathering, "NEWEST", 1),
    ):
        patch(module, name, value)


def counts(txid: int) -> dict[str, int | None]:
    """Changes of one txid: some of 40 words are counted up, one is removed."""
    return {**{f"w{(txid * 5 + i) % 40}": 1 for i in range(9)}, f"w{(txid * 11) % 40}": None}


def keep_up(store: Any, kinds: tuple[str, ...] = ("state", "changes", "sinks")) -> list[str]:
    """All upkeep there is to do; returns the tables."""
    done = []
    for uri in ("state/counts", "state/totals", "changes/counts", "changes/totals", "sinks/out"):
        if uri.partition("/")[0] in kinds and (work := store.upkeep.begin(uri, 1)) is not None:
            for _ in work.steps():
                pass
            done += [uri] * store.upkeep.finish(work, 1)
    return done


def plain(data_dir: Path, table: str = "state/counts") -> list[tuple[Any, ...]]:
    """The rows of one table, for a reader without the topology's other tables."""
    rows = DeltaHandle.open(data_dir / table).read().to_pylist()
    return sorted(((row["word"], row["n"], row["_txid"]) for row in rows), key=lambda row: (row[0], row[2]))


def expected(last: int) -> dict[str, int]:
    """The words after txid `last`."""
    words: dict[str, int] = {}
    for txid in range(1, last + 1):
        for word, n in counts(txid).items():
            if n is None:
                words.pop(word, None)
            else:
                words[word] = words.get(word, 0) + n
    return words


def main(place: str) -> None:
    """The scenario "upkeep"."""
    data_dir = Path(place)
    small(setattr)
    ledger = JsonLedger(data_dir / "ledger.json")
    ledger.write(epoch=ledger.now["epoch"] + 1)
    epoch = ledger.now["epoch"]
    store = open_store(data_dir, create=epoch == 1, epoch=epoch)
    store.sweep([])
    for txid in range(store.last_txids()["changes/totals"] + 1, LAST + 1):
        commit(store, txid, counts(txid), epoch=epoch)
        keep_up(store)
    store.close()
