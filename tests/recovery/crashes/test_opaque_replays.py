"""Opaque spouts: an undecided batch may be replayed with other content, and no trace of the first attempt remains."""

import time
from collections import Counter
from pathlib import Path

import pytest
from recovery_cases import check, ends, eventually, killed, open_books, sums
from scenarios.shelf import KINDS
from watched import at

from txstorm import FailedException
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.storage.tables.intent import STAGED

both_kinds = pytest.mark.parametrize("kind", KINDS)


def rows_by_txid(data_dir: Path) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in read_sink(data_dir, "numbers").to_pylist():
        found.setdefault(row["_txid"], []).append(row["n"])
    return found


@both_kinds
@pytest.mark.integration
@pytest.mark.parametrize(
    "fault", ["p6.before:kill:2", "p5.staged.after:kill:4", "p5.staged.after:kill:5", "p6.after:kill:2"]
)
def test_a_key_that_the_replay_loses_leaves_no_trace_unless_it_was_decided(data_dir, shelf, diary, kind, fault):
    """What was decided is published as it was even if the source has changed."""
    decided = fault.startswith("p6.after")
    shelf.write([1, 2, 2, 666, 4, 5])
    argv = [data_dir, shelf.path, diary.path, kind, 3]
    killed(fault, *argv, scenario="shelf")
    assert [numbers for txid, numbers in diary.of("commit") if txid == 2] == [[2, 666]]
    assert list(data_dir.glob(f"*/*/{STAGED}/*-2-*.parquet"))

    shelf.write([1, 2, 3, 4, 5, 6])
    ends(*argv, scenario="shelf")

    # The third goes on where the second one ended.
    rows = {1: [1, 2], 2: [2, 666] if decided else [3, 4], 3: [5, 6]}
    numbers = [n for some in rows.values() for n in some]
    assert rows_by_txid(data_dir) == rows
    assert sums(data_dir) == Counter(numbers)
    assert read_state(data_dir, "total")["n"].to_pylist() == [sum(numbers)]
    assert (666 in read_changes(data_dir, "seen", 1, 3)["n"].to_pylist()) == decided
    # The values before txid 2 are those of txid 1, not those of an earlier attempt at 2.
    previous = {row["n"]: row["_prev"] for row in read_changes(data_dir, "total", 2, 2).to_pylist()}
    assert previous == {3 + sum(rows[2]): {"n": 3}}
    check(data_dir, 3)  # no file is left that a log does not name


@both_kinds
def test_a_key_that_the_replay_loses_after_a_failure_leaves_no_trace(make_engine, watch, shelf, kind):
    shelf.write([1, 2, 2, 666, 4, 5])

    def change():
        shelf.write([1, 2, 3, 4, 5, 6])
        raise FailedException

    watch.ends(KINDS[kind](shelf), engine=make_engine(), commit=at(2, change, times=1), until_txid=3)
    assert [taken for txid, taken in watch.diary.of("commit") if txid == 2] == [[2, 666], [3, 4]]
    assert rows_by_txid(watch.data_dir) == {1: [1, 2], 2: [3, 4], 3: [5, 6]}
    assert sums(watch.data_dir) == dict.fromkeys(range(1, 7), 1)
    check(watch.data_dir, 3)


@both_kinds
@pytest.mark.integration
def test_after_a_restart_an_opaque_spout_is_planned_from_the_end_of_the_last_decided_txid(data_dir, shelf, diary, kind):
    shelf.write(list(range(12)), take=3)
    argv = [data_dir, shelf.path, diary.path, kind, 5]
    killed("p5.before:kill:2", *argv, scenario="shelf")
    with open_books(data_dir) as books:
        assert max(books.metas()) > 2  # later ones were planned, with the old size

    shelf.write(list(range(12)), take=2)
    ends(*argv, scenario="shelf")
    assert rows_by_txid(data_dir) == {1: [0, 1, 2], 2: [3, 4], 3: [5, 6], 4: [7, 8], 5: [9, 10]}


@both_kinds
def test_item_77_the_source_documents_example(make_engine, watch, shelf, kind):
    """Row T35: the worked example of opaque replays in Storm's documentation."""
    shelf.write(list(range(1, 141)), take=50)
    diary = watch.diary

    def trouble(txid, nth):
        if txid == 1 and nth == 1:
            eventually(lambda: max_pack == 2 or diary.of("second"))
            shelf.write(list(range(1, 141)), take={"1": 40, "else": 50})
            raise FailedException
        if txid == 2:
            diary.note("second")

    # Task-planned batches chain inside a job, so both are in one; it ends at the first. Driver-planned ones run apart.
    max_pack = 2 if kind == "partitioned" else 1
    settings = {"max_pack_txids": max_pack, "max_spout_pending": 4, "max_jobs": 2}
    watch.ends(KINDS[kind](shelf), engine=make_engine(), process=trouble, until_txid=3, **settings)

    def spans(what):
        return [(txid, taken[0], taken[-1]) for txid, taken in diary.of(what)]

    first = [(1, 1, 50), (2, 51, 100)] if kind == "planned" else [(1, 1, 50)]
    assert set(first) <= set(spans("process"))
    assert spans("commit") == [(1, 1, 40), (2, 41, 90), (3, 91, 140)]
    found = {txid: list(range(first, last + 1)) for txid, first, last in spans("commit")}
    assert rows_by_txid(watch.data_dir) == found
    check(watch.data_dir, 3)


def test_item_81_a_stale_failure_changes_nothing(watch, shelf):
    """A late failure of an abandoned attempt at txid 2 is ignored after txids 1 to 3 were replayed."""
    shelf.write(list(range(1, 41)), take=10)
    diary = watch.diary

    def trouble(txid, nth):
        if (txid, nth) == (1, 1):
            eventually(lambda: diary.of("old 2 is there") and diary.of("old 3 is there"))
            raise FailedException
        if (txid, nth) == (3, 1):
            diary.note("old 3 is there")
        if (txid, nth) == (2, 1):
            diary.note("old 2 is there")
            eventually(lambda: diary.of("new 2 is done") and diary.of("new 3 is done"))
            shelf.write(list(range(1, 41)), take=4)
            diary.note("old 2 fails")
            raise FailedException
        if (txid, nth) == (1, 2):
            eventually(lambda: diary.of("old 2 fails"))
        if nth == 2 and txid > 1:
            diary.note(f"new {txid} is done")

    settings = {"max_pack_txids": 1, "max_spout_pending": 3, "max_jobs": 3, "max_group_txids": 1}
    handle = watch.ends(KINDS["planned"](shelf), process=trouble, until_txid=5, **settings)

    found = rows_by_txid(watch.data_dir)
    assert (found[1], found[2], found[3]) == (list(range(1, 11)), list(range(11, 21)), list(range(21, 31)))
    everything = [number for txid in sorted(found) for number in found[txid]]
    assert everything == list(range(1, len(everything) + 1))
    assert handle.progress.replays == 1
    check(watch.data_dir, 5)


def test_item_82_a_late_commit_still_has_its_tuples(watch, shelf):
    """A processed txid keeps its tuples while it waits for its commit, longer than the timeout of either phase."""
    shelf.write([1, 2, 3, 4, 5, 6, 7, 8], take=2)
    timeout = 1.5

    def trouble(txid, nth):
        if txid == 1:
            eventually(lambda: 4 in watch.diary.txids("process"))
        if txid < 4:
            time.sleep(0.4 * timeout)

    settings = {"max_spout_pending": 4, "max_pack_txids": 1, "max_group_txids": 1, "batch_timeout": timeout}
    watch.ends(KINDS["planned"](shelf), commit=trouble, until_txid=4, **settings)

    assert watch.diary.of("commit") == [[1, [1, 2]], [2, [3, 4]], [3, [5, 6]], [4, [7, 8]]]
    assert rows_by_txid(watch.data_dir) == {1: [1, 2], 2: [3, 4], 3: [5, 6], 4: [7, 8]}


@both_kinds
def test_item_83_no_phantom_batch(make_engine, watch, shelf, kind):
    shelf.write([1, 2, 3, 4, 5, 6], take=2)
    watch.ends(KINDS[kind](shelf), engine=make_engine(), until_txid=3)
    assert sorted(watch.diary.of("process")) == [[1, [1, 2]], [2, [3, 4]], [3, [5, 6]]]
    assert watch.diary.of("commit") == [[1, [1, 2]], [2, [3, 4]], [3, [5, 6]]]
