"""Commit jobs: rows staged by tasks are decided, published, looked up and protected like rows staged by the driver."""

import os
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from index_cases import TINY
from store_cases import COUNTS, OUT, commit, intent_of, open_store, record, staged_files

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.state import KeyedState
from txstorm.errors import StateError, TableCorrupt
from txstorm.recovery.take_over import roll_forward
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.state import target as parts
from txstorm.state.commit_job import ShippedRowsIndex, given_rows, input_keys, write_given
from txstorm.state.keyed import StateGroup
from txstorm.state.sinks import SinkGroup
from txstorm.storage.tables.identity import table_ref
from txstorm.storage.tables.intent import decode, encode

WORDS = [f"w{i}" for i in range(40)]


def task(path, group, number, words, txid, *, gone=()):
    """Run one task of a commit job: count its input `words`, remove those in `gone`; return its staged files."""
    file = path / f"given-{number}"
    write_given(given_rows(group.keyed("counts"), words, txid), file)
    counts, out = StateGroup(COUNTS, ShippedRowsIndex(COUNTS, file, f"count[{number}], txid {txid}")), SinkGroup(OUT)
    state, sink = counts.handle("count", number, txid), out.handle("count", number, txid)
    state.active = sink.active = True
    state.update_many(dict.fromkeys(words, 1), lambda old, n: (old or 0) + n)
    state.remove_many(gone)
    for word in words:
        sink.append(word, number)
    written = {"changes/counts": counts, "sinks/out": out}
    return parts.StagingPlace(str(path), 1).stage(written, TransactionAttempt(txid, txid * 10), "count", number)


def decided_job(path, store, txid, words=WORDS, gone=()):
    """Return a group of one txid that two tasks have committed, and its intent."""
    group = store.group(txid)
    group.begin_txid(txid)
    half = len(words) // 2
    taken(group, txid, task(path, group, 0, words[:half], txid, gone=gone), task(path, group, 1, words[half:], txid))
    return group, intent_of(group, [record(txid)])


def taken(group, txid, *done):
    group.take_over("count", txid, {uri: [one[uri] for one in done] for uri in done[0]})
    group.end_txid(txid)


def test_rows_of_tasks_are_published_and_looked_up_like_rows_of_the_driver(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ROWS_AT_ONCE", 7)
    one, other = tmp_path / "large", tmp_path / "driver"
    stores = [open_store(path, create=True, bounds=TINY) for path in (one, other)]
    for store in stores:
        commit(store, 1, dict.fromkeys(WORDS, 1))
    group, intent = decided_job(one, stores[0], 2, gone=["w3"])
    assert [len(table.files) for table in intent.tables] == [2, 2]
    stores[0].publish(intent, 1)
    group.apply(2)
    commit(stores[1], 2, {**dict.fromkeys(WORDS, 1), "w3": None})
    for store in stores:
        commit(store, 3, {"w3": 5, "w4": 1})
        store.upkeep.compact()
    for txid in (1, 2, 3):
        cuts = [read_state(path, "counts", txid).to_pylist() for path in (one, other)]
        assert cuts[0] == cuts[1]
    order = [("_txid", "ascending"), ("word", "ascending")]
    rows = [read_changes(path, "counts", 1, 3).sort_by(order).to_pylist() for path in (one, other)]
    assert rows[0] == rows[1]
    assert {row["word"] for row in read_sink(one, "out").to_pylist()} == set(WORDS)
    found = [store._indexes["counts"].rows(WORDS) for store in stores]
    assert found[0] == found[1]


def test_a_partly_updated_index_is_not_marked_as_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ROWS_AT_ONCE", 5)
    store = open_store(tmp_path, create=True, bounds=TINY)
    commit(store, 1, dict.fromkeys(WORDS, 1))
    group, intent = decided_job(tmp_path, store, 2)
    store.publish(intent, 1)
    index = store._indexes["counts"]
    given, apply = [], index.apply

    def killed(changed, removed, last):
        given.append(last)
        if len(given) > 4:
            raise KeyboardInterrupt
        apply(changed, removed, last)

    monkeypatch.setattr(index, "apply", killed)
    with pytest.raises(KeyboardInterrupt):
        group.apply(2)
    index.flush()
    index._disk.close()
    again = open_store(tmp_path, epoch=2, bounds=TINY)
    again.load()
    assert again._indexes["counts"].rows(WORDS) == [((2,), 2, (1,))] * 40


def kept(store):
    return {path for uri in ("changes/counts", "sinks/out") for path in store.upkeep.kept_files(table_ref(uri), [])}


def test_files_are_not_swept_while_tasks_may_write_or_a_decision_may_need_them(tmp_path):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    published = staged_files(tmp_path)
    group = store.group(2)
    group.begin_txid(2)
    done = task(tmp_path, group, 0, WORDS, 2)
    assert {one.path for one in done.values()} <= kept(store)
    taken(group, 2, done)
    assert store.sweep([]) == []
    group.stage([record(2)], 1)
    assert store.sweep([]) == []
    group.drop_from(2)
    task(tmp_path, group, 1, WORDS, 1)  # a task of an abandoned attempt is late
    assert len(kept(store)) == 2
    assert len(store.sweep([])) == 4
    assert staged_files(tmp_path) == published


def test_a_decided_group_rolls_forward_from_its_intent_alone(tmp_path):
    store = open_store(tmp_path, create=True)
    _, intent = decided_job(tmp_path, store, 1)
    again = open_store(tmp_path, epoch=2)
    assert again.sweep([intent]) == []
    for _ in range(2):
        roll_forward(tmp_path, decode(encode(intent)), 2)
    assert read_state(tmp_path, "counts")["n"].to_pylist() == [1] * 40
    assert read_sink(tmp_path, "out").num_rows == 40


def test_a_file_that_differs_from_what_its_task_wrote_is_not_decided(tmp_path):
    store = open_store(tmp_path, create=True)
    group = store.group(1)
    group.begin_txid(1)
    done = task(tmp_path, group, 0, WORDS, 1)
    os.truncate(tmp_path / "changes/counts" / done["changes/counts"].path, 10)
    written = "a task has written it, but here it"
    with pytest.raises(TableCorrupt, match=f"{written} has digest .*under the same path"):
        taken(group, 1, done)
    (tmp_path / "changes/counts" / done["changes/counts"].path).unlink()
    with pytest.raises(TableCorrupt, match=f"{written} is not there"):
        taken(group, 1, done)


def test_an_abandoned_thread_that_starts_a_job_drops_no_rows(tmp_path):
    store = open_store(tmp_path, create=True)
    group = store.group(1)
    group.begin_txid(1)  # a late thread whose group has been dropped; the next attempt commits in the driver
    commit(store, 1, {"a": 1})
    assert read_state(tmp_path, "counts")["n"].to_pylist() == [1]


def test_a_task_cannot_access_keys_outside_its_input(tmp_path):
    store = open_store(tmp_path, create=True)
    group = store.group(1)
    group.begin_txid(1)
    write_given(given_rows(group.keyed("counts"), ["a"], 1), tmp_path / "given")
    given = ShippedRowsIndex(COUNTS, tmp_path / "given", "count[0], txid 1")
    assert given.rows(["a", "a"]) == [None, None]
    with pytest.raises(StateError, match=r"state 'counts', count\[0\], txid 1: key 'b' is not in the task's input"):
        given.rows(["a", "b"])


KEYS = {
    str: ["a", "käse", "", "a"],
    int: [1, -(2**63), 0, 1],
    bool: [True, False, True, False],
    bytes: [b"", b"\xff", b"a", b""],
    date: [date(2020, 2, 29), date(1, 1, 1)],
    datetime: [datetime(2020, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC)],
    Decimal: [Decimal("1.5"), Decimal("-2")],
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_the_input(kind):
    state = KeyedState("s", key={"k": kind, "more": int}, value={"n": int})
    keys = [(key, more) for key in [*KEYS[kind], None] for more in (1, None)]
    batches = [
        pa.RecordBatch.from_pylist([{"more": more, "n": 1, "k": key} for key, more in part])
        for part in (keys, keys[:3])
    ]
    found = input_keys(state, batches, "the input of x")
    assert len(found) == len(set(found))
    assert set(found) == set(keys)
    assert input_keys(state, [], "the input of x") == []


def test_columns_that_are_not_the_key_are_rejected():
    state = KeyedState("s", key={"k": str}, value={"n": int})
    with pytest.raises(StateError, match="key column 'k', the input of x: expected string, got int64"):
        input_keys(state, [pa.RecordBatch.from_pydict({"k": [1, 2]})], "the input of x")
