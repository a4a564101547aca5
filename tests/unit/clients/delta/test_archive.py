"""Archiving the log of a Delta table keeps the log short and loses no entry."""

import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txstorm.clients.delta import archive
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import ARCHIVE, LOG
from txstorm.errors import TableCorrupt

LAST = 60


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return a handle on a table of LAST one-row commits, a checkpoint every five, about ten versions unarchived."""
    monkeypatch.setattr(archive, "KEPT_VERSIONS", 10)
    schema = pa.schema([("n", pa.int64())])
    handle = DeltaHandle.create(tmp_path, schema, {}, Commit({}, {"kind": "create"}))
    for n in range(1, LAST + 1):
        pq.write_table(pa.table({"n": [n]}, schema=schema), tmp_path / f"{n}.parquet")
        size = (tmp_path / f"{n}.parquet").stat().st_size
        handle.commit(Commit({"app": n}, {"n": n}, [DataFile(f"{n}.parquet", size)]))
        handle.refresh()
        handle.checkpoint(5)
        list(archive.archive_entries(tmp_path, 60, time.time() + 7200))
    return handle


def entries(path, where):
    return sorted(int(file.name[:20]) for file in (path / where).glob("*.json") if file.name[0] == "0")


def test_the_log_is_short_and_no_version_is_lost(table):
    logged, archived = entries(table.path, LOG), entries(table.path, ARCHIVE)
    assert 10 < len(logged) < 35
    assert [*archived, *logged] == list(range(LAST + 1))


def test_the_table_reads_as_before(table):
    again = DeltaHandle.open(table.path)
    assert (again.version, again.app_version("app")) == (LAST, LAST)
    assert sorted(again.read()["n"].to_pylist()) == list(range(1, LAST + 1))
    assert len(again.checked_infos()) <= 6
    assert again.logged_paths() == {f"{n}.parquet" for n in range(1, LAST + 1)}


@pytest.mark.parametrize("version", [0, 1, 7, 19, 25, 33, 47, 59])
def test_every_version_can_be_opened(table, version):
    old = DeltaHandle.open(table.path, version)
    assert old.version == version
    assert sorted(old.read()["n"].to_pylist()) == list(range(1, version + 1))


def test_the_history_continues_in_the_archive(table):
    assert [entry.info.get("n", 0) for entry in table.history()] == list(range(LAST, -1, -1))


def test_a_damaged_archived_entry_is_named(table):
    entry = table.path / ARCHIVE / f"{3:020d}.json"
    entry.write_text(entry.read_text().replace('"n":3', '"n":4'))
    with pytest.raises(TableCorrupt, match=f"{3:020d}.json of the log is damaged"):
        list(table.history())


def test_a_version_that_never_existed_is_rejected(table):
    with pytest.raises(TableCorrupt, match="at version 1000"):
        DeltaHandle.open(table.path, 1000)
