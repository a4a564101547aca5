"""The stand-alone executor of a stateful bolt: order of calls, messages from several inputs, recovery, failures."""

from __future__ import annotations

import pytest

from txstorm import BaseStatefulBolt, StatefulBolt
from txstorm.errors import InputError
from txstorm.stateful import MemoryStateProvider
from txstorm.testing import StatefulBoltExecutor


class WordCount(StatefulBolt):
    fields = ("word", "n")

    def prepare(self, context, collector):
        self.collector = collector

    def init_state(self, state):
        self.counts = state

    def execute(self, tuple):
        n = self.counts.get(tuple["word"], 0) + 1
        self.counts.put(tuple["word"], n)
        self.collector.emit(tuple, tuple["word"], n)
        self.collector.ack(tuple)


class StormWordCount(BaseStatefulBolt):
    def declareOutputFields(self, declarer):
        declarer.declare("word", "n")

    def prepare(self, context, collector):
        self.collector = collector

    def initState(self, state):
        self.counts = state

    def execute(self, tuple):
        word = tuple.getString(0)
        count = self.counts.get(word, 0)
        count += 1
        self.counts.put(word, count)
        self.collector.emit([tuple], word, count)
        self.collector.ack(tuple)

    def prePrepare(self, txid):
        self.counts.put("prepared", txid)


def test_calls_come_in_storms_order():
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    answers = [executor.init_state(-1)]
    executor.execute("cat")
    answers += [executor.prepare(0), executor.commit(0)]
    executor.execute("cat")
    answers += [executor.prepare(1), executor.rollback(1)]
    assert answers == ["acked"] * 5
    assert executor.calls == [
        ("prepare",),
        ("init_state",),
        ("execute", "cat"),
        ("pre_prepare", 0),
        ("state.prepare_commit", 0),
        ("pre_commit", 0),
        ("state.commit", 0),
        ("execute", "cat"),
        ("pre_prepare", 1),
        ("state.prepare_commit", 1),
        ("pre_rollback",),
        ("state.rollback",),
    ]
    assert executor.forwarded == [("INITSTATE", -1), ("PREPARE", 0), ("COMMIT", 0), ("PREPARE", 1), ("ROLLBACK", 1)]
    assert list(executor.state) == [("cat", 1)]
    assert executor.emitted() == [("cat", 1), ("cat", 2)]


def test_storms_spelling_works():
    executor = StatefulBoltExecutor(StormWordCount(), ["word"])
    executor.init_state(-1)
    executor.execute("cat")
    executor.prepare(0)
    assert dict(executor.state) == {"cat": 1, "prepared": 0}
    assert executor.emitted() == [("cat", 1)]


def test_tuples_wait_for_the_state_in_order():
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    executor.execute("cat")
    executor.execute("dog")
    assert executor.calls == [("prepare",)]
    executor.init_state(-1)
    assert executor.calls[1:] == [("init_state",), ("execute", "cat"), ("execute", "dog")]


def test_a_message_is_acted_on_once_it_has_come_from_all_inputs():  # W34
    executor = StatefulBoltExecutor(WordCount(), ["word"], inputs=3)
    assert [executor.init_state(-1, i) for i in (0, 2, 0, 2, 1)] == ["waiting"] * 4 + ["acked"]
    assert [executor.prepare(0, i) for i in (0, 1, 2)] == ["waiting", "waiting", "acked"]
    assert executor.calls[1:] == [("init_state",), ("pre_prepare", 0), ("state.prepare_commit", 0)]
    assert executor.forwarded == [("INITSTATE", -1), ("PREPARE", 0)]


def test_messages_of_a_checkpoint_that_is_rolled_back_do_not_count_for_its_next_attempt():
    executor = StatefulBoltExecutor(WordCount(), ["word"], inputs=2)
    for i in (0, 1):
        executor.init_state(-1, i)
    assert executor.prepare(0, 0) == "waiting"
    assert [executor.rollback(0, i) for i in (0, 1)] == ["waiting", "acked"]
    assert [executor.prepare(0, i) for i in (1, 0)] == ["waiting", "acked"]


def test_before_the_state_prepare_fails_and_recovery_does_not():
    state = MemoryStateProvider().new_state("bolt-0")
    state.put("cat", 5)
    state.prepare_commit(3)
    executor = StatefulBoltExecutor(WordCount(), ["word"], state)
    assert executor.prepare(4) == "failed"
    assert executor.commit(3) == "acked"
    assert executor.rollback(4) == "acked"
    assert executor.init_state(3) == "acked"
    assert executor.calls == [
        ("prepare",),
        ("pre_commit", 3),
        ("state.commit", 3),
        ("pre_rollback",),
        ("state.rollback",),
        ("init_state",),
    ]
    assert list(state) == [("cat", 5)]


def test_old_messages_are_acknowledged_and_ignored():
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    for call in (executor.init_state, executor.prepare, executor.rollback):
        assert call(7) == "acked"
    seen = len(executor.calls)
    assert [executor.prepare(5), executor.commit(5), executor.rollback(5), executor.init_state(5)] == ["acked"] * 4
    assert (len(executor.calls), len(executor.forwarded)) == (seen, 3)
    assert executor.init_state(6) == "acked"  # after ROLLBACK 7 the last txid is 6
    assert executor.forwarded[-1] == ("INITSTATE", 6)


def test_a_second_state_message_is_only_forwarded():
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    executor.init_state(-1)
    assert executor.init_state(-1) == "acked"
    assert executor.calls == [("prepare",), ("init_state",)]
    assert executor.forwarded == [("INITSTATE", -1)] * 2


def test_a_commit_that_is_sent_again_is_not_repeated():
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    for call in (executor.init_state, executor.prepare, executor.commit, executor.commit):
        assert call(0) == "acked"
    assert executor.calls.count(("state.commit", 0)) == executor.calls.count(("pre_commit", 0)) == 1


class Broken(WordCount):
    def pre_prepare(self, txid):
        raise OSError("full")


def test_a_message_fails_if_a_hook_raises():
    executor = StatefulBoltExecutor(Broken(), ["word"])
    executor.init_state(-1)
    assert executor.prepare(0) == "failed"
    assert executor.calls[2:] == [("pre_prepare", 0)]
    assert [str(error) for error in executor.errors] == ["full"]
    assert executor.rollback(0) == "acked"
    assert executor.forwarded == [("INITSTATE", -1), ("ROLLBACK", 0)]


def test_a_commit_of_what_is_not_prepared_fails():
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    executor.init_state(-1)
    assert executor.commit(4) == "failed"


class Refusing(WordCount):
    def execute(self, tuple):
        self.collector.fail(tuple)


def test_failed_tuples_are_listed():
    executor = StatefulBoltExecutor(Refusing(), ["word"])
    executor.init_state(-1)
    executor.execute("cat")
    assert [one.values for one in executor.failed] == [("cat",)]


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="object is no StatefulBolt"):
        StatefulBoltExecutor(object(), ["word"])
    with pytest.raises(InputError, match="inputs is 0, expected a whole number from 1"):
        StatefulBoltExecutor(WordCount(), ["word"], inputs=0)
    executor = StatefulBoltExecutor(WordCount(), ["word"])
    with pytest.raises(InputError, match="2 values, expected one for each of"):
        executor.execute("a", "b")
    with pytest.raises(InputError, match="input 1 is unknown"):
        executor.prepare(0, 1)
