"""Short logs: plain tables are created, and their logs read, without delta-rs, and as delta-rs reads them."""

import errno
import json
import os
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from seeded import seeded

from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import LOG, entry_name
from txstorm.clients.delta.window import FEW, NotPlainError, ShortLog, Window
from txstorm.errors import TableCorrupt

COLUMNS = pa.schema({"k": pa.string(), "_txid": pa.int64()})
VECTOR = {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
ADDED = {"path": "f", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}


def created(path):
    return DeltaHandle.create(path, COLUMNS, {"txstorm.x": "1"}, Commit({"app": 1}, {"kind": "create"}))


def short(path):
    return ShortLog.of(path, Window.newest(path), Schema.from_json)


def test_a_short_log_is_read_as_delta_rs_reads_it(tmp_path):
    rng, handle, files = seeded(), created(tmp_path), []
    for number in range(20):
        new = [DataFile(f"d {number}%{i}.parquet", i + 1, 7, json.dumps({"numRecords": i})) for i in range(3)]
        gone = rng.sample(files, len(files) // 2)
        handle.commit(Commit({"app": number, f"a{number % 3}": 1}, {"kind": "x"}, new[: rng.randrange(4)], gone))
        files = handle.files()
        if rng.random() < 0.2:
            handle.commit(Commit({}, {"kind": "y"}, properties={"txstorm.y": str(number)}))
        if files and rng.random() < 0.3:  # as a command of Spark that computes statistics does
            again = {**ADDED, "path": quote(rng.choice(files).path), "stats": json.dumps({"numRecords": 100 + number})}
            (tmp_path / LOG / entry_name(handle.version + 1)).write_text(json.dumps({"add": again}))
            handle = DeltaHandle.open(tmp_path)
            files = handle.files()
        mine, theirs = short(tmp_path), DeltaTable(str(tmp_path))
        named = [table.get_add_actions(flatten=True) for table in (mine, theirs)]
        rows = [pa.table(one).select(["path", "size_bytes", "modification_time", "num_records"]) for one in named]
        assert rows[0].to_pylist() == rows[1].to_pylist()
        assert mine.version() == theirs.version() == handle.version
        assert pa.schema(mine.schema().to_arrow()) == pa.schema(theirs.schema().to_arrow())
        for name in ("id", "name", "description", "partition_columns", "created_time", "configuration"):
            assert getattr(mine.metadata(), name) == getattr(theirs.metadata(), name)
        for app in ("app", "a0", "a1", "a2", "none"):
            assert mine.transaction_version(app) == theirs.transaction_version(app)


@pytest.mark.parametrize(
    "line",
    [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly"]}},
        {"add": {**ADDED, "deletionVector": VECTOR}},
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
        {"add": {"size": 1}},
        "no action",
    ],
)
def test_anything_that_txstorm_does_not_write_is_left_to_delta_rs(tmp_path, line):
    created(tmp_path)
    reader = short(tmp_path)
    (tmp_path / LOG / entry_name(1)).write_text(json.dumps(line))
    assert short(tmp_path) is None
    with pytest.raises(NotPlainError):
        reader.load_as_version(1)


def test_checkpoints_long_logs_and_logs_that_lack_entries_are_left_to_delta_rs(tmp_path):
    for name, last in (("checkpoint", 1), ("long", FEW), ("lacking", 2)):
        handle = created(tmp_path / name)
        for _ in range(last):
            handle.commit(Commit({}, {"kind": "x"}))
        assert (short(tmp_path / name) is None) is (name == "long")
    DeltaHandle.open(tmp_path / "checkpoint").checkpoint(1)
    (tmp_path / "lacking" / LOG / entry_name(1)).unlink()
    assert short(tmp_path / "checkpoint") is None
    assert short(tmp_path / "lacking") is None


def test_a_table_is_created_once_beside_what_a_crash_has_left(tmp_path):
    (tmp_path / LOG).mkdir()
    (tmp_path / LOG / "_commit_x.json.tmp").write_text("half")
    assert created(tmp_path).version == 0
    with pytest.raises(TableCorrupt, match="cannot be created"):
        created(tmp_path)


def test_without_hard_links_a_table_is_created_by_delta_rs(tmp_path, monkeypatch):
    def link(*paths):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", link)
    handle = created(tmp_path)
    assert handle.version == 0
    assert "delta-rs" in (tmp_path / LOG / entry_name(0)).read_text()
    assert handle.app_version("app") == 1
