"""A data directory opens a table once, and again only if another writer has changed it."""

from collections import Counter

import pytest
from store_cases import INCARNATION, TOPOLOGY, commit, open_store

from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.clients.delta import handle
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
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


def test_a_table_is_opened_again_only_after_commits_of_others(tmp_path, opened):
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


def test_a_table_of_another_timeline_is_not_opened_again(tmp_path, opened):
    commit(open_store(tmp_path, create=True), 1, {"a": 1})
    place = Directory(tmp_path)
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
