"""Paths and topics planted in a ledger: its content must not choose where txstorm reads or writes."""

import glob
from contextlib import closing
from pathlib import Path

import pytest
from bad_input_cases import topology
from runs import ended

from txstorm import TaskContext, TransactionAttempt
from txstorm.errors import LedgerCorrupt, SpoutError, TxstormError
from txstorm.ledger.open import open_ledger
from txstorm.ledger.paths import TABLES
from txstorm.ledger.port import Put
from txstorm.ledger.values import decode_value, encode_value
from txstorm.replay.audit import replay_txid
from txstorm.spouts import FileSpout
from txstorm.spouts.files.listing import check_named
from txstorm.storage.tables.identity import table_ref


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a data directory with two committed transactions of files in `books`."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("1\n2\n3\n4\n")
    ended(topology(tmp_path / "books/*.txt", rows=2), tmp_path / "data")
    return tmp_path


def planted(data_dir: Path, path: str, change) -> None:
    """Change one ledger value, as an attacker with write access would."""
    with closing(open_ledger(data_dir, create=False)) as ledger:
        found = decode_value(None, ledger.get(path).value)
        ledger.commit([Put(path, encode_value(None, change(found), path))])


def test_a_recorded_range_of_another_file_is_not_read(directory: Path):
    assert replay_txid(topology(directory / "books/*.txt", rows=2), directory / "data", 1).equal
    (directory / "elsewhere").mkdir()
    (directory / "elsewhere" / "a.txt").write_text("1\n2\n")
    # The same bytes with the same digests, so that nothing but the place is another one.
    with pytest.raises(SpoutError, match=r"a recorded file that its paths name .*elsewhere/\*\.txt.*books/a\.txt'"):
        replay_txid(topology(directory / "elsewhere/*.txt", rows=2), directory / "data", 1)


NAMED = {
    "/data/a.txt": (["/data/a.txt"], True),
    "/data/books/a.txt": (["/data/b.txt", "/data/books/*.txt"], True),
    "/data/books/b/a.txt": (["/data/books/*.txt"], False),
    "/data/books/b/c/a.txt": (["/data/books/**/*.txt"], True),
    "/data/books/a.csv": (["/data/books/**/*.txt"], False),
    "/data/books/d.txt": (["/data/**"], True),
    "/data/books/../../etc/passwd": (["/data/**/passwd", "/data/books/**"], False),
    "/data/../etc/a.txt": (["/data/*/*/a.txt"], False),
    "/data/books/.hidden.txt": (["/data/books/*.txt", "/data/**"], False),
    "/data/.books/a.txt": (["/data/.books/*.txt"], True),
    "/data/[1]/a.txt": (["/data/[1]/a.txt"], True),
    "/data/1/a.txt": (["/data/[1]/?.txt"], True),
    "/etc/passwd": (["/data/*"], False),
    "etc/passwd": (["/data/*"], False),
    "": (["/data/*"], False),
}


@pytest.mark.parametrize("name", NAMED)
def test_files_that_paths_name(name: str):
    paths, named = NAMED[name]
    assert _named(tuple(paths), name) is named


def test_what_a_glob_finds_is_named(tmp_path: Path):
    for name in ("a.txt", "b/c/d.txt", "b/e.txt", "b/.h.txt", ".x/y.txt", "[z]/a.txt", "b/c/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for pattern in ("*.txt", "**/*.txt", "**", "*/*.txt", "b/**", "b/**/*", "b/**/**/f", ".x/*", "[[]z]/*", "b/[ce]*"):
        spout = FileSpout(tmp_path / pattern, format="text")
        found = [one for one in tmp_path.glob("**/*") if one.is_file()]
        matched = {one for one in glob.glob(str(tmp_path / pattern), recursive=True) if Path(one).is_file()}
        for file in map(str, found):
            assert _named(spout.paths, file) == (file in matched), (pattern, file)


def _named(paths: tuple[str, ...], name: str) -> bool:
    try:
        check_named(paths, name)
    except SpoutError as error:
        assert "expected a recorded file" in str(error)
        return False
    return True


def test_a_recorded_topic_that_the_spout_does_not_read_is_refused_before_a_broker_is_asked():
    pytest.importorskip("confluent_kafka")
    from txstorm.spouts import TransactionalKafkaSpout

    spout = TransactionalKafkaSpout(["orders", "^log-"], "127.0.0.1:1")
    metadata = {"v": 1, "topics": {"salaries": {"id": "x", "from": {"0": 0}, "next": {"0": 5}}}}
    emitter = spout.emitter(TaskContext("t", "kafka", 0, 1))
    with pytest.raises(SpoutError, match=r"recorded ranges of topics among .*orders.* got .*salaries"):
        emitter.emit_batch(TransactionAttempt(1, 1), metadata, None)


PLACES = ["changes/../../other", "/etc", "changes//etc", "../x", "state/..", "changes/a/b", "elsewhere/a", "changes/"]


@pytest.mark.parametrize("uri", PLACES)
def test_a_table_elsewhere(uri: str):
    with pytest.raises(LedgerCorrupt, match="expected a table of this data directory"):
        table_ref(uri)


@pytest.mark.parametrize("uri", PLACES)
def test_a_ledger_that_knows_a_table_elsewhere_is_refused(directory: Path, uri: str):
    before = sorted(str(one) for one in directory.rglob("*"))
    planted(directory / "data", TABLES, lambda found: {**found, uri: 0})
    with pytest.raises(TxstormError, match="table"):
        ended(topology(directory / "books/*.txt", rows=2), directory / "data")
    after = sorted(str(one) for one in directory.rglob("*"))
    assert [one for one in after if one not in before and "ledger.db" not in one] == []
