"""Commits, upkeep and checkpoints never list a log directory, so their cost does not grow with the log."""

import os
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from store_cases import COUNTS, TOTALS, open_store
from table_steps import decided, words_read
from upkeep_cases import small

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import LOG


@contextmanager
def unlisted(data_dir):
    """Fail if a log directory is listed within the context, even by delta-rs; detected by its access time."""
    logs = [path for path in data_dir.rglob(LOG) if path.is_dir()]
    for log in logs:
        os.utime(log, ns=(1, time.time_ns()))
    yield
    assert [log for log in logs if log.stat().st_atime_ns != 1] == []


@pytest.mark.parametrize("layout", ["changes", "merge"])
def test_commits_upkeep_and_checkpoints(tmp_path, monkeypatch, layout):
    small(lambda module, name, value: monkeypatch.setattr(module, name, value))
    store = open_store(tmp_path, create=True, states={"count": [replace(COUNTS, layout=layout), TOTALS]})
    store.load()
    logs = [path for path in tmp_path.rglob(LOG) if path.is_dir()]
    os.utime(logs[0], ns=(1, time.time_ns()))
    os.listdir(logs[0])
    if logs[0].stat().st_atime_ns == 1:
        pytest.skip("this file system does not note when a directory was listed")
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
