"""The Delta table handle: compare-and-set, caching of one version, checkpoints, and reading parts of a table."""

import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from seeded import seeded
from table_steps import synced_paths

from txstorm.clients.delta import data_files
from txstorm.clients.delta.data_files import Selected, Wanted
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.footer_digest import check_seal
from txstorm.clients.delta.handle import DeltaHandle, stored_schema
from txstorm.clients.delta.log import is_table
from txstorm.errors import ConflictError, StateError, TableCorrupt
from txstorm.storage.tables.staging import StagedName, stage

SCHEMA = pa.schema([("k", pa.string()), ("_txid", pa.int64())])


@pytest.fixture
def handle(tmp_path):
    return DeltaHandle.create(tmp_path / "t", SCHEMA, {"own": "1"}, Commit({"app": 0}, {"kind": "create"}))


def add(handle, txid, keys=("a",), stats=True, app="app"):
    name = f"{txid}.parquet"
    pq.write_table(pa.table({"k": list(keys), "_txid": [txid] * len(keys)}, SCHEMA), handle.path / name)
    bounds = f'{{"numRecords": {len(keys)}, "minValues": {{"_txid": {txid}}}, "maxValues": {{"_txid": {txid}}}}}'
    file = DataFile(name, (handle.path / name).stat().st_size, 1, bounds if stats else "{}")
    handle.commit(Commit({app: txid}, {"last": txid}, [file]))
    handle.refresh()


def test_created_with_properties_and_transactions(tmp_path, handle):
    again = DeltaHandle.open(tmp_path / "t")
    assert (again.version, again.schema) == (0, SCHEMA)
    assert again.properties == {"own": "1", "delta.enableDeletionVectors": "false"}
    assert (again.app_version("app"), again.app_version("other")) == (0, None)
    with pytest.raises(TableCorrupt, match="the table cannot be created"):
        DeltaHandle.create(tmp_path / "t", SCHEMA, {}, Commit({}, {}))
    assert is_table(tmp_path / "t")
    assert not is_table(tmp_path)
    (tmp_path / "half/_delta_log").mkdir(parents=True)
    assert not is_table(tmp_path / "half")


def test_properties_are_synced_before_readers_see_them(handle, monkeypatch):
    add(handle, 1)
    properties = {"own": "2", "delta.logRetentionDuration": "interval 1 days"}
    with synced_paths(monkeypatch) as synced:
        handle.commit(Commit({"app": 1}, {"kind": "describe"}, properties=properties))
    assert synced[0].startswith(f"{handle.path}/_delta_log/_commit_")
    again = DeltaTable(handle.path)
    assert {**again.metadata().configuration, **handle.properties} == again.metadata().configuration
    assert (again.metadata().configuration["own"], again.metadata().id) == ("2", handle.id)
    assert again.schema() == DeltaTable(handle.path, version=1).schema()
    assert handle.read().num_rows == 1


def test_cached_data_is_never_older_than_the_version_of_the_handle(handle):
    other = DeltaHandle.open(handle.path)
    assert (handle.app_version("app"), other.app_version("app")) == (0, 0)
    add(handle, 1)
    assert (handle.app_version("app"), other.app_version("app")) == (1, 0)
    other.refresh()
    assert other.app_version("app") == 1
    handle.commit(Commit({"app": 2}, {}))
    other.refresh()
    other.commit(Commit({"app": 3, "epoch": 1}, {}))
    handle.refresh()  # its own commit, and a later one by another handle
    assert (handle.app_version("app"), handle.app_version("epoch")) == (3, 1)


def test_app_versions_come_from_checked_entries_if_there_is_no_checkpoint(handle, monkeypatch):
    for version in range(1, 4):
        handle.commit(Commit({"app": version, f"other {version}": 7}, {}))
    deltalake, asked = DeltaTable(str(handle.path)), []
    handle = DeltaHandle.open(handle.path)
    assert len(handle.checked_infos()) == 4
    handle.commit(Commit({"app": 4}, {}))
    monkeypatch.setattr(DeltaTable, "transaction_version", lambda _, app: asked.append(app))
    assert [handle.app_version(app) for app in ("app", "other 1", "none")] == [4, 7, None]
    assert asked == []
    monkeypatch.undo()
    assert [deltalake.transaction_version(app) for app in ("app", "other 1", "none")] == [3, 7, None]
    handle.checkpoint(1)
    handle = DeltaHandle.open(handle.path)
    handle.checked_infos()
    assert [handle.app_version(app) for app in ("app", "other 1", "none")] == [4, 7, None]


def test_a_handle_advances_with_its_own_commits_only(handle):
    other = DeltaHandle.open(handle.path)
    for version in (1, 2):
        handle.commit(Commit({"app": version}, {}))
        assert (handle.version, handle.app_version("app")) == (version, version)
    for _ in range(2):
        assert (other.version, other.app_version("app")) == (0, 0)
        with pytest.raises(ConflictError):
            other.commit(Commit({"app": 9}, {}))
    other.refresh()
    assert (other.version, other.app_version("app")) == (2, 2)


def test_a_handle_never_sees_files_of_a_later_version_than_its_own(handle):
    other = DeltaHandle.open(handle.path)
    add(handle, 1)
    handle.commit(Commit({"app": 2}, {}, [DataFile("2.parquet", 1)]))
    other.refresh()
    other.commit(Commit({"app": 3}, {}, [DataFile("3.parquet", 1)]))
    assert [file.path for file in handle.files()] == ["2.parquet", "1.parquet"]
    with pytest.raises(ConflictError):  # the next commit expects the version that was read
        handle.commit(Commit({"app": 3}, {}))


def test_history_has_only_txstorms_commits_newest_first(handle):
    for txid in range(1, 21):  # more than one read step
        add(handle, txid)
    entries = list(handle.history())
    assert [entry.version for entry in entries] == list(range(20, -1, -1))
    assert [entry.info.get("last") for entry in entries] == [*range(20, 0, -1), None]


def test_a_new_handle_starts_from_the_checkpoint(handle):
    add(handle, 1)
    assert handle.checkpoint(2) == []
    add(handle, 2)
    files = handle.checkpoint(2)
    assert [file.name for file in files] == [f"{2:020d}.checkpoint.parquet", "_last_checkpoint", "checkpoint.json"]
    assert all(file.exists() for file in files)
    for version in (0, 1):
        handle.log_entry(version).unlink()
    again = DeltaHandle.open(handle.path)
    assert (again.version, again.app_version("app"), again.checkpoint(1)) == (2, 2, [])
    add(handle, 3)  # the handle that wrote the checkpoint continues
    assert sorted(again.logged_paths()) == ["1.parquet", "2.parquet", "3.parquet"]


def test_reading_parts_of_a_table(handle):
    for txid in range(1, 6):
        add(handle, txid, stats=txid % 2 == 0)
    (handle.path / "4.parquet").unlink()  # not opened if its statistics exclude it
    assert sorted(handle.read(["_txid"], ("_txid", 1), ("_txid", 3))["_txid"].to_pylist()) == [2, 3]
    assert handle.read(low=("_txid", 4))["_txid"].to_pylist() == [5]
    with pytest.raises(TableCorrupt, match=r"t: a file of version 5 cannot be read: .*4\.parquet"):
        handle.read()
    assert handle.read(low=("_txid", 9)).num_rows == 0


def test_old_versions_stay_readable_after_files_are_removed(handle):
    add(handle, 1)
    handle.commit(Commit({}, {}, removes=handle.files(), removed_at=1))
    handle.refresh()
    assert (handle.files(), handle.read().num_rows) == ([], 0)
    assert handle.logged_paths() == {"1.parquet"}
    assert DeltaHandle.open(handle.path, 1).read().num_rows == 1
    with pytest.raises(TableCorrupt, match="cannot be read at version 9"):
        DeltaHandle.open(handle.path, 9)


def test_types_not_supported_by_delta_are_named():
    with pytest.raises(StateError, match="state 's': column 'x': Delta cannot store duration"):
        stored_schema("state 's'", pa.schema([("a", pa.int64()), ("x", pa.duration("us"))]))
    assert stored_schema("s", SCHEMA) == SCHEMA


@pytest.mark.parametrize("together", [1, 2000, 1 << 20])
def test_batches_of_many_files_come_in_their_order(handle, monkeypatch, together):
    monkeypatch.setattr(data_files, "_RUN_BYTES", together)
    for txid in (3, 1, 2, 5, 4):
        add(handle, txid, [f"{txid}{i}" for i in range(4)])
    found = list(handle.batches(("_txid", 1), ("_txid", 4), rows=3))
    keys = [row["k"] for batch in found for row in batch.to_pylist()]
    assert keys == [f"{t}{i}" for t in (2, 3, 4) for i in range(4)]
    assert max(batch.num_rows for batch in found) == 3


def test_a_slow_reader_of_many_files_holds_few_of_them(handle):
    random = np.random.default_rng(1)
    for txid in range(1, 31):
        add(handle, txid, random.integers(0, 1 << 62, 50_000).astype(str))
    before, most, total = pa.total_allocated_bytes(), 0, 0
    for batch in handle.batches(("_txid", 0), ("_txid", 30), rows=10_000):
        if total % (1 << 22) < batch.nbytes:
            time.sleep(0.2)  # the reader is slow: whatever is read ahead is read now
        total += batch.nbytes
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < total / 2


ROWS = pa.table({"word": ["cat", "dog", None], "n": [8, 7, 2], "_txid": [1, 1, 2], "_op": ["u", "u", "d"]})
NAME = StagedName(3, 7, 12345, "my.count", "all")


@pytest.fixture
def staged(tmp_path):
    return tmp_path / stage(tmp_path, ROWS, NAME).path


def rows_of(file):
    actions = pa.table({"path": [file.name], "size_bytes": [file.stat().st_size]})
    return Selected(file.parent, ROWS.schema, actions, Wanted()).table()


def test_written_rows_are_read_back_and_never_others_after_a_flipped_bit(staged):
    check_seal(staged)
    assert rows_of(staged).equals(ROWS)
    data = staged.read_bytes()
    for name in ("part-00000-4f3c.c000.snappy.parquet", "3-7-12345-my.count-all-0123456789abcdef.parquet"):
        other = staged.with_name(name)  # without a footer digest: not checked
        other.write_bytes(data)
        assert rows_of(other).equals(ROWS)
    rng, data, refused = seeded(), staged.read_bytes(), 0
    for at in range(len(data)):
        staged.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
        try:
            found = rows_of(staged)
            found.validate(full=True)
            assert found.equals(ROWS), f"byte {at}"
        except (OSError, pa.ArrowException):
            refused += 1
    assert refused > len(data) * 3 / 4


def renamed(data):
    at = data.index(b"word", data.index(b"schema"))
    return data[:at] + b"wore" + data[at + 4 :]


@pytest.mark.parametrize("damaged", [renamed, *(lambda data, left=left: data[:left] for left in (0, 5, 11, 300))])
def test_a_renamed_column_and_a_truncated_file_are_refused(staged, damaged):
    """A column of another name is not read as null."""
    staged.write_bytes(damaged(staged.read_bytes()))
    with pytest.raises(pa.ArrowInvalid, match="its footer is not the one that was written"):
        rows_of(staged)


def test_a_footer_longer_than_the_first_read(tmp_path):
    wide = pa.table({f"column_{number}": [number] for number in range(2000)} | {"_txid": [1]})
    file = tmp_path / stage(tmp_path, wide, NAME).path
    check_seal(file)
    data = bytearray(file.read_bytes())
    data[-100_000] ^= 1
    file.write_bytes(data)
    with pytest.raises(pa.ArrowInvalid, match="footer"):
        check_seal(file)
