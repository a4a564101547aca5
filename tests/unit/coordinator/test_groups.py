"""Commit groups: several consecutive txids committed by one decision."""

import pytest
from coordinator_bench import Bench, started

from txstorm.coordinator.commands import Commit, Discard, Forget
from txstorm.coordinator.events import Committed, Failed, Stopping
from txstorm.coordinator.machine import COMMITTING, PROCESSED, Config
from txstorm.errors import SettingError, TxstormError


def grouped() -> Bench:
    """Return a bench in which txid 1 is committed and the group of txids 2 to 5 is committing."""
    bench = started(5, max_group=4)
    bench.value = None
    bench.ack(1)
    for txid in (5, 4, 3, 2):
        bench.ack(txid)
    assert bench.ack(1) == ["commit 2+3+4+5"]
    return bench


def test_a_group_is_the_run_of_processed_txids_when_it_starts_to_commit_and_following_that_of_the_next_one():
    bench = started(5, max_group=5)
    bench.ack(1), bench.ack(2), bench.ack(4), bench.ack(3)
    assert bench.ack(1) == ["commit 2+3+4", "batch 6(always)"]
    bench = started(6, max_group=2)
    bench.value = None
    for txid in (2, 3, 4, 5, 6):
        bench.ack(txid)
    assert bench.ack(1) == ["commit 1+2"]
    assert bench.send(Committed(2, bench.attempts[2])) == ["commit 3+4"]
    assert bench.send(Committed(4, bench.attempts[4])) == ["commit 5+6"]
    bench = started(3, max_group=3)
    assert bench.ack(1) == ["commit 1"]
    assert bench.ack(2) + bench.ack(3) == []
    assert bench.state.committing_txids == (1,)
    bench = started(6, max_group=2)
    bench.value = None
    for txid in (2, 3, 5):
        bench.ack(txid)
    assert bench.state.following == ()  # nothing commits yet
    bench.ack(1)
    assert bench.state.committing_txids == (1, 2)
    assert bench.state.following == (3,)
    bench.ack(4)
    assert bench.state.following == (3, 4)  # not 5: a group is limited to two txids
    bench.send(Failed(4, bench.attempts[4]))
    assert bench.state.following == (3,)
    bench.send(Stopping(drain=False))
    assert bench.state.following == ()


def test_a_group_is_committed_whole_or_by_prefixes_and_fails_within_before_or_behind_them():
    bench = grouped()
    bench.value = "more"
    bench.send(Committed(5, bench.attempts[5]))
    assert bench.wake() == [f"batch {txid}(more)" for txid in (6, 7, 8, 9, 10)]
    assert (bench.state.currtx, bench.forgotten, bench.state.committed) == (6, 5, 5)
    bench = grouped()
    attempts = dict(bench.attempts)
    assert bench.send(Committed(3, attempts[3])) == []
    assert bench.commands() == [Forget(3)]
    assert bench.send(Failed(4, attempts[4])) == ["batch 4(always)", "batch 5(always)"]
    assert bench.discarded() == [4, 5]
    assert bench.state.currtx == 4
    bench = grouped()
    assert bench.send(Committed(3, bench.attempts[3])) == []
    assert [status for _, status in bench.state.active.values()] == [PROCESSED, PROCESSED]
    assert bench.wake() == ["commit 4+5"]
    bench = grouped()
    attempts = dict(bench.attempts)
    assert bench.send(Failed(4, attempts[4])) == ["batch 4(always)", "batch 5(always)"]
    assert bench.state.committing_txids == (2, 3)
    bench.send(Committed(3, attempts[3]))
    assert bench.state.currtx == 4
    bench = grouped()
    assert bench.fail(2) == [f"batch {txid}(always)" for txid in (2, 3, 4, 5)]  # the first one fails
    assert bench.state.committing_txids == ()
    bench = started(3, max_group=3)
    bench.ack(2), bench.ack(1)
    assert bench.fail(3) == ["batch 3(always)"]
    assert bench.state.active[1][1] is bench.state.active[2][1] is COMMITTING


def test_commit_and_discard_name_the_attempts_and_committed_without_a_commit_is_an_error():
    bench = grouped()
    attempts = dict(bench.attempts)
    assert Commit((2, 3, 4, 5), tuple(attempts[txid] for txid in (2, 3, 4, 5))) in bench.commands()
    bench.fail(3)
    expected = Discard((3, 4, 5), tuple(attempts[txid] for txid in (3, 4, 5)))
    assert expected in [one for _, commands in bench.log for one in commands]
    bench = started(2)
    bench.ack(1)
    with pytest.raises(TxstormError, match=r"Committed\(txid=2.*that commits is \(1,\)"):
        bench.send(Committed(2, bench.attempts[2]))


@pytest.mark.parametrize(("setting", "kwargs"), [("max_pending", {"max_pending": 0}), ("max_group", {"max_group": 0})])
def test_impossible_settings_are_refused(setting, kwargs):
    with pytest.raises(SettingError, match=f"{setting}: expected .* at least 1, got 0"):
        Config(**{"max_pending": 1, **kwargs})
