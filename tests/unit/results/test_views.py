"""Reading the results in a data directory, during and after a run."""

import pyarrow as pa
import pytest

from txstorm import BatchBolt, Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, run
from txstorm.books.books import Books
from txstorm.books.data_directory import check_readable
from txstorm.errors import DataDirectoryError, LedgerCorrupt, MissingDependency, StateError
from txstorm.results import views as reading
from txstorm.results.views import SinkView, StateView, committed_txid, identity_of, read_directory_history, tables_of
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.tables.history import append_history


class Keep(BatchBolt, Committer):
    state = KeyedState("counts", key={"word": str}, value={"n": int})
    log = SinkTable("log", {"word": str})

    def prepare(self, context, collector, attempt):
        self.counts, self.rows, self.batch = context.state("counts"), context.sink("log"), {}

    def execute(self, tuple):
        self.batch[tuple["word"]] = self.batch.get(tuple["word"], 0) + 1

    def finish_batch(self):
        self.counts.update_many(self.batch, lambda old, n: (old or 0) + n)
        for word in self.batch:
            self.rows.append(word)


@pytest.fixture
def done(tmp_path):
    """Return a data directory with three committed transactions: cat dog, cat <b>, dog cat."""
    spout = MemoryTransactionalSpout([["cat", "dog", "cat", "<b>", "dog", "cat"]], "word", take=2)
    builder = TransactionalTopologyBuilder("words", "source", spout)
    builder.set_committer_bolt("keep", Keep()).fields_grouping("source", ["word"])
    handle = run(builder.build_topology(), engine="local", data_dir=tmp_path / "data", available_now=True)
    assert handle.awaitTermination(60)
    return tmp_path / "data"


def test_a_state_in_all_forms(done):
    rows = [{"word": "<b>", "n": 1}, {"word": "cat", "n": 3}, {"word": "dog", "n": 2}]
    view = StateView(done, "counts")
    assert view.txid == 3
    assert view.to_pylist() == rows
    assert view.to_arrow().to_pylist() == rows
    assert view.to_pandas().to_dict("records") == rows
    assert view.to_json().startswith('{"state": "counts", "txid": 3, "rows": [')


def test_a_state_as_of_a_txid_does_not_change(done):
    past = StateView(done, "counts").as_of(txid=1)
    assert past.txid == 1
    assert past.to_pylist() == [{"word": "cat", "n": 1}, {"word": "dog", "n": 1}]
    assert repr(past) == f"<state counts as of txid 1 in {done}>"


def test_changes_include_both_ends(done):
    found = StateView(done, "counts").changes(2, 3).to_pylist()
    assert [(row["_txid"], row["word"], row["n"], row["_prev"]) for row in found] == [
        (2, "<b>", 1, None),
        (2, "cat", 2, {"n": 1}),
        (3, "cat", 3, {"n": 2}),
        (3, "dog", 2, {"n": 1}),
    ]


def test_a_sink(done):
    rows = SinkView(done, "log").to_pylist()
    assert [row["_txid"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert {row["word"] for row in rows} == {"cat", "dog", "<b>"}
    with pytest.raises(StateError, match="did you mean 'log'"):
        SinkView(done, "logg").to_arrow()


def test_html_representations_are_escaped(done):
    text = StateView(done, "counts")._repr_html_()
    assert "state counts as of txid 3: 3 rows" in text
    assert "<td>&lt;b&gt;</td>" in text
    assert "sink log: 6 rows" in SinkView(done, "log")._repr_html_()


def test_spark_receives_the_arrow_table(done):
    class Session:
        def createDataFrame(self, data):
            return data

    assert isinstance(StateView(done, "counts").to_spark(Session()), pa.Table)


def test_missing_pandas_is_named(done, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"pip install 'txstorm\[pandas\]'"):
        StateView(done, "counts").to_pandas()


def test_the_topology_of_a_data_directory(done):
    assert identity_of(done).topology == "words"
    assert committed_txid(done) == 3
    assert tables_of(done) == (["counts"], ["log"])
    assert check_readable(f"file://{done}") == done


def test_directories_without_data(tmp_path):
    with pytest.raises(DataDirectoryError, match="does not exist"):
        check_readable(tmp_path / "nothing")
    with pytest.raises(DataDirectoryError, match="is empty"):
        check_readable(tmp_path)
    assert committed_txid(tmp_path) == 0
    assert identity_of(tmp_path) is None
    assert read_directory_history(tmp_path).num_rows == 0


ROW = {"timeline": 0, "attempt": 1, "stamp": 0, "first": 1, "last": 3, "digest": "d", "extents": {}, "versions": {}}


def row(txid):
    return {**ROW, "txid": txid, "tuples": 5}


def test_history_joins_the_table_and_the_ledger(tmp_path, monkeypatch):
    append_history(tmp_path, [row(1), row(2)])
    monkeypatch.setattr(reading, "_kept_rows", lambda directory: [row(2), row(3)])
    assert read_directory_history(tmp_path)["txid"].to_pylist() == [1, 2, 3]


def test_history_rows_moved_during_a_read_are_neither_lost_nor_duplicated(tmp_path, monkeypatch):
    append_history(tmp_path, [row(1)])

    def kept(directory):
        """Return the ledger's rows, after moving them to the history table, as a concurrent run does."""
        append_history(tmp_path, [row(2), row(3)])
        return [row(2), row(3)]

    monkeypatch.setattr(reading, "_kept_rows", kept)
    assert read_directory_history(tmp_path)["txid"].to_pylist() == [1, 2, 3]


def test_a_long_row_swept_during_a_read_is_read_again(done, monkeypatch):
    answers = [LedgerCorrupt("a file of the ledger is missing"), {3: [row(3)]}]

    def history(books):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Books, "history", history)
    assert read_directory_history(done)["txid"].to_pylist() == [1, 2, 3]
    assert answers == []
