"""State tables lag, for plain readers, by at most `state_max_lag`: during a run, after a kill, after a stop."""

from contextlib import contextmanager
from pathlib import Path

import deltalake
import pytest
from recovery_cases import KILLED, ended, eventually, start
from scenarios.endless import as_of, kinds, seen

import txstorm
from txstorm import run
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.results.read import read_state
from txstorm.storage.upkeep import thinning as versions

SOON = {"state_max_lag": 0.2}


@contextmanager
def running(data_dir, **settings):
    handle = run(kinds(**settings), engine="local", data_dir=data_dir)
    try:
        yield handle
    finally:
        handle.stop()
        assert handle.awaitTermination(60)


def follows(read, handle, times=3):
    """Check, several times during the run, that the rows committed so far become visible within the lag."""
    for _ in range(times):
        committed = handle.progress.committed
        eventually(lambda: read() > committed)  # noqa: B023 - called here only
        assert handle.isActive


def test_a_reader_of_the_plain_table_sees_two_keys_of_a_busy_run(place):
    with running(place / "data", **SOON) as handle:
        follows(lambda: seen(place / "data"), handle)
        assert DeltaHandle.open(place / "data/state/counts").properties["txstorm.stateMaxLag"] == "0.2"
    assert seen(place / "data") == handle.progress.committed


def test_polars_sees_both_keys_of_a_busy_run(place):
    polars = pytest.importorskip("polars")
    with running(place / "data", **SOON) as handle:
        follows(lambda: as_of(polars.read_delta(str(place / "data/state/counts")).to_dicts()), handle)


@pytest.mark.spark
def test_spark_sees_both_keys_of_a_busy_run(place, spark):
    def read():
        found = spark.read.format("delta").load(str(place / "data/state/counts")).collect()
        return as_of([row.asDict() for row in found])

    with running(place / "data", **SOON) as handle:
        follows(read, handle, times=1)
        follows(lambda: as_of(exact(spark, place / "data")), handle, times=1)


def exact(spark, data_dir):
    """Return the current rows by the query of docs/reading-tables.md, which is consistent as of one txid even during a run."""
    page = (Path(__file__).parents[3] / "docs" / "reading-tables.md").read_text(encoding="utf-8")
    query = page.partition("```sql\n")[2].partition("```")[0].replace("txstorm-data/words", str(data_dir))
    query = query.replace("SELECT word, n FROM ranked", "SELECT * FROM ranked")
    return [row.asDict() for row in spark.sql(query.replace("word", "kind")).collect()]


def test_a_state_table_that_a_killed_run_left_behind_is_brought_up_to_date_by_the_next(data_dir):
    child = start("lag", data_dir, "state_max_lag=0.2")
    try:
        eventually(lambda: (data_dir / "state/counts/_delta_log").exists() and seen(data_dir) > 5)
    finally:
        child.kill()
    assert child.wait() == KILLED
    before, last = seen(data_dir), max(read_state(data_dir, "counts")["n"].to_pylist())
    assert last >= before > 5
    with running(data_dir) as handle:  # at its first commit, although the bound is ten seconds
        eventually(lambda: seen(data_dir) > last)
        assert handle.isActive


def test_an_available_now_run_leaves_the_state_table_exact(data_dir):
    ended(kinds(), data_dir, until_txid=30)
    assert seen(data_dir) == 30


def test_without_a_bound_the_state_table_is_written_at_the_end_only(place):
    with running(place / "data", state_max_lag=None) as handle:
        eventually(lambda: handle.progress.committed > 50)
        assert seen(place / "data") == 0
    assert DeltaHandle.open(place / "data/state/counts").properties["txstorm.stateMaxLag"] == "none"


def test_the_disk_does_not_grow_with_the_versions_and_every_txid_is_answered(place, data_dir, monkeypatch):
    monkeypatch.setattr(versions, "SUPERSEDED_MILLIS", 200)
    with running(data_dir, state_max_lag=0.01) as handle:
        eventually(lambda: len(made(data_dir)) > 6 and len(files(data_dir)) < len(made(data_dir)) / 2)
        saved = handle.savepoint("one")
        eventually(lambda: len(made(data_dir)) > 12 and len(files(data_dir)) < 6)
    committed = handle.progress.committed
    for txid in range(1, committed + 1, max(1, committed // 10)):
        assert {row["n"] for row in read_state(data_dir, "counts", txid).to_pylist()} == {txid}
    txstorm.restore_savepoint(data_dir, "one", place / "copy")
    assert {row["n"] for row in read_state(place / "copy", "counts").to_pylist()} == {saved.txid}
    txstorm.rewind(data_dir, committed // 2)
    assert {row["n"] for row in read_state(data_dir, "counts").to_pylist()} == {committed // 2}
    with running(data_dir, **SOON) as handle:
        follows(lambda: seen(data_dir), handle, times=1)


def made(data_dir):
    return [one for one in DeltaHandle.open(data_dir / "state/counts").history() if one.info.get("kind") == "compact"]


def files(data_dir):
    return [*(data_dir / "state/counts/_txstorm/staged").glob("*.parquet")]


def test_a_version_that_was_thinned_is_a_missing_file_for_other_readers(data_dir, monkeypatch):
    """A reader of a vacuumed version gets a missing-file error, as after any vacuum of a Delta table."""
    monkeypatch.setattr(versions, "SUPERSEDED_MILLIS", 0)
    with running(data_dir, **SOON) as handle:
        first = eventually(lambda: next(iter(made(data_dir)), None))
        # Reads of the newest version can fail here, too: it may be superseded between the listing and the read.
        eventually(lambda: not handle.isActive or len(made(data_dir)) > 2)
    table = deltalake.DeltaTable(data_dir / "state/counts", version=first.version)
    with pytest.raises(FileNotFoundError):
        table.to_pyarrow_table()
