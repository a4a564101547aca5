"""Shared by tests of handles: a state over an index, driven txid by txid."""

from collections.abc import Callable, Mapping
from typing import Any

from txstorm.api.state import KeyedState
from txstorm.state.index.index import StateIndex
from txstorm.state.keyed import StateGroup, TaskState

COUNTS = KeyedState("counts", key={"word": str}, value={"n": int})


def apply(index: StateIndex, rows: Mapping[Any, Any]) -> None:
    """Have `index` take over published rows: key → row, None for a removal."""
    changed = {key: row for key, row in rows.items() if row is not None}
    gone = [key for key, row in rows.items() if row is None]
    index.apply(changed, gone, max((row[1] for row in changed.values()), default=0))


class Bench:
    """One state, its index and its group."""

    def __init__(self, state: KeyedState = COUNTS, index: StateIndex | None = None) -> None:
        self.state = state
        self.index = StateIndex(state) if index is None else index
        self.group = StateGroup(state, self.index)

    def open(self, txid: int, task: int = 0) -> TaskState:
        """The active handle of one task."""
        handle = self.group.handle("counter", task, txid)
        handle.active = True
        return handle

    def commit(self, txid: int, work: Callable[[TaskState], Any], publish: bool = True) -> Any:
        """Run one txid of one task to its end; returns what `work` does."""
        result = work(self.open(txid))
        self.group.end_txid(txid)
        if publish:
            self.group.apply(txid)
        return result

    def rows(self, first: int, last: int) -> list[dict[str, Any]]:
        """Change rows without the key group."""
        table = self.group.changes(first, last)
        return [] if table is None else table.drop_columns(["_kg"]).to_pylist()


def add(old: Any, n: Any) -> Any:
    """Counting."""
    return (old or 0) + n


def in_memory(index: StateIndex) -> dict[Any, Any]:
    """The rows of an index that are in memory: all of a small one."""
    keys = list(index._cache.rows())
    return {key: row for key, row in zip(keys, index.rows(keys), strict=True) if row is not None}
