"""Snapshots: a consistent cut across all tables as of any committed transaction, even during a run."""

import json
import threading

import pytest
from runs import CountWords, counting, ended

import txstorm
from txstorm import KeyedState, run
from txstorm.errors import DataDirectoryError, InputError, StateError
from txstorm.results.spark_views import register_views, sql_views


class CountTotals(CountWords):
    total = KeyedState("total", key={}, value={"n": int})

    def finish_batch(self):
        super().finish_batch()
        self.context.state("total").update((), lambda old: (old or 0) + len(self.taken))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return the handle of a finished run with three committed transactions: a b, a c, b a."""
    return ended(counting("abacba", CountTotals()), tmp_path_factory.mktemp("snapshot") / "data")


def test_a_snapshot_is_every_table_as_of_one_txid_and_has_changes_by_position_and_by_name(done):
    cut = txstorm.snapshot(done.data_dir, txid=2)
    assert (cut.txid, cut.states, cut.sinks) == (2, ("counts", "total"), ("log",))
    assert cut.state("counts").to_pylist() == [{"word": w, "n": n} for w, n in (("a", 2), ("b", 1), ("c", 1))]
    assert cut.state("total").to_pylist() == [{"n": 4}]
    assert [row["_txid"] for row in cut.sink("log").to_pylist()] == [1, 1, 2, 2]
    numbers = {name: rows.num_rows for name, rows in cut.to_arrow().items()}
    assert numbers == {"state/counts": 3, "state/total": 1, "sinks/log": 4}
    assert json.loads(cut.to_json())["tables"]["state/total"] == [{"n": 4}]
    assert repr(cut) == f"<snapshot of {done.data_dir} as of txid 2: 3 tables>"
    assert "sink log as of txid 2: 4 rows" in cut._repr_html_()
    assert done.snapshot().txid == done.snapshot(3).txid == 3  # the last committed one by default
    assert {rows.num_rows for rows in done.snapshot(txid=0).to_arrow().values()} == {0}
    view = done.state("total")
    assert view.changes(2, 3) == view.changes(from_txid=2, to_txid=3)
    assert [(row["_txid"], row["n"]) for row in view.changes(2, 3).to_pylist()] == [(2, 4), (3, 6)]
    for wrong in ((3, 2), (0, 2)):
        with pytest.raises(StateError, match="expected 1 <= from <= to"):
            view.changes(*wrong)


@pytest.mark.parametrize("txid", [4, -1])
def test_a_txid_that_is_not_committed_is_named(done, txid, tmp_path):
    wanted = f"txid {txid} is not committed; the last one is 3: ask for 0 to 3"
    for ask in (
        lambda: done.snapshot(txid),
        lambda: done.state("counts").as_of(txid=txid).to_arrow(),
        lambda: done.sink("log").as_of(txid=txid).to_arrow(),
        lambda: done.dead_letters().as_of(txid=txid).to_arrow(),
        lambda: done.state("counts").changes(1, txid),
    ):
        with pytest.raises(StateError, match=wanted):
            ask()
    with pytest.raises(DataDirectoryError, match="does not exist"):
        txstorm.snapshot(tmp_path / "data", txid)


def test_snapshots_are_consistent_while_the_topology_runs(tmp_path):
    words = [f"w{i % 7}" for i in range(150)]
    handle = run(counting(words, CountTotals(), take=3), engine="local", data_dir=tmp_path / "data")
    cuts, stopped = [], threading.Event()

    def look():
        while not stopped.is_set():
            cut = handle.snapshot()
            cuts.append((cut.txid, cut.to_arrow(), cut))

    thread = threading.Thread(target=look)
    thread.start()
    handle.processAllAvailable()
    stopped.set()
    thread.join()
    handle.stop()
    for txid, tables, cut in cuts:
        total = sum(tables["state/total"]["n"].to_pylist())
        assert (sum(tables["state/counts"]["n"].to_pylist()), tables["sinks/log"].num_rows) == (total, 3 * txid)
        assert total == 3 * txid
        assert cut.to_arrow() == tables  # the snapshot does not change
    assert handle.snapshot().state("total").to_pylist() == [{"n": 150}]


def test_views_cover_every_table_stay_at_their_txid_and_name_missing_settings(done):
    pinned = {view.name: view.statement for view in sql_views(done.data_dir, 2, "my-")}
    names = ("state_counts", "state_total", "changes_counts", "changes_total", "sink_log")
    assert list(pinned) == [f"my-{name}" for name in names]
    assert all("_txid <= 2" in statement for statement in pinned.values())
    assert pinned["my-sink_log"] == (
        f"CREATE OR REPLACE TEMP VIEW `my-sink_log` AS SELECT * FROM delta.`{done.data_dir}/sinks/log` WHERE _txid <= 2"
    )
    assert not any("<=" in view.statement for view in sql_views(done.data_dir))

    class Plain:
        def sql(self, statement):
            raise RuntimeError("[DATA_SOURCE_NOT_FOUND] delta\n\tat org.apache")

    with pytest.raises(InputError, match=r"got \[DATA_SOURCE_NOT_FOUND\] delta; the session needs Delta"):
        register_views(Plain(), done.data_dir)
