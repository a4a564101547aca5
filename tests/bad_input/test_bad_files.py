"""Foreign or outdated files in a data directory: readers and runs give correct results or name the fault."""

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from bad_input_cases import Says, go, refused, topology, unchanged, write_words
from crashes import crashing

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import DataDirectoryError, LedgerCorrupt, TableCorrupt, TxstormError
from txstorm.ledger.lease import FileLease
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import Put
from txstorm.ledger.values import encode_value
from txstorm.operations.status import read_status
from txstorm.results.snapshot import snapshot
from txstorm.results.views import SinkView, StateView, read_directory_history

WORDS = [f"w{i % 7}" for i in range(26)]
COUNTS = [{"word": f"w{i}", "n": 4 if i < 5 else 3} for i in range(7)]
ONE_BY_ONE = {"max_spout_pending": 1}
HUGE = 1 << 41


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Return a data directory with checkpoints, after a clean stop."""
    home = tmp_path_factory.mktemp("stopped")
    go(topology(write_words(home / "words.txt", WORDS)), home / "data", settings=ONE_BY_ONE)
    for table in ("changes/counts", "sinks/lines"):
        DeltaHandle.open(home / "data" / table).checkpoint(1)  # the run's own are made beside commits, if there is time
    return home


@pytest.fixture
def data_dir(stopped, tmp_path):
    return Path(shutil.copytree(stopped / "data", tmp_path / "data"))


def replaced(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


def made_huge(path):
    with path.open("r+b") as file:
        file.truncate(HUGE)


NO_FILES = {
    "directory": replaced(Path.mkdir),
    "pipe": replaced(os.mkfifo),
    "itself": replaced(lambda path: path.symlink_to(path.name)),
    "nowhere": replaced(lambda path: path.symlink_to("/absent/file")),
    "endless": replaced(lambda path: path.symlink_to("/dev/zero")),
    "huge": made_huge,
}
FILES = {
    "first entry": "changes/counts/_delta_log/*00.json",
    "entry": "sinks/lines/_delta_log/*25.json",
    "checkpoint": "sinks/lines/_delta_log/*.checkpoint.parquet",
    "last checkpoint": "changes/counts/_delta_log/_last_checkpoint",
    "note": "changes/counts/_txstorm/checkpoint.json",
    "rows": "sinks/lines/_txstorm/staged/*.parquet",
    "format": "format.json",
    "lock": "ledger.db.lock",
}


def readings(data_dir):
    """Assert that reads of the rows and the run's status either give the expected result or raise a `TxstormError`."""
    for read, expected in (
        (lambda: StateView(data_dir, "counts").to_pylist(), COUNTS),
        (lambda: SinkView(data_dir, "lines").to_arrow()["line"].to_pylist(), WORDS),
        (lambda: read_status(data_dir)["running"], False),
    ):
        try:
            found = read()
        except TxstormError as error:
            assert str(data_dir) in str(error)
            assert error.exit_code == 2
        else:
            assert found == expected


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("file", FILES)
def test_readers_and_runs_do_not_block_on_pipes_and_devices(file, kind, data_dir, stopped):
    NO_FILES[kind](min(data_dir.glob(FILES[file])))
    readings(data_dir)
    try:
        assert go(topology(stopped / "words.txt"), data_dir) == len(WORDS)
    except TxstormError as error:
        assert any(name in str(error) for name in (str(data_dir), "table sinks/lines", "table changes/counts"))


def test_an_entry_of_the_log_that_is_no_file_is_named(data_dir):
    entry = max((data_dir / "changes/counts/_delta_log").glob("*.json"))
    NO_FILES["pipe"](entry)
    says = Says(TableCorrupt, str(entry), "expected a file, got a pipe", "restore the table's directory")
    with refused(says):
        StateView(data_dir, "counts").to_arrow()


def test_a_file_of_another_size_is_named(data_dir):
    file = min(data_dir.glob(FILES["rows"]))
    size = file.stat().st_size
    made_huge(file)
    says = Says(TableCorrupt, str(file), f"expected {size} bytes, got {HUGE}", "restore the table's directory")
    with refused(says):
        SinkView(data_dir, "lines").to_arrow()


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_lock_that_is_no_regular_file_gives_no_lease(kind, data_dir):
    path = data_dir / "ledger.db.lock"
    NO_FILES[kind](path)
    with closing(open_ledger(data_dir, create=False)) as ledger:
        for call in (lambda: ledger.acquire("somebody"), ledger.holder):
            with refused(Says(DataDirectoryError, str(path), "expected a lock file", "check the data directory")):
                call()
    assert FileLease(data_dir / "absent.lock").holder() is None


READ = {
    "state": lambda d: StateView(d, "counts").to_arrow(),
    "changes": lambda d: StateView(d, "counts").changes(20, 26),
    "sink": lambda d: SinkView(d, "lines").to_arrow(),
    "history": read_directory_history,
    "snapshot": snapshot,
}
TOLD = [(read, "changes/counts") for read in ("state", "changes", "snapshot")]
TOLD += [("sink", "sinks/lines"), ("history", "history"), ("snapshot", "sinks/lines")]
LOSSES = {
    "gone": shutil.rmtree,
    "no log": lambda table: shutil.rmtree(table / "_delta_log"),
    "behind": lambda table: max((table / "_delta_log").glob("*.json")).unlink(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("read", "table"), TOLD)
def test_no_reader_takes_less_for_all(read, table, loss, data_dir):
    LOSSES[loss](data_dir / table)
    with unchanged(data_dir), pytest.raises(TableCorrupt, match=table) as caught:
        READ[read](data_dir)
    assert "restore" in str(caught.value)


@pytest.mark.parametrize("read", ["state", "sink", "snapshot"])
def test_no_reader_takes_tables_of_another_topology(read, data_dir, tmp_path):
    go(topology(write_words(tmp_path / "words.txt", WORDS)), tmp_path / "other", settings=ONE_BY_ONE)
    for table in ("changes/counts", "state/counts", "sinks/lines"):
        shutil.rmtree(data_dir / table)
        shutil.copytree(tmp_path / "other" / table, data_dir / table)
    says = Says(DataDirectoryError, "table", "belongs to topology 'words', incarnation", "use another one")
    with refused(says):
        READ[read](data_dir)


@pytest.mark.parametrize("read", ["state", "sink", "history", "snapshot"])
def test_no_reader_takes_an_older_ledger(read, data_dir, stopped, tmp_path):
    shutil.copy(data_dir / "ledger.db", tmp_path / "ledger.db")
    shutil.copy(write_words(tmp_path / "words.txt", [*WORDS, "w1"]), stopped / "words.txt")
    try:
        go(topology(stopped / "words.txt"), data_dir)
    finally:
        write_words(stopped / "words.txt", WORDS)
    shutil.copy(tmp_path / "ledger.db", data_dir / "ledger.db")
    found = "at txid 27 of timeline 0, the ledger knows nothing after txid 26"
    with refused(Says(TableCorrupt, str(data_dir), found, "restore")):
        READ[read](data_dir)


def test_what_is_decided_explains_tables_ahead_of_the_ledger(tmp_path):
    """A table ahead of the ledger is accepted if a decided group explains it: the run ended while publishing."""
    made = topology(write_words(tmp_path / "words.txt", WORDS))
    with crashing("p7.2.before", 3):
        go(made, tmp_path / "data", settings=ONE_BY_ONE)
    assert snapshot(tmp_path / "data").txid == 2
    assert sum(row["n"] for row in StateView(tmp_path / "data", "counts").to_pylist()) == 3


def test_a_rewound_directory_can_be_read(data_dir, command):
    command.printed("rewind", data_dir, "--to-txid", 12, "--yes")
    assert sum(row["n"] for row in StateView(data_dir, "counts").to_pylist()) == 12
    assert SinkView(data_dir, "lines").to_arrow().num_rows == 12
    assert read_directory_history(data_dir)["txid"].to_pylist()[-1] == 12


def test_a_history_without_a_ledger_is_refused(data_dir, command):
    (data_dir / "ledger.db").unlink()
    assert "has no ledger" in command.refused("history", data_dir)


VALUES = {
    "no number": ("coordinator/currtx", "x"),
    "list for a number": ("coordinator/currtx", [1]),
    "below zero": ("coordinator/currtx", -1),
    "nobody": ("identity", {}),
    "timeline of no number": ("identity", {"topology": "words", "incarnation": "a", "timeline": None}),
    "txid of no number": ("tables", {"changes/counts": "x"}),
    "unknown table": ("tables", {"a": 1}),
    "child of no txid": ("intents/x", {}),
}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "what", [["snapshot"], ["history"], ["rewind", "--to-txid", "12", "--yes"]], ids=lambda c: c[0]
)
def test_a_value_of_another_shape_is_named(what, name, data_dir, command):
    path, value = VALUES[name]
    with closing(open_ledger(data_dir, create=False)) as ledger:
        ledger.commit([Put(path, encode_value(None, value))])
    with unchanged(data_dir):
        error = command.refused(what[0], data_dir, *what[1:])
    assert f"ledger entry {path}: expected" in error
    assert "restore the ledger" in error


def test_a_row_of_the_history_that_is_none_is_named(data_dir):
    with closing(open_ledger(data_dir, create=False)) as ledger:
        ledger.commit([Put("history/26", encode_value(None, ["x"]))])
    with refused(Says(LedgerCorrupt, "ledger entry history/26", "expected rows of the history", "restore the ledger")):
        read_directory_history(data_dir)
