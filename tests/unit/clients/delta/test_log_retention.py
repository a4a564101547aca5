"""Log retention: old entries of a table's log are archived and stay readable; only opening a table lists its log."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run_program
from deltalake import DeltaTable
from table_steps import unlisted

from txstorm.clients.delta import archive as archiving
from txstorm.clients.delta import window as delta_window
from txstorm.clients.delta.archive import Archiving, archive_entries, log_retention
from txstorm.clients.delta.entry import LOG_BOUND, LOG_RETENTION, LOWERED, Commit, DataFile
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.log import ARCHIVE, LOG, newest_complete
from txstorm.clients.delta.window import Window
from txstorm.errors import InputError, TableCorrupt

DAY, HOUR = 86_400.0, 3600.0
LAST = 60
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the path of a table of LAST one-row commits, with a checkpoint every five and no archived entries."""
    path = tmp_path_factory.mktemp("log") / "table"
    handle = DeltaHandle.create(path, SCHEMA, {}, Commit({}, {"kind": "create"}))
    for n in range(1, LAST + 1):
        pq.write_table(pa.table({"n": [n]}, schema=SCHEMA), path / f"{n}.parquet")
        handle.commit(Commit({"app": n}, {"n": n}, [DataFile(f"{n}.parquet", (path / f"{n}.parquet").stat().st_size)]))
        handle.checkpoint(5)
    return path


@pytest.fixture
def table(made, tmp_path):
    shutil.copytree(made, tmp_path / "table")
    return tmp_path / "table"


def age(table, seconds, until=LAST, only=""):
    """Age log files by `seconds`: those up to version `until` whose names contain `only`."""
    for file in (table / LOG).iterdir():
        if file.name[0] == "0" and int(file.name[:20]) <= until and only in file.name:
            os.utime(file, (time.time() - seconds,) * 2)


def archive(table, seconds=DAY, keep=10):
    list(archive_entries(table, seconds, time.time(), keep))
    return entries(table, LOG), entries(table, ARCHIVE)


def entries(table, where):
    return sorted(int(file.stem) for file in (table / where).glob("0*.json") if file.stem.isdecimal())


def checkpoints(table):
    return sorted(int(file.name[:20]) for file in (table / LOG).glob("0*.parquet"))


def check_readable(table, versions=(*range(0, LAST + 1, 7), 29, 30, 31, 44, 45, 50, 51, LAST)):
    """Check that no entry is lost or duplicated; read `versions` with txstorm, and the newest with deltalake."""
    assert sorted([*entries(table, ARCHIVE), *entries(table, LOG)]) == list(range(LAST + 1))
    for version in versions:
        rows = DeltaHandle.open(table, version).read()["n"].to_pylist()
        assert sorted(rows) == list(range(1, version + 1))
    handle = DeltaHandle.open(table)
    assert [entry.info.get("n", 0) for entry in handle.history()] == list(range(LAST, -1, -1))
    assert handle.logged_paths() == {f"{n}.parquet" for n in range(1, LAST + 1)}
    assert DeltaTable(str(table)).to_pyarrow_table().num_rows == LAST


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 30 * DAY),
        ("interval 1 days", DAY),
        ("interval 2 weeks", 14 * DAY),
        ("1 day", DAY),
        ("INTERVAL 1 DAY 2 HOURS", DAY + 2 * HOUR),
        ("interval 90 seconds 500 milliseconds", 90.5),
        ("interval 1 month", float("inf")),
        ("a while", float("inf")),
        ("", float("inf")),
    ],
)
def test_retention_properties_of_a_table(text, seconds):
    assert log_retention({} if text is None else {"delta.logRetentionDuration": text}) == seconds


def test_only_older_entries_are_archived_and_the_log_starts_at_a_checkpoint(table):
    age(table, DAY - 60)
    assert archive(table) == (list(range(LAST + 1)), [])  # all are within the retention period
    age(table, 2 * DAY, until=33)
    assert archive(table) == (list(range(30, LAST + 1)), list(range(30)))
    assert checkpoints(table)[0] == 30
    check_readable(table)


def test_a_minimum_number_of_versions_is_kept_regardless_of_age(table):
    age(table, 2 * DAY)
    assert archive(table, keep=17) == (list(range(40, LAST + 1)), list(range(40)))


def test_archiving_after_every_commit_keeps_the_log_short_and_damage_in_the_archive_is_named(table, monkeypatch):
    monkeypatch.setattr(archiving, "KEPT_VERSIONS", 10)
    handle = DeltaHandle.open(table)
    for n in range(1, 11):
        handle.commit(Commit({"app": LAST + n}, {"n": LAST + n}))
        handle.refresh()
        handle.checkpoint(5)
        list(archive_entries(table, 60, time.time() + 7200))
    logged, archived = entries(table, LOG), entries(table, ARCHIVE)
    assert 10 < len(logged) < 35
    assert [*archived, *logged] == list(range(LAST + 11))
    assert len(DeltaHandle.open(table).checked_infos()) <= 6
    assert [entry.info.get("n", 0) for entry in handle.history()] == list(range(LAST + 10, -1, -1))
    entry = table / ARCHIVE / f"{3:020d}.json"
    entry.write_text(entry.read_text().replace('"n":3', '"n":4'))
    with pytest.raises(TableCorrupt, match=f"{3:020d}.json of the log is damaged"):
        list(handle.history())
    with pytest.raises(TableCorrupt, match="at version 1000"):
        DeltaHandle.open(table, 1000)


def test_a_bounded_log_keeps_fewer_entries_than_its_bound_whatever_their_age(table, monkeypatch):
    """All versions remain readable. `span` says how long it lasts."""
    monkeypatch.setattr(archiving, "KEPT_VERSIONS", 5)
    monkeypatch.setattr(archiving, "CHECKPOINT_MOST", 5)
    properties, version = {LOG_RETENTION: LOWERED, LOG_BOUND: "40 entries, 86400 seconds"}, LAST
    clock = [time.time()]
    bounded = Archiving(lambda: clock[0])
    handle = SimpleNamespace(version=version, path=table, properties=properties)
    list(bounded.steps(handle, "changes/x"))
    assert entries(table, LOG) == list(range(40, LAST + 1))
    assert checkpoints(table) == list(range(40, LAST + 1, 5))
    check_readable(table)
    unbounded = SimpleNamespace(
        version=version, path=table, properties={**properties, LOG_RETENTION: "interval 1 days"}
    )
    assert (bounded.span(unbounded), bounded.span(handle)) == (None, DAY)
    for seconds, more, span in ((10, 1, 2400), (50, 119, 20), (120, 0, DAY)):  # of at least the last minute
        clock[0] += seconds
        handle.version += more
        assert bounded.span(handle) == pytest.approx(span)


def test_checkpoints_of_the_last_hour_are_not_archived(table):
    age(table, HOUR / 2)
    age(table, 2 * HOUR, only=".json")
    age(table, 2 * HOUR, until=20)
    assert archive(table, seconds=60) == (list(range(25, LAST + 1)), list(range(25)))
    check_readable(table)


def test_an_entry_dated_in_the_future_and_all_later_ones_are_kept(table):
    age(table, 2 * DAY)
    os.utime(table / LOG / f"{22:020d}.json", (time.time() + DAY,) * 2)
    assert archive(table)[0][0] == 20


def in_parts(table, version, missing=None):
    """Replace a single-file checkpoint with a three-part one; leave out part `missing` (None: no part)."""
    file = table / LOG / f"{version:020d}.checkpoint.parquet"
    content = pq.read_table(file)
    for part in (1, 2, 3):
        rows = content.slice((part - 1) * 5, 5 if part < 3 else content.num_rows)
        if part != missing:
            pq.write_table(rows, table / LOG / f"{version:020d}.checkpoint.{part:010d}.{3:010d}.parquet")
    file.unlink()


def with_sidecars(table, version, missing=None):
    """Replace a single-file checkpoint with a V2 checkpoint that has a sidecar file, or misses it."""
    file = table / LOG / f"{version:020d}.checkpoint.parquet"
    (table / LOG / "_sidecars").mkdir()
    if not missing:
        pq.write_table(pq.read_table(file, columns=["add"]), table / LOG / "_sidecars" / "s.parquet")
    lines = [{"checkpointMetadata": {"version": version}}, {"sidecar": {"path": "s.parquet", "sizeInBytes": 1}}]
    (table / LOG / f"{version:020d}.checkpoint.0a-1b.json").write_text("\n".join(map(json.dumps, lines)))
    file.unlink()


@pytest.mark.parametrize(
    ("form", "missing"), [*((in_parts, part) for part in (None, 1, 2, 3)), (with_sidecars, None), (with_sidecars, True)]
)
def test_a_checkpoint_of_several_files_counts_only_if_complete(table, form, missing):
    form(table, 50, missing)
    age(table, 2 * DAY)
    begin = 45 if missing else 50
    assert archive(table) == (list(range(begin, LAST + 1)), list(range(begin)))
    if form is in_parts:
        (table / LOG / "_last_checkpoint").unlink()
        check_readable(table, [0, 44, 45, 49, 50, 51, 60])


@pytest.mark.parametrize("nth", [1, 2, 17, 35])
def test_killed_while_archiving_entries(table, nth):
    age(table, 2 * DAY)
    code = (
        "import pathlib, sys, time\n"
        "from txstorm.clients.delta.archive import archive_entries\n"
        "list(archive_entries(pathlib.Path(sys.argv[1]), 86400, time.time(), 10))\n"
    )
    assert run_program("-c", code, table, env={"TXSTORM_FAULT": f"archive.moved:kill:{nth}"}).returncode == -9
    logged, archived = entries(table, LOG), entries(table, ARCHIVE)
    assert not set(logged) & set(archived)
    assert archived
    check_readable(table)
    assert archive(table) == (list(range(50, LAST + 1)), list(range(50)))
    check_readable(table, [0, 11, 49, 50])


def test_versions_are_readable_while_entries_are_archived(table):
    age(table, 2 * DAY)
    steps = iter(sorted((table / LOG).glob("0*")))
    (table / ARCHIVE).mkdir(parents=True)
    handle = DeltaHandle.open(table)
    seen = []
    for entry in handle.history():
        seen.append(entry.version)
        file = next(steps)
        if entry.version > int(file.name[:20]):
            file.rename(table / ARCHIVE / file.name)
    assert seen == list(range(LAST, -1, -1))


def add(handle, n):
    handle.commit(Commit({"app": n}, {"n": n}, [DataFile(f"{n % LAST + 1}.parquet", 1)]))


def test_only_opening_a_table_lists_its_log(table):
    handle, other = DeltaHandle.open(table), DeltaHandle.open(table)
    with unlisted(table):
        for n in range(LAST + 1, LAST + 8):
            add(handle, n)
            handle.refresh()
        handle.files()
        twin = handle.opener()()
        add(handle, LAST + 8)
        assert twin.checkpoint(5)
        handle.begin_with(twin)
        add(handle, LAST + 9)
        assert len(handle.checked_infos()) == 3
        other.refresh()
        assert (other.version, other.app_version("app")) == (LAST + 9, LAST + 9)
        assert (handle.version, handle.app_version("app"), len(handle.files())) == (LAST + 9, LAST + 9, LAST)
        assert next(handle.history()).version == LAST + 9
    assert DeltaTable(str(table)).version() == LAST + 9


def test_a_window_is_removed_with_its_handle_or_process(table, tmp_path, monkeypatch):
    handle = DeltaHandle.open(table)
    place = handle._window.path
    assert place.is_dir()
    del handle
    assert not place.exists()
    code = (
        "import os, pathlib, signal, sys\n"
        "from txstorm.clients.delta.handle import DeltaHandle\n"
        "handle = DeltaHandle.open(pathlib.Path(sys.argv[1]))\n"
        "if sys.argv[2] == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for end, left in (("kill", 1), ("end", 0)):
        subprocess.run([sys.executable, "-c", code, str(table), end], env=environment, check=False)
        assert len(list(tmp_path.glob("txstorm-log-*"))) == left


def test_a_process_that_starts_beside_another_one_loses_its_window_only_before_it_is_locked(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_window, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(delta_window, "mkdtemp", lambda prefix: tempfile.mkdtemp(prefix=prefix, dir=tmp_path))
    flock, others = fcntl.flock, []

    def beside(file, how):
        if how == fcntl.LOCK_SH and not others:  # created, not yet locked: here the other process deletes it
            others.append(delta_window._Place())
            others[0].begin()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", beside)
    place = delta_window._Place()
    place.begin()
    assert place.path.is_dir()
    assert others[0].path.is_dir()
    assert sorted(tmp_path.iterdir()) == sorted([place.path, others[0].path])


def test_a_temporary_directory_that_cannot_be_used_is_not_a_fault_of_the_table(table, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unmounted"))
    monkeypatch.setattr(delta_window, "_PLACE", delta_window._Place())
    with pytest.raises(InputError, match=r"temporary directory .*unmounted.*set TMPDIR"):
        DeltaHandle.open(table)


def plain_log(table):
    """Remove all files from the log except entries, single-file checkpoints and the `_last_checkpoint` hint."""
    for file in (table / LOG).iterdir():
        if not re.fullmatch(r"\d{20}\.(json|checkpoint\.parquet)|_last_checkpoint", file.name):
            file.unlink()


def test_a_reader_of_a_short_log_creates_no_directory(table, monkeypatch):
    plain_log(table)
    monkeypatch.setattr(delta_window, "mkdtemp", None)
    handle = DeltaHandle.open(table, once=True)
    assert handle._window.path == table
    assert (handle.version, handle.app_version("app")) == (LAST, LAST)
    assert sorted(handle.read()["n"].to_pylist()) == list(range(1, LAST + 1))
    assert len(handle.checked_infos()) == LAST % 5 + 1
    assert len(list(handle.history())) == LAST + 1


def test_a_reader_follows_commits_and_writes_its_checkpoint_outside_the_log(table):
    plain_log(table)
    reader, writer = DeltaHandle.open(table, once=True), DeltaHandle.open(table)
    for n in range(LAST + 1, LAST + 4):
        writer.commit(Commit({"app": n}, {"n": n}))
    assert reader.app_version("app") == LAST
    reader.refresh()
    assert (reader.version, reader.app_version("app")) == (LAST + 3, LAST + 3)
    reader.commit(Commit({"app": LAST + 4}, {"n": LAST + 4}))
    assert reader.checkpoint(1)
    assert reader._window.path != table
    assert checkpoints(table)[-1] == LAST + 4
    assert DeltaHandle.open(table, once=True).app_version("app") == LAST + 4


def hint(text):
    return lambda table: (table / LOG / "_last_checkpoint").write_text(text)


HINT_TO_PARTS = hint(json.dumps({"version": LAST, "size": 1, "parts": 3}))
OTHER_LOGS = {
    "a damaged hint": hint("{"),
    "a hint to parts": HINT_TO_PARTS,
    "a hint to an older checkpoint": hint(json.dumps({"version": LAST - 5, "size": 1})),
    "left by a killed writer": lambda table: (table / LOG / "_commit_x.json.tmp").write_text("{"),
    "an incomplete checkpoint": lambda table: in_parts(table, LAST, missing=2),
    "a long log": lambda table: setattr(delta_window, "SHORT", 10),
}


@pytest.mark.parametrize("change", OTHER_LOGS.values(), ids=OTHER_LOGS)
def test_any_other_log_is_read_through_a_window(table, monkeypatch, change):
    monkeypatch.setattr(delta_window, "SHORT", delta_window.SHORT)
    plain_log(table)
    change(table)
    handle = DeltaHandle.open(table, once=True)
    if change is not HINT_TO_PARTS:  # delta-rs may still read it
        assert handle._window.path != table
    assert sorted(handle.read()["n"].to_pylist()) == list(range(1, LAST + 1))
    assert handle.app_version("app") == LAST


def test_a_forked_child_does_not_remove_its_parents_window(table):
    handle = DeltaHandle.open(table)
    if (child := os.fork()) == 0:
        handle._window._end()
        os._exit(0)
    os.waitpid(child, 0)
    assert handle._window.path.is_dir()
    assert delta_window._place_of_process() == handle._window.path.parent


def test_a_lost_entry_is_not_skipped(table):
    (table / LOG / f"{58:020d}.json").unlink()
    (table / LOG / f"{60:020d}.checkpoint.parquet").unlink()
    with pytest.raises(Exception, match=re.compile("cannot be read|lost|gap", re.IGNORECASE)):
        DeltaHandle.open(table)


def test_windows_of_versions(table):
    window = Window.until(table, 33)
    assert (window.checkpoint, window.last, len(window.entries)) == (30, 33, 4)
    assert newest_complete(table, [f"{LOG}/{name}" for name in os.listdir(table / LOG)])[0] == 60


def test_a_log_that_grows_too_long_for_readers_is_warned_about_once(table, caplog):
    now = [0.0]
    archiving = Archiving(wall=lambda: now[0])
    for seconds, version in ((0, 0), (100, 1000), (200, 2400), (300, 4000)):
        now[0] = float(seconds)
        properties = {"delta.logRetentionDuration": "interval 1 days"}
        handle = SimpleNamespace(path=table, version=version, properties=properties)
        list(archiving.steps(handle, "sinks/out"))
        warnings = [one for one in caplog.messages if "versions a second" in one]
        assert len(warnings) == (seconds >= 200)
    [warning] = warnings
    assert "table sinks/out: gets 12 versions a second" in warning
    assert "1.04e+06 entries in the 86400 s" in warning
    assert "log_retention" in warning
