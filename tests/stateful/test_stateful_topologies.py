"""Stateful bolts in topologies on the local engine: word counts, order of calls, discarded attempts, restarts, faults."""

import json
import os
import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from crashes import crashing
from runs import ended
from stateful_nets import (
    CALLS,
    LINES,
    Hooked,
    SharedWordCount,
    StormWordCount,
    TypedWordCount,
    WordCount,
    counted,
    net,
    table_of,
)

from txstorm import KeyedState, StatefulBolt, TransactionalTopologyBuilder, rewind
from txstorm.bolts import SplitWords
from txstorm.errors import InputError, StateError, TableCorrupt, TopologyError, TopologyFailed
from txstorm.results.views import DeadLettersView, StateView
from txstorm.spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.stateful import MemoryStateProvider, StateProvider, committer
from txstorm.testing import TopologyTestDriver
from txstorm.testing.checks.schedules import play
from txstorm.topology.rebalance import rebalanced

SEED, SCHEDULES = int(os.environ.get("SEED", "0")), int(os.environ.get("SCHEDULES", "8"))


class KeptProvider(StateProvider):
    """Memory that outlives topologies, as a server does."""

    kept = MemoryStateProvider()

    def new_state(self, namespace, conf, context):
        return self.kept.new_state(namespace, conf, context)


class SilentProvider(KeptProvider):
    """The same memory, whose states do not say what is prepared."""

    def new_state(self, namespace, conf, context):
        state = super().new_state(namespace, conf, context)
        state.prepared = lambda: None
        return state


class TakesNone(KeptProvider):
    """The same memory, with states that store None, as a text."""

    def new_state(self, namespace, conf, context):
        state = super().new_state(namespace, conf, context)
        put = state.put
        state.put = lambda key, value: put(key, "none" if value is None else value)
        return state


KEPT, SILENT, NONE = (
    {"state_provider": f"{KeptProvider.__module__}:{name}"} for name in ("KeptProvider", "SilentProvider", "TakesNone")
)


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()
    KeptProvider.kept = MemoryStateProvider()


def kept(tasks=2):
    states = [KeptProvider.kept.new_state(f"count-{task}", {}, None) for task in range(tasks)]
    return {word: n for state in states for word, n in state}


@pytest.mark.parametrize("bolt", [WordCount, StormWordCount, TypedWordCount, SharedWordCount])
def test_the_word_count_of_the_source_document_as_of_any_txid(bolt):
    """Rows W27, W28, W29."""
    with TopologyTestDriver(net(bolt())) as driver:
        driver.commit(len(LINES))
        for txid in (None, *range(1, len(LINES) + 1)):
            assert table_of(driver, text=bolt in (WordCount, StormWordCount), txid=txid) == counted(LINES[:txid])
        assert ("the", 8) in driver.emitted("count", 5)


@pytest.mark.parametrize("settings", [{}, KEPT, {"state_provider": "memory"}], ids=["delta", "class", "memory"])
def test_calls_come_in_storms_order_on_a_new_object_per_transaction(settings):
    """Rows W35, W37."""
    with TopologyTestDriver(net(Hooked(), tasks=1, **settings)) as driver:
        driver.commit(2)
    first, second = ([call for call in CALLS if call[-1] == mark] for mark in dict.fromkeys(call[-1] for call in CALLS))
    for txid, calls, line in ((1, first, LINES[0]), (2, second, LINES[1])):
        assert [call[:-2] for call in calls] == [
            ("prepare",),
            ("init_state",),
            *(("execute", word) for word in line.split()),
            ("pre_prepare", txid),
            ("pre_commit", txid),
        ]


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_a_discarded_attempt_is_rolled_back_and_replayed(settings):
    with TopologyTestDriver(net(Hooked(), tasks=1, **settings), pending=2) as driver:
        driver.next_tuple()
        driver.next_tuple()
        driver.ack(1)
        driver.ack(2)
        driver.fail(1)  # in its commit phase
        called = [call[0] for call in CALLS if call[0] != "execute"]
        assert called == ["prepare", "init_state", "pre_prepare", "pre_rollback"]
        assert KeptProvider.kept.new_state("count-0").prepared() is None
        driver.commit(5)
        assert (table_of(driver) if not settings else kept()) == counted(LINES)
    assert [call[1] for call in CALLS if call[0] == "pre_commit"] == [1, 2, 3, 4, 5]


def test_what_an_earlier_run_has_prepared_is_rolled_back():
    """Row W36: or committed, if it was decided; also if the provider does not say what is prepared."""
    for settings in (KEPT, SILENT):
        KeptProvider.kept = MemoryStateProvider()
        with TopologyTestDriver(net(Hooked(), tasks=1, **settings)) as driver:
            with crashing("p6.before"):
                driver.commit(1)
            assert KeptProvider.kept.new_state("count-0").prepared() == 1
            CALLS.clear()
            driver.restart(net(Hooked(), tasks=1, **settings))
            assert settings is SILENT or [call[0] for call in CALLS] == ["prepare", "pre_rollback"]
            assert (KeptProvider.kept.new_state("count-0").prepared(), kept(1)) == (None, {})
            with crashing("p6.after"):
                driver.commit(1)
            driver.restart(net(Hooked(), tasks=1, **settings))
            assert kept(1) == counted(LINES[:1])
            driver.commit(5)
            assert kept(1) == counted(LINES)


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
@pytest.mark.parametrize("point", ["p6.after", "p7.1.before", "p8.before"])
def test_what_is_decided_is_committed_once_also_by_the_next_start(settings, point):
    """Row W36."""
    with TopologyTestDriver(net(Hooked(), tasks=1, **settings)) as driver:
        driver.commit(1)
        CALLS.clear()
        with crashing(point):
            driver.commit(2)
        assert [call[1] for call in CALLS if call[0] == "pre_commit"] == ([2] if point == "p8.before" else [])
        is_left = point != "p8.before" or not settings  # a hook may be called again
        CALLS.clear()
        driver.restart(net(Hooked(), tasks=1, **settings))
        assert [call[:2] for call in CALLS] == ([("prepare", "task 0"), ("pre_commit", 2)] if is_left else [])
        assert driver.committed == 2
        assert (table_of(driver) if not settings else kept(1)) == counted(LINES[:2])
        driver.commit(5)
        assert (table_of(driver) if not settings else kept(1)) == counted(LINES)


@pytest.mark.parametrize("opaque", [False, True], ids=["transactional", "opaque"])
@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
def test_every_word_counts_once_after_any_schedule(seed, settings, opaque):  # W38
    rng = random.Random(seed)
    kind = OpaqueMemoryTransactionalSpout if opaque else MemoryTransactionalSpout
    words = [rng.choice("abcdefg") for _ in range(60)]
    take = (lambda txid: rng.randint(1, 6)) if opaque else 4
    spout = kind([words[::2], words[1::2]], ["word"], take)

    def topology():
        builder = TransactionalTopologyBuilder("words", "words", spout)
        builder.set_bolt("count", WordCount(), 2).fields_grouping("words", ["word"])
        return builder.set_settings({"retry_backoff": 0, **settings}).build_topology()

    with TopologyTestDriver(topology(), pending=3) as driver:
        play(driver, rng, lambda: driver.restart(topology()))
        found = table_of(driver) if not settings else kept()
    assert found == counted(words), f"SEED={seed}"


class Failing(WordCount):
    fields = ("word", "count")

    def execute(self, tuple):
        super().execute(tuple)
        if tuple["word"] == "cat" and not CALLS:
            CALLS.append(("failed",))
            self.collector.fail(tuple)


def test_a_failed_tuple_fails_the_batch_which_is_replayed():
    """Row W39."""
    with TopologyTestDriver(net(Failing())) as driver:
        driver.next_tuple()
        driver.commit(1)
        for _ in range(3):
            driver.next_tuple()
            driver.commit()
        driver.commit(5)
        assert CALLS == [("failed",)]
        assert table_of(driver) == counted(LINES)


class Ends(WordCount):
    def execute(self, tuple):
        if tuple["word"] == "cat":
            raise ValueError("no cats")
        super().execute(tuple)


def test_an_error_names_component_and_tuple():
    with TopologyTestDriver(net(Ends())) as driver:
        driver.commit(1)
        message = r"count\[0\] raised ValueError .*: no cats; it was given .*word='cat'"
        with pytest.raises(TopologyFailed, match=message):
            driver.commit(2)


class Fails(Hooked):
    """Raises in a method, in one task and txid, or for a word."""

    where, shared = "prepare", False

    def prepare(self, context, collector):
        super().prepare(context, collector)
        self.at = (context.attempt.txid, context.task) if context.attempt else None
        self.words = []
        self.fail("prepare")

    def execute(self, tuple):
        super().execute(tuple)
        self.words.append(tuple["word"])
        if self.at == (5, 0):
            self.counts.put("nothing", None)

    def pre_prepare(self, txid):
        super().pre_prepare(txid)
        self.fail("pre_prepare")
        if self.where == "words" and "cat" in self.words:
            raise ValueError(self.words)

    def fail(self, where):
        if self.where == where and self.at == (5, 1):
            raise ValueError(where)


@pytest.mark.parametrize("where", ["prepare", "pre_prepare", "words"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_what_is_left_out_takes_nothing_of_other_tasks_and_loses_no_state(where, shared):
    """The state of the task is prepared all the same, and its hook called, so that a start finds it."""
    bolt, lines = Fails(), [*LINES[:4], " ".join(counted(LINES))]
    bolt.where, type(bolt).shared = where, shared
    with TopologyTestDriver(net(bolt, lines=lines, on_error="dead_letter", **NONE)) as driver:
        driver.commit(5)
        left_out = [json.loads(row["record"])["word"] for row in DeadLettersView(driver.data_dir).to_pylist()]
        name = "count" if shared else "count-{}"
        states = [KeptProvider.kept.new_state(name.format(task), {}, None) for task in range(1 if shared else 2)]
        found = {word: n for state in states for word, n in state}
        assert found.pop("nothing", None if where != "words" else "none") == "none"
        assert left_out
        assert Counter(found) + Counter(left_out) == Counter(counted(lines))
        assert all(state.last_committed() == 5 for state in states)
        assert [call[2] for call in CALLS if call[:2] == ("pre_commit", 5)] == ["task 0", "task 1"]
        driver.restart()
        driver.commit(6)


class Iterates(WordCount):
    """Emits the whole state at the end of each transaction, and removes words that were seen three times."""

    fields = ("seen",)

    def execute(self, tuple):
        self.counts.put(tuple["word"], self.counts.get(tuple["word"], 0) + 1)

    def pre_prepare(self, txid):
        for word, n in list(self.counts):
            if n == 3:
                assert self.counts.delete(word) == 3
        self.collector.emit(dict(self.counts))


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_iteration_sees_own_writes_and_deletions_and_the_states_of_no_other_task(settings):
    """U24."""
    with TopologyTestDriver(net(Iterates(), tasks=3, **settings)) as driver:
        expected = {}
        for txid, line in enumerate(LINES, 1):
            driver.commit(txid)
            for word in line.split():
                expected[word] = expected.get(word, 0) + 1
            expected = {word: n for word, n in expected.items() if n != 3}
            seen = [one for (one,) in driver.emitted("count", txid)]
            assert sum(map(len, seen)) == len(expected)
            assert {word: n for one in seen for word, n in one.items()} == expected


def test_iteration_reads_a_large_state_from_its_tables():
    spout = MemoryTransactionalSpout([[f"w{number}" for number in range(30_000)], ["w1"]], ["word"], 15_000)

    class Sizes(WordCount):
        fields = ("size", "sum")

        def execute(self, tuple):
            self.counts.put(tuple["word"], self.counts.get(tuple["word"], 0) + 1)

        def pre_prepare(self, txid):
            found = dict(self.counts)
            self.collector.emit(len(found), sum(found.values()))

    builder = TransactionalTopologyBuilder("words", "words", spout)
    builder.set_bolt("count", Sizes()).fields_grouping("words", ["word"])
    with TopologyTestDriver(builder.build_topology()) as driver:
        driver.commit(3)
        assert [driver.emitted("count", txid) for txid in (1, 2, 3)] == [[(15_000, 15_001)], *[[(30_000, 30_001)]] * 2]


class Mutable(StatefulBolt):
    def init_state(self, state):
        self.state = state

    def execute(self, tuple):
        found = self.state.get("seen", [])
        found.append(tuple["word"])
        self.state.put("seen", found)
        found.append("later")  # is not saved
        self.state.get("seen").append("later")


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_values_are_copies(settings):
    with TopologyTestDriver(net(Mutable(), tasks=1, **settings)) as driver:
        driver.commit(2)
        if settings:
            found = KeptProvider.kept.new_state("count-0", {}, None).get("seen")
        else:
            (row,) = driver.state("count").to_pylist()
            found = json.loads(row["value"])
    assert found == " ".join(LINES[:2]).split()


def test_checkpoints_are_described():
    """Row W33."""
    described = json.loads(net(WordCount()).describe("json"))
    assert described["checkpoints"] == {"source": "coordinator", "bolts": ["split", "count"]}
    assert [one["class"] for one in described["components"]] == ["MemoryTransactionalSpout", "SplitWords", "WordCount"]
    builder = TransactionalTopologyBuilder("t", "lines", MemoryTransactionalSpout([LINES], ["line"], 1))
    builder.set_bolt("split", SplitWords()).shuffle_grouping("lines")
    assert json.loads(builder.build_topology().describe("json"))["checkpoints"] is None


def test_storms_keys_are_accepted_and_the_configuration_is_never_shown():
    """Rows W30, W31."""
    settings = {
        "topology.state.provider": "org.apache.storm.redis.state.RedisKeyValueStateProvider",
        "topology.state.provider.config": json.dumps({"jedisPoolConfig": {"password": "hunter2"}}),
        "topology.state.checkpoint.interval.ms": 100,
    }
    topology = net(WordCount(), **settings)
    assert topology.settings.state_checkpoint_interval == 0.1
    assert topology.targets["count"][0].conf == {"jedisPoolConfig": {"password": "hunter2"}}
    shown = [topology.describe(kind) for kind in ("text", "json", "dot", "mermaid", "svg")]
    assert "hunter2" not in "".join([*shown, repr(topology.settings), repr(topology.targets), str(topology)])


def test_settings_given_later_choose_the_provider():
    topology = net(WordCount())
    assert (topology.targets, list(topology.states)) == ({}, ["count"])
    other = topology.with_settings(KEPT)
    assert (list(other.targets), list(other.states), other.external) == (["count"], [], True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"state_provider": "rediss"},
            "setting state_provider: 'rediss' is unknown .did you mean 'redis'.*use delta, memory, redis or MODULE:CLASS",
        ),
        ({"state_provider_config": '{"a": "hunter2"'}, "state_provider_config: got a str: expected a JSON object"),
        ({"state_provider": "redis", "state_provider_config": '{"a": "hunter2"}'}, "configuration key 'a' is unknown"),
        ({"topology.state.checkpoint.interval.ms": 50}, "state_checkpoint_interval: .*greater than or equal to 0.1"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(TopologyError, match=message) as refused:
        net(WordCount(), **settings)
    assert "hunter2" not in str(refused.value)


class NoExecute(StatefulBolt):
    pass


class WrongPrepare(WordCount):
    def prepare(self, context, collector, attempt):
        pass


def test_faults_of_the_class_are_reported_at_build():
    with pytest.raises(TopologyError, match="NoExecute does not override execute"):
        net(NoExecute())
    with pytest.raises(TopologyError, match=r"prepare of WrongPrepare.*write def prepare\(self, context, collector\)"):
        net(WrongPrepare())
    builder = TransactionalTopologyBuilder("t", "lines", MemoryTransactionalSpout([LINES], ["line"], 1))
    builder.set_bolt("count", SharedWordCount()).shuffle_grouping("lines")
    with pytest.raises(TopologyError, match=r"shared = True, .* 'lines' is not grouped by fields"):
        builder.build_topology()


class TwoStates(WordCount):
    total = KeyedState("total", {}, {"n": int})

    def prepare(self, context, collector):
        super().prepare(context, collector)
        self.context = context

    def pre_prepare(self, txid):
        self.context.state("total").update((), lambda old: (old or 0) + 1)


def test_the_bolts_own_tables_commit_with_its_state():
    with TopologyTestDriver(net(TwoStates(), tasks=1)) as driver:
        driver.commit(3)
        assert driver.state("total").to_pylist() == [{"n": 3}]


@pytest.mark.parametrize("call", ["prepare_commit", "commit", "rollback"])
@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_the_bolt_must_not_save_its_state(settings, call):
    class Saves(WordCount):
        def pre_prepare(self, txid):
            method = getattr(self.counts, call)
            method() if call == "rollback" else method(txid)

    with (
        TopologyTestDriver(net(Saves(), **settings)) as driver,
        pytest.raises(StateError, match=f"{call} called by .*saves .*state with each transaction"),
    ):
        driver.commit(1)


class Keeps(WordCount):
    states = []

    def init_state(self, state):
        super().init_state(state)
        self.states.append(state)


def test_a_state_cannot_be_used_after_its_transaction():
    with TopologyTestDriver(net(Keeps(), **KEPT)) as driver:
        driver.commit(1)
        with pytest.raises(StateError, match="used outside of its transaction"):
            Keeps.states[0].put("a", 1)


class Total(WordCount):
    shared = True

    def execute(self, tuple):
        self.counts.put("total", self.counts.get("total", 0) + 1)


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_two_tasks_that_change_one_key_of_a_shared_state_are_refused(settings):
    """Also where a provider keeps the state: which task's value wins would be chance."""
    with TopologyTestDriver(net(Total(), tasks=2, **settings)) as driver:
        with pytest.raises(StateError, match=r"key .*'?total'?.* was changed by 2 tasks \(count\[0\], count\[1\]\)"):
            driver.commit(1)
        assert driver.committed == 0


def test_a_shared_state_may_get_another_parallelism(tmp_path):
    for tasks, txid in ((2, 2), (3, 5)):
        with TopologyTestDriver(net(SharedWordCount(), tasks=tasks), data_dir=tmp_path) as driver:
            driver.commit(txid)
            assert table_of(driver, text=False) == counted(LINES[:txid])


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_only_a_shared_state_can_be_rebalanced(settings):
    with pytest.raises(InputError, match=r"cannot go from 2 tasks to 3: .*belongs to its tasks"):
        rebalanced(net(WordCount(), **settings), {"count": 3})
    assert rebalanced(net(SharedWordCount(), **settings), {"count": 3}).component("count").parallelism == 3


def test_memory_is_refused_after_transactions_unless_it_may_be_lost():
    with TopologyTestDriver(net(WordCount(), state_provider="memory")) as driver:
        driver.commit(2)
        with pytest.raises(InputError, match=r"state 'count-0': txids to 2 are committed, .*state_may_be_lost=true"):
            driver.restart(net(WordCount(), state_provider="memory"))
        driver.restart(net(WordCount(), state_provider="memory", state_may_be_lost=True))
        driver.commit(3)


class RaisesOnCommit(Hooked):
    def pre_commit(self, txid):
        super().pre_commit(txid)
        if txid == 2:
            raise OSError("no mail")


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_what_pre_commit_raises_ends_the_run_once_the_transaction_is_published(settings):
    with TopologyTestDriver(net(RaisesOnCommit(), tasks=1, **settings)) as driver:
        driver.commit(1)
        with pytest.raises(TopologyFailed, match=r"count\[0\]: pre_commit\(2\) raised OSError: no mail"):
            driver.commit(2)
        driver.restart(net(Hooked(), tasks=1, **settings))
        assert driver.committed == 2
        driver.commit(5)
        assert sum((table_of(driver) if not settings else kept(1)).values()) > 0
    assert [call[1] for call in CALLS if call[0] == "pre_commit"] == [1, 2, 3, 4, 5]


class RaisesOnRollback(WordCount):
    def pre_rollback(self):
        raise OSError("no mail")


@pytest.mark.parametrize("settings", [{}, KEPT], ids=["delta", "class"])
def test_what_pre_rollback_raises_ends_the_run_once_the_state_is_rolled_back(settings):
    with TopologyTestDriver(net(RaisesOnRollback(), tasks=1, **settings)) as driver:
        driver.next_tuple()
        driver.ack(1)
        with pytest.raises(TopologyFailed, match=r"pre_rollback\(\) raised OSError: no mail"):
            driver.fail(1)
        driver.restart(net(WordCount(), tasks=1, **settings))
        driver.commit(5)
        assert (table_of(driver) if not settings else kept(1)) == counted(LINES)


def test_a_rewind_takes_the_table_back_and_keeps_other_states_by_name(tmp_path):
    """It tells which hooks it has left."""
    for settings, bolt in (({}, Hooked), (KEPT, WordCount)):
        place = tmp_path / bolt.__name__
        with TopologyTestDriver(net(bolt(), **settings), data_dir=place) as driver:
            driver.commit(4)
        if settings:
            with pytest.raises(InputError, match=r"checkpoints/count cannot be taken back, .*--keep count"):
                rewind(place, 2)
        found = rewind(place, 2, keep=["count"] if settings else [])
        assert settings or [uri.partition("/")[2] for uri in found["kept"]] == ["count"]
        CALLS.clear()
        with TopologyTestDriver(net(bolt(), **settings), data_dir=place) as driver:
            assert driver.committed == 2
            driver.commit(3)
            driver.restart(net(bolt(), **settings))
            driver.commit(5)
            again = LINES[2:4] if settings else []
            assert (table_of(driver) if not settings else kept()) == counted([*LINES, *again])
        assert settings or sorted({call[1] for call in CALLS if call[0] == "pre_commit"}) == [3, 4, 5]


@pytest.mark.parametrize("commits", [0, 1])
def test_a_store_that_is_lost_after_a_rewind_is_noticed_at_the_next_start(tmp_path, commits):
    with TopologyTestDriver(net(WordCount(), **KEPT), data_dir=tmp_path) as driver:
        driver.commit(4)
    rewind(tmp_path, 2, keep=["count"])
    states = KeptProvider.kept._namespaces
    if commits:  # an older copy of the state, of before the rewind, takes its place
        older = states["count-1"].committed
        with TopologyTestDriver(net(WordCount(), **KEPT), data_dir=tmp_path) as driver:
            driver.commit(3)
        states["count-1"].committed = older
    else:
        states["count-1"].__init__()
    with pytest.raises(TableCorrupt, match=r"count-1.*was lost"):
        TopologyTestDriver(net(WordCount(), **KEPT), data_dir=tmp_path)
    with TopologyTestDriver(net(WordCount(), **KEPT, state_may_be_lost=True), data_dir=tmp_path) as driver:
        driver.commit(5)
        driver.restart(net(WordCount(), **KEPT))


def of_kinds(key, value, base=WordCount):
    return type("Kinds", (base,), {"key_type": key, "value_type": value})()


class Spelled(WordCount):
    """Word count whose counts are texts."""

    def execute(self, tuple):
        word = tuple["word"]
        self.counts.put(word, str(int(self.counts.get(word, "0")) + 1))


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "of before"])
def test_types_of_a_state_are_those_of_the_first_run_also_in_a_directory_that_does_not_record_them(
    tmp_path, monkeypatch, recorded
):
    plain = committer.state_table
    kinds = [(None, None, WordCount), (None, None, Spelled), (str, str, Spelled), (str, None, WordCount)]
    for number, (key, value, base) in enumerate(kinds):
        place = tmp_path / str(number)
        if not recorded:
            old = lambda *given, **more: replace(plain(*given, **more), fixed=None, derive=None)  # noqa: E731
            monkeypatch.setattr(committer, "state_table", old)
        with TopologyTestDriver(net(of_kinds(key, value, base)), data_dir=place) as driver:
            driver.commit(2)
        monkeypatch.setattr(committer, "state_table", plain)
        others = [(str if key is None else None, value), (key, str if value is None else None)]
        shows = recorded or (base is Spelled and value is None)  # bare numbers can be both, text and strings
        for changed in others if shows else others[:1]:
            with pytest.raises(StateError, match=r"component 'count'.*written with (keys|values): "):
                TopologyTestDriver(net(of_kinds(*changed, base)), data_dir=place)
        with TopologyTestDriver(net(of_kinds(key, value, base)), data_dir=place) as driver:
            driver.commit(5)
            assert table_of(driver, text=key is None) == counted(LINES) if base is WordCount else True
        with pytest.raises(StateError, match="written with"):  # now it is recorded
            TopologyTestDriver(net(of_kinds(key, str if value is None else None, base)), data_dir=place)


class Listed(WordCount):
    """Bolt that changes lists of its state without a put, after a put, and after a get."""

    key_type, value_type = str, pa.list_(pa.int64())

    def execute(self, tuple):
        word = tuple["word"]
        seen = self.counts.get(word, [])
        seen.append(len(seen))
        if word != "the":
            self.counts.put(word, seen)
        seen.append(-1)
        self.counts.get(word, []).append(-2)


@pytest.mark.parametrize("take", [1, 2, 5])
def test_a_list_of_a_typed_state_changes_only_by_a_put_whatever_the_batches(take):
    with TopologyTestDriver(net(Listed(), take=take)) as driver:
        driver.commit(-(-5 // take))
        found = {row["key"]: row["value"] for row in driver.state("count").to_pylist()}
    assert found == {word: list(range(n)) for word, n in counted(LINES).items() if word != "the"}


@pytest.mark.parametrize("policy", ["fail_topology", "dead_letter"])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_store_that_is_emptied_in_the_middle_of_a_run_ends_it(tmp_path, policy, prepared):
    with TopologyTestDriver(net(WordCount(), tasks=1, **KEPT, on_error=policy), data_dir=tmp_path) as driver:
        driver.commit(2)
        if prepared:
            driver.ack(3)
        KeptProvider.kept._namespaces["count-0"].__init__()
        if prepared:
            driver.fail(3)  # its state is opened again
        with pytest.raises(TableCorrupt, match=r"count-0.*lost"):
            driver.commit(3)
    with pytest.raises(TableCorrupt, match="was lost"):
        TopologyTestDriver(net(WordCount(), tasks=1, **KEPT), data_dir=tmp_path)


@pytest.mark.parametrize("bolt", [WordCount, StormWordCount, TypedWordCount])
def test_the_word_count_is_the_same(make_engine, tmp_path, bolt):
    ended(net(bolt(), lines=LINES * 3, take=2), tmp_path / "data", make_engine(), until_txid=8)
    with_text = bolt is not TypedWordCount
    expected = counted(LINES * 3)
    rows = StateView(tmp_path / "data", "count").to_pylist()
    assert {row["key"].strip('"'): int(row["value"]) for row in rows} == expected
    tasks = {row["key"].strip('"'): row["task"] for row in rows}
    made = sorted(
        (tasks[word], f'"{word}"' if with_text else word, str(n) if with_text else n) for word, n in expected.items()
    )
    assert [(row["task"], row["key"], row["value"]) for row in rows] == made
