"""Tables written with Spark: the same rows exactly once, across coordinators and changes of the writer."""

import random
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import table_steps
from store_cases import COUNTS, INCARNATION, OUT, TOPOLOGY, TOTALS, commit, intent_of, open_store, record
from wide_cases import WIDE, wide_rows

from txstorm.clients.delta import entry as delta_entry
from txstorm.clients.delta import handle as delta_handle
from txstorm.clients.delta.archive import archive_entries
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import ARCHIVE, LOG
from txstorm.clients.delta.spark_delta import SparkDelta
from txstorm.clients.delta.writer_lock import is_shared
from txstorm.errors import ConflictError, FencedError, InputError, TableCorrupt
from txstorm.state.store import StateStore
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.spark_writer import SparkWriter
from txstorm.storage.tables.table import DeltaTableState

SPARK_COUNTS, SPARK_OUT = replace(COUNTS, writer="spark"), replace(OUT, writer="spark")


def open_spark_store(data_dir: Path, delta: SparkDelta, **changes: Any) -> StateStore:
    arguments: dict[str, Any] = {
        "states": {"count": [SPARK_COUNTS, TOTALS]},
        "sinks": {"count": [SPARK_OUT]},
        "spark": SparkWriter(delta),
    }
    return open_store(data_dir, **{**arguments, **changes})


pytestmark = pytest.mark.spark
OWNER = TopologyIdentity(TOPOLOGY, INCARNATION)
REF = TableRef("changes", "counts")
COMMIT = (
    "import sys; from pathlib import Path; from txstorm.clients.delta.writer_lock import locked\n"
    "with locked(Path(sys.argv[1]), 0.1): print('free')"
)


@pytest.fixture(scope="module")
def delta(spark):
    return SparkDelta(spark)


@pytest.fixture(scope="module")
def made(tmp_path_factory, delta):
    """Return a data directory in which Spark published txids 1 and 3, and the default writer published txid 2."""
    data_dir = tmp_path_factory.mktemp("made")
    for txid, counts in PLAN.items():
        store = opened_by(delta if txid % 2 else None, data_dir, txid)
        commit(store, txid, counts, epoch=txid)
        store.close()
    return data_dir


@pytest.fixture
def copied(made, tmp_path):
    """Return a copy of the directory `made` that a test may damage."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


PLAN = {1: {"a": 1, "b": 2}, 2: {"a": None, "c": 3}, 3: {"b": 4, "d": 5}}


def opened_by(delta, data_dir, txid, **changes):
    arguments = {"create": txid == 1, "epoch": txid, "committed": txid - 1, **changes}
    return open_store(data_dir, **arguments) if delta is None else open_spark_store(data_dir, delta, **arguments)


def decided(delta, data_dir, word="e"):
    """Stage txid 4, which counts a word, with a coordinator that writes with Spark; return its intent."""
    return table_steps.decided(opened_by(delta, data_dir, 4), 4, {word: 1}, epoch=4)[1]


def table(data_dir, delta=None):
    found = DeltaTableState.open(data_dir, OWNER, REF)
    if delta is not None:
        found.use(SparkWriter(delta))
    return found


def publish(table, intent, epoch=4):
    [touched] = [one for one in intent.tables if one.uri == REF.uri]
    return table.publish(1, touched, intent, epoch)


def rows(data_dir, uri=REF.uri):
    return DeltaHandle.open(data_dir / uri).read().sort_by("_txid").to_pylist()


def writers(data_dir, uri=REF.uri):
    """Return the writer (spark or direct) of each commit that added rows, oldest first."""
    found = []
    for entry in sorted((data_dir / uri / LOG).glob("*.json")):
        text = entry.read_text()
        if '"first"' in text or '\\"first\\"' in text:
            found.append("spark" if "Apache-Spark" in text else "direct")
    return found


def test_both_writers_write_the_same_rows(copied, tmp_path_factory):
    direct = tmp_path_factory.mktemp("direct")
    for txid, counts in PLAN.items():
        store = opened_by(None, direct, txid)
        commit(store, txid, counts, epoch=txid)
    again = opened_by(None, copied, 4, committed=3)
    again.upkeep.compact()
    store.upkeep.compact()
    assert writers(copied) == writers(copied, "sinks/out") == ["spark", "direct", "spark"]
    assert writers(copied, "changes/totals") == ["direct"] * 3
    for uri in (REF.uri, "sinks/out", "state/counts", "state/totals"):
        assert rows(copied, uri) == rows(direct, uri), uri
    assert [is_shared(copied / uri) for uri in (REF.uri, "sinks/out", "changes/totals")] == [True, True, False]


def test_values_of_every_type_survive_a_round_trip(tmp_path, delta):
    draw = random.Random(20261121)
    values = list(wide_rows(draw, 40))
    for place, writer in (("direct", None), ("spark", delta)):
        state = replace(WIDE, writer="spark" if writer else "deltalake")
        store = opened_by(writer, tmp_path / "odd [1] *50% {é}" / place, 1, states={"keep": [state]}, sinks={})
        group = store.group(1)
        handle = group.begin_txid(1).state("keep", 0, "wide")
        group.activate(True)
        for key, value in values:
            handle.put(tuple(key), value)
        group.end_txid(1)
        store.publish(intent_of(group, [record(1)]), 1)
    direct, spark = (DeltaHandle.open(path) for path in sorted(tmp_path.glob("odd*/*/changes/wide")))
    assert direct.schema == spark.schema
    assert direct.read().equals(spark.read())


def test_a_commit_whose_response_is_lost_is_found_by_reading_back(copied, delta):

    class Mute(SparkDelta):
        def append(self, *arguments):
            super().append(*arguments)
            msg = "no answer"
            raise TableCorrupt(msg)

    intent = decided(delta, copied)
    version = publish(table(copied, Mute(delta._session)), intent)
    assert publish(table(copied, delta), intent) == publish(table(copied), intent) == version
    assert [row["word"] for row in rows(copied) if row["_txid"] == 4] == ["e"]


def test_different_rows_for_a_published_txid_are_an_error(copied, delta):
    """Different rows for a published txid are an error: Spark skips them silently, and reading back detects it."""
    first, other = decided(delta, copied), replace(decided(delta, copied, "x"), txids=(record(4, 99),))
    found = table(copied, delta)
    version = publish(found, first)
    content = rows(copied)
    again = found._commit(next(one for one in other.tables if one.uri == REF.uri), other, 4)
    SparkWriter(delta).commit(found.handle, again, REF.txid_app(OWNER))
    assert (table(copied).version, rows(copied)) == (version, content)
    with pytest.raises(TableCorrupt, match=r"txid 4 is already published with other content.*99"):
        publish(found, other)


def halfway(delta, tmp_path, between):
    """Return a Spark client that pauses in the middle of a commit, calls `between`, and then continues."""
    started, go = tmp_path / "started", tmp_path / "go"

    def release():
        try:
            _await(started, 120)
            between()
        finally:
            go.touch()

    class Slow(SparkDelta):
        def append_frame(self, table, frame, *arguments):
            frame = frame.mapInArrow(_waiting(str(started), str(go)), frame.schema)
            thread = threading.Thread(target=release)
            thread.start()
            try:
                super().append_frame(table, frame, *arguments)
            finally:
                thread.join()

    return Slow(delta._session)


def _await(path, seconds):
    until = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


def _waiting(started, go):
    def run(batches):
        import os
        import time

        open(started, "w").close()
        while not os.path.exists(go):
            time.sleep(0.02)
        yield from batches

    return run


def test_a_commit_in_flight_holds_the_lock_until_it_completes(copied, delta, tmp_path):
    intent = decided(delta, copied)
    said, raising = [], []

    def between():
        asked = [sys.executable, "-c", COMMIT, str(copied / REF.uri)]
        said.append(subprocess.run(asked, capture_output=True, text=True, check=False).stderr)
        thread = threading.Thread(target=table(copied).raise_epoch, args=(5,))
        thread.start()
        raising.append(thread)

    slow = halfway(delta, tmp_path, between)
    version = publish(table(copied, slow), intent)
    raising[0].join()
    assert "another process has held" in said[0]
    assert table(copied).version == version + 1
    assert table(copied).epoch() == 5


def test_a_commit_in_flight_loses_against_a_new_epoch(copied, delta, tmp_path, monkeypatch):
    """Even without a lock, a commit in flight fails if the epoch is raised meanwhile: Delta detects the conflict."""
    intent, content = decided(delta, copied), rows(copied)
    for client in (delta_handle, delta_entry):
        monkeypatch.setattr(client, "locked", lambda table: nullcontext())
    slow = halfway(delta, tmp_path, lambda: table(copied).raise_epoch(5))
    with pytest.raises(FencedError, match="epoch 5 has taken over from this one with epoch 4"):
        publish(table(copied, slow), intent)
    assert rows(copied) == content


def test_a_fenced_coordinator_writes_nothing(copied, delta):
    intent, content = decided(delta, copied), rows(copied)
    zombie = table(copied, delta)  # has opened the table before the takeover
    table(copied).raise_epoch(5)
    with pytest.raises(FencedError):
        publish(zombie, intent)
    handle = table(copied).handle
    handle.version -= 1
    handle._table.load_as_version(handle.version)
    with pytest.raises(ConflictError, match="to be the newest"):
        SparkWriter(delta).commit(handle, zombie._commit(intent.tables[0], intent, 4), REF.txid_app(OWNER))
    assert rows(copied) == content


@pytest.mark.parametrize(
    "spoilt", [r"\\\"attempt\\\": (\d)", r"\"version\":(\d)", r"numRecords\\\":(\d)", r"_txid\\\":(\d)"]
)
def test_a_changed_digit_in_a_log_entry_of_spark_is_detected(copied, spoilt):
    entry = copied / REF.uri / LOG / "00000000000000000002.json"
    text = entry.read_text()
    assert "Apache-Spark" in text
    changed = re.sub(spoilt, lambda found: found[0][:-1] + str((int(found[1]) + 1) % 10), text, count=1)
    assert changed != text
    entry.write_text(changed)
    with pytest.raises(TableCorrupt, match=r"00000000000000000002.json of the log is damaged"):
        list(DeltaHandle.open(copied / REF.uri).history())


def test_spark_continues_after_the_log_is_truncated(copied, delta):
    table(copied).handle.checkpoint(1)
    commit(opened_by(None, copied, 4), 4, {"e": 1}, epoch=4)
    table(copied).handle.checkpoint(1)
    content = rows(copied)
    list(archive_entries(copied / REF.uri, 60, time.time() + 7200, 1))
    archived = {file.name for file in (copied / REF.uri / ARCHIVE).iterdir()}
    assert {"00000000000000000002.json", "00000000000000000002.crc", ".00000000000000000002.json.crc"} <= archived
    assert not [file for file in (copied / REF.uri / LOG).iterdir() if "00000000000000000002." in file.name]
    commit(opened_by(delta, copied, 5), 5, {"f": 1}, epoch=5)
    assert writers(copied)[-1] == "spark"
    assert rows(copied)[:-1] == content
    assert rows(copied)[-1]["word"] == "f"


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({}, r"lacks spark.sql.extensions=io.delta.*spark_catalog=org.*spark.jars.packages=io.delta:delta-spark"),
        ({"spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore"}, r"LocalLogStore has lost commits"),
    ],
)
def test_a_session_without_the_delta_settings_is_rejected(spark, conf, message):
    if conf:
        fit = ("spark.sql.extensions", "spark.sql.catalog.spark_catalog")
        conf, jvm = {**{name: spark.conf.get(name) for name in fit}, **conf}, spark._jvm
    else:
        jvm = SimpleNamespace(io=SimpleNamespace(delta=SimpleNamespace(tables=SimpleNamespace(DeltaTable=None))))
    session = SimpleNamespace(conf=conf, _jvm=jvm, _jsparkSession=None)
    with pytest.raises(InputError, match=message):
        SparkDelta(session)


def test_spark_connect_is_refused():
    with pytest.raises(InputError, match="a classic one: through Spark Connect the table's lock cannot be taken"):
        SparkDelta(SimpleNamespace())


def test_a_lock_that_does_not_exclude_this_process_is_rejected(copied, delta, tmp_path):
    """A lock that does not exclude this process, such as that of a JVM on another machine, is rejected."""

    class Elsewhere(SparkDelta):
        @contextmanager
        def locked(self, table, patience=1.0):
            yield

    with pytest.raises(InputError, match="does not hold off this one"):
        opened_by(Elsewhere(delta._session), copied, 4)
