"""Commits, upkeep and checkpoints never list a log directory, so their cost does not grow with the log."""

import time
from dataclasses import replace

import pytest
from store_cases import COUNTS, TOTALS, open_store
from table_steps import decided, unlisted, words_read
from upkeep_cases import small

from txstorm.clients.delta.handle import DeltaHandle


@pytest.mark.parametrize("layout", ["changes", "merge"])
def test_commits_upkeep_and_checkpoints(tmp_path, monkeypatch, layout):
    small(lambda module, name, value: monkeypatch.setattr(module, name, value))
    store = open_store(tmp_path, create=True, states={"count": [replace(COUNTS, layout=layout), TOTALS]})
    store.load()
    shortened = kept_up = 0
    for txid in range(1, 60):
        with unlisted(tmp_path):
            group, intent = decided(store, txid, {"a": 1, f"w{txid % 7}": 2})
            store.publish(intent, 1)
            group.apply(txid)
            works = [(table, table.shortening()) for table in store.tables.values() if table.is_long]
        for _, work in works:
            assert list(work.steps())
        with unlisted(tmp_path):
            for table, work in works:
                table.shortened(work)
                shortened += work.made is not None
            due = (
                store.upkeep.begin(uri, 1)
                if txid % 10 == 0 and (uri := store.upkeep.due(time.monotonic() + txid * 100)) is not None
                else None
            )
        if due is not None:
            list(due.steps())
            with unlisted(tmp_path):
                kept_up += store.upkeep.finish(due, 1)
    assert shortened >= 3
    assert kept_up >= 3
    store.close()
    assert words_read(tmp_path)["a"] == 59
    assert DeltaHandle.open(tmp_path / "sinks/out").row_count() == 118
