"""The rules of external stores one by one: what is put, seen, held back, passed on, joined and asked for, and when."""

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from fed import fed_bolt
from helpers.store_joins import BOTH, LEFT, feeder, joiner, net

from txstorm import Duration
from txstorm.joins import DataDelaySync, MemoryStore, RedisStore, Side
from txstorm.testing import CountingStore, ManualClock, TopologyTestDriver

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rows(text, part):
    """Return the tuples of a text such as ``a@10 b:key@20 c@30/l1``: key (x), time, id, partition."""
    made = []
    for word in text.split():
        name, _, rest = word.partition("@")
        id_, _, key = name.partition(":")
        time, _, partition = rest.partition("/")
        made.append(({"": "x", "None": None}.get(key, key), int(time), id_, partition or part))
    return made


def side(stream, partitions=("0",), **options):
    parts = [f"{stream}{one}" for one in partitions]
    return Side("feed", stream, key="key", time="ts", id="id", partition="part", partitions=parts, **options)


def start(made):
    return TopologyTestDriver(made, clock=ManualClock(EPOCH))


def both(store, *, how="left", before=10, after=0, batch_size=7, right=None, **options):
    """Start the article's parts in one topology."""
    end, size = timedelta(milliseconds=after), {"batch_size": batch_size}
    options |= {"how": how, "select": None if how.endswith(("semi", "anti")) else BOTH}
    options |= {"before": Duration(before), "after": end, "sync": {"after": end}, "left": LEFT}
    feed = {"retain": Duration(1000), **size}
    return start(net(store, right=side("r", **(right or {})), feed=feed, **size, **options))


def fed(driver, left="", right=None, **options):
    given = {"l": rows(left, "l0")}
    if right is not None:
        given["r"] = rows(right, "r0")
    return driver.feed(given, **options)


def pairs(driver, txid=None, **options):
    """Return what the join emitted as a text such as ``a-b c-``."""
    return " ".join(f"{one}-{other or ''}" for one, other in driver.emitted("match", txid, **options))


def passed(driver, txid):
    return "".join(one[2] for one in driver.emitted("sync", txid))


def step(driver, left="", right=None, **options):
    txid = fed(driver, left, right, **options)
    driver.commit(txid)
    return txid


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.integration)])
def make_store(request):
    if request.param == "memory":
        one = MemoryStore()
        return lambda: one
    server = request.getfixturevalue("redis")
    return lambda: RedisStore(f"redis://{server.address()}/0", prefix="one")


def test_the_position_is_emitted_in_each_transaction():
    """A10: heartbeats and transactions without right rows included."""
    with both(MemoryStore(), right={"partitions": ("0", "1")}) as driver:
        txids = [step(driver, "a@1", "p@5/r0"), step(driver, "", "q@9/r1"), step(driver, "b@2", "")]
        txids.append(driver.heartbeat())
        driver.commit(txids[-1])
        positions = [driver.emitted("fill", txid, stream="position") for txid in txids]
        assert [len(some) for some in positions] == [1, 1, 1, 1]
        assert positions[0] == [(None,)]
        assert positions[1] == positions[2] == positions[3] != positions[0]


@pytest.mark.parametrize(
    ("right", "steps"),
    [
        ({}, [("a@5", "p@5", ""), ("", "q@6", "a")]),
        ({"lag": Duration(4)}, [("a@5", "p@9", ""), ("", "q@10", "a")]),
        ({"partitions": ("0", "1")}, [("a@5", "p@99", ""), ("", "q@5/r1", ""), ("", "s@6/r1", "a")]),
        ({"partitions": ("0", "1")}, [("a@5", "p@99 q@50/r1 s@7/r1", "a")]),
    ],
    ids=["newest time", "less the lag", "of the slowest partition", "its newest time counts"],
)
def test_the_position_of_the_feed(right, steps):
    """A10, A11: strictly below the position; rows of the transaction count."""
    with both(MemoryStore(), right=right) as driver:
        for left, given, expected in steps:
            assert passed(driver, step(driver, left, given)) == expected


def test_a_caught_up_right_side_is_complete_up_to_the_stamp():
    """A15: `grace` is 0 by default for a feed."""
    with both(MemoryStore()) as driver:
        assert passed(driver, step(driver, "a@5000 b@9000", "p@100", at=8000)) == ""
        assert passed(driver, step(driver, "", "", at=9000, caught_up=["r"])) == "a"
        assert passed(driver, step(driver, "", "", at=9001, caught_up=["r"])) == "b"


def test_grace_of_a_feed():
    with both(MemoryStore(), right={"grace": Duration(1000)}) as driver:
        step(driver, "a@5000", "p@100", at=8000)
        assert passed(driver, step(driver, "", "", at=6000 + 2000, caught_up=["r"])) == "a"
        assert passed(driver, step(driver, "b@7500", "", at=8500, caught_up=["r"])) == ""
        assert passed(driver, step(driver, "", "", at=8501, caught_up=["r"])) == "b"


@pytest.mark.parametrize(
    ("count", "size", "requests"), [(6, 3, 2), (7, 3, 3), (1, 3, 1), (3, 3, 1), (0, 3, 0), (4, 1, 4)]
)
def test_requests_of_a_transaction(count, size, requests):
    """A13: r rows take ceil(r / b) requests, in the feed and in the join."""
    store = CountingStore(MemoryStore())
    with both(store, batch_size=size) as driver:
        step(driver, "", "z@1")
        store.puts = store.gets = 0
        step(driver, "", " ".join(f"r{n}:k{n}@{10 + n}" for n in range(count)))
        assert (store.puts, store.gets) == (requests, 0)
        step(driver, " ".join(f"l{n}:k{n}@{9}" for n in range(count)), "w@999")
        assert store.gets == requests


def test_requests_of_several_tasks():
    """A13: each task has requests of its own, each transaction, too."""
    store = CountingStore(MemoryStore())
    names = [f"k{n}" for n in range(20)]
    with both(store, batch_size=4, tasks=3) as driver:
        step(driver, "", "z@1")
        store.puts = 0
        step(driver, "", " ".join(f"r{one}:{one}@20" for one in names))
        puts = store.puts
        store.gets = 0
        txid = step(driver, " ".join(f"l{one}:{one}@15" for one in names), "w@40")
        made = [one for one in driver.emissions if (one.component, one.stream) == ("match", "default")]
        tasks = Counter(one.task for one in made if one.attempt.txid == txid)
        assert sum(tasks.values()) == 20
        assert store.gets == puts == sum(math.ceil(n / 4) for n in tasks.values())


def test_rows_pass_by_time_then_arrival():
    with both(MemoryStore()) as driver:
        assert passed(driver, step(driver, "c@7 a@5 b@5", "p@1")) == ""
        assert passed(driver, step(driver, "d@5 e@4 f@9 g@10", "p2@10")) == "eabdcf"
        assert [row["id"] for row in driver.state("sync-left").to_pylist()] == ["g"]


def test_rows_wait_for_their_last_right_row():
    with both(MemoryStore(), after=5, before=0) as driver:
        assert passed(driver, step(driver, "a@10", "p@15")) == ""
        assert pairs(driver, step(driver, "", "q@15 s@16")) == "a-p a-q"


def test_bounds_that_end_before_the_left_row_let_it_pass_earlier():
    with both(MemoryStore(), after=-5, before=10) as driver:
        assert passed(driver, step(driver, "a@15 b@14", "p@4 q@9 r@10")) == "b"
        assert pairs(driver, step(driver, "", "s@11")) == "a-q a-r"


def test_a_report_bounds_what_passes():
    """A14: None holds everything; the report has the unit of the field; it never goes back."""
    answers = [None, 10, 11, 5, 5, 30, 0]
    with start(joiner(MemoryStore(), lambda: answers.pop(0))) as driver:
        got = [passed(driver, step(driver, left)) for left in ("a@10", "b@12", "", "c@10 d@11", "", "e@30")]
        assert got == ["", "", "a", "c", "", "db"]
        txid = driver.end_of_input()
        driver.commit(txid)
        assert passed(driver, txid) == "e"


def test_a_report_has_the_type_of_the_field():
    moment = EPOCH + timedelta(seconds=10)
    left = Side("feed", "l", key="key", time="at", id="id")
    sync = DataDelaySync(left, report=lambda: moment, refresh=Duration(0))
    with start(fed_bolt("sync", sync, {"l": ("key", "at", "id")}, ["key"]).build_topology()) as driver:
        txid = driver.feed({"l": [("x", moment, "a"), ("x", moment - timedelta(microseconds=1), "b")]})
        driver.commit(txid)
        assert passed(driver, txid) == "b"


def test_a_consumed_time_outlives_a_restart():
    answers = [None, 100]
    with start(joiner(MemoryStore(), lambda: answers.pop() if answers else None)) as driver:
        step(driver, "a@99 b@200")
        driver.restart()
        txids = [step(driver), step(driver, "c@50")]
        assert passed(driver, txids[-1]) == "c"
        assert [row["id"] for row in driver.state("sync-left").to_pylist()] == ["b"]


TYPES = {
    "inner": [("a", "p"), ("a", "q"), ("c", "t")],
    "left": [("a", "p"), ("a", "q"), ("b", None), ("c", "t"), ("d", None)],
    "semi": [("x", 10, "a", "l0"), ("y", 30, "c", "l0")],
    "anti": [("x", 20, "b", "l0"), (None, 31, "d", "l0")],
}


@pytest.mark.parametrize("how", [*TYPES, "left_outer", "leftsemi"])
def test_types(how):
    """A12, A18: each row of the bounds, both included; unmatched rows have a stream of their own for each type."""
    with both(MemoryStore(), how=how, before=5, after=2) as driver:
        txid = step(driver, "a:x@10 b:x@20 c:y@30 d:None@31", "p:x@5 q:x@12 s:x@4 u:x@13 t:y@30 v:None@31 w:y@40")
        kind = {"left_outer": "left", "leftsemi": "semi"}.get(how, how)
        assert driver.emitted("match", txid) == TYPES[kind]
        assert [one[2] for one in driver.emitted("match", txid, stream="unmatched_left")] == ["b", "d"]


def test_a_feeder_and_a_joiner_apart(make_store):
    """A16: two topologies share the store; the report says how far the feeder is."""
    consumed = []
    made = feeder(make_store()), joiner(make_store(), lambda: consumed[-1])
    with start(made[0]) as feeding, start(made[1]) as joining:
        consumed.append(None)
        assert pairs(joining, step(joining, "a@10 b@20")) == ""
        feeding.commit(feeding.feed({"r": rows("p@5 q@15 s@16", "r0")}))
        consumed.append(16)
        assert pairs(joining, step(joining)) == "a-p"
        feeding.commit(feeding.feed({"r": rows("t@20 u@21", "r0")}))
        consumed.append(21)
        assert pairs(joining, step(joining)) == "b-q b-s b-t"


def test_an_opaque_replay_that_shrinks():
    """A13: neither the rows nor the position of a dropped attempt remain."""
    store = MemoryStore()
    with both(store, opaque=True) as driver:
        txid = fed(driver, "a@10", "p@9 q@900")
        driver.ack(txid)
        assert pairs(driver) == "a-p"
        driver.fail(txid)
        driver.advance(10)
        assert fed(driver, "a@10", "p@9") == txid
        driver.commit(txid)
        assert pairs(driver, txid) == ""
        assert [(row.id, row.time) for row in store.get_many(["x"], None, None)["x"]] == [("p", 9000)]
        assert pairs(driver, step(driver, "b@11", "s@11")) == "a-p"
