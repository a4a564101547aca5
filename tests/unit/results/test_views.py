"""Reading the results in a data directory, during and after a run, and whether tables and ledger fit together."""

import sys
from types import SimpleNamespace

import pyarrow as pa
import pytest
from runs import CountWords, counting, ended

from txstorm.books.books import Books
from txstorm.books.data_directory import check_readable
from txstorm.errors import DataDirectoryError, LedgerCorrupt, MissingDependency, StateError, TableCorrupt
from txstorm.results import freshness
from txstorm.results import views as reading
from txstorm.results.freshness import check_not_ahead, check_not_behind
from txstorm.results.views import SinkView, StateView, committed_txid, identity_of, read_directory_history, tables_of
from txstorm.storage.tables.history import append_history
from txstorm.storage.tables.identity import TopologyIdentity


@pytest.fixture
def done(tmp_path):
    """Return a data directory with three committed transactions: cat dog, cat <b>, dog cat."""
    words = ["cat", "dog", "cat", "<b>", "dog", "cat"]
    ended(counting(words, CountWords()), tmp_path / "data")
    return tmp_path / "data"


def test_a_state_in_all_forms(done, monkeypatch):
    rows = [{"word": "<b>", "n": 1}, {"word": "cat", "n": 3}, {"word": "dog", "n": 2}]
    view = StateView(done, "counts")
    assert view.txid == 3
    assert view.to_pylist() == view.to_arrow().to_pylist() == view.to_pandas().to_dict("records") == rows
    assert view.to_json().startswith('{"state": "counts", "txid": 3, "rows": [')
    assert isinstance(view.to_spark(SimpleNamespace(createDataFrame=lambda data: data)), pa.Table)
    assert "state counts as of txid 3: 3 rows" in view._repr_html_()
    assert "<td>&lt;b&gt;</td>" in view._repr_html_()
    past = view.as_of(txid=1)
    assert past.txid == 1
    assert past.to_pylist() == [{"word": "cat", "n": 1}, {"word": "dog", "n": 1}]
    assert repr(past) == f"<state counts as of txid 1 in {done}>"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependency, match=r"pip install 'txstorm\[pandas\]'"):
        view.to_pandas()


def test_a_sink_and_the_topology_of_a_data_directory(done, tmp_path_factory):
    rows = SinkView(done, "log").to_pylist()
    assert [row["_txid"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert {row["word"] for row in rows} == {"cat", "dog", "<b>"}
    assert "sink log: 6 rows" in SinkView(done, "log")._repr_html_()
    with pytest.raises(StateError, match="did you mean 'log'"):
        SinkView(done, "logg").to_arrow()
    assert identity_of(done).topology == "words"
    assert committed_txid(done) == 3
    assert tables_of(done) == (["counts"], ["log"])
    assert check_readable(f"file://{done}") == done
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataDirectoryError, match="does not exist"):
        check_readable(empty / "nothing")
    with pytest.raises(DataDirectoryError, match="is empty"):
        check_readable(empty)
    assert committed_txid(empty) == 0
    assert identity_of(empty) is None
    assert read_directory_history(empty).num_rows == 0


ROW = {"timeline": 0, "attempt": 1, "stamp": 0, "first": 1, "last": 3, "digest": "d", "extents": {}, "versions": {}}


def row(txid):
    return {**ROW, "txid": txid, "tuples": 5}


@pytest.mark.parametrize("moved", [False, True])
def test_history_joins_the_table_and_the_ledger(tmp_path, monkeypatch, moved):
    """Rows that a concurrent run moves to the table during the read are neither lost nor duplicated."""
    append_history(tmp_path, [row(1)] if moved else [row(1), row(2)])

    def kept(directory):
        if moved:
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


@pytest.mark.parametrize(
    ("newest", "known", "is_ahead"),
    [((0, 5), (0, 5), False), ((0, 6), (0, 5), True), ((0, 9), (1, 5), False), ((1, 3), (0, 5), True)],
)
def test_tables_are_ahead_of_a_ledger_by_timeline_first(tmp_path, newest, known, is_ahead):
    if is_ahead:
        with pytest.raises(TableCorrupt, match="not from the same moment"):
            check_not_ahead(tmp_path, newest, known)
    else:
        check_not_ahead(tmp_path, newest, known)


@pytest.mark.parametrize(
    ("timeline", "txid", "is_behind"), [(1, 5, False), (1, 4, True), (0, 9, True), (2, 1, False), (1, 6, False)]
)
def test_tables_are_behind_a_ledger_by_timeline_first(tmp_path, monkeypatch, timeline, txid, is_behind):
    table = SimpleNamespace(
        owner=TopologyIdentity("t", "1", timeline), handle=SimpleNamespace(properties={}), last_txid=lambda: txid
    )
    monkeypatch.setattr(freshness, "check_there", lambda *_: None)
    monkeypatch.setattr(freshness, "check_owner", lambda *_: None)
    monkeypatch.setattr(freshness, "open_table", lambda *_: table)
    owner = TopologyIdentity("t", "1", 1)
    if is_behind:
        with pytest.raises(TableCorrupt, match="according to the ledger it is at txid 5 of timeline 1"):
            check_not_behind(tmp_path, owner, {"sinks/out": 5})
    else:
        assert check_not_behind(tmp_path, owner, {"sinks/out": 5}) == (timeline, txid)
