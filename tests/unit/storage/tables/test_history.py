"""The history table: rows are appended incrementally, without duplicates, and read back in txid order."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from table_steps import history_row, interrupted, synced_paths

from txstorm.clients import files
from txstorm.clients.delta import log as delta_log
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import CHECKPOINT_EVERY, LOG, entry_name
from txstorm.errors import DataDirectoryError
from txstorm.storage.tables.history import append_history, check_history, read_history


def test_rows_come_back_and_appending_them_again_adds_nothing(tmp_path):
    assert append_history(tmp_path, []) == 0
    assert read_history(tmp_path).num_rows == 0
    assert list(tmp_path.iterdir()) == []
    assert append_history(tmp_path, [history_row(1), history_row(2, tuples=None, extents=None)]) == 2
    one, two = read_history(tmp_path).to_pylist()
    assert one["stamp"] == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert (json.loads(one["extents"]), json.loads(one["versions"])) == ({"p": [1]}, {"changes/counts": 1})
    assert (two["txid"], two["tuples"], two["extents"]) == (2, None, "null")
    assert append_history(tmp_path, [history_row(1), history_row(2)]) == 0
    assert append_history(tmp_path, [history_row(2), history_row(3)]) == 1
    assert read_history(tmp_path)["txid"].to_pylist() == [1, 2, 3]
    append_history(tmp_path, [history_row(2, 1), history_row(3, 1)])  # another timeline counts from where it begins
    found = [(row["timeline"], row["txid"]) for row in read_history(tmp_path).to_pylist()]
    assert found == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]


def test_log_entries_read_by_an_append_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(delta_log, "CHECKPOINT_MOST", 16)
    txids, lengths = range(1, 50), []
    for txid in txids:
        append_history(tmp_path, [history_row(txid)])
        lengths.append(len(DeltaHandle.open(tmp_path / "history").checked_infos()))
    assert 4 < max(lengths) <= 16
    check_history(tmp_path)
    assert read_history(tmp_path)["txid"].to_pylist() == [*txids]


@pytest.mark.parametrize("point", ["checkpoint.before", "checkpoint.after"])
def test_a_crash_while_the_log_is_truncated(tmp_path, point):
    with interrupted(point):
        for txid in range(1, CHECKPOINT_EVERY + 1):
            append_history(tmp_path, [history_row(txid)])
    assert append_history(tmp_path, [history_row(txid), history_row(txid + 1)]) == 1
    check_history(tmp_path)
    assert read_history(tmp_path)["txid"].to_pylist() == [*range(1, CHECKPOINT_EVERY + 2)]


def create_only(data_dir, monkeypatch):
    """Create the table, and fail before a row is appended; return the directory of its log."""
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr("txstorm.storage.tables.history._append", lambda *arguments: 1 // 0)
        append_history(data_dir, [history_row(1)])
    return data_dir / "history" / LOG


@pytest.mark.parametrize("left", [b"", b'{"commitInfo":{"oper', b'{"protocol":{"minReaderVersion":1}}'])
def test_a_table_whose_creation_a_power_failure_tore_is_created_again(tmp_path, monkeypatch, left):
    (create_only(tmp_path, monkeypatch) / entry_name(0)).write_bytes(left)
    check_history(tmp_path)
    assert read_history(tmp_path).num_rows == 0
    assert append_history(tmp_path, [history_row(1)]) == 1
    assert read_history(tmp_path)["txid"].to_pylist() == [1]


def test_the_first_log_entry_is_durable_before_the_next_one_is_written(tmp_path, monkeypatch):
    with synced_paths(monkeypatch) as synced:
        log = create_only(tmp_path, monkeypatch)
    assert [path.name for path in log.iterdir()] == [entry_name(0)]
    assert {str(log), str(log.parent), str(tmp_path)} <= set(synced)


def test_after_a_failed_sync_of_its_directory_all_names_in_it_are_renewed(tmp_path, monkeypatch):
    """A later sync that succeeds would make none of them durable, nor say so."""
    sync, failed, renewed = files.sync_file, [], []

    def fails_once(path):
        if path == tmp_path / "history" and not failed:
            failed.append(path)
            raise OSError(5, "injected")
        sync(path)

    monkeypatch.setattr(files, "sync_file", fails_once)
    monkeypatch.setattr(files, "renew", renewed.append)
    append_history(tmp_path, [history_row(1)])
    assert {path.name for path in renewed} == {"_txstorm", LOG}


def test_a_foreign_or_newer_table_is_refused(tmp_path):
    DeltaHandle.create(tmp_path / "history", pa.schema([("x", pa.int64())]), {"txstorm.history": "2"}, Commit({}, {}))
    with pytest.raises(DataDirectoryError, match="expected a history table of format 1, found '2'"):
        append_history(tmp_path, [history_row(1)])
    with pytest.raises(DataDirectoryError):
        read_history(tmp_path)
