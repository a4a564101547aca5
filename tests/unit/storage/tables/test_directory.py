"""A data directory opens a table once, and again only if another writer has changed it; no log directory is listed."""

import time
from collections import Counter
from dataclasses import replace

import pytest
from outlet_nets import MemoryWriter, Target
from store_cases import COUNTS, INCARNATION, TOPOLOGY, TOTALS, commit, open_store
from table_steps import decided, synced_paths, unlisted, words_read
from upkeep_cases import small

from txstorm import Outlet, TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.clients.delta import handle
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.state.external.targets import StoredOutlet
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import STAGED
from txstorm.testing import FeedSpout, TopologyTestDriver

OWNER, REF = TopologyIdentity(TOPOLOGY, INCARNATION), TableRef("changes", "counts")


@pytest.fixture
def opened(monkeypatch):
    """Return a count of how often the log of each table is opened; links to it do not count."""
    found, real = Counter(), handle._opened

    def counted(path, version, **options):
        found[path.name] += 1
        return real(path, version, **options)

    monkeypatch.setattr(handle, "_opened", counted)
    return found


def test_a_table_is_opened_again_only_after_commits_of_others_even_for_another_timeline(tmp_path, opened):
    store, place = open_store(tmp_path, create=True), Directory(tmp_path)
    opened.clear()
    table = place.table(OWNER, REF)
    table.raise_epoch(2)
    assert (place.table(OWNER, REF), table.epoch(), opened["counts"]) == (table, 2, 1)
    DeltaHandle.open(table.path).commit(Commit({OWNER.epoch_app: 3}, {"kind": "epoch", "epoch": 3}))
    opened.clear()
    other = place.table(OWNER, REF)
    assert (other.epoch(), opened["counts"]) == (3, 1)
    assert place.table(OWNER, REF) is other
    store.raise_epoch(4)
    assert place.table(OWNER, REF).epoch() == 4
    commit(open_store(tmp_path / "other", create=True), 1, {"a": 1})
    place = Directory(tmp_path / "other")
    opened.clear()
    assert place.table(OWNER, REF).last_txid() == 1
    later = place.table(OWNER._replace(timeline=1), REF)
    assert (later.owner.timeline, later.log.app_version(REF.txid_app(later.owner)), opened["counts"]) == (1, None, 1)


def test_a_start_opens_each_table_once(tmp_path, opened):
    builder = TransactionalTopologyBuilder("t", "words", FeedSpout({"default": ("word",)}))
    builder.set_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    topology = builder.build_topology()
    with TopologyTestDriver(topology, data_dir=tmp_path) as driver:
        driver.feed({"default": [("a",), ("b",)]})
        driver.commit()
        opened.clear()
        driver.restart()
        assert dict(opened) == {"counts": 2}  # the changes, and the state as of an earlier transaction
        driver.feed({"default": [("a",)]})
        driver.commit()
        assert driver.state("counts").to_pylist() == [{"word": "a", "n": 2}, {"word": "b", "n": 1}]


@pytest.mark.parametrize("left", [b"", b'{"commitInfo":{"oper', b'{"protocol":{"minReaderVersion":1}}'])
def test_a_table_whose_creation_a_power_failure_tore_is_created_again(tmp_path, left):
    store = open_store(tmp_path, create=True, epoch=None)
    path = store.tables[REF].path
    whole, entry = (path / "_delta_log" / f"{0:020d}.json").read_bytes(), path / "_delta_log" / f"{0:020d}.json"
    Directory(tmp_path).discard_torn(REF)
    assert entry.read_bytes() == whole
    entry.write_bytes(left)
    (path / STAGED / "rows.parquet").write_bytes(b"")
    Directory(tmp_path).discard_torn(REF)
    assert entry.exists(), "something was written to the table"
    (path / STAGED / "rows.parquet").unlink()
    (path / STAGED).rmdir()
    assert open_store(tmp_path, create=True, recorded=()).tables[REF].last_txid() == 0
    (path / STAGED).rmdir()
    Directory(tmp_path).secure_names(OWNER, REF)
    assert (path / STAGED).is_dir()


def test_names_of_directories_are_synced_even_if_they_exist(tmp_path, monkeypatch):
    outlet = Outlet("out", {"n": int}, MemoryWriter(Target()))
    for _ in range(2):
        with synced_paths(monkeypatch) as synced:
            StoredOutlet(tmp_path, OWNER, "send", outlet).make_directory()
        assert synced == [f"{tmp_path}{path}" for path in ("/outlets/out/_txstorm", "/outlets/out", "/outlets", "")]


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
