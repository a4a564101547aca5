"""State providers: the check finds the faults of broken ones; keys, values and configuration of the ready-made ones."""

from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest

from txstorm.api.external import StateContext
from txstorm.errors import FencedError, InputError, StateError
from txstorm.stateful import MemoryStateProvider, RedisStateProvider
from txstorm.stateful.key_values import StoredKeyValueState
from txstorm.stateful.providers import configured_provider, open_state
from txstorm.testing import CheckFailed, check_state_provider


def test_states_in_memory_keep_all_rules_and_commit_only_what_the_same_object_has_prepared():  # W32
    check_state_provider(MemoryStateProvider)
    provider = MemoryStateProvider()
    one, other = (provider.new_state("counts") for _ in range(2))
    assert one.get("a") is None
    one.prepare_commit(2)
    other.rollback()
    other.put("a", 1)
    other.prepare_commit(3)
    with pytest.raises(StateError, match="txid 2 cannot be committed"):
        one.commit(2)
    other.commit(3)
    assert (other.last_committed(), other.get("a")) == (3, 1)
    one.rollback()
    assert one.get("a") == 1


class Wrapped(MemoryStateProvider):
    """Provider whose states are of another class."""

    kind: type[StoredKeyValueState]

    def new_state(self, namespace, conf=None, context=None):
        state = super().new_state(namespace, conf, context)
        state.__class__ = self.kind
        return state


class StoresDefaults(StoredKeyValueState):
    def get(self, key, default=None):
        found = super().get(key, default)
        if found is not None:
            self.put(key, found)
        return found


def changed(name, base=StoredKeyValueState, **methods):
    return type(name, (base,), methods)


ForgetsDeletions = changed("ForgetsDeletions", delete=lambda self, key: self.get(key))
NeverSaysWhatIsDone = changed("NeverSaysWhatIsDone", last_committed=lambda self: None)
SeesOtherTimelines = changed("SeesOtherTimelines", last_committed=lambda self: self._committed and self._committed.txid)
AcceptsAnyEpoch = changed(
    "AcceptsAnyEpoch",
    MemoryStateProvider,
    new_state=lambda self, name, conf, context: MemoryStateProvider.new_state(self, name, conf),
)
OneNamespace = changed(
    "OneNamespace", MemoryStateProvider, new_state=lambda self, *_: MemoryStateProvider.new_state(self, "all")
)
ForgetsWithTheObject = changed(
    "ForgetsWithTheObject", MemoryStateProvider, new_state=lambda self, *given: MemoryStateProvider().new_state(*given)
)


class SharesValues(StoredKeyValueState):
    values = {}

    def put(self, key, value):
        super().put(key, value)
        self.values[id(self), key] = value

    def get(self, key, default=None):
        found = super().get(key, default)
        mine = self.values.get((id(self), key))
        return mine if type(found) is list and mine else found


class CommitsWhenPreparing(StoredKeyValueState):
    def prepare_commit(self, txid):
        super().prepare_commit(txid)
        self._store.write(self._prepared)


class KeepsLaterWritesOnRollback(StoredKeyValueState):
    def rollback(self):
        written = dict(self._written)
        super().rollback()
        self._written = written


class CommitsLaterWrites(StoredKeyValueState):
    def commit(self, txid=None):
        super().commit(txid)
        self._store.write(self._written)


class LosesLaterWrites(StoredKeyValueState):
    def commit(self, txid=None):
        super().commit(txid)
        self._written = {}


class KeepsTheFirstPreparation(StoredKeyValueState):
    def prepare_commit(self, txid):
        if self.prepared() != txid:
            super().prepare_commit(txid)


class CommitsAnything(StoredKeyValueState):
    def commit(self, txid=None):
        if self.prepared() is not None:
            super().commit(self.prepared())


class YieldsTwice(StoredKeyValueState):
    def __iter__(self):
        yield from super().__iter__()
        yield from super().__iter__()


class RollsBackOnOpening(MemoryStateProvider):
    def new_state(self, namespace, conf=None, context=None):
        state = super().new_state(namespace, conf, context)
        state.rollback()
        return state


class ForgetsPreparedContent(StoredKeyValueState):
    def prepare_commit(self, txid):
        super().prepare_commit(txid)
        self._store.prepare(self._prepared_place(txid), {}, self._store.places()[0])

    def _prepared_place(self, txid):
        return self._store.places()[1]


class CommitsAgain(StoredKeyValueState):
    def commit(self, txid=None):
        if txid != self.last_committed():
            super().commit(txid)


class RollsBackTheCommit(StoredKeyValueState):
    def rollback(self):
        super().rollback()
        self._store.write({key: None for key, _ in self._store.items()})


class PreparesSeveral(StoredKeyValueState):
    def prepare_commit(self, txid):
        if self.prepared() not in (None, txid):
            super().rollback()
        super().prepare_commit(txid)


class CountsPreparedAsCommitted(StoredKeyValueState):
    def last_committed(self):
        prepared = self.prepared()
        return super().last_committed() if prepared is None else prepared


class IteratesOverTheCommit(StoredKeyValueState):
    def __iter__(self):
        for key, _ in super().__iter__():
            found = self._store.get(self._form.keys.serialize(key))
            if found is not None:
                yield key, self._form.values.deserialize(found)


class RollsBackOnTakeover(MemoryStateProvider):
    def __init__(self):
        super().__init__()
        self.epochs = {}

    def new_state(self, namespace, conf=None, context=None):
        state = super().new_state(namespace, conf, context)
        if context is not None and context.epoch > self.epochs.setdefault(namespace, context.epoch):
            self.epochs[namespace] = context.epoch
            state.rollback()
        return state


class CommitsOnTakeover(MemoryStateProvider):
    def new_state(self, namespace, conf=None, context=None):
        state = super().new_state(namespace, conf, context)
        if context is not None and context.epoch > 2 and state.prepared() is not None:
            state.commit(state.prepared())
        return state


BROKEN = {
    ForgetsPreparedContent: "a committed value, for another object, while the next one is prepared: expected 1, got N",
    CommitsAgain: "txids out of order are errors: a second commit of a txid: expected a Exception, got no error",
    RollsBackTheCommit: "another process rolls back what is prepared: the content: expected {'a': 1}, got {}",
    PreparesSeveral: "txids out of order are errors: prepare_commit while another txid is prepared",
    CountsPreparedAsCommitted: "the last committed txid while the next one is prepared: expected 1, got 2",
    IteratesOverTheCommit: "writes are read before they are saved",
    RollsBackOnTakeover: r"in a topology, a crash at p6.after \(decide: the intent is decided\), and another start",
    CommitsOnTakeover: r"in a topology, a crash at p[56].* and another start",
    StoresDefaults: "unknown keys have the default",
    ForgetsDeletions: "writes are read before they are saved",
    SharesValues: "values keep their types",
    CommitsWhenPreparing: "prepared content is invisible until it is committed",
    KeepsLaterWritesOnRollback: "a rollback restores the last commit",
    CommitsLaterWrites: "later writes belong to the next transaction",
    LosesLaterWrites: "later writes belong to the next transaction",
    KeepsTheFirstPreparation: "the later preparation counts",
    CommitsAnything: "txids out of order are errors",
    NeverSaysWhatIsDone: "prepared content is invisible until it is committed",
    SeesOtherTimelines: "txids begin again after a rewind",
    YieldsTwice: "writes are read before they are saved",
    RollsBackOnOpening: "prepared content is invisible until it is committed",
    AcceptsAnyEpoch: "a stale epoch is rejected",
    OneNamespace: "",
    ForgetsWithTheObject: "a committed value, for another object, while the next one is prepared: expected 1, got None",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.__name__)
def test_a_broken_provider_is_found(broken):
    class Provider(Wrapped):
        kind = broken

    make = broken if issubclass(broken, MemoryStateProvider) else Provider
    with pytest.raises(CheckFailed, match=f"state provider: .*{BROKEN[broken]}"):
        check_state_provider(make)


class PlainState:
    """A state with Storm's methods that is derived from nothing."""

    def __init__(self, kept):
        self.kept = kept
        self.put, self.get, self.delete, self.last_committed = kept.put, kept.get, kept.delete, kept.last_committed
        self.prepareCommit, self.commit, self.rollback = kept.prepare_commit, kept.commit, kept.rollback

    def __iter__(self):
        return iter(self.kept)


class PlainProvider:
    def __init__(self):
        self.kept = MemoryStateProvider()

    def newState(self, namespace, conf, context):
        return PlainState(self.kept.new_state(namespace, conf, context))


def test_a_provider_need_not_be_derived_from_ours_but_its_states_have_the_methods():
    with pytest.warns(DeprecationWarning, match=r"derive it: the next version accepts no others"):
        check_state_provider(PlainProvider, seeds=range(3))
    without = SimpleNamespace(newState=lambda namespace, conf, context: {})
    with pytest.raises(
        InputError, match=r"state 'n': .* object of dict, which has no put, delete, prepare_commit, com"
    ):
        open_state(without, "n", {}, None)


KEYS = [1, "1", True, None, b"1", Decimal(1), date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), (1, "1"), ("1", (1,))]


def test_keys_of_different_types_are_different_keys_and_those_of_other_types_are_refused():
    state = MemoryStateProvider().new_state("bolt-1", conf={}, context=None)
    for number, key in enumerate(KEYS):
        state.put(key, number)
    state.prepare_commit(0)
    state.commit(0)
    assert [state.get(key) for key in KEYS] == list(range(len(KEYS)))
    assert {(type(key), key) for key, _ in state} == {(type(key), key) for key in KEYS}
    state = MemoryStateProvider().new_state("bolt-1")
    for key in (1.5, ["a"], {"a": 1}, {1}, object()):
        for call in (state.get, state.delete, lambda one: state.put(one, 1)):
            with pytest.raises(StateError, match=r"state 'bolt-1': key .* cannot be stored: .* cannot be a key; use"):
                call(key)
    with pytest.raises(StateError, match=r"state 'bolt-1', key 'k': value .* has no text form; use strings"):
        state.put("k", object())
    with pytest.raises(StateError, match=r"key 'k': value is None, .* call delete"):
        state.put("k", None)
    endless = []
    endless.append(endless)
    with pytest.raises(StateError, match=r"key 'k': value .* cannot be stored"):
        state.put("k", endless)
    assert list(state) == []


@pytest.mark.parametrize("value", [(1, [2]), {1: "a", "b": {2}}, {3, 4}, b"x", Decimal("1.50"), float("inf"), [None]])
def test_values_come_back_as_they_were(value):
    state = MemoryStateProvider().new_state("bolt-1")
    state.put("k", value)
    assert (state.get("k"), type(state.get("k"))) == (value, type(value))


def test_an_iteration_refuses_writes_meanwhile():
    state = MemoryStateProvider().new_state("bolt-1")
    for key in "abc":
        state.put(key, 1)
    with pytest.raises(StateError, match=r"changed while it was iterated; iterate over list\(state\)"):
        for key, _ in state:
            state.delete(key)
    for key, _ in list(state):
        state.delete(key)


def test_a_state_that_manages_itself_commits_without_a_txid():
    provider = MemoryStateProvider()
    state = provider.new_state("bolt-1")
    state.put("a", 1)
    state.commit()
    state.put("b", 1)
    assert list(provider.new_state("bolt-1")) == [("a", 1)]
    state.prepare_commit(3)
    with pytest.raises(StateError, match="commit without a txid while txid 3 is prepared"):
        state.commit()


@pytest.mark.parametrize(
    ("context", "kind", "message"),
    [
        (("second", "2", 5), StateError, r"expected that of topology 'second' .* found that of topology 'first'"),
        (("first", "1", 4), FencedError, "expected the epoch 4 of this coordinator, found 5"),
    ],
)
def test_a_state_is_not_opened_for_another_topology_or_with_an_older_epoch(context, kind, message):
    provider = MemoryStateProvider()
    provider.new_state("n", {}, StateContext("first", "1", "n", 0, 0, 5))
    topology, incarnation, epoch = context
    with pytest.raises(kind, match=message):
        provider.new_state("n", {}, StateContext(topology, incarnation, "n", 0, 0, epoch))


@pytest.mark.parametrize(
    ("name", "conf", "kind"),
    [
        ("memory", {}, MemoryStateProvider),
        ("org.apache.storm.state.InMemoryKeyValueStateProvider", {}, MemoryStateProvider),
        ("txstorm.stateful:MemoryStateProvider", {}, MemoryStateProvider),
        ("redis", {"jedisPoolConfig": {"port": 1}}, RedisStateProvider),
        (
            "org.apache.storm.redis.state.RedisKeyValueStateProvider",
            {"jedisPoolConfig": {"port": 1}},
            RedisStateProvider,
        ),
    ],
)
def test_a_provider_is_named_in_words_by_storms_class_or_as_a_class(name, conf, kind):
    provider, left = configured_provider(name, conf)
    assert type(provider) is kind
    assert left == {} or kind is RedisStateProvider


@pytest.mark.parametrize(
    ("name", "conf", "message"),
    [
        ("rediss", {}, r"'rediss' is unknown \(did you mean 'redis'\?\); use delta, memory, redis or MODULE:CLASS"),
        ("nowhere:Provider", {}, "'nowhere:Provider' cannot be loaded: No module named 'nowhere'"),
        ("json:Nothing", {}, "'json:Nothing' cannot be loaded"),
        ("json:dumps", {}, "'json:dumps' is a function, expected a class"),
        ("json:JSONDecoder", {}, "'json:JSONDecoder' has no method new_state"),
        (":", {}, "expected MODULE:CLASS"),
        ("delta", {"a": 1}, r"the provider delta has no configuration, got \['a'\]"),
        ("redis", {"host": "x"}, "configuration key 'host' is unknown; known are jedisPoolConfig, keyClass"),
        ("redis", {"jedisPoolConfig": 5}, "jedisPoolConfig is no JSON object"),
        ("redis", {"jedisPoolConfig": {"hots": "x"}}, "has the key 'hots', expected one of host, port"),
        ("redis", {"jedisPoolConfig": {"port": "6379"}}, "port is a str, expected a int"),
        ("redis", {"jedisPoolConfig": {"password": 12345}}, "password is a int, expected a str"),
    ],
)
def test_a_wrong_provider_or_configuration_is_refused(name, conf, message):
    with pytest.raises(InputError, match=message) as refused:
        configured_provider(name, conf)
    assert "12345" not in str(refused.value)
