"""Intents: decisions survive a JSON round trip; malformed intents and those of newer versions are rejected by name."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from txstorm.errors import DataDirectoryError, LedgerCorrupt
from txstorm.storage.tables.intent import Intent, IntentTable, Staged, TxidRecord, decode, encode, encode_schema

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
