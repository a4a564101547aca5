"""The SQLite ledger, beyond the rules common to all ledgers: its file, readers, kills and full disks."""

import os
import random
import shutil
import signal
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from txstorm.errors import ConflictError, DataDirectoryError, HeldError, InputError, LedgerCorrupt, TxstormError
from txstorm.ledger.location import parse_ledger
from txstorm.ledger.open import local_directory, open_ledger
from txstorm.ledger.port import ABSENT, Entry, Put
from txstorm.ledger.sqlite import SqliteLedger

integration = pytest.mark.integration


def filled(path: Path, entries: int = 300) -> Path:
    with closing(SqliteLedger(path, create=True)) as ledger:
        ledger.commit([Put(f"coordinator/meta/{i}", b"x" * 200) for i in range(entries)])
    return path


def opened(path: Path, **options: Any) -> closing[SqliteLedger]:
    return closing(SqliteLedger(path, create=False, **options))


def refused(path: Path, error: type[Exception], *words: str, read_only: bool = False) -> None:
    with pytest.raises(error) as caught:
        SqliteLedger(path, create=False, read_only=read_only)
    assert str(path) in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_file_is_created_only_on_request_and_once_also_in_a_directory_of_an_odd_name(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    refused(path, DataDirectoryError, "No such file")
    refused(path, DataDirectoryError, "No such file", read_only=True)
    with pytest.raises(DataDirectoryError):
        SqliteLedger(path, create=True, read_only=True)
    assert list(tmp_path.iterdir()) == []
    SqliteLedger(path, create=True).close()
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.db"]
    directory = tmp_path / "a b?mode=ro#c%41ä"
    directory.mkdir()
    path = filled(directory / "ledger.db", 3)
    with closing(SqliteLedger(path, create=True)) as ledger:
        assert ledger.children("coordinator/meta") == ["0", "1", "2"]
    with opened(path, read_only=True) as ledger:
        assert len(ledger.scan("coordinator/meta")) == 3


@pytest.mark.parametrize("read_only", [False, True])
def test_a_truncated_file_is_corrupt(tmp_path: Path, read_only: bool) -> None:
    path = filled(tmp_path / "ledger.db")
    whole = path.read_bytes()
    for keep in (0, 50, 1000, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:keep])
        refused(path, LedgerCorrupt, read_only=read_only)


@pytest.mark.parametrize("seed", range(10))
def test_overwritten_pages_are_corrupt(tmp_path: Path, seed: int) -> None:
    path = filled(tmp_path / "ledger.db")
    damaged = bytearray(path.read_bytes())
    page = random.Random(seed).randrange(len(damaged) // 4096)
    damaged[page * 4096 : page * 4096 + 512] = random.Random(seed).randbytes(512)
    path.write_bytes(damaged)
    with pytest.raises(LedgerCorrupt):
        SqliteLedger(path, create=False)
        pytest.fail(f"seed {seed}: page {page} of {len(damaged) // 4096} was damaged without anybody noticing")


def test_another_sqlite_database_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine(a)")
    refused(path, DataDirectoryError, "another SQLite database")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def pragma(ledger: SqliteLedger, name: str) -> Any:
    return ledger._connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_every_commit_is_synced_in_wal_mode_to_which_opening_a_ledger_switches_it(ledger_file: Path) -> None:
    with closing(sqlite3.connect(ledger_file)) as made:
        assert made.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with opened(ledger_file) as ledger, opened(ledger_file) as other:
        assert (pragma(ledger, "synchronous"), pragma(ledger, "journal_mode")) == (2, "wal")
        ledger.commit([Put("a", b"1")])
        assert other.get("a") == Entry(b"1", 0)
    with opened(ledger_file) as ledger, opened(ledger_file) as other:
        ledger.commit([Put("status", b"1")], durable=False)
        assert pragma(ledger, "synchronous") == 2
        assert other.get("status") == Entry(b"1", 0)
        with pytest.raises(ConflictError):
            ledger.commit([Put("status", b"2", ABSENT)], durable=False)
        assert pragma(ledger, "synchronous") == 2
        ledger.commit([Put("status", b"2", 0)])
        assert other.get("status") == Entry(b"2", 1)


@integration
def test_a_reader_follows_the_commits_of_another_process_and_writes_nothing(ledger_file: Path, processes) -> None:
    with opened(ledger_file, read_only=True) as reader:
        for write in (lambda: reader.commit([Put("a", b"")]), lambda: reader.acquire("me")):
            with pytest.raises(InputError, match="read_only"):
                write()
        assert reader.holder() is None
        assert not ledger_file.with_name("ledger.db.lock").exists()
    code = "ledger = SqliteLedger(path, create=False); ledger.acquire('w'); n = 0\n"
    code += "for line in sys.stdin: ledger.commit([Put('n', line.strip().encode())]); print('ok', flush=True)"
    writer = processes.start(code, ledger_file)
    with opened(ledger_file, read_only=True) as reader:
        for i in range(5):
            writer.stdin.write(f"{i}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "ok\n"
            assert reader.get("n") == Entry(str(i).encode(), i)
            assert f"'w' (pid {writer.pid} " in str(reader.holder())


@integration
def test_commits_before_a_sigkill_are_visible_to_readers_and_the_next_writer(ledger_file: Path, processes) -> None:
    code = "ledger = SqliteLedger(path, create=False)\n"
    code += "for n in map(str, range(10**9)):\n"
    code += "    ledger.commit([Put('n', n.encode()), Put('m', n.encode())]); print(n, flush=True)"
    writer = processes.start(code, ledger_file)
    for _ in range(20):
        printed = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    printed = int((writer.stdout.read().split() or [printed])[-1])
    writer.wait()
    for read_only in (True, False):
        with opened(ledger_file, read_only=read_only) as ledger:
            both = ledger.scan("")
            assert both["n"] == both["m"]
            assert int(both["n"].value) in (printed, printed + 1)


@integration
def test_copying_the_data_directory_in_the_process_loses_no_later_commit(
    ledger_file: Path, processes, tmp_path_factory
) -> None:
    """Copying the directory loses no commit, although closing the copied files releases SQLite's own POSIX locks."""
    commit = "ledger = SqliteLedger(path, create=False); ledger.commit([Put({!r}, b'')]); ledger.close()"
    look = "print(SqliteLedger(path, create=False, read_only=True).children(''))"
    with opened(ledger_file) as ledger:
        ledger.commit([Put("a", b"")])
        shutil.copytree(ledger_file.parent, tmp_path_factory.mktemp("copies") / "copy")
        processes.run(commit.format("b"), ledger_file)
        ledger.commit([Put("c", b"")])
        SqliteLedger(ledger_file, create=False, read_only=True).close()  # of this process: the locks stay
        processes.run(commit.format("d"), ledger_file)
        assert processes.run(look, ledger_file) == "['a', 'b', 'c', 'd']\n"
    assert processes.run(look, ledger_file) == "['a', 'b', 'c', 'd']\n"


@integration
def test_the_last_handle_leaves_one_file(ledger_file: Path) -> None:
    handles = [SqliteLedger(ledger_file, create=False, read_only=one) for one in (False, True, False)]
    handles[0].commit([Put("a", b"")])
    for handle in handles:
        handle.close()
    assert [path.name for path in ledger_file.parent.glob("ledger.db*")] == ["ledger.db"]


@integration
def test_of_two_concurrent_processes_one_commits_each_version(ledger_file: Path, processes) -> None:
    code = """
ledger = SqliteLedger(path, create=False)
print("ready", flush=True)
me = input()
won = []
for version in range(ABSENT, 99):
    try:
        ledger.commit([Put("seat", me.encode(), version), Put(f"won/{version}", me.encode(), ABSENT)])
        won.append(version)
    except ConflictError:
        pass
print(won)
"""
    racers = [processes.start(code, ledger_file) for _ in range(2)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for me, racer in enumerate(racers):
        racer.stdin.write(f"{me}\n")
        racer.stdin.flush()
    won = [eval(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sorted(won[0] + won[1]) == list(range(ABSENT, 99)), "every version has exactly one winner"
    with opened(ledger_file) as ledger:
        stored = {int(name): entry.value for name, entry in ledger.scan("won").items()}
    assert stored == {version: str(me).encode() for me in (0, 1) for version in won[me]}


@integration
def test_two_processes_creating_a_ledger_concurrently_share_it(tmp_path: Path, processes) -> None:
    path = tmp_path / "ledger.db"
    code = "ledger = SqliteLedger(path, create=True); import os; ledger.commit([Put(f'p/{os.getpid()}', b'')])"
    racers = [processes.start(code, path) for _ in range(3)]
    for racer in racers:
        racer.communicate(timeout=60)
        assert racer.returncode == 0
    with opened(path) as ledger:
        assert sorted(ledger.children("p")) == sorted(str(racer.pid) for racer in racers)
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.integration
@pytest.mark.parametrize("left", ["nothing", "logs"])
def test_a_ledger_in_a_read_only_directory_can_be_read(left: str, in_child) -> None:
    # Not in pytest's temporary directory, which other users cannot access.
    directory = Path(tempfile.mkdtemp())

    def as_a_user_without_rights() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        with opened(path, read_only=True) as ledger:
            assert ledger.holder() is None
            assert len(ledger.scan("coordinator/meta")) == 7
        with pytest.raises(DataDirectoryError):
            SqliteLedger(path, create=False)

    try:
        path = filled(directory / "ledger.db", 7)
        if left == "logs":
            SqliteLedger(path, create=False, read_only=True).close()
        for file in directory.iterdir():
            file.chmod(0o444)
        directory.chmod(0o555)
        assert in_child(as_a_user_without_rights) == 0
    finally:
        directory.chmod(0o755)
        shutil.rmtree(directory)


def test_a_full_disk_and_a_commit_of_another_process_are_reported(ledger_file: Path) -> None:
    with opened(ledger_file) as ledger:
        ledger.commit([Put("a", b"1")])
        pragma(ledger, "max_page_count = 1")  # SQLite's limit stands in for a full disk
        with pytest.raises(TxstormError, match=r"ledger\.db.*full.*disk space"):
            ledger.commit([Put("a", b"2"), *(Put(f"b/{i}", b"x" * 4096) for i in range(20))])
        assert ledger.scan("") == {"a": Entry(b"1", 0)}
        pragma(ledger, "max_page_count = 100000")
        ledger.commit([Put("a", b"2", 0)])
    with opened(ledger_file, busy=0.05) as ledger:
        with closing(sqlite3.connect(ledger_file, isolation_level=None)) as hanging:
            hanging.execute("BEGIN IMMEDIATE")
            with pytest.raises(HeldError, match="expected another process to end its commit, got database is locked"):
                ledger.commit([Put("a", b"")])
        ledger.commit([Put("a", b"")])


def test_damage_under_a_live_handle_is_reported_as_such(tmp_path: Path) -> None:
    path = filled(tmp_path / "ledger.db")
    with opened(path) as ledger:
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (path.stat().st_size - 4096))
        ledger._connection.execute("PRAGMA shrink_memory")  # otherwise, SQLite reads from its page cache
        ledger._seen = None  # as after a commit of another process: the entries are read again
        with pytest.raises(LedgerCorrupt, match=r"ledger\.db"):
            ledger.scan("coordinator/meta")


@pytest.mark.parametrize(
    "directory",
    ["s3://bucket/x", "s3a://bucket/x", "abfss://c@a/x", "dbfs:/x", "hdfs://n/x", "file://host/x", Path("s3://b/x")],
)
def test_remote_directories_are_refused(directory: str | Path) -> None:
    with pytest.raises(InputError, match=r"expected a path, got scheme .*on one that is mounted"):
        open_ledger(directory, create=True)


@pytest.mark.parametrize(
    ("directory", "local"),
    [
        ("a/b", "a/b"),
        ("/a/b:c/d", "/a/b:c/d"),
        ("file:///a/b%20c#d", "/a/b c#d"),
        ("file:/a", "/a"),
        ("file://localhost/a", "/a"),
        (Path("/a"), "/a"),
    ],
)
def test_local_directories_are_accepted(directory: str | Path, local: str) -> None:
    assert local_directory(directory) == Path(local)


def test_the_directory_of_a_ledger_is_created_on_request_and_accessible_by_its_user_only(tmp_path: Path) -> None:
    data_dir = tmp_path / "not" / "there"
    with pytest.raises(DataDirectoryError):
        open_ledger(data_dir, create=False)
    assert not data_dir.parent.exists()
    with closing(open_ledger(str(data_dir), create=True)) as ledger:
        ledger.commit([Put("a", b"1")])
    with closing(open_ledger(data_dir, create=False, read_only=True)) as ledger:
        assert ledger.get("a") == Entry(b"1", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="file/below"):  # which cannot be created
        open_ledger(tmp_path / "file" / "below", create=True)
    shared, own = tmp_path / "shared", tmp_path / "shared" / "own"
    with closing(open_ledger(own, create=True)):
        assert own.stat().st_mode & 0o777 == 0o700
        assert shared.stat().st_mode & 0o077  # parent directories are created with the usual mode
    shared.chmod(0o755)
    with closing(open_ledger(shared, create=True)):
        assert shared.stat().st_mode & 0o777 == 0o755  # the mode of an existing directory is not changed
    with closing(open_ledger(tmp_path / "delta", create=True, ledger=parse_ledger(f"delta:{tmp_path}/ledger"))):
        assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o700
