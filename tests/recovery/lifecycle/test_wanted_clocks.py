"""Snapshots at clocks in whole runs: killed at every step, asked for by another process, with the layout merge."""

import json
from collections import Counter

import pytest
from recovery_cases import ends, killed, open_books
from runs import ended
from scenarios.words import SPOUTS, TXIDS, lines, spout, topology

import txstorm
from txstorm import faults, run
from txstorm.operations.lifecycle import ask
from txstorm.operations.savepoints import cancel_snapshot, list_snapshots, want_snapshot

WANTED = {"0": 8, "1": 4}
OWN = [name for name in faults.POINTS if name.startswith("snapshot.") and name != "snapshot.renamed"]  # that of stores
STEPS = [*OWN, "p1.after", "p6.after", "p8.after"]


def words_up_to(clock):
    rows = lines(TXIDS)
    taken = [line for part, end in clock.items() for line in rows[int(part) :: 2][: end + 1]]
    return Counter(" ".join(taken).split())


def check_snapshot(data_dir, copy, clock):
    """Check that there is one snapshot, whose savepoint holds the words up to `clock`, in all its tables."""
    (made,) = list_snapshots(data_dir)
    assert made.clock == clock
    with open_books(data_dir) as books:
        assert books.snapshots() == (made.number, None)
    txstorm.restore_savepoint(data_dir, made.name, copy)
    found, expected = txstorm.snapshot(copy).to_arrow(), words_up_to(clock)
    assert {row["word"]: row["n"] for row in found["state/counts"].to_pylist()} == expected
    assert Counter(row["word"] for row in found["sinks/words"].to_pylist()) == expected
    assert found["state/totals"].to_pylist()[0]["words"] == expected.total()
    return made


CELLS = [(step, SPOUTS[number % 2]) for number, step in enumerate(STEPS)] + [("snapshot.complete", "memory")]


@pytest.mark.integration
@pytest.mark.parametrize(("step", "kind"), CELLS)
def test_killed_at_any_step_it_is_taken_once(step, kind, data_dir, place):
    argv = [data_dir, "--spout", kind, "--want", json.dumps(WANTED), "--set", "max_group_txids=1"]
    nth = {"p1.after": 2, "p6.after": 2, "p8.after": 2}.get(step, 1)
    killed(f"{step}:kill:{nth}", *argv)
    ends(*argv)
    check_snapshot(data_dir, place / "copy", WANTED)
    assert {row["word"]: row["n"] for row in txstorm.snapshot(data_dir).to_arrow()["state/counts"].to_pylist()} == (
        words_up_to({"0": 99, "1": 99})
    )
    ends(*argv)  # wanted again, it is there already
    assert len(list_snapshots(data_dir)) == 1


def test_a_crash_after_it_was_committed(data_dir, place):
    """When the next run begins, others have been committed behind the transaction with the clock."""
    made = topology(spout("memory", TXIDS, data_dir), 3).with_settings({"max_group_txids": 64, "max_spout_pending": 64})
    faults.arm("snapshot.complete:raise:1")
    with pytest.raises(faults.InjectedFault):
        ended(made, data_dir, want=WANTED)
    faults.arm("")
    assert (list_snapshots(data_dir), txstorm.snapshot(data_dir).txid > 5) == ([], True)
    ended(made, data_dir)
    assert check_snapshot(data_dir, place / "copy", WANTED).txid == 5


def test_with_the_layout_merge_its_transaction_ends_a_group(data_dir, place):
    made = topology(spout("memory", TXIDS, data_dir), 3, layout="merge").with_settings({"max_spout_pending": 64})
    ended(made, data_dir, want=WANTED)
    check_snapshot(data_dir, place / "copy", WANTED)


def test_another_process_asks_for_it_and_cancels(data_dir):
    source = spout("memory", TXIDS, data_dir)
    handle = run(topology(source, 1), engine="local", data_dir=data_dir)
    handle.processAllAvailable()
    end = {"0": 2 * TXIDS - 1, "1": 2 * TXIDS - 1}
    found = want_snapshot(data_dir)
    assert (found["running"], found["number"], found["clock"]) == (True, 1, end)
    later = {"0": 2 * TXIDS, "1": 2 * TXIDS}
    assert want_snapshot(data_dir, later, "later", 3600)["number"] == 2
    with pytest.raises(txstorm.errors.InputError, match="wanted already"):
        handle.want_snapshot({**later, "0": 99})
    assert cancel_snapshot(data_dir)["clock"] == later
    handle.want_snapshot(later, "again")
    source.add(0, "one", "two")
    source.add(1, "three")
    while len(list_snapshots(data_dir)) < 2:
        handle._session.lanes.sleep(0.01)
    handle.processAllAvailable()
    handle.stop()
    assert [(one.name, one.clock) for one in list_snapshots(data_dir)] == [("again", later), ("snapshot-1", end)]
    with pytest.raises(txstorm.errors.StoppedError):
        handle.want_snapshot(later)
    with pytest.raises(txstorm.errors.NotRunningError):
        ask(data_dir, "snapshot.want", {"clock": later})
