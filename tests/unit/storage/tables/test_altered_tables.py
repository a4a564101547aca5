"""Tables that others change: with deltalake, or by renaming over log entries, as Spark does after its check."""

import shutil
import threading
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from store_cases import COUNTS, TOTALS, commit, open_store
from table_steps import decided, words_read

from txstorm import faults
from txstorm.errors import BlockedError, StateError, TableCorrupt
from txstorm.recovery.take_over import roll_forward
from txstorm.state.store import StateStore

TABLES = {"changes": "changes/counts", "merge": "state/counts"}


def states(layout):
    return {"count": [replace(COUNTS, layout=layout), TOTALS]}


def add_column(path):
    DeltaTable(str(path)).alter.add_columns(Field("more", PrimitiveType("string")))


def delete_rows(path):
    DeltaTable(str(path)).delete("word = 'a'")


def copied(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("layout", TABLES)
@pytest.mark.parametrize(
    ("alter", "at_the_start", "in_a_run"),
    [
        (add_column, r"'more' \(string\) is in the table, but not declared", "differs from the rows to publish"),
        (delete_rows, "changed its rows .operation DELETE", "changed its rows .operation DELETE"),
    ],
)
def test_altered_between_runs_and_during_a_run(tmp_path, layout, alter, at_the_start, in_a_run):
    path = tmp_path / TABLES[layout]
    store = open_store(tmp_path, create=True, states=states(layout))
    commit(store, 1, {"a": 1, "b": 2})
    alter(path)
    before = copied(path)
    with pytest.raises((StateError, TableCorrupt), match=at_the_start):
        open_store(tmp_path, states=states(layout))
    _, intent = decided(store, 2, {"a": 1})
    for _ in range(2):  # the run retries
        with pytest.raises(TableCorrupt, match=in_a_run):
            store.publish(intent, 1)
    with pytest.raises(TableCorrupt):
        roll_forward(tmp_path, intent, 2)
    assert {file: data for file, data in copied(path).items() if file in before} == before
    assert not {file for file in copied(path) if file not in before and file.parent.name == "_delta_log"}

    newest = max((path / "_delta_log").glob("*.json"))  # an older copy
    newest.unlink()
    again = open_store(tmp_path, states=states(layout), epoch=2)
    roll_forward(tmp_path, intent, 2)
    again.close()
    assert words_read(tmp_path) == {"a": 2, "b": 2}


@pytest.mark.parametrize("layout", TABLES)
def test_optimized_and_vacuumed(tmp_path, layout):
    """Commits continue after another writer has compacted the table's files and vacuumed its old versions."""
    store = open_store(tmp_path, create=True, states=states(layout))
    for txid in range(1, 5):
        commit(store, txid, {f"w{txid}": 1, "a": 1})
    table = DeltaTable(str(tmp_path / TABLES[layout]))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    commit(store, 5, {"a": 1})
    commit(open_store(tmp_path, states=states(layout), epoch=2), 6, {"a": 1}, epoch=2)
    assert words_read(tmp_path) == {"a": 6, **{f"w{txid}": 1 for txid in range(1, 5)}}


def test_users_may_change_the_rows_of_a_sink(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1, "b": 2})
    delete_rows(tmp_path / "sinks/out")
    commit(store, 2, {"a": 1})
    assert isinstance(open_store(tmp_path, epoch=2), StateStore)
    words = DeltaTable(str(tmp_path / "sinks/out")).to_pyarrow_table()["word"].to_pylist()
    assert sorted(words) == ["a", "b"]


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
