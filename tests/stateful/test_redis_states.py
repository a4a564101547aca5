"""States in a real Redis: servers that die and come back, wrong credentials, foreign namespaces, stale coordinators."""

import json
import time
from collections import Counter
from decimal import Decimal

import pytest
from servers.running import start_redis
from stateful_nets import CALLS, LINES, SharedWordCount, TypedWordCount, WordCount, counted, net

from txstorm import run
from txstorm.api.external import StateContext
from txstorm.errors import BlockedError, FencedError, InputError, StateError, TableCorrupt
from txstorm.stateful import RedisStateProvider
from txstorm.testing import TopologyTestDriver

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("redis_installed")]


def settings(redis, **more):
    return {"state_provider": "redis", "state_provider_config": json.dumps(redis.conf(**more))}


def content(redis, tasks=2) -> dict[str, int]:
    states = [RedisStateProvider().new_state(f"count-{task}", redis.conf(), None) for task in range(tasks)]
    return {word: n for state in states for word, n in state}


def test_the_word_count_of_the_source_document_in_redis(redis):
    """Row W31."""
    with TopologyTestDriver(net(WordCount(), **settings(redis))) as driver:
        driver.commit(2)
        driver.restart(net(WordCount(), **settings(redis)))
        driver.commit(5)
        assert content(redis) == counted(LINES)


def test_equal_keys_are_one_key_and_a_namespace_of_before_keeps_its_form(redis):
    from txstorm.clients.redis.connection import redis as client

    client.Redis("127.0.0.1", redis.ports[0]).hset("{before}:mark", mapping={"format": "1", "epoch": "0"})
    for name, wanted in (("new", [("1.5", 2)]), ("before", [("1.5", 1), ("1.50", 2)])):
        for number, key in enumerate(("1.5", "1.50"), 1):
            state = RedisStateProvider().new_state(name, redis.conf())
            state.put(Decimal(key), number)
            state.commit()
        assert sorted((str(key), value) for key, value in state) == wanted


class Slow(TypedWordCount):
    def execute(self, tuple):
        time.sleep(0.02)
        super().execute(tuple)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 0.7])
def test_a_server_that_is_killed_and_comes_back_costs_a_pause(own_redis, tmp_path, seconds):
    lines = LINES * 4
    topology = net(Slow(), lines=lines, **settings(own_redis, timeout=500), retry_backoff_max=0.2)
    handle = run(topology, engine="local", data_dir=tmp_path / "data", available_now=True)
    for _ in range(2):
        time.sleep(seconds)
        own_redis.kill()
        time.sleep(0.2)
        own_redis.restart()
    handle.awaitTermination()
    assert content(own_redis) == counted(lines)


def test_a_server_that_is_emptied_ends_the_run(redis, tmp_path):
    with TopologyTestDriver(net(WordCount(), **settings(redis)), data_dir=tmp_path) as driver:
        driver.commit(2)
        redis.flush()
        with pytest.raises(TableCorrupt, match="expected '0:2' as last committed, found nothing"):
            driver.commit(3)


SERVERS = []


class KillsItsServer(WordCount):
    def pre_commit(self, txid):
        if txid == 2:
            SERVERS.pop().kill()


def test_a_server_that_is_away_when_a_decided_transaction_is_committed_blocks(own_redis, tmp_path):
    SERVERS[:] = [own_redis]
    topology = net(KillsItsServer(), tasks=1, **settings(own_redis, timeout=300))
    with TopologyTestDriver(topology, data_dir=tmp_path / "data") as driver:
        driver.commit(1)
        message = r"txids 2-2 are decided but cannot be published: state 'count-0'.*cannot"
        with pytest.raises(BlockedError, match=message):
            driver.commit(2)
        own_redis.restart()
        assert content(own_redis, 1) == counted(LINES[:1])
        driver.restart(net(WordCount(), tasks=1, **settings(own_redis)))
        assert content(own_redis, 1) == counted(LINES[:2])
        driver.commit(5)
    assert content(own_redis, 1) == counted(LINES)


def test_a_password_that_is_rejected_is_reported_and_never_shown(tmp_path):
    redis = start_redis(tmp_path / "redis", password="hunter2")
    try:
        for wrong, message in (("hunter3", "rejects the credentials"), (None, "the server answers|rejects the cred")):
            with pytest.raises(InputError, match=message) as refused:
                TopologyTestDriver(net(WordCount(), **settings(redis, password=wrong)))
            assert "hunter" not in str(refused.value)
        with TopologyTestDriver(net(WordCount(), **settings(redis)), data_dir=tmp_path / "data") as driver:
            driver.commit(5)
        assert content(redis) == counted(LINES)
        files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert files
        assert [path for path in files if b"hunter2" in path.read_bytes()] == []
    finally:
        redis.close()


def test_a_server_that_is_not_there_is_named():
    conf = json.dumps({"jedisPoolConfig": {"port": 1, "timeout": 200}})
    with pytest.raises(BlockedError, match=r"state 'count-0': cannot be opened: .*redis://localhost:1/0"):
        TopologyTestDriver(net(WordCount(), state_provider="redis", state_provider_config=conf))


def test_a_namespace_of_another_topology_is_refused(redis):
    with TopologyTestDriver(net(WordCount(), id="first", **settings(redis))) as driver:
        driver.commit(1)
    with pytest.raises(StateError, match=r"expected that of topology 'second' .*found that of topology 'first'"):
        TopologyTestDriver(net(WordCount(), id="second", **settings(redis)))


def test_a_key_of_another_kind_is_reported(redis):
    from txstorm.clients.redis.connection import redis as client

    client.Redis("127.0.0.1", redis.ports[0]).set("{count-0}:mark", "text")
    with pytest.raises(BlockedError, match=r"state 'count-0'.*WRONGTYPE"):
        TopologyTestDriver(net(WordCount(), **settings(redis)))


def test_a_stale_coordinator_changes_nothing(redis):
    old, new = (StateContext("t", "1", "count", 0, 0, epoch) for epoch in (1, 2))
    stale = RedisStateProvider().new_state("count-0", redis.conf(), old)
    stale.put("a", 1)
    stale.prepare_commit(1)
    state = RedisStateProvider().new_state("count-0", redis.conf(), new)
    for call in (lambda: stale.commit(1), stale.rollback, lambda: stale.prepare_commit(1)):
        with pytest.raises(FencedError, match="expected the epoch 1 of this coordinator, found 2"):
            call()
    state.commit(1)
    assert list(state) == [("a", 1)]


class Upper:
    """Serializer of a user's."""

    def serialize(self, value):
        return value.upper().encode()

    def deserialize(self, data):
        return data.decode().lower()


def test_classes_and_serializers_of_the_configuration(redis):
    upper = redis.conf() | {"keySerializerClass": f"{__name__}:Upper"}
    conf = {**upper, "keyClass": "java.lang.String", "valueClass": "builtins:int"}
    state = RedisStateProvider().new_state("n", conf, None)
    state.put("a", 1)
    state.prepare_commit(0)
    state.commit(0)
    assert list(state) == [("a", 1)]
    assert list(RedisStateProvider().new_state("n", upper, None))
    for key, value in ((1, 1), ("a", "1")):
        with pytest.raises(StateError, match=r"expected a (str|int) as configured"):
            state.put(key, value)
    with pytest.raises(InputError, match="keySerializerClass: 'nowhere:Upper' cannot be loaded"):
        RedisStateProvider().new_state("n", {**redis.conf(), "keySerializerClass": "nowhere:Upper"}, None)


def test_large_transactions_are_prepared_in_pieces_and_committed_at_once(redis):
    state = RedisStateProvider().new_state("large", redis.conf(), None)
    for number in range(12_000):
        state.put(number, number)
    state.prepare_commit(0)
    assert list(RedisStateProvider().new_state("large", redis.conf(), None)) == []
    state.commit(0)
    found = Counter(dict(RedisStateProvider().new_state("large", redis.conf(), None)))
    assert (len(found), found[11_999]) == (12_000, 11_999)


class Shared(SharedWordCount):
    def prepare(self, context, collector):
        super().prepare(context, collector)
        self.name = f"task {context.task}"

    def pre_commit(self, txid):
        CALLS.append((self.name, txid))


def test_tasks_that_share_a_state_commit_it_once_and_each_calls_its_hook(redis):
    CALLS.clear()
    with TopologyTestDriver(net(Shared(), **settings(redis))) as driver:
        driver.commit(2)
        driver.restart(net(Shared(), tasks=3, **settings(redis)))
        driver.commit(5)
    assert dict(RedisStateProvider().new_state("count", redis.conf(), None)) == counted(LINES)
    tasks = [2, 2, 3, 3, 3]
    assert CALLS == [(f"task {task}", txid) for txid in range(1, 6) for task in range(tasks[txid - 1])]
