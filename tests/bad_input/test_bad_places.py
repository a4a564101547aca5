"""Directories that a topology cannot write to: foreign, locked, read-only, or on a full disk."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bad_input_cases import WORDS, Keep, Says, environment, go, refused, run_words, topology, unchanged, write_words
from crashes import crashing
from programs import loaded
from table_steps import full_disk

from txstorm import KeyedState
from txstorm.errors import BlockedError, DataDirectoryError, HeldError, StateError, TxstormError
from txstorm.ledger.open import open_ledger
from txstorm.results.read import read_sink, read_state

FOREIGN = DataDirectoryError
DEAD = {"owner": "words", "pid": os.getpid(), "host": socket.gethostname(), "since": "2020-01-01T00:00:00"}
ALL = [{"word": "a", "n": 2}, {"word": "b", "n": 1}, {"word": "c", "n": 1}]


def make_file(path):
    path.write_text("")


def make_foreign(path):
    path.mkdir()
    (path / "letters.txt").write_text("dear")


PLACES = {
    "file": (make_file, "is a file"),
    "below a file": (lambda path: make_file(path.parent), "data"),
    "dangling": (lambda path: path.symlink_to("/absent/target"), "expected to make it, got File exists"),
    "foreign": (make_foreign, "holds something else (letters.txt)"),
    "tables": (lambda path: (path / "state/counts").mkdir(parents=True), "was run in, but has no ledger"),
    "endless name": (lambda path: None, "File name too long"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_for_no_data(name, tmp_path):
    make, found = PLACES[name]
    place = tmp_path / ("x" * 300 if name == "endless name" else "place/data" if name == "below a file" else "place")
    made = topology(write_words(tmp_path / "words.txt"))
    make(place)
    with unchanged(tmp_path), refused(Says(FOREIGN, "data directory", found, "choose another --data-dir")):
        go(made, place)


@pytest.mark.parametrize("name", ["per%20cent", "back\\slash", "line\nbreak", "rub\x7fout"])
def test_a_path_that_tables_cannot_have(name, tmp_path):
    made = topology(write_words(tmp_path / "words.txt"))
    for place in (tmp_path / name, tmp_path / name / "data"):
        with unchanged(tmp_path), refused(Says(FOREIGN, repr(str(place)), "cannot be stored", "another --data-dir")):
            go(made, place)


@pytest.mark.parametrize("name", ["100%", "a%zz", "q?#*[x]", "ü 'a' \"b\" ;&$", "co:lon"])
def test_a_path_that_only_looks_odd(name, tmp_path):
    assert read_state(run_words(tmp_path, name), "counts").num_rows == len(set(WORDS))
    assert {path.name for path in tmp_path.iterdir()} == {name, "words.txt"}


def test_a_file_where_tables_should_be(tmp_path):
    (tmp_path / "data").mkdir()
    make_file(tmp_path / "data/state")
    with pytest.raises(TxstormError, match="data/state"):
        go(topology(write_words(tmp_path / "words.txt")), tmp_path / "data")


def test_the_directory_of_another_topology(tmp_path):
    data_dir = run_words(tmp_path)
    says = Says(FOREIGN, str(data_dir), "belongs to topology 'words', not to 'letters'", "choose another --data-dir")
    with unchanged(data_dir), refused(says):
        go(topology(tmp_path / "words.txt", id="letters"), data_dir)


def test_a_directory_that_another_process_runs_in(tmp_path):
    data_dir = run_words(tmp_path)
    with closing(subprocess.Popen([sys.executable, __file__, "hold", str(data_dir)], stdout=subprocess.PIPE,
                                  env=environment(), text=True).stdout) as output:  # fmt: skip
        pid = int(output.readline())
        says = Says(HeldError, str(data_dir), f"is held by 'somebody' (pid {pid}", "Stop that run or wait for its end")
        try:
            with unchanged(data_dir), refused(says) as caught:
                go(topology(tmp_path / "words.txt"), data_dir)
        finally:
            os.kill(pid, signal.SIGKILL)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\x00garbage",
        b"[1, 2]",
        b"{}",
        b'{"owner": 1, "pid": "x", "host": [], "since": null}',
        json.dumps(DEAD).encode(),
    ],
    ids=["garbage", "list", "empty", "types", "a dead process"],
)
def test_what_a_lock_file_holds_means_nothing_without_a_lock(content, tmp_path):
    data_dir = run_words(tmp_path)
    (data_dir / "ledger.db.lock").write_bytes(content)
    assert go(topology(tmp_path / "words.txt"), data_dir) == 4


def decided(tmp_path):
    """Return a directory whose last group is decided but not published."""
    with crashing("p6.after", 2):
        go(topology(write_words(tmp_path / "words.txt")), tmp_path / "data", settings={"max_spout_pending": 1})
    return tmp_path / "data"


def test_a_decided_transaction_is_published_before_a_changed_declaration_is_refused(tmp_path):
    data_dir = decided(tmp_path)
    assert read_state(data_dir, "counts").to_pylist() == [{"word": "a", "n": 1}]
    changed = type("Changed", (Keep,), {"state": KeyedState("counts", key={"word": str}, value={"n": float})})
    with refused(Says(StateError, "state 'counts'", "'n' is declared as double, the table has int64", "new name")):
        go(topology(tmp_path / "words.txt", changed()), data_dir)
    assert read_state(data_dir, "counts").to_pylist() == [{"word": "a", "n": 1}, {"word": "b", "n": 1}]
    assert go(topology(tmp_path / "words.txt"), data_dir) == 4
    assert read_state(data_dir, "counts").to_pylist() == ALL


def as_nobody(*arguments):
    """Run this file's `main` as an unprivileged user; return the printed error class and message."""
    done = loaded().run(__file__, *arguments, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture
def open_tmp():
    """Return a directory accessible to all users, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        for path in [Path(name), *Path(name).rglob("*")]:
            path.chmod(0o755)


def make_unwritable(tmp, data_dir):
    for path in [data_dir, *data_dir.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def make_unreadable(tmp, data_dir):
    tmp.chmod(0o777)
    (tmp / "words.txt").chmod(0o000)


# name: (what happens to the place, whether there is a data directory, the error and its cure)
CLOSED = {
    "a directory that cannot be written": (make_unwritable, True, "DataDirectoryError 2 ledger ",
        "expected a file that this user can write, got one to read; check its permissions"),
    "a place where nothing can be made": (lambda tmp, data_dir: tmp.chmod(0o555), False,
        "DataDirectoryError 2 data directory {data}: expected to make it, got Perm", "choose another --data-dir"),
    "a directory that cannot be read": (lambda tmp, data_dir: data_dir.chmod(0o000), True,
        "DataDirectoryError 2 data directory {data}: expected a directory that this user can", "choose another --data-dir"),
    "a source that cannot be read": (make_unreadable, False,
        "SpoutError 2 file spout: {words} cannot be read: Permission denied; check that", ""),
}  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("name", CLOSED)
def test_what_cannot_be_written_or_read(name, open_tmp):
    close, exists, start, cure = CLOSED[name]
    words, data_dir = write_words(open_tmp / "words.txt"), open_tmp / "data"
    if exists:
        run_words(open_tmp)
    close(open_tmp, data_dir)
    with unchanged(open_tmp):
        printed = as_nobody("run", words, data_dir)
    assert printed.startswith(start.format(data=data_dir, words=words))
    assert cure in printed


@pytest.mark.integration
def test_a_table_that_cannot_be_written(open_tmp):
    """If only a table cannot be written, the transaction is decided, and the run reports the table as blocked."""
    data_dir = run_words(open_tmp)
    write_words(open_tmp / "words.txt", ["a", "b", "a", "c", "d"])
    for path in [data_dir, *data_dir.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)
    (data_dir / "sinks/lines/_delta_log").chmod(0o555)
    printed = as_nobody("run", open_tmp / "words.txt", data_dir)
    assert printed.startswith("BlockedError 1 ")
    assert "sinks/lines" in printed
    assert "check disk space and permissions" in printed
    (data_dir / "sinks/lines/_delta_log").chmod(0o777)
    assert go(topology(open_tmp / "words.txt"), data_dir) == 5
    assert read_sink(data_dir, "lines")["line"].to_pylist() == ["a", "b", "a", "c", "d"]


@contextmanager
def small_disk(place, size):
    """Mount a disk of `size` bytes at `place`, and a large one afterwards; without mount rights, use `full_disk`."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    if subprocess.run([*mount, f"size={size}", "tmpfs", place], capture_output=True).returncode:
        with full_disk(size):
            yield lambda: None
        return
    try:
        yield lambda: subprocess.run([*mount, "remount,size=64m", "tmpfs", place], check=True)
    finally:
        # Lazily: what another test has just forked may still hold it.
        subprocess.run(["umount", "--lazy", place], check=True)


def check_full(made, data_dir):
    with pytest.raises(TxstormError) as caught:
        go(made, data_dir)
    assert type(caught.value) in (TxstormError, DataDirectoryError, BlockedError)
    assert str(data_dir) in str(caught.value)
    assert "check disk space" in str(caught.value)


def check_goes_on(made, data_dir, lines):
    assert go(made, data_dir) == 2
    assert read_sink(data_dir, "lines")["line"].to_pylist() == lines


@pytest.fixture
def large(tmp_path):
    """Return input of two transactions of 160 KB each, incompressible."""
    lines = [os.urandom(40_000).hex() for _ in range(8)]
    return topology(write_words(tmp_path / "words.txt", lines), rows=4), lines


@pytest.mark.parametrize("size", [16 << 10, 40 << 10, 100 << 10, 250 << 10])
def test_files_that_cannot_grow(size, large, tmp_path):
    made, lines = large
    with full_disk(size):
        check_full(made, tmp_path / "data")
    check_goes_on(made, tmp_path / "data", lines)


@pytest.mark.integration
@pytest.mark.parametrize("size", [16 << 10, 60 << 10, 80 << 10, 100 << 10, 240 << 10, 560 << 10])
def test_a_disk_that_is_full(size, large, tmp_path):
    made, lines = large
    with small_disk(tmp_path / "disk", size) as grow:
        check_full(made, tmp_path / "disk/data")
        grow()
        check_goes_on(made, tmp_path / "disk/data", lines)


def main(what, *arguments):
    """Entry point of child processes: `hold` a directory's lease, or `run` in it without permissions."""
    if what == "hold":
        ledger = open_ledger(arguments[0], create=False)
        ledger.acquire("somebody")
        print(os.getpid(), flush=True)
        signal.pause()
    source, data_dir = map(Path, arguments)
    with tempfile.TemporaryDirectory() as warm:  # whatever is imported late is imported now
        run_words(Path(warm))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        go(topology(source), data_dir)
    except TxstormError as error:
        print(type(error).__name__, error.exit_code, str(error).replace("\n", " "))


if __name__ == "__main__":
    main(*sys.argv[1:])
