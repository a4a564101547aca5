"""Durable files: they survive a power failure, and a single failed sync is handled correctly."""

import errno
import json
import os
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from txstorm.clients.delta.entry import Commit, make_durable
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.writer_lock import share
from txstorm.clients.files import make_directories, rewrite, sync_file, sync_names, write_durably
from txstorm.errors import TableCorrupt


@pytest.fixture
def fail(monkeypatch):
    """Return a function that makes the next sync of a path with a given suffix fail, and returns all paths synced."""
    real, ends, synced = os.fsync, [], []

    def fsync(handle):
        path = os.readlink(f"/proc/self/fd/{handle}")
        synced.append(path)
        if ends and path.endswith(ends[0]):
            ends.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)

    def arm(end: str) -> list[str]:
        ends.append(end)
        return synced

    return arm


def test_a_failed_sync_names_the_file_and_a_file_whose_sync_fails_is_discarded(tmp_path, fail):
    write_durably(tmp_path / "a", b"old")
    fail("/a")
    with pytest.raises(OSError, match=r"Input/output error: it cannot be synced to the disk.*/a'"):
        sync_file(tmp_path / "a")
    fail(".tmp")
    with pytest.raises(OSError, match="synced"):
        write_durably(tmp_path / "a", b"new")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a", b"old")]


def test_a_file_is_renamed_again_before_its_directory_is_synced_again(tmp_path, fail, monkeypatch):
    synced, events = fail(tmp_path.name), []
    rename, fsync = Path.rename, os.fsync
    monkeypatch.setattr(Path, "rename", lambda path, target: (events.append("rename"), rename(path, target)))
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("sync"), fsync(handle)))
    write_durably(tmp_path / "a", b"new")
    assert synced.count(str(tmp_path)) == 2
    assert events == ["sync", "sync", "rename", "rename", "sync"]
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_a_directory_that_cannot_be_synced_twice_is_an_error(tmp_path, monkeypatch):
    def fails(_):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="cannot be synced"):
        sync_names(tmp_path, [])


def test_a_rewritten_file_is_a_new_inode_with_the_same_time_and_mode(tmp_path):
    file = tmp_path / "a"
    file.write_bytes(b"1")
    file.chmod(0o640)
    os.utime(file, ns=(1, 2_000_000_000))
    before = file.stat()
    rewrite(file)
    after = file.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_mtime_ns, 1)
    assert after.st_ino != before.st_ino
    rewrite(tmp_path / "gone")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


def test_directories_and_their_modes(tmp_path, fail):
    synced = fail("none")
    make_directories(tmp_path / "a" / "b", 0o700)
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o700
    assert set(synced) == {str(tmp_path), str(tmp_path / "a")}


@pytest.fixture
def handle(tmp_path):
    """Return a handle on a new table."""
    return DeltaHandle.create(tmp_path / "t", pa.schema([("n", pa.int64())]), {}, Commit({}, {"kind": "create"}))


@pytest.fixture
def shared(handle):
    """Return a handle on a table with a log entry and a data file as written by Spark, with a Hadoop checksum file."""
    share(handle.path)
    data = bytes(range(256)) * 5
    (handle.path / "part-0.parquet").write_bytes(data)
    sums = b"crc\0" + (512).to_bytes(4, "big")
    sums += b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    (handle.path / ".part-0.parquet.crc").write_bytes(sums)
    add = {"path": "part-0.parquet", "size": len(data), "partitionValues": {}, "modificationTime": 1, "stats": "{}"}
    actions = [{"commitInfo": {"operation": "WRITE"}}, {"add": {**add, "dataChange": True}}]
    handle.log_entry(1).write_text("\n".join(map(json.dumps, actions)))
    return handle


def inodes(handle: DeltaHandle) -> list[int]:
    return [path.stat().st_ino for path in (handle.path / "part-0.parquet", handle.log_entry(1))]


def test_files_of_spark_are_rewritten_only_after_a_failed_sync(shared, fail):
    before = inodes(shared)
    synced = fail("part-0.parquet")
    with pytest.raises(OSError, match=r"part-0\.parquet"):
        make_durable(shared.path, [shared.log_entry(1)])
    make_durable(shared.path, [shared.log_entry(1)], again=True)
    assert all(now != then for now, then in zip(inodes(shared), before, strict=True))
    assert Path(synced[-1]) == shared.log_entry(1).parent


def test_files_of_spark_that_the_disk_lost_are_not_rewritten(shared):
    file = shared.path / "part-0.parquet"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(TableCorrupt, match=r"part-0\.parquet: content differs from what was written.*checksums"):
        make_durable(shared.path, [shared.log_entry(1)], again=True)


def test_a_checkpoint_that_cannot_be_synced_is_discarded_and_its_files_are_renamed_again(handle, fail):
    for number in (1, 2):
        handle.commit(Commit({"app": number}, {"kind": "commit"}))
    fail(".json.tmp")
    with pytest.raises(TableCorrupt, match="synced"):
        handle.checkpoint(1)
    assert not [one for one in handle.log_entry(0).parent.iterdir() if "checkpoint" in one.name]
    synced = fail("_delta_log")
    before = len(synced)
    assert handle.checkpoint(1)
    assert sum(one.endswith("_delta_log") for one in synced[before:]) == 2
    assert sum("_again_" in one for one in synced[before:]) == 2
    assert DeltaHandle.open(handle.path).app_version("app") == 2
