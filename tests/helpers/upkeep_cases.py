"""Upkeep with bounds so small that little data causes much of it, and a crash scenario with upkeep after every txid."""

from pathlib import Path
from typing import Any

from store_cases import commit, open_store
from table_steps import counted

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.storage.tables import rewrite as rewriting
from txstorm.storage.upkeep import compaction as compact
from txstorm.storage.upkeep import growth
from txstorm.storage.upkeep import small_files as gathering

LAST = 8


def small(patch: Any) -> None:
    """Set the upkeep bounds to small values through `patch`, which takes an object, a name and a value."""
    for module, name, value in (
        (rewriting, "FILE_ROWS", 8),
        (compact, "WINDOW_ROWS", 6),
        (growth, "LEAST_ROWS", 1),
        (gathering, "LEAST_FILES", 3),
        (gathering, "NEWEST", 1),
    ):
        patch(module, name, value)


def counts(txid: int) -> dict[str, int | None]:
    """Return the changes of one txid: some of 40 words are incremented, one is removed (None)."""
    return {**{f"w{(txid * 5 + i) % 40}": 1 for i in range(9)}, f"w{(txid * 11) % 40}": None}


def keep_up(store: Any, kinds: tuple[str, ...] = ("state", "changes", "sinks")) -> list[str]:
    done = []
    for uri in ("state/counts", "state/totals", "changes/counts", "changes/totals", "sinks/out"):
        if uri.partition("/")[0] in kinds and (work := store.upkeep.begin(uri, 1)) is not None:
            for _ in work.steps():
                pass
            done += [uri] * store.upkeep.finish(work, 1)
    return done


def plain(data_dir: Path, table: str = "state/counts") -> list[tuple[Any, ...]]:
    """Read the rows of one table with a reader that does not use the topology's other tables."""
    rows = DeltaHandle.open(data_dir / table).read().to_pylist()
    return sorted(((row["word"], row["n"], row["_txid"]) for row in rows), key=lambda row: (row[0], row[2]))


def expected(last: int) -> dict[str, int]:
    """Return the expected counts by word after txid `last`."""
    return counted(*(counts(txid) for txid in range(1, last + 1)))


def main(place: str) -> None:
    data_dir = Path(place)
    small(setattr)
    epoch = len(list(data_dir.glob("start-*"))) + 1
    (data_dir / f"start-{epoch}").touch()
    store = open_store(data_dir, create=epoch == 1, epoch=epoch)
    store.sweep([])
    for txid in range(store.last_txids()["changes/totals"] + 1, LAST + 1):
        commit(store, txid, counts(txid), epoch=epoch)
        keep_up(store)
    store.close()
