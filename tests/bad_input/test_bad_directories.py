"""Data directories that are foreign, newer, mixed, incomplete or damaged: rejected before anything is written."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest
from bad_input_cases import Says, go, listing, logs, refused, rewrite, run_words, topology, unchanged, write_words

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import DataDirectoryError, LedgerCorrupt, SpoutError, TableCorrupt
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import Put
from txstorm.ledger.values import encode_value
from txstorm.results.read import read_sink, read_state

FOREIGN, LEDGER, TABLE = DataDirectoryError, LedgerCorrupt, TableCorrupt


def other_run(data_dir, name):
    """Create another directory, of another incarnation, with the same topology and tables."""
    work = data_dir.parent / name
    work.mkdir()
    return run_words(work)


def swap_tables(data_dir):
    other = other_run(data_dir, "other")
    shutil.rmtree(data_dir / "changes")
    shutil.copytree(other / "changes", data_dir / "changes")


def swap_ledger(data_dir):
    shutil.copy(other_run(data_dir, "other") / "ledger.db", data_dir / "ledger.db")


def older_copy(data_dir, part):
    """Restore `part` from a copy made before the last transactions."""
    shutil.copytree(data_dir, data_dir.parent / "copy")
    write_words(data_dir.parent / "words.txt", ["a", "b", "a", "c", "d", "e"])
    go(topology(data_dir.parent / "words.txt"), data_dir)
    target, copy = data_dir / part, data_dir.parent / "copy" / part
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    shutil.copytree(copy, target) if copy.is_dir() else shutil.copy(copy, target)


def newer_ledger(data_dir):
    with closing(sqlite3.connect(data_dir / "ledger.db", isolation_level=None)) as connection:
        connection.execute("UPDATE format SET version = 2")


def entry(data_dir, path, value):
    with closing(open_ledger(data_dir, create=False)) as ledger:
        ledger.commit([Put(path, value)])


def newer_intent(data_dir):
    with closing(open_ledger(data_dir, create=False)) as ledger:
        name, kept = list(ledger.scan("intents").items())[-1]
        document = json.loads(kept.value)
        document["value"]["version"] = 3
        ledger.commit([Put(f"intents/{name}", encode_value(None, document["value"]))])


def newer_metadata(data_dir):
    """Replace the metadata of the file spout's last batch with metadata of a newer format."""
    with closing(open_ledger(data_dir, create=False)) as ledger:
        ((name, kept),) = ledger.scan("coordinator/meta").items()
        value = json.loads(kept.value)["value"]
        value["document"]["meta"]["v"] = 3
        ledger.commit([Put(f"coordinator/meta/{name}", encode_value(None, value))])


def table_property(data_dir, table, name, value):
    """Set a property in the first entry of a table's log, as a later version would have."""
    path = data_dir / table / f"_delta_log/{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            action["metaData"]["configuration"][name] = value
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def flip(data, index=None):
    index = len(data) // 2 if index is None else index
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def replaced(file, old, new):
    """Return a function that replaces bytes in a file of a data directory: the ledger, or the last entry of a log."""

    def damage(data_dir):
        path = data_dir / file
        rewrite(last_log(data_dir, file) if path.is_dir() else path, lambda data: data.replace(old, new))

    return damage


def wrote(file, text):
    return lambda data_dir: (data_dir / file).write_text(text)


def replaced_by_directory(file):
    return lambda data_dir: [(data_dir / file).unlink(), (data_dir / file).mkdir()]


def last_log(data_dir, table):
    return sorted((data_dir / table / "_delta_log").glob("*.json"))[-1]


def empty_entry(data_dir):
    """Truncate an entry in the middle of the log to zero bytes, so that the table loses its rows."""
    added = [path for path in logs(data_dir) if "sinks" in str(path) and '"add"' in path.read_text()]
    added[0].write_bytes(b"")


def staged(data_dir, table):
    return max((data_dir / table / "_txstorm/staged").iterdir(), key=lambda path: path.stat().st_mtime_ns)


NO_LEDGER = Says(FOREIGN, "data", "was run in, but has no ledger (ledger.db)", "put the ledger back")
NOT_INTACT = Says(LEDGER, "ledger.db", "expected an intact SQLite file", "restore it from a backup")
OTHER_TOPOLOGY = Says(FOREIGN, "table", "belongs to topology 'words', incarnation", "use another")
FORMAT = "{'format': 'txstorm-data', 'version': 1}"
DAMAGED_FORMAT = Says(FOREIGN, "format.json is damaged", f"expected {FORMAT}", "restore it")
NO_CHECKSUM = Says(TABLE, "changes/counts", "its checksum does not match its content", "restore the table's directory")
NO_STATE = Says(TABLE, "state/counts", "cannot be read", "restore the table's directory")
NO_LOG = Says(TABLE, "changes/counts", "the log cannot be read", "restore the table's directory")
NO_CHANGES = Says(TABLE, "changes/counts", "but there is none", "restore the directory")


def at_txid(table, expected, found):
    found = f"expects it at txid {expected}, found {found}"
    return Says(TABLE, f"table {table}", found, "restore both from the same copy")


def newer(thing, found="has format '2', this txstorm reads '1'", cure="use the txstorm that wrote it"):
    return Says(FOREIGN, thing, found, cure)


def other_checksum(path):
    return Says(LEDGER, "ledger.db", f"entry b'{path}' with another checksum", "restore it from a backup")


# name: (what happens to the directory, the error)
DAMAGES = {
    "missing ledger": (lambda d: (d / "ledger.db").unlink(), NO_LEDGER),
    "missing ledger and tables": (
        lambda d: [(d / "ledger.db").unlink(), *map(shutil.rmtree, (d / "state", d / "changes", d / "sinks"))],
        NO_LEDGER,
    ),
    "missing table": (lambda d: shutil.rmtree(d / "changes/counts"), NO_CHANGES),
    "missing state table": (
        lambda d: shutil.rmtree(d / "state/counts"),
        Says(TABLE, "state/counts", "but there is none", "restore the directory"),
    ),
    "swapped tables": (swap_tables, OTHER_TOPOLOGY),
    "swapped ledger": (swap_ledger, OTHER_TOPOLOGY),
    "older ledger": (lambda d: older_copy(d, "ledger.db"), at_txid("changes/counts", 4, 6)),
    "older table": (lambda d: older_copy(d, "sinks/lines"), at_txid("sinks/lines", 6, 4)),
    "older state table": (lambda d: older_copy(d, "changes/counts"), at_txid("changes/counts", 6, 4)),
    "newer directory": (
        wrote("format.json", '{"format": "txstorm-data", "version": 3}'),
        newer("format.json", "'txstorm-data' version 3; this txstorm reads", "update txstorm"),
    ),
    "other format": (
        wrote("format.json", '{"format": "other", "version": 1}'),
        newer("format.json", "'other' version 1; this txstorm reads", "update txstorm"),
    ),
    "damaged format": (lambda d: (d / "format.json").write_bytes(b"\xff{"), DAMAGED_FORMAT),
    "format 1e999": (wrote("format.json", '{"format": "txstorm-data", "version": 1e999}'), DAMAGED_FORMAT),
    "newer ledger": (newer_ledger, newer("ledger.db", "got txstorm-ledger 2")),
    "newer value": (
        lambda d: entry(d, "coordinator/currtx", json.dumps({"format": 2, "value": 5}).encode()),
        newer("coordinator/currtx", "got 2"),
    ),
    "newer intent": (newer_intent, newer("intent", "version 3 is newer than 2", "upgrade it")),
    "newer table": (lambda d: table_property(d, "changes/counts", "txstorm.format", "2"), newer("changes/counts")),
    "newer state table": (lambda d: table_property(d, "state/counts", "txstorm.format", "2"), newer("state/counts")),
    "newer history": (
        lambda d: table_property(d, "history", "txstorm.history", "2"),
        newer("history", "format 1, found '2'", "use a newer txstorm"),
    ),
    "random ledger": (lambda d: (d / "ledger.db").write_bytes(bytes(range(256)) * 64), NOT_INTACT),
    "empty ledger": (
        lambda d: (d / "ledger.db").write_bytes(b""),
        Says(LEDGER, "ledger.db", "expected an intact SQLite file, got 0 bytes", "restore it from a backup"),
    ),
    "truncated ledger": (lambda d: rewrite(d / "ledger.db", lambda data: data[:-4096]), NOT_INTACT),
    "flipped ledger": (replaced("ledger.db", b'"value":5}', b'"value":6}'), other_checksum("coordinator/currtx")),
    "flipped path": (
        replaced("ledger.db", b"coordinator/currtx", b"coordinator/currty"),
        other_checksum("coordinator/currty"),
    ),
    "garbled schema": (replaced("ledger.db", b"INTEGER NOT NULL)", b"INTEGER NOT NUL\xcc)"), NOT_INTACT),
    "ledger is a directory": (
        replaced_by_directory("ledger.db"),
        Says(FOREIGN, "ledger.db", "expected a file, got: something else", "check the data directory"),
    ),
    "lock is a directory": (
        replaced_by_directory("ledger.db.lock"),
        Says(FOREIGN, "ledger.db.lock", "expected a lock file", "check the data directory"),
    ),
    "intents is a file": (
        lambda d: [(d / "intents").rmdir(), (d / "intents").write_text("")],
        Says(FOREIGN, "intents", "expected to create this directory, got File exists", "remove what is at"),
    ),
    "garbled log": (lambda d: rewrite(last_log(d, "changes/counts"), lambda data: data[: len(data) // 2]), NO_LOG),
    "missing log": (lambda d: shutil.rmtree(d / "changes/counts/_delta_log"), NO_CHANGES),
    "missing log entry": (lambda d: (d / f"changes/counts/_delta_log/{1:020d}.json").unlink(), NO_LOG),
    "missing last log entry": (
        lambda d: last_log(d, "sinks/lines").unlink(),
        Says(TABLE, "sinks/lines", "expects it at txid 4, found", "restore both from the same copy"),
    ),
    "empty log entry": (
        empty_entry,
        Says(TABLE, "sinks/lines", "an entry between them is lost or damaged", "restore the table's directory"),
    ),
    "flipped txid": (replaced("changes/counts", b'"last":4', b'"last":5'), NO_CHECKSUM),
    "flipped stats": (replaced("changes/counts", b'\\"_txid\\": 4', b'\\"_txid\\": 1'), NO_CHECKSUM),
    "truncated state file": (lambda d: rewrite(staged(d, "state/counts"), lambda data: data[:-9]), NO_STATE),
    "flipped state file": (lambda d: rewrite(staged(d, "state/counts"), lambda data: flip(data, 60)), NO_STATE),
    "missing state file": (lambda d: staged(d, "state/counts").unlink(), NO_STATE),
    "truncated staged file": (
        lambda d: rewrite(staged(d, "changes/counts"), lambda data: data[:-9]),
        Says(TABLE, "staged file", "expected", "restore the file from a copy"),
    ),
}
# Damage inside a table's files shows when the states are read, after the epoch was raised.
LATER = {"truncated state file", "flipped state file", "missing state file"}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_directory_is_refused(name, tmp_path):
    damage, says = DAMAGES[name]
    data_dir = run_words(tmp_path)
    made = topology(write_words(tmp_path / "words.txt", ["a", "b", "a", "c", "new"]))
    damage(data_dir)
    before = listing(data_dir)
    with refused(says):
        go(made, data_dir)
    if name not in LATER:
        assert listing(data_dir) == before
    with refused(says):  # and it stays so: the first try has mended or hidden nothing
        go(made, data_dir)


@pytest.mark.parametrize("table", ["changes/counts", "sinks/lines"])
def test_a_damaged_checkpoint(table, tmp_path):
    """A damaged checkpoint, which replaces the log before it and has no checksum, is reported."""
    source = write_words(tmp_path / "words.txt", ["a", "b"] * 13)
    go(topology(source), tmp_path / "data", settings={"max_spout_pending": 1})
    DeltaHandle.open(tmp_path / "data" / table).checkpoint(1)  # the run's own are made beside commits, if there is time
    checkpoint = max((tmp_path / "data" / table / "_delta_log").glob("*.checkpoint.parquet"))
    rewrite(checkpoint, lambda data: flip(data, 40))
    says = Says(TABLE, table, f"the checkpoint {checkpoint.name} is not what was written", "restore the table's")
    with unchanged(tmp_path / "data"), refused(says):
        go(topology(source), tmp_path / "data")
    with refused(says):
        (read_state if "counts" in table else read_sink)(tmp_path / "data", table.partition("/")[2])


def test_metadata_of_a_newer_spout(tmp_path):
    data_dir = run_words(tmp_path)
    newer_metadata(data_dir)
    write_words(tmp_path / "words.txt", ["a", "b", "a", "c", "new"])
    says = Says(SpoutError, "file spout", "metadata of format 3, this txstorm knows 2", "run the newer txstorm")
    with refused(says):
        go(topology(tmp_path / "words.txt"), data_dir)
    assert read_sink(data_dir, "lines").num_rows == 4


BLOBS = {
    "missing": (lambda path: path.unlink(), "No such file or directory"),
    "truncated": (lambda path: rewrite(path, lambda data: data[:-1]), "bytes instead of"),
    "flipped": (lambda path: rewrite(path, flip), "or with another digest"),
}


@pytest.mark.parametrize("name", BLOBS)
def test_a_damaged_long_value(name, tmp_path):
    """A damaged value file, such as the metadata of a batch of many files, is reported."""
    damage, found = BLOBS[name]
    (tmp_path / "words").mkdir()
    for number in range(1500):
        write_words(tmp_path / "words" / f"{number:04}.txt", ["a"])
    made = topology(tmp_path / "words/*.txt", rows=1500)
    assert go(made, tmp_path / "data") == 1
    damage(max((tmp_path / "data/intents").iterdir(), key=lambda blob: blob.stat().st_size))
    with unchanged(tmp_path / "data"), refused(Says(LEDGER, "coordinator/meta/1", found, "restore the data directory")):
        go(made, tmp_path / "data")
