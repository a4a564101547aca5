"""The stand-alone executor of a stateful bolt: order of calls, messages from several inputs, recovery, failures."""

import pytest
from stateful_nets import StormWordCount, WordCount

from txstorm.errors import InputError
from txstorm.stateful import MemoryStateProvider
from txstorm.testing import StatefulBoltExecutor


class Prepares(StormWordCount):
    def prePrepare(self, txid):
        self.wordCounts.put("prepared", txid)


def executor(bolt=None, state=None, **options):
    return StatefulBoltExecutor(bolt or WordCount(), ["word"], state, **options)


def started(bolt=None, **options):
    made = executor(bolt, **options)
    made.init_state(-1)
    return made


def called(run):
    return ", ".join(" ".join(map(str, call)) for call in run.calls)


def test_calls_come_in_storms_order_and_spelling_once_the_state_is_there():
    run = executor()
    answers = [run.init_state(-1)]
    run.execute("cat")
    answers += [run.prepare(0), run.commit(0)]
    run.execute("cat")
    answers += [run.prepare(1), run.rollback(1)]
    assert answers == ["acked"] * 5
    assert called(run) == (
        "prepare, init_state, execute cat, pre_prepare 0, state.prepare_commit 0, pre_commit 0, state.commit 0, "
        "execute cat, pre_prepare 1, state.prepare_commit 1, pre_rollback, state.rollback"
    )
    assert run.forwarded == [("INITSTATE", -1), ("PREPARE", 0), ("COMMIT", 0), ("PREPARE", 1), ("ROLLBACK", 1)]
    assert list(run.state) == [("cat", 1)]
    assert run.emitted() == [("cat", 1), ("cat", 2)]
    run = started(Prepares())
    run.execute("cat")
    run.prepare(0)
    assert dict(run.state) == {"cat": 1, "prepared": 0}
    assert run.emitted() == [("cat", 1)]
    run = executor()
    run.execute("cat")
    run.execute("dog")
    assert run.calls == [("prepare",)]
    run.init_state(-1)
    assert run.calls[1:] == [("init_state",), ("execute", "cat"), ("execute", "dog")]


def test_a_message_is_acted_on_once_all_inputs_sent_it_and_old_and_second_ones_are_ignored():  # W34
    run = executor(inputs=3)
    assert [run.init_state(-1, i) for i in (0, 2, 0, 2, 1)] == ["waiting"] * 4 + ["acked"]
    assert [run.prepare(0, i) for i in (0, 1, 2)] == ["waiting", "waiting", "acked"]
    assert run.calls[1:] == [("init_state",), ("pre_prepare", 0), ("state.prepare_commit", 0)]
    assert run.forwarded == [("INITSTATE", -1), ("PREPARE", 0)]
    # Messages of a checkpoint that is rolled back do not count for its next attempt.
    assert [run.prepare(1, 0), *(run.rollback(1, i) for i in (0, 1, 2))] == ["waiting"] * 3 + ["acked"]
    assert [run.prepare(1, i) for i in (1, 2, 0)] == ["waiting", "waiting", "acked"]
    run = executor()
    for call in (run.init_state, run.prepare, run.rollback):
        assert call(7) == "acked"
    seen = len(run.calls)
    assert [run.prepare(5), run.commit(5), run.rollback(5), run.init_state(5)] == ["acked"] * 4
    assert (len(run.calls), len(run.forwarded)) == (seen, 3)
    assert run.init_state(6) == "acked"  # after ROLLBACK 7 the last txid is 6
    assert run.forwarded[-1] == ("INITSTATE", 6)
    run = started()
    assert run.init_state(-1) == "acked"
    assert run.calls == [("prepare",), ("init_state",)]
    assert run.forwarded == [("INITSTATE", -1)] * 2
    for call in (run.init_state, run.prepare, run.commit, run.commit):
        assert call(0) == "acked"
    assert run.calls.count(("state.commit", 0)) == run.calls.count(("pre_commit", 0)) == 1


def test_before_the_state_prepare_fails_and_recovery_does_not():
    state = MemoryStateProvider().new_state("bolt-0")
    state.put("cat", 5)
    state.prepare_commit(3)
    run = executor(state=state)
    assert [run.prepare(4), run.commit(3), run.rollback(4), run.init_state(3)] == ["failed", *["acked"] * 3]
    assert called(run) == "prepare, pre_commit 3, state.commit 3, pre_rollback, state.rollback, init_state"
    assert list(state) == [("cat", 5)]


class Broken(WordCount):
    def pre_prepare(self, txid):
        raise OSError("full")

    def execute(self, tuple):
        self.collector.fail(tuple)


def test_a_message_fails_if_a_hook_raises_or_nothing_is_prepared_and_failed_tuples_are_listed():
    run = started(Broken())
    assert run.prepare(0) == "failed"
    assert run.calls[2:] == [("pre_prepare", 0)]
    assert [str(error) for error in run.errors] == ["full"]
    assert run.rollback(0) == "acked"
    assert run.forwarded == [("INITSTATE", -1), ("ROLLBACK", 0)]
    run.execute("cat")
    assert [one.values for one in run.failed] == [("cat",)]
    assert run.commit(4) == "failed"


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="object is no StatefulBolt"):
        executor(object())
    with pytest.raises(InputError, match="inputs is 0, expected a whole number from 1"):
        executor(inputs=0)
    with pytest.raises(InputError, match="2 values, expected one for each of"):
        executor().execute("a", "b")
    with pytest.raises(InputError, match="input 1 is unknown"):
        executor().prepare(0, 1)
