"""Life cycle of the coordinator: opening, back-off, deactivation, stopping, and late answers to plans."""

import pytest
from coordinator_bench import Bench, started

from txstorm.coordinator.commands import Discard, Plan, Process
from txstorm.coordinator.events import (
    Activated,
    Committed,
    Deactivated,
    Failed,
    NotReady,
    Opened,
    Planned,
    Processed,
    Resume,
    Stopping,
    Wake,
)
from txstorm.coordinator.machine import AttemptStatus, Config, State, initial, step
from txstorm.errors import LedgerCorrupt, TxstormError


def asking(count: int) -> State:
    """Return a state in which txids 1 to `count` are processing (attempts 11, 12, …) and the next plan is pending."""
    state, _ = step(initial(Config(count + 1)), Opened(1))
    state, _ = step(state, Wake())
    for txid in range(1, count + 1):
        state, _ = step(state, Planned(txid, 10 + txid))
    assert state.planning == count + 1
    return state


def test_opened_comes_first_emits_nothing_by_itself_and_starts_from_the_ledger_again():
    with pytest.raises(TxstormError, match=r"got Wake.* first, expected Opened"):
        step(initial(Config(1)), Wake())
    assert step(initial(Config(4)), Opened(3, (3, 4)))[1] == ()
    state, _ = step(asking(3), Opened(2, (2, 3)))
    assert (state.currtx, state.active, state.planning) == (2, {}, None)
    assert step(state, Wake())[1] == (Plan(2, replay=True),)


@pytest.mark.parametrize(
    ("opaque", "stored", "kind", "says"),
    [
        *((False, stored, LedgerCorrupt, r"without gaps from currtx 3") for stored in ((4,), (3, 5), (4, 3), (2, 3))),
        (True, (3, 4), TxstormError, r"opaque.*\[3, 4\] must be dropped"),
    ],
)
def test_stored_metadata_with_gaps_or_of_an_opaque_spout_is_refused(opaque, stored, kind, says):
    with pytest.raises(kind, match=says):
        step(initial(Config(4, opaque=opaque)), Opened(3, stored))


def test_back_off_holds_a_failed_txid_and_later_ones_until_it_ends_itself():
    bench = started(4)
    assert bench.fail(3, resume=False) == []
    assert bench.discarded() == [3, 4]
    assert bench.wake() == []
    assert bench.ack(1) == ["commit 1"]
    assert bench.ack(1) == []
    assert (bench.state.currtx, bench.state.holding) == (2, (3,))
    assert bench.send(Resume(3)) == [f"batch {txid}(always)" for txid in (3, 4, 5)]
    assert bench.state.holding == ()
    bench = started(4)
    bench.fail(3, resume=False)
    assert bench.fail(1) == ["batch 1(always)", "batch 2(always)"]
    bench.fail(1, resume=False)
    assert bench.state.holding == (1, 3)
    assert bench.send(Resume(1)) == ["batch 1(always)", "batch 2(always)"]
    assert bench.send(Resume(3)) == ["batch 3(always)", "batch 4(always)"]
    assert started(2).ignores(Resume(1))
    bench = started(1)
    bench.fail(1, resume=False)
    assert bench.state.idle
    assert not bench.state.drained


def test_one_plan_at_a_time_what_is_not_ready_is_asked_again_and_unrequested_answers_discarded():
    bench = started(3)
    bench.value = None
    bench.ack(1), bench.ack(1)
    assert bench.asked == [1, 2, 3, 4]
    bench.value = "now"
    assert bench.fail(2) == ["batch 2(always)", "batch 3(always)"]
    assert bench.asked == [1, 2, 3, 4]
    assert bench.wake() == ["batch 4(now)"]
    state, commands = step(asking(2), NotReady(3))
    state, commands = step(state, Failed(1, 11))
    assert commands == (Discard((1, 2), (11, 12)), Plan(1, replay=True))
    state, commands = step(state, NotReady(1))
    assert commands == ()
    assert step(state, Processed(1, 11)) == (state, ())
    assert step(state, Wake())[1] == (Plan(1, replay=True),)
    state = asking(2)
    assert step(state, Wake()) == (state, ())
    assert not any(isinstance(one, Plan) for one in step(state, Processed(1, 11))[1])
    assert step(state, Planned(7, 70)) == (state, (Discard((7,), (70,)),))
    assert step(state, NotReady(7)) == (state, ())
    state, commands = step(asking(2), Failed(2, 12))
    assert commands == (Discard((2,), (12,)),)  # the plan of 3 is still unanswered
    state, commands = step(state, Planned(3, 13))
    assert commands == (Discard((3,), (13,)), Plan(2, replay=True))
    state, commands = step(state, Planned(2, 22))
    assert commands == (Process(2, 22), Plan(3, replay=True))  # its metadata is stored, so it is now a replay
    state, _ = step(asking(2), Failed(1, 11))
    state, commands = step(state, NotReady(3))  # which does not hold the replay
    assert commands == (Plan(1, replay=True),)
    state, commands = step(asking(1), Stopping())
    assert not state.stopped
    state, commands = step(state, Planned(2, 12))
    assert commands == (Discard((2,), (12,)),)
    assert state.stopped


def test_a_deactivated_coordinator_starts_nothing_and_finishes_started_txids_and_a_plan_in_flight():
    bench = started(3)
    bench.send(Deactivated())
    bench.ack(1)
    assert bench.ack(1) == []
    assert bench.fail(2) == ["batch 2(always)", "batch 3(always)"]
    for txid in (2, 3):
        bench.ack(txid), bench.ack(txid)
    assert bench.wake() == []
    assert (bench.state.currtx, bench.state.drained) == (4, True)
    assert bench.send(Activated()) == [f"batch {txid}(always)" for txid in (4, 5, 6)]
    state, _ = step(asking(1), Deactivated())
    assert step(state, Planned(2, 12))[1] == (Process(2, 12),)


def test_stopping_discards_all_but_the_committing_group_and_draining_commits_all_that_has_started():
    bench = started(4, max_group=2)
    bench.ack(1), bench.ack(2), bench.ack(3)
    attempts = dict(bench.attempts)
    assert bench.state.committing_txids == (1,)
    bench.send(Stopping())
    assert bench.commands() == [Discard((2, 3, 4), tuple(attempts[txid] for txid in (2, 3, 4)))]
    assert not bench.state.stopped
    bench.send(Committed(1, attempts[1]))
    assert bench.state.stopped
    assert (bench.state.currtx, bench.wake()) == (2, [])
    assert sorted(bench.metas) == [1, 2, 3, 4]
    bench = started(2)
    bench.ack(1)
    bench.send(Stopping())
    assert bench.fail(1) == []
    assert bench.state.stopped
    bench = started(3, max_group=2)
    bench.ack(3), bench.ack(2), bench.ack(1)
    attempts = dict(bench.attempts)
    bench.send(Stopping())
    bench.send(Committed(1, attempts[1]))
    assert bench.commands()[1:] == [Discard((2,), (attempts[2],))]
    assert bench.ignores(Failed(2, attempts[2]))
    assert bench.state.stopped
    bench = Bench()
    bench.send(Stopping())  # with nothing active it is stopped at once
    assert bench.state.stopped
    assert bench.commands() == []
    bench = started(3)
    bench.send(Stopping(drain=True))
    assert bench.fail(1, resume=False) == []
    assert not bench.state.stopped
    assert bench.send(Resume(1)) == [f"batch {txid}(always)" for txid in (1, 2, 3)]
    for txid in (1, 2, 3):
        bench.ack(txid), bench.ack(txid)
    assert (bench.state.currtx, bench.state.stopped, bench.wake()) == (4, True, [])
    bench = started(2)
    bench.send(Stopping(drain=True))
    assert bench.ignores(Activated())
    bench.send(Stopping())
    assert bench.state.stopped
    assert bench.ignores(Stopping(drain=True))
    assert bench.ignores(Activated())
    assert bench.ignores(Deactivated())


PROCESSING, PROCESSED, COMMITTING = AttemptStatus
LEGAL = {(PROCESSING, PROCESSED), (PROCESSED, COMMITTING), (COMMITTING, PROCESSED)}


@pytest.mark.parametrize("before", AttemptStatus)
@pytest.mark.parametrize("after", AttemptStatus)
def test_only_legal_transitions(before, after):
    if (before, after) in LEGAL:
        assert before.to(after) is after
    else:
        with pytest.raises(TxstormError, match=f"in status {before.value} .* got {after.value}"):
            before.to(after)
