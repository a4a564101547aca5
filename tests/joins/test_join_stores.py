"""Ready-made join stores: the same rules for memory, Redis and HTTP, and how they behave when a real server fails."""

import pickle
import time

import pytest
from join_store_servers import ids, row, store_server
from servers.running import start_redis

from txstorm.api.external import Mark
from txstorm.clients.redis.connection import redis as client
from txstorm.errors import InputError, StateError
from txstorm.joins import MemoryStore, RedisStore, RestStore, StoreRow
from txstorm.testing import CountingStore, check_join_store

MARK = Mark("topology", "1", 1, 0, 5)


def url_of(server, database=0):
    login = f":{server.password}@" if server.password else ""
    return f"redis://{login}127.0.0.1:{server.ports[0]}/{database}"


def bare(server, database=0):
    return client.Redis("127.0.0.1", server.ports[0], db=database)


def test_stores_in_memory_keep_all_rules():
    """A9, A11."""
    check_join_store(MemoryStore)
    one = MemoryStore()
    check_join_store(lambda: CountingStore(one))


def test_a_store_in_memory_forgets_the_ids_of_expired_rows():
    store = MemoryStore()
    store.put_many([row("k", "a", 1), row("k", "b", 9)])
    store.expire(5)
    store.put_many([row("k", "a", 7), row("k", "b", 8)])
    assert [(one.id, one.time) for one in store.get_many(["k"], None, None)["k"]] == [("a", 7), ("b", 9)]


@pytest.mark.integration
def test_stores_in_redis_keep_all_rules(redis):
    """A9, A11, A21: many rows of many keys in one round trip."""
    check_join_store(lambda: RedisStore(url_of(redis), prefix="checked"))


@pytest.mark.integration
@pytest.mark.parametrize("spec", ["memory", "redis"])
def test_stores_behind_the_api_keep_all_rules(redis, tmp_path, spec):
    """A10, A11: the window is behind an HTTP API, whatever storage that has."""
    options = ["memory"] if spec == "memory" else [f"redis:{url_of(redis)}", "--prefix", "api"]
    with store_server(tmp_path / "server", "--token", "secret", "--store", *options) as server:
        check_join_store(lambda: RestStore(server.url, token="secret"), seeds=range(2))


@pytest.mark.integration
def test_values_that_are_no_fields_come_back_as_they_are(redis, tmp_path):
    """A11: arbitrary data by key; any iterable of rows is put."""
    values = ["text", 5, None, ["a", 1], ("a", 1), b"x", {1: 2}, {"": [3]}, {"": 4, "v": None}, {}, {"v": (1,)}]
    rows = [StoreRow(f"k{number}", "i", number, value) for number, value in enumerate(values)]
    with store_server(tmp_path, "--store", f"redis:{url_of(redis)}", "--prefix", "rest") as server:
        for store in (MemoryStore(), RedisStore(url_of(redis), prefix="own"), RestStore(server.url)):
            store.put_many(iter(rows))
            store.put_many(row for row in rows)
            found = store.get_many([row.key for row in rows], None, None)
            assert [list(one) for one in found.values()] == [[row] for row in rows], store


def test_counting_stores_count_requests_and_have_what_their_store_has():
    store = CountingStore(MemoryStore())
    store.put_many([row("a", 1, 1), row("a", 2, 2)])
    store.put_many([])
    assert ids(store.get_many(["a", "b"], None, None)) == {"a": [1, 2], "b": []}
    store.expire(2)
    assert store.replace_mark(None, MARK)
    assert (store.mark(), store.puts, store.gets) == (MARK, 2, 1)
    assert not hasattr(store, "address")
    with pytest.raises(StateError, match="key"):
        store.check_rows([row("x" * 70_000, 1, 1)])


@pytest.mark.integration
def test_rows_of_one_store_are_not_seen_in_another(redis):
    first, second = (RedisStore(url_of(redis), prefix=prefix) for prefix in ("one", "two"))
    first.put_many([row("a", 1, 1)])
    assert ids(second.get_many(["a"], None, None)) == {"a": []}
    assert first.address != second.address
    assert RedisStore(url_of(redis), prefix="one").address == first.address
    assert ids(pickle.loads(pickle.dumps(first)).get_many(["a"], None, None)) == {"a": [1]}


@pytest.mark.integration
def test_an_expiry_removes_everything_of_the_rows_and_visits_no_other_keys(redis):
    """A21, A22: of short-lived rows the window alone is stored, and an expiry costs what expires."""
    store, server = RedisStore(url_of(redis), prefix="e"), bare(redis)
    store.put_many([row(f"k{number}", number, number) for number in range(6000)])
    store.put_many([row("k10", "later", 9000), row("k10", "first", 5)])
    before = server.info("commandstats")["cmdstat_zrangebyscore"]["calls"]
    store.expire(20)
    visited = server.info("commandstats")["cmdstat_zrangebyscore"]["calls"] - before
    assert visited == 1 + 20  # one for the index, one for each key
    found = store.get_many([f"k{number}" for number in range(30)], None, None)
    assert [len(rows) for rows in found.values()] == [0] * 10 + [1] + [0] * 9 + [1] * 10
    assert ids({"k10": found["k10"]}) == {"k10": ["later"]}
    store.expire(10_000)
    assert server.keys("*") == [b"{e}:mark"]
    assert server.hget("{e}:mark", "rows") == b"0"


@pytest.mark.integration
def test_a_redis_server_that_is_killed_and_restarted(own_redis):
    """A9: what was put is there after a crash, and calls work again."""
    store = RedisStore(url_of(own_redis), timeout=1.0)
    store.put_many([row("a", 1, 1, v="x")])
    assert store.replace_mark(None, MARK)
    for _ in range(2):
        own_redis.kill()
        for call in (
            lambda: store.put_many([row("a", 2, 2)]),
            lambda: store.get_many(["a"], None, None),
            lambda: store.expire(0),
            store.mark,
            lambda: store.replace_mark(MARK, MARK),
        ):
            with pytest.raises(OSError, match=r"join store 'txstorm-join' in redis://127\.0\.0\.1:\d+/0: cannot .*"):
                call()
        own_redis.restart()
        assert ids(store.get_many(["a"], None, None)) == {"a": [1]}
        assert store.mark() == MARK
        own_redis.restart()  # between two calls
        store.expire(0)
        assert ids(store.get_many(["a"], None, None)) == {"a": [1]}
    store.put_many([row("a", 2, 2)])
    assert ids(store.get_many(["a"], None, None)) == {"a": [1, 2]}


@pytest.mark.integration
def test_a_redis_server_that_does_not_answer_in_time(own_redis):
    store = RedisStore(url_of(own_redis), timeout=0.3)
    store.put_many([row("a", 1, 1)])
    own_redis.freeze()
    for call in (lambda: store.get_many(["a"], None, None), lambda: store.put_many([row("a", 2, 2)])):
        with pytest.raises(OSError, match=r"cannot .*[Tt]ime"):
            call()
    own_redis.thaw()
    deadline = time.monotonic() + 30
    while True:  # what was sent while it was frozen is answered first
        try:
            assert set(ids(store.get_many(["a"], None, None))["a"]) <= {1, 2}
            break
        except OSError:
            assert time.monotonic() < deadline
    store.put_many([row("a", 2, 2)])
    assert ids(store.get_many(["a"], None, None)) == {"a": [1, 2]}


@pytest.mark.integration
def test_a_full_redis_server_refuses_puts_until_rows_expire(own_redis):
    """A21: nothing is lost, look-ups and expiry go on, and make room again."""
    store, server = RedisStore(url_of(own_redis)), bare(own_redis)
    rows = [row(f"k{number}", number, number, text="x" * 500) for number in range(4000)]
    store.put_many(rows[:2000])
    used = server.info("memory")["used_memory"]
    server.config_set("maxmemory", used + 200_000)
    with pytest.raises(OSError, match=r"cannot put rows: .*used memory"):
        for first in range(2000, 4000, 100):
            store.put_many(rows[first : first + 100])
    assert ids(store.get_many(["k0", "k1999"], None, None)) == {"k0": [0], "k1999": [1999]}
    with pytest.raises(OSError, match="used memory"):
        store.replace_mark(None, MARK)
    store.expire(1900)
    assert ids(store.get_many(["k0", "k1999"], None, None)) == {"k0": [], "k1999": [1999]}
    store.put_many(rows[2000:2500])
    assert ids(store.get_many(["k2000", "k2499"], None, None)) == {"k2000": [2000], "k2499": [2499]}


@pytest.mark.integration
def test_scripts_that_the_server_has_forgotten_are_loaded_again(redis):
    store = RedisStore(url_of(redis))
    store.put_many([row("a", 1, 1)])
    bare(redis).script_flush()
    store.put_many([row("a", 2, 2)])
    bare(redis).script_flush()
    store.expire(2)
    assert ids(store.get_many(["a"], None, None)) == {"a": [2]}


@pytest.mark.integration
def test_a_password_that_is_rejected_is_reported_and_never_shown(redis_installed, tmp_path):
    server = start_redis(tmp_path / "redis", password="hunter2")
    try:
        address = f"127.0.0.1:{server.ports[0]}/0"
        for login in ("", ":hunter3@", "who:hunter3@"):
            store = RedisStore(f"redis://{login}{address}")
            with pytest.raises(InputError, match=r"rejects the credentials|the server answers") as refused:
                store.mark()
            assert "hunter" not in f"{refused.value}{store!r}{store.address}"
        good = RedisStore(f"redis://:hunter2@{address}")
        good.put_many([row("a", 1, 1)])
        assert ids(good.get_many(["a"], None, None)) == {"a": [1]}
        assert "hunter" not in repr(good)
        with pytest.raises(InputError, match="DB index"):
            RedisStore(f"redis://:hunter2@127.0.0.1:{server.ports[0]}/999").mark()
    finally:
        server.close()


@pytest.mark.integration
def test_a_server_that_evicts_rows_is_refused(own_redis):
    server = bare(own_redis)
    server.config_set("maxmemory", 100_000_000)
    for policy, refused in (("volatile-lru", False), ("allkeys-lru", True), ("noeviction", False)):
        server.config_set("maxmemory-policy", policy)
        if refused:
            with pytest.raises(InputError, match=r"evicts rows \(maxmemory-policy allkeys-lru.*set .* noeviction"):
                RedisStore(url_of(own_redis)).get_many(["a"], None, None)
        else:
            RedisStore(url_of(own_redis)).get_many(["a"], None, None)


@pytest.mark.integration
@pytest.mark.parametrize("keys", [["{p}:oldest"], ["{p}:rows:sa", "{p}:rows:sb"]])
def test_lost_rows_are_detected_by_the_next_check(redis, keys):
    store = RedisStore(url_of(redis), prefix="p")
    store.put_many([row(key, 1, 1) for key in "abc"])
    bare(redis).delete(*keys)
    for call in (store.mark, RedisStore(url_of(redis), prefix="p").mark):
        with pytest.raises(StateError, match=r"join store 'p'.* has lost rows.*restore it, or use another prefix"):
            call()


@pytest.mark.integration
def test_a_store_of_another_format_is_refused_and_unchanged(redis):
    server, store = bare(redis), RedisStore(url_of(redis), prefix="p")
    store.put_many([row("a", 1, 1)])
    server.hset("{p}:mark", "format", "2")
    wanted = "expected format 1, found 2: a newer txstorm wrote it; upgrade this one"
    for one in (store, RedisStore(url_of(redis), prefix="p")):
        for call in (
            lambda one=one: one.put_many([row("a", 2, 2)]),
            lambda one=one: one.expire(5),
            lambda one=one: one.replace_mark(None, MARK),
        ):
            with pytest.raises(StateError, match=wanted):
                call()
    with pytest.raises(StateError, match=wanted):
        RedisStore(url_of(redis), prefix="p").get_many(["a"], None, None)
    assert server.zcard("{p}:rows:sa") == 1


@pytest.mark.integration
def test_keys_and_rows_with_other_content_are_reported(redis):
    server, store = bare(redis), RedisStore(url_of(redis), prefix="p")
    server.set("{p}:rows:sa", "text")
    for call in (lambda: store.get_many(["a"], None, None), lambda: store.put_many([row("a", 1, 1)])):
        with pytest.raises(StateError, match=r"has other content \(WRONGTYPE.*use another prefix"):
            call()
    server.delete("{p}:rows:sa")
    for damaged in (b"[1,", b"[1]", b"{}", b"[1,1,2]", b"1],[2"):
        server.zadd("{p}:rows:sb", {damaged: 1})
        with pytest.raises(StateError, match="a stored row is damaged"):
            store.get_many(["b"], None, None)
        server.delete("{p}:rows:sb")
    server.hset("{p}:mark", "mark", '{"x":1}')
    with pytest.raises(StateError, match="its mark is damaged"):
        store.mark()


@pytest.mark.integration
def test_what_a_store_can_never_hold_is_refused_before_anything_is_stored(redis):
    memory, stored = MemoryStore(), RedisStore(url_of(redis))
    for store in (memory, stored):
        for bad, message in (
            (row("x" * 70_000, 1, 1), "key 'xxx.* has 70,001 bytes, expected at most 65,536; use a digest"),
            (row("a", "x" * 70_000, 1), "id 'xxx.* has 70,001 bytes"),
            (row(1.5j, 1, 1), "complex .* cannot be part of a key"),
            (row(2**64, 1, 1), "does not fit in 64 bits"),
            (row("\ud800", 1, 1), "no valid Unicode"),
            (row("a", 1, 2**64), "time .*expected an int"),
            (row("a", 1, "now"), "time 'now', expected an int"),
        ):
            for call in (store.check_rows, store.put_many):
                with pytest.raises(StateError, match=message):
                    call([row("fine", 1, 1), bad])
        assert ids(store.get_many(["fine"], None, None)) == {"fine": []}
    for bad, message in (
        (row("a", 1, 1, v=object()), "row 1 of key 'a': field 'v': a value of type object"),
        (row("a", 1, 1, v=b"x" * (17 << 20)), "bytes, expected at most 16,777,216; keep less in it"),
    ):
        for call in (stored.check_rows, stored.put_many):
            with pytest.raises(StateError, match=message):
                call([row("fine", 1, 1), bad])
    assert bare(redis).keys("*") == []


@pytest.mark.parametrize(
    "url",
    [*"localhost http://h redis:// redis://:pw@h:x redis://:pw@h/x redis://:pw@h?a=1 redis://h:0x".split(), "", 5],
)
def test_an_address_that_is_none_is_refused_without_its_password(url):
    with pytest.raises(InputError, match=r"Redis: URL .*expected redis://\[USER:PASSWORD@\]HOST") as refused:
        RedisStore(url)
    assert "pw" not in str(refused.value)


def test_wrong_arguments_of_a_redis_store():
    for prefix in ("", "a b", "{a}", "ä", None):
        with pytest.raises(InputError, match=r"RedisStore: prefix .*: expected ASCII text"):
            RedisStore("redis://h", prefix=prefix)
    with pytest.raises(InputError, match="timeout above 0"):
        RedisStore("redis://h", timeout=0)
