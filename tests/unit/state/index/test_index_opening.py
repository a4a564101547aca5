"""Opening an index on disk: a valid index is trusted, and only the missing changes are read from the tables."""

import os

import pytest
from index_cases import TINY, stores, words
from recovery_cases import KILLED, eventually, finish, start
from store_cases import commit, open_store
from table_steps import words_read

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.rocksdb import KeyStore
from txstorm.state.index.disk import FORMAT

NOTE = b"\xff\xffnote"


@pytest.fixture
def reads(monkeypatch):
    """Return a function that lists the reads of a state's tables so far, as pairs of table and lower bound."""
    seen = []
    batches = DeltaHandle.batches

    def noted(self, low=None, *arguments, **named):
        seen.append((f"{self.path.parent.name}/{self.path.name}", low))
        return batches(self, low, *arguments, **named)

    monkeypatch.setattr(DeltaHandle, "batches", noted)
    return lambda name="counts": [(table, low) for table, low in seen if table.endswith(f"/{name}")]


def opened(path, **arguments):
    store = open_store(path, bounds=TINY, **arguments)
    store.load()
    return store


def rows_of(store, keys):
    return store._indexes["counts"].rows(list(keys))


def with_note(path, write):
    """Call `write` with the key store of an index and the note in it of the txid that it is as of."""
    (directory,) = path.iterdir()
    store = KeyStore.open(directory)
    write(store, *store.get([NOTE]))
    store.sync()
    store.close()


def filled(path, txids=3):
    store = opened(path, create=True)
    for txid in range(1, txids + 1):
        commit(store, txid, dict.fromkeys(words(0, 40), 1))
    return store


def test_a_start_with_an_index_reads_later_changes_only(tmp_path, reads):
    store = filled(tmp_path)
    store.close()
    before = len(reads())
    again = opened(tmp_path, epoch=2)
    assert reads()[before:] == []
    assert rows_of(again, ["w1", "x"]) == [((3,), 3, (2,)), None]
    disk = again._indexes["counts"]._disk
    commit(again, 4, {"w1": 1, "w2": None}, epoch=2)
    disk._store.close()  # the process dies before anything of txid 4 has reached the disk
    before = len(reads())
    third = opened(tmp_path, epoch=3)
    assert reads()[before:] == [("changes/counts", ("_txid", 3))]
    assert rows_of(third, ["w1", "w2", "w3"]) == [((4,), 4, (3,)), None, ((3,), 3, (2,))]


def test_a_small_state_has_no_index_on_disk(tmp_path):
    store = opened(tmp_path, create=True)
    commit(store, 1, dict.fromkeys("abc", 1))
    store.close()
    assert not (tmp_path / "index").exists()


def spoil_bytes(path):
    largest = max(path.glob("*/*.sst"), key=os.path.getsize)
    data = bytearray(largest.read_bytes())
    data[: len(data) // 2] = os.urandom(len(data) // 2)
    largest.write_bytes(data)


def spoil_current(path):
    for file in path.glob("*/CURRENT"):
        file.write_bytes(b"nonsense")


def spoil_note(path):
    spoilt = (b'"format": %d' % FORMAT, b'"format": 99')
    with_note(path, lambda store, note: store.write([(NOTE, note.replace(*spoilt))]))


def lose(path):
    for file in path.glob("*/*"):
        file.unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (spoil_current, "CURRENT"),
        (spoil_bytes, "orrupt|checksum|magic|note"),
        (spoil_note, "has format 99, this txstorm reads 1"),
        (lambda path: with_note(path, lambda store, note: store.write([], [NOTE])), "was not finished"),
        (lose, "was not finished"),
    ],
)
def test_a_damaged_index_is_rebuilt(tmp_path, caplog, spoil, says):
    filled(tmp_path).close()
    spoil(tmp_path / "index/counts")
    store = opened(tmp_path, epoch=2)
    assert rows_of(store, words(0, 40)) == [((3,), 3, (2,))] * 40
    commit(store, 4, {"w1": 1, "new": 7}, epoch=2)
    assert len(words_read(tmp_path)) == 41
    assert rows_of(store, ["w1", "new"]) == [((4,), 4, (3,)), ((7,), 4, None)]
    assert any(word in caplog.text for word in says.split("|"))
    assert "rebuilt from the tables" in caplog.text
    store.close()


def test_an_index_that_becomes_unreadable_during_a_run_is_rebuilt(tmp_path, caplog):
    store = filled(tmp_path)
    store._indexes["counts"].flush()
    store._indexes["counts"]._cache.forget()
    store._indexes["counts"]._disk._store.close()
    assert rows_of(store, ["w7", "x"]) == [((3,), 3, (2,)), None]
    assert "rebuilt from the tables" in caplog.text
    store.close()


@pytest.mark.parametrize("foreign", [{"incarnation": "other"}, {"timeline": 1}])
def test_the_index_of_another_table_is_rejected(tmp_path, caplog, foreign):
    filled(tmp_path).close()
    assert stores(tmp_path / "index/counts", **foreign).find(3) is None
    assert "expected it to be of" in caplog.text
    assert list((tmp_path / "index/counts").iterdir()) == []


def test_an_index_ahead_of_its_table_is_rejected(tmp_path, caplog):
    ahead, behind = tmp_path / "ahead", tmp_path / "behind"
    filled(ahead, 5).close()
    filled(behind, 2).close()
    (behind / "index").rename(tmp_path / "old")
    (ahead / "index").rename(behind / "index")
    store = opened(behind, epoch=2)
    assert rows_of(store, ["w1"]) == [((2,), 2, (1,))]
    assert "it is as of txid 5, the table as of 2" in caplog.text


def test_an_index_opened_by_another_coordinator_is_not_touched(tmp_path):
    frozen = filled(tmp_path)
    store = opened(tmp_path, epoch=2)
    commit(store, 4, {"w1": 1}, epoch=2)
    assert rows_of(store, ["w1"]) == [((4,), 4, (3,))]
    assert len(list((tmp_path / "index/counts").iterdir())) == 2
    frozen.close()
    store.close()
    opened(tmp_path, epoch=3).close()
    assert len(list((tmp_path / "index/counts").iterdir())) == 1


@pytest.mark.integration
def test_killed_while_writing_the_index(tmp_path):
    """After a kill at any moment, the index on disk is as of some txid, and later changes are read from the tables."""
    child = start("index", tmp_path / "data")
    eventually(lambda: child.printed.count("\n") >= 25 or child.poll() is not None)
    child.kill()
    status, output = finish(child)
    assert status == KILLED, output
    store = opened(tmp_path / "data", epoch=2)
    table = words_read(tmp_path / "data")
    found = {key: row and row[0][0] for key, row in zip(table, rows_of(store, table), strict=True)}
    assert found == table
    assert sum(table.values()) >= 25 * 5
    store.close()
