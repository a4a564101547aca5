"""Test bench for state handles: one state with its key index, driven txid by txid."""

from collections.abc import Callable, Mapping
from typing import Any

from txstorm.api.state import KeyedState
from txstorm.state.index.index import StateIndex
from txstorm.state.keyed import StateGroup, TaskState

COUNTS = KeyedState("counts", key={"word": str}, value={"n": int})


def apply(index: StateIndex, rows: Mapping[Any, Any]) -> None:
    """Apply published rows to `index`: key → row, or None if the key was removed."""
    changed = {key: row for key, row in rows.items() if row is not None}
    gone = [key for key, row in rows.items() if row is None]
    index.apply(changed, gone, max((row[1] for row in changed.values()), default=0))


class Bench:
    """Test bench: one state with its index and commit group."""

    def __init__(self, state: KeyedState = COUNTS, index: StateIndex | None = None) -> None:
        self.state = state
        self.index = StateIndex(state) if index is None else index
        self.group = StateGroup(state, self.index)

    def open(self, txid: int, task: int = 0) -> TaskState:
        handle = self.group.handle("counter", task, txid)
        handle.active = True
        return handle

    def commit(self, txid: int, work: Callable[[TaskState], Any], publish: bool = True) -> Any:
        """Run `work` as the only task of `txid` through to the commit; return its result."""
        result = work(self.open(txid))
        self.group.end_txid(txid)
        if publish:
            self.group.apply(txid)
        return result

    def rows(self, first: int, last: int) -> list[dict[str, Any]]:
        """Return the change rows of the txids from `first` to `last`, without their key groups."""
        table = self.group.changes(first, last)
        return [] if table is None else table.drop_columns(["_kg"]).to_pylist()


def add(old: Any, n: Any) -> Any:
    """Return `old` plus `n`, with None as zero: the update function of a counter."""
    return (old or 0) + n


def in_memory(index: StateIndex) -> dict[Any, Any]:
    """Return the rows of `index` that are in memory: all of them if the index is small."""
    keys = list(index._cache.rows())
    return {key: row for key, row in zip(keys, index.rows(keys), strict=True) if row is not None}
