"""Intents survive a JSON round trip; malformed ones are rejected, and stored paths that lead outside their table."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

from txstorm.books.rewind import Rewind, RewoundTable
from txstorm.clients.delta.entry import Commit, DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import DataDirectoryError, LedgerCorrupt, TableCorrupt
from txstorm.storage.tables.intent import Intent, IntentTable, Staged, TxidRecord, decode, encode, encode_schema
from txstorm.storage.tables.staging import StagedName, checked_bytes, stage

ROWS = pa.table({"n": [1], "_txid": pa.array([1], pa.int64())})
PATHS = ["../../victim", "/tmp/victim", "file:///tmp/victim", "", None, 7]
PATHS += [f"_txstorm/staged/{path}" for path in ("../../../../victim", "", "..", "a/../../../b.parquet")]


@pytest.fixture
def staged(tmp_path):
    return stage(tmp_path / "maps/counts", ROWS, StagedName(1, 1, 1, "keep", "0"))


@pytest.fixture
def intent(staged):
    table = IntentTable("map", "counts", "maps/counts", encode_schema(ROWS.schema), 0, staged)
    return Intent("t", "i", 0, 1, (TxidRecord(1, 1, "", None, 0),), (table,))


def rewritten(intent, **fields):
    """Return the JSON of an intent, with `fields` replaced in its first table."""
    found = intent.to_json()
    found["tables"][0].update(fields)
    return found


@pytest.mark.parametrize("path", PATHS)
def test_an_intent_with_another_path_is_refused(intent, path):
    staged = {**intent.tables[0].staged.to_json(), "path": path}
    with pytest.raises(LedgerCorrupt, match="expected the path of a file in _txstorm/staged"):
        Intent.from_json(rewritten(intent, staged=staged))
    with pytest.raises(LedgerCorrupt, match="expected the path of a file in _txstorm/staged"):
        Intent.from_json(rewritten(intent, more=[staged]))


URIS = ["maps/../..", "/tmp", "maps", "maps/a/b", "", None, "maps/other", "state/counts"]
TABLES = [{"uri": uri} for uri in URIS] + [{"kind": "other"}, {"kind": "dead-letters"}]
TABLES += [{"name": "../counts", "uri": "maps/../counts"}, {"name": "", "uri": "maps/"}]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_an_intent_with_another_directory_is_refused(intent, table):
    with pytest.raises(LedgerCorrupt, match="expected a table of this data directory"):
        Intent.from_json(rewritten(intent, **table))


@pytest.mark.parametrize("path", ["../../victim", "/tmp/victim", "a/../../b", "file:/tmp/victim", None])
def test_a_rewind_with_another_path_is_refused(path):
    table = RewoundTable("sinks/out", 1, ("a.parquet",), (DataFile("b.parquet", 1),))
    rewind = Rewind("t", "i", 1, 1, 1, None, (table,))
    assert Rewind.from_json(rewind.to_json()) == rewind
    for other in (replace(table, removes=(path,)), replace(table, adds=(DataFile(path, 1),))):
        with pytest.raises(LedgerCorrupt, match="expected format 'txstorm-rewind'"):
            Rewind.from_json(replace(rewind, tables=(other,)).to_json())


@pytest.mark.parametrize("link", ["file", "directory"])
def test_a_staged_file_reached_through_a_link_is_rejected(tmp_path, staged, link):
    table, away = tmp_path / "maps/counts", tmp_path / "away"
    checked_bytes(table, staged)
    moved = table / staged.path if link == "file" else table / "_txstorm"
    shutil.move(moved, away)
    moved.symlink_to(away)
    with pytest.raises(TableCorrupt, match="symbolic link"):
        checked_bytes(table, staged)


def test_a_table_reached_through_a_link_is_accepted(tmp_path, staged):
    shutil.move(tmp_path / "maps", tmp_path / "away")
    (tmp_path / "maps").symlink_to(tmp_path / "away")
    checked_bytes(tmp_path / "maps/counts", staged)


@pytest.mark.parametrize("path", ["../victim.parquet", "{}/victim.parquet"])
def test_a_log_that_names_files_outside_its_table_is_rejected(tmp_path, path):
    import pyarrow.parquet as pq

    pq.write_table(ROWS, tmp_path / "victim.parquet")
    size = (tmp_path / "victim.parquet").stat().st_size
    handle = DeltaHandle.create(tmp_path / "table", ROWS.schema, {}, Commit({}, {"kind": "create"}))
    handle.commit(Commit({}, {"kind": "commit"}, [DataFile(path.format(tmp_path), size)]))
    for read in (handle.files, handle.read):
        with pytest.raises(TableCorrupt, match="expected a path below the table"):
            read()


SCHEMA = pa.schema([("k", pa.string()), ("t", pa.timestamp("us", tz="UTC")), ("_txid", pa.int64())])
STAGED = Staged("_txstorm/staged/1-4-9-c-all-aa.parquet", 100, "ab", 3, '{"numRecords": 3}', 3, 4)
TABLE = IntentTable("changes", "counts", "changes/counts", encode_schema(SCHEMA), 2, STAGED)
RECORDS = (TxidRecord(3, 7, "d3", {"files": [["a.txt", 0, 10]]}, 123), TxidRecord(4, 2**62, "d4", None, 124))
INTENT = Intent("words", "0a1b", 0, 5, RECORDS, (TABLE,))


def test_round_trip_with_a_newer_version_for_several_files_per_table():
    assert decode(encode(INTENT)) == INTENT
    assert encode(decode(encode(INTENT))) == encode(INTENT)
    assert decode(encode(INTENT)).tables[0].arrow_schema() == SCHEMA
    assert (INTENT.first, INTENT.last) == (3, 4)
    assert decode(document(more="a field of a later minor version is ignored")) == INTENT
    # So that an older txstorm cannot publish just the first of several files.
    several = replace(INTENT, tables=(replace(TABLE, more=(replace(STAGED, path=B), replace(STAGED, path=C))),))
    assert decode(encode(several)) == several
    assert [one.path for one in several.tables[0].files] == [STAGED.path, B, C]
    assert (INTENT.to_json()["version"], several.to_json()["version"]) == (1, 2)


B, C = "_txstorm/staged/b", "_txstorm/staged/c"


def document(**changes):
    return json.dumps({**INTENT.to_json(), **changes}).encode()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (document(version=3), DataDirectoryError, "version 3 is newer than 2"),
        (document(format="other"), LedgerCorrupt, "expected format 'txstorm-intent'"),
        (b"[]", LedgerCorrupt, "expected format"),
        (b"{half", LedgerCorrupt, "expected JSON"),
        (document(txids=[{"txid": 1}]), LedgerCorrupt, "a field is missing"),
        (document(tables=[{}]), LedgerCorrupt, "a field is missing"),
        (document(txids=[]), LedgerCorrupt, "consecutive"),
        (document(txids=[RECORDS[0].to_json()] * 2), LedgerCorrupt, r"consecutive txids, got \[3, 3\]"),
    ],
)
def test_malformed_intents_are_rejected(data, error, message):
    with pytest.raises(error, match=message):
        decode(data)
