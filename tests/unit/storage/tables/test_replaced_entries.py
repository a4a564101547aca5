"""Log entries overwritten by another writer such as Spark, which checks for an entry and then renames over it."""

import shutil
import threading

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from store_cases import commit, open_store
from table_steps import decided

from txstorm import faults
from txstorm.errors import BlockedError, TableCorrupt


class ForeignWriter:
    """A foreign writer that has checked that the next version does not exist, and then overwrites it by renaming."""

    def __init__(self, table, place):
        copy = place / "copy"
        shutil.copytree(table, copy)
        rows = pa.table({"word": ["theirs"], "n": pa.array([1], pa.int64()), "_txid": pa.array([None], pa.int64())})
        write_deltalake(str(copy), rows, mode="append")
        entries = sorted((copy / "_delta_log").glob("*.json"))
        (file,) = copy.glob("*.parquet")
        shutil.copy(file, table)
        self.made, self.entry = entries[-1], table / "_delta_log" / entries[-1].name

    def rename(self):
        assert self.entry.exists()
        self.made.replace(self.entry)


def words(table):
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["word"].to_pylist())


def test_a_commit_overwritten_before_its_group_completes_is_published_again(tmp_path, monkeypatch):
    store = open_store(tmp_path / "data", create=True)
    commit(store, 1, {"a": 1})
    foreign = ForeignWriter(tmp_path / "data/sinks/out", tmp_path)
    point, lock = faults.point, threading.Lock()

    def renamed(name):
        with lock:  # tables are published concurrently
            if name.endswith(".after") and foreign.entry.exists() and foreign.made.exists():
                foreign.rename()
        point(name)

    monkeypatch.setattr(faults, "point", renamed)
    commit(store, 2, {"b": 1})
    assert not foreign.made.exists()
    assert words(tmp_path / "data/sinks/out") == ["a", "b", "theirs"]
    monkeypatch.undo()
    commit(store, 3, {"c": 1})
    commit(open_store(tmp_path / "data", epoch=2), 4, {"d": 1}, epoch=2)
    assert words(tmp_path / "data/sinks/out") == ["a", "b", "c", "d", "theirs"]


def test_nothing_is_written_to_a_table_whose_completed_commit_was_overwritten(tmp_path):
    store = open_store(tmp_path / "data", create=True)
    commit(store, 1, {"a": 1})
    foreign = ForeignWriter(tmp_path / "data/sinks/out", tmp_path)
    commit(store, 2, {"b": 1})
    foreign.rename()
    _, intent = decided(store, 3, {"c": 1})
    with pytest.raises((TableCorrupt, BlockedError), match=r"sinks/out.*expected to be at txid 2"):
        store.publish(intent, 1)
    assert words(tmp_path / "data/sinks/out") == ["a", "theirs"]
