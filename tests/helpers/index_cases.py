"""Helpers of the key-index tests: bounds so small that most rows are evicted from memory to disk."""

from pathlib import Path
from typing import Any

from store_cases import COUNTS, INCARNATION, commit, open_store

from txstorm.api.state import KeyedState
from txstorm.state.index.disk import RowStores, belonging
from txstorm.state.index.index import Bounds, StateIndex

TINY = Bounds(memory=2_000, kept_from=4, behind=6, seconds=1e9)


def stores(path: Path, state: KeyedState = COUNTS, incarnation: str = INCARNATION, timeline: int = 0) -> RowStores:
    return RowStores(path, state, belonging(state, incarnation, timeline))


def disk_index(path: Path, state: KeyedState = COUNTS, bounds: Bounds = TINY, **arguments: Any) -> StateIndex:
    return StateIndex(state, stores(path, state).make, bounds=bounds, **arguments)


def words(first: int, last: int) -> dict[str, int]:
    return {f"w{i}": i for i in range(first, last)}


def main(data_dir: str) -> None:
    store = open_store(Path(data_dir), create=True, bounds=Bounds(2_000, 4, 3, 1e9, 0.0))
    for txid in range(1, 1_000):
        commit(store, txid, {f"w{(txid * 7 + i) % 50}": 1 for i in range(5)})
        print(txid, flush=True)
