"""Delta log entries written by txstorm: equal to those of delta-rs, with the same compare-and-set."""

import errno
import json
import os
import threading
import time

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from txstorm.clients.delta.archive import archive_entries
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import ConflictError, TableCorrupt

SCHEMA = pa.schema([("k", pa.string()), ("_txid", pa.int64())])
STATS = '{"numRecords": 1, "minValues": {"_txid": 1}, "maxValues": {"_txid": 1}, "nullCount": {"_txid": 0}}'
FILES = [
    DataFile("_txstorm/staged/a b-ü.parquet", 10, 5, STATS),
    DataFile("_txstorm/staged/1-2-3.parquet", 11, 6, STATS),
]
COMMITS = [
    Commit({"app": 1, "epoch": 2}, {"last": 1, "text": 'ü \n "', "txids": [{"txid": 1}]}, FILES, label="one"),
    Commit({"app": 2}, {"last": 2}, [DataFile("c.parquet", 3, 4, STATS)], FILES[:1], 1234, data_change=False),
    Commit({"epoch": 3}, {"kind": "epoch"}),
]
THEIRS = {"timestamp", "engineInfo", "clientVersion"}


def table(path, links: bool = True) -> DeltaHandle:
    made = DeltaHandle.create(path, SCHEMA, {}, Commit({"app": 0}, {"kind": "create"}))
    made._links = links
    return made


def actions(handle: DeltaHandle, version: int) -> list[tuple[str, dict]]:
    """Return the (kind, content) pairs of a version's actions, without author, time and null values."""
    lines = [json.loads(line) for line in handle.log_entry(version).read_text().splitlines()]
    return [
        (kind, {name: value for name, value in content.items() if value is not None and name not in THEIRS})
        for line in lines
        for kind, content in line.items()
    ]


def test_an_entry_equals_that_of_delta_rs(tmp_path):
    ours, theirs = table(tmp_path / "ours"), table(tmp_path / "theirs", links=False)
    for version, commit in enumerate(COMMITS, start=1):
        for handle in (ours, theirs):
            handle.commit(commit)
            assert handle.version == version
        written = json.loads(ours.log_entry(version).read_text().splitlines()[0])["commitInfo"]
        assert written["engineInfo"] == "txstorm"
        assert actions(ours, version) == actions(theirs, version)
    for handle in (ours, theirs):
        read = DeltaTable(str(handle.path))
        assert (read.version(), read.transaction_version("app"), read.transaction_version("epoch")) == (3, 2, 3)
        assert sorted(file.path for file in handle.files()) == ["_txstorm/staged/1-2-3.parquet", "c.parquet"]
        assert [one["last"] for one in handle.checked_infos()[1:3]] == [1, 2]


@pytest.mark.parametrize("links", [True, False])
def test_of_several_commits_of_the_same_version_one_wins(tmp_path, links):
    handles = [table(tmp_path / "t", links), *(DeltaHandle.open(tmp_path / "t") for _ in range(3))]
    for version in range(1, 9):
        won: list[int] = []
        start = threading.Barrier(len(handles))

        def commit(number: int, start=start, won=won, version=version) -> None:
            start.wait()
            try:
                handles[number].commit(Commit({"app": number, "round": version}, {"by": number}))
                won.append(number)
            except ConflictError:
                pass

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(len(handles))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        for handle in handles:
            handle.refresh()
            assert (handle.version, handle.app_version("app"), handle.app_version("round")) == (version, *won, version)


def test_a_stale_writer_whose_version_was_archived_conflicts(tmp_path):
    sleeper = table(tmp_path / "t")
    sleeper.commit(COMMITS[0])
    other = DeltaHandle.open(tmp_path / "t")
    for number in range(12):
        other.commit(Commit({"app": 10 + number}, {}))
        if number == 5:
            other.checkpoint(1)
    other.checkpoint(1)
    list(archive_entries(tmp_path / "t", 60, time.time() + 7200, 2))
    log = sorted(path.name for path in sleeper.log_entry(0).parent.iterdir())
    assert sleeper.log_entry(2).name not in log  # the file name is free
    with pytest.raises(ConflictError):
        sleeper.commit(COMMITS[1])
    assert sorted(path.name for path in sleeper.log_entry(0).parent.iterdir()) == log
    sleeper.refresh()
    assert (sleeper.version, sleeper.app_version("app")) == (13, 21)


def test_an_entry_in_place_of_an_archived_one_is_removed(tmp_path, monkeypatch):
    """A new entry is removed again if its version was archived between the writer's check and its hard link."""
    sleeper, link = table(tmp_path / "t"), os.link

    def late(source, target):
        (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").rename(tmp_path / "archived")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(ConflictError):
        sleeper.commit(COMMITS[0])
    assert list(sleeper.log_entry(0).parent.iterdir()) == []


def test_without_links_delta_rs_commits_and_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    handle = table(tmp_path / "t")

    def refused(source, target):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refused)
    for version, commit in enumerate(COMMITS, start=1):
        handle.commit(commit)
        assert handle.version == version
    assert "delta-rs" in handle.log_entry(1).read_text()
    assert DeltaTable(str(tmp_path / "t")).transaction_version("epoch") == 3
    assert not list(handle.log_entry(0).parent.glob("*.tmp"))
    handle = table(tmp_path / "full")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(TableCorrupt, match=r"version 1 cannot be committed: .*No space left"):
        handle.commit(COMMITS[0])
    assert [path.name for path in handle.log_entry(0).parent.iterdir()] == [f"{0:020d}.json"]
    monkeypatch.undo()
    handle.commit(COMMITS[0])
    assert handle.version == 1


def test_a_table_with_other_features_is_left_to_delta_rs(tmp_path):
    made = table(tmp_path / "t")
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    made.refresh()
    made.commit(Commit({"app": 1}, {"last": 1}))
    assert made.version == 2
    assert "delta-rs" in made.log_entry(2).read_text()
