"""Items of Storm's conformance list that concern only the coordinator, by their numbers in that list."""

import pytest
from coordinator_bench import Bench, started

from txstorm.coordinator.commands import Commit, Discard, Forget, Plan, Process
from txstorm.coordinator.events import Committed, Failed, NotReady, Opened, Planned, Processed, Wake
from txstorm.coordinator.machine import COMMITTING, PROCESSED, PROCESSING, Config, initial, step


def test_items_14_20_one_pending_starts_the_next_only_after_the_commit():
    """Items 14 and 20: with one pending transaction, the next starts only after the commit (rows T6, T45)."""
    bench = Bench(max_pending=1)
    assert bench.wake() == ["batch 1(always)"]
    assert bench.ack(1) == ["commit 1"]
    assert bench.wake() == []
    assert bench.state.committed is None
    assert bench.ack(1) == ["batch 2(always)"]
    assert bench.state.committed == 1


def test_items_15_16_answers_for_superseded_attempts_and_txids_outside_the_window_are_ignored():
    bench = started(3)
    old = dict(bench.attempts)
    bench.fail(1)
    for txid in (1, 2, 3):
        assert bench.ignores(Processed(txid, old[txid]))
        assert bench.ignores(Committed(txid, old[txid]))
        assert bench.ignores(Failed(txid, old[txid]))
        assert bench.ignores(Failed(txid, old[txid], resume=False))
    assert bench.ack(1) == ["commit 1"]
    bench = started(2)
    bench.ack(1)
    bench.ack(1)
    for txid in (1, 4, 99):
        for event in (Processed(txid, 101), Committed(txid, 101), Failed(txid, 101)):
            assert bench.ignores(event)


def test_item_17_initialized_once_with_the_metadata_of_the_previous_txid():
    bench = Bench(max_pending=3)
    bench.value = "a"
    bench.wake()
    bench.fail(1)
    assert bench.initialized == [(1, None), (2, "a"), (3, "a")]
    bench.ack(1), bench.ack(2), bench.fail(1), bench.ack(1), bench.ack(1)
    assert bench.initialized == [(1, None), (2, "a"), (3, "a"), (4, "a")]
    bench = bench.restart()
    bench.value = "b"
    bench.wake()
    assert bench.initialized == []
    bench.ack(2), bench.ack(2)
    assert bench.initialized == [(5, "a")]


def test_items_18_19_a_source_that_is_not_ready_starts_nothing_and_is_asked_at_the_next_wake():
    bench = Bench(max_pending=2)
    bench.value = None  # the runtime answers a FailedException with NotReady
    assert bench.wake() == []
    assert bench.wake() == []
    bench.value = 7
    assert bench.wake() == ["batch 1(7)", "batch 2(7)"]
    assert bench.asked == [1, 1, 1, 2]
    state, _ = step(initial(Config(4)), Opened(1))
    state, commands = step(state, Wake())
    assert commands == (Plan(1, replay=False),)
    state, commands = step(state, Planned(1, 11))
    assert commands == (Process(1, 11), Plan(2, replay=False))
    state, commands = step(state, Planned(2, 12))
    assert commands == (Process(2, 12), Plan(3, replay=False))
    state, commands = step(state, NotReady(3))
    assert commands == ()
    state, commands = step(state, Processed(2, 12))
    assert commands == ()  # slot 4 would be ready, but slot 3 is not, and the source is not asked before the next wake
    _, commands = step(state, Wake())
    assert commands == (Plan(3, replay=False),)


def test_items_21_22_only_the_lowest_uncommitted_commits_before_the_batches_of_the_same_sync():
    bench = started(4)
    assert [bench.ack(txid) for txid in (4, 3, 2)] == [[], [], []]
    assert bench.state.committing_txids == ()
    assert bench.ack(1) == ["commit 1"]
    assert bench.state.committing_txids == (1,)
    assert bench.state.active[1] == (bench.attempts[1], COMMITTING)
    assert bench.state.active[2] == (bench.attempts[2], PROCESSED)
    bench = started(2)
    bench.ack(1), bench.ack(2)
    bench.send(Committed(1, bench.attempts[1]))
    assert [type(one) for one in bench.commands()] == [Forget, Commit, Plan, Process]


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (2, 1, 3)])
def test_item_22_commits_in_txid_order_whatever_the_order_of_processing(order):
    """Item 22: transactions commit in txid order, whatever the order in which they are processed (row T7)."""
    bench = started(3)
    bench.value = None
    emitted = [text for txid in order for text in bench.ack(txid)]
    for txid in (1, 2, 3):
        emitted += bench.ack(txid)
    assert emitted == ["commit 1", "commit 2", "commit 3"]
    assert bench.state.idle


def test_items_28_31_a_commit_forgets_metadata_below_it_and_states_are_values_that_share_nothing():
    bench = started(3)
    bench.ack(1), bench.ack(1)
    assert sorted(bench.metas) == [1, 2, 3, 4]
    bench.ack(2), bench.ack(2)
    assert (bench.forgotten, sorted(bench.metas)) == (2, [2, 3, 4, 5])
    one, two = started(2), started(2)
    before = two.state
    one.ack(1), one.fail(1)
    assert two.state == before
    assert hash(before) == hash(two.state)


@pytest.mark.parametrize("opaque", [False, True])
def test_items_43_to_46_58_66_a_failure_in_either_phase_replays_both_at_once(opaque):
    """Items 43 (finish_batch), 45 (execute), 46 (emit); items 44, 58, 66: in the commit phase, both again (T8, T29)."""
    bench = started(3, opaque=opaque)
    bench.ack(3)
    assert bench.fail(2) == ["batch 2(always)", "batch 3(always)"]
    assert bench.discarded() == [2, 3]
    assert [status for _, status in bench.state.active.values()] == [PROCESSING] * 3
    bench = started(2, opaque=opaque)
    bench.ack(2), bench.ack(1)
    first = bench.attempts[1]
    assert bench.fail(1) == ["batch 1(always)", "batch 2(always)"]
    assert bench.ack(1) == ["commit 1"]
    assert bench.commands()[0] == Commit((1,), (bench.attempts[1],))
    assert bench.attempts[1] != first


def test_items_47_55_63_65_a_restart_replays_stored_txids_in_order_and_asks_only_an_opaque_source():
    bench = started(2)
    bench.ack(1)  # committing
    assert bench.restart().wake()[0] == "batch 1(always)"
    bench = started(3)
    bench.ack(1), bench.ack(2), bench.ack(1)  # 1 committed, 2 committing
    old = dict(bench.attempts)
    bench = bench.restart()
    assert bench.wake() == ["batch 2(always)", "batch 3(always)", "batch 4(always)"]
    assert bench.asked == []
    assert not set(old.values()) & set(bench.used)
    bench = Bench(max_pending=4, currtx=5, stored={4: "d", 5: "e", 6: "f"})
    bench.value = None
    assert bench.wake() == ["batch 5(e)", "batch 6(f)"]
    assert bench.asked == [7]
    bench = Bench(max_pending=1, currtx=2, stored={1: "a", 2: "b", 3: "c"})
    bench.value = None
    assert bench.wake() == ["batch 2(b)"]  # the window is narrower than before
    bench.ack(2)
    assert bench.ack(2) == ["batch 3(c)"]
    assert bench.asked == []
    bench = started(2, opaque=True)
    bench.ack(1), bench.ack(1)
    bench = bench.restart()
    bench.value = "new"
    assert bench.wake() == ["batch 2(new)", "batch 3(new)"]
    assert bench.asked == [2, 3]


def test_items_48_82_retries_and_waits_have_no_limit():
    bench = started(2)
    for _ in range(1000):
        assert bench.fail(1) == ["batch 1(always)", "batch 2(always)"]
    assert bench.ack(1) == ["commit 1"]
    bench = started(2)
    bench.ack(2)
    for _ in range(1000):
        assert bench.wake() == []
    bench.ack(1)
    assert bench.ack(1)[0] == "commit 2"


def test_item_57_opaque_batches_are_planned_again_in_order_without_asking():
    """Item 57: failed opaque batches are planned again in txid order, without calling is_ready (row T35)."""
    bench = started(3, opaque=True)
    bench.value = "other"
    assert bench.fail(2) == ["batch 2(other)", "batch 3(other)"]
    assert [type(one) for one in bench.commands()] == [Discard, Plan, Process, Plan, Process]
    assert bench.asked == [1, 2, 3]


def test_items_81_83_an_attempt_is_processed_once_and_its_stale_failure_changes_nothing():
    bench = started(3, opaque=True)
    old = dict(bench.attempts)
    bench.fail(1)
    bench.value = "only four left"
    assert bench.ignores(Failed(2, old[2]))
    assert bench.ack(1) + bench.ack(2) + bench.ack(3) == ["commit 1"]
    assert bench.state.active[2][0] == bench.attempts[2] != old[2]
    bench = started(2, opaque=True)
    bench.ack(1), bench.fail(1), bench.ack(1), bench.ack(2), bench.ack(1), bench.ack(2)
    assert len(bench.used) == len(set(bench.used)) == 6
    bench = started(2)
    bench.ack(1), bench.ack(2)
    assert bench.ignores(Processed(1, bench.attempts[1]))  # committing
    assert bench.ignores(Processed(2, bench.attempts[2]))  # processed
