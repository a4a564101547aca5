"""Consistency of tables and ledger before a read: txids count within their timeline."""

from types import SimpleNamespace

import pytest

from txstorm.errors import TableCorrupt
from txstorm.results import freshness
from txstorm.results.freshness import check_not_ahead, check_not_behind
from txstorm.storage.tables.identity import TopologyIdentity


@pytest.mark.parametrize(
    ("newest", "known", "is_ahead"),
    [((0, 5), (0, 5), False), ((0, 6), (0, 5), True), ((0, 9), (1, 5), False), ((1, 3), (0, 5), True)],
)
def test_tables_are_ahead_of_a_ledger_by_timeline_first(tmp_path, newest, known, is_ahead):
    if is_ahead:
        with pytest.raises(TableCorrupt, match="not from the same moment"):
            check_not_ahead(tmp_path, newest, known)
    else:
        check_not_ahead(tmp_path, newest, known)


@pytest.mark.parametrize(
    ("timeline", "txid", "is_behind"), [(1, 5, False), (1, 4, True), (0, 9, True), (2, 1, False), (1, 6, False)]
)
def test_tables_are_behind_a_ledger_by_timeline_first(tmp_path, monkeypatch, timeline, txid, is_behind):
    table = SimpleNamespace(
        owner=TopologyIdentity("t", "1", timeline), handle=SimpleNamespace(properties={}), last_txid=lambda: txid
    )
    monkeypatch.setattr(freshness, "check_there", lambda *_: None)
    monkeypatch.setattr(freshness, "check_owner", lambda *_: None)
    monkeypatch.setattr(freshness, "open_table", lambda *_: table)
    owner = TopologyIdentity("t", "1", 1)
    if is_behind:
        with pytest.raises(TableCorrupt, match="according to the ledger it is at txid 5 of timeline 1"):
            check_not_behind(tmp_path, owner, {"sinks/out": 5})
    else:
        assert check_not_behind(tmp_path, owner, {"sinks/out": 5}) == (timeline, txid)
