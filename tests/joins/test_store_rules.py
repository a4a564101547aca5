"""The rules of external stores one by one: what is put, seen, held back, passed on, joined and asked for, and when."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from txstorm import Duration, TransactionalTopologyBuilder
from txstorm.joins import (
    DataDelaySync,
    IntervalJoin,
    MemoryStore,
    RedisStore,
    Side,
    StoreFeed,
    StoreJoin,
    StoreRow,
    collect,
)
from txstorm.testing import CountingStore, FeedSpout, ManualClock, TopologyTestDriver

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="scripts/redis --install installs it")
FIELDS = ("id", "key", "ts", "part")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SEED = int(os.environ.get("TXSTORM_JOIN_SEED", "17"))
SCHEDULES = 4


def rows(text, part):
    """Return the tuples of a text such as ``a@10 b:key@20 c@30/l1``: id, key (x), time, partition."""
    made = []
    for word in text.split():
        name, _, rest = word.partition("@")
        id_, _, key = name.partition(":")
        time, _, partition = rest.partition("/")
        made.append((id_, {"": "x", "None": None}.get(key, key), int(time), partition or part))
    return made


def side(stream, partitions=("0",), **options):
    parts = [f"{stream}{one}" for one in partitions]
    return Side("feed", stream, key="key", time="ts", id="id", partition="part", partitions=parts, **options)


SELECT = ["left:id", "right:id"]


def start(builder, **options):
    return TopologyTestDriver(builder.build_topology(), clock=ManualClock(EPOCH), **options)


def feeder(builder, store, *, retain=1000, tasks=1, batch_size=None, **options):
    feed = StoreFeed(side("r", **options), store, retain=Duration(retain), **batched(batch_size))
    builder.set_bolt("fill", feed, tasks).fields_grouping("feed", "r", ["key"])


def batched(size):
    return {} if size is None else {"batch_size": size}


def joiner(
    builder, store, *, how="left", before=10, after=0, tasks=1, batch_size=None, report=None, refresh=None, **left
):
    extra = {} if report is None else {"report": report}
    if refresh is not None:
        extra["refresh"] = Duration(refresh)
    end = timedelta(milliseconds=after)
    sync = DataDelaySync(side("l", **left), after=end, **extra)
    declarer = builder.set_bolt("sync", sync, tasks).fields_grouping("feed", "l", ["key"])
    if report is None:
        declarer.all_grouping("fill", "position")
    bounds = {"before": Duration(before), "after": end}
    select = None if how.endswith(("semi", "anti")) else SELECT
    match = StoreJoin(
        Side("sync", key="key", time="ts"), store, **bounds, how=how, select=select, **batched(batch_size)
    )
    builder.set_bolt("match", match, tasks).fields_grouping("sync", ["key"])


def both(
    store, *, opaque=False, settings=None, retain=1000, tasks=1, batch_size=None, right=None, pending=None, **join
):
    """Start the article's parts in one topology."""
    spout = FeedSpout({"l": FIELDS, "r": FIELDS}, opaque=opaque)
    builder = TransactionalTopologyBuilder("both", "feed", spout)
    builder.set_settings(settings or {})
    feeder(builder, store, retain=retain, tasks=tasks, batch_size=batch_size, **(right or {}))
    joiner(builder, store, tasks=tasks, batch_size=batch_size, **join)
    return start(builder, **({} if pending is None else {"pending": pending}))


def lone(report, **options):
    """Start a joiner that asks `report` how far the right side is; its store stays empty."""
    builder = TransactionalTopologyBuilder("lone", "feed", FeedSpout({"l": FIELDS}))
    store = options.pop("store", None) or MemoryStore()
    joiner(builder, store, report=report, **options)
    return start(builder)


def fed(driver, left="", right=None, **options):
    """Feed and process one transaction; return its txid."""
    given = {"l": rows(left, "l0")}
    if right is not None:
        given["r"] = rows(right, "r0")
    return driver.feed(given, **options)


def pairs(driver, txid=None, **options):
    """Return what the join emitted as a text such as ``a-b c-``."""
    found = driver.emitted("match", txid, **options)
    return " ".join(f"{one}-{other or ''}" for one, other in found)


def passed(driver, txid):
    return "".join(one[0] for one in driver.emitted("sync", txid))


def step(driver, left="", right=None, **options):
    txid = fed(driver, left, right, **options)
    driver.commit(txid)
    return txid


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", pytest.param("redis", marks=[needs_redis, pytest.mark.integration])])
def make_store(request):
    """Return a function that makes a store of a given name; stores of one name share their rows."""
    if request.param == "memory":
        made = {}
        return lambda name="one": made.setdefault(name, MemoryStore())
    server = request.getfixturevalue("redis_server")
    server.flush()
    return lambda name="one": RedisStore(f"redis://127.0.0.1:{server.ports[0]}/0", prefix=name)


def found(store, keys, start=None, end=None):
    return {key: [(row.id, row.time) for row in some] for key, some in store.get_many(keys, start, end).items()}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, "abcde"),
        (20, 40, "bcd"),
        (20, 20, "b"),
        (21, 39, "c"),
        (None, 20, "ab"),
        (40, None, "de"),
        (51, None, ""),
        (40, 20, ""),
        (None, 9, ""),
    ],
)
def test_look_ups_include_both_bounds(make_store, start, end, expected):
    store = make_store()
    store.put_many([StoreRow("k", id_, 10 * n, {"v": n}) for n, id_ in enumerate("abcde", 1)])
    assert "".join(id_ for id_, _ in found(store, ["k"], start, end)["k"]) == expected


def test_rows_come_by_time_then_id_and_are_stored_once(make_store):
    store = make_store()
    store.put_many([StoreRow("k", "b", 5, {"v": 1}), StoreRow("k", "c", 4, {"v": 2}), StoreRow("k", "a", 5, {"v": 3})])
    store.put_many([StoreRow("k", "a", 9, {"v": 4}), StoreRow("other", "a", 5, {"v": 5})])
    store.put_many([StoreRow("k", "d", -7, {"v": 6}), StoreRow("k", "d", -7, {"v": 6})])
    assert found(store, ["k", "other", "none"]) == {
        "k": [("d", -7), ("c", 4), ("a", 5), ("b", 5)],
        "other": [("a", 5)],
        "none": [],
    }
    assert [row.value for row in store.get_many(["k"], 5, 5)["k"]] == [{"v": 3}, {"v": 1}]


def test_expiry_removes_rows_before_a_time_and_never_those_at_it(make_store):
    store = make_store()
    store.put_many([StoreRow(key, id_, time, {}) for key in "pq" for id_, time in (("a", 1), ("b", 2), ("c", 3))])
    store.expire(2)
    store.expire(1)
    assert found(store, ["p", "q"], 2, None) == {key: [("b", 2), ("c", 3)] for key in "pq"}
    assert found(store, ["p", "q"])["p"] in ([("b", 2), ("c", 3)], [("a", 1), ("b", 2), ("c", 3)])


# -- the feed ----------------------------------------------------------------------------------------------------------


def test_rows_are_put_when_they_are_decided_and_seen_before():
    """A9, A13: a look-up sees rows of its own transaction, and of earlier ones that are not published."""
    store = CountingStore(MemoryStore())
    with both(store, pending=2) as driver:
        first = fed(driver, "a@10", "p@9 q@30")
        assert (pairs(driver), store.puts, found(store, ["x"])["x"]) == ("", 0, [])
        driver.ack(first)
        assert (pairs(driver), store.puts) == ("a-p", 0)
        driver.commit(first)
        assert (pairs(driver), store.puts) == ("a-p", 1)
        assert found(store, ["x"])["x"] == [("p", 9000), ("q", 30000)]


def test_a_discarded_attempt_puts_nothing():
    store = CountingStore(MemoryStore())
    with both(store) as driver:
        txid = fed(driver, "a@10", "p@9 q@30")
        driver.fail(txid)
        driver.advance(10)
        driver.ack(txid)
        driver.fail(txid)
        driver.advance(10)
        assert store.puts == 0
        driver.commit(txid)
        assert pairs(driver) == "a-p"
        assert store.puts == 1


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


def test_retained_rows():
    """Rows are kept until the position is more than `retain` ahead."""
    store = MemoryStore()
    with both(store, before=10, retain=100) as driver:
        step(driver, "", "p@10 q@50 s@110")
        assert found(store, ["x"], 10_000, None)["x"] == [("p", 10_000), ("q", 50_000), ("s", 110_000)]
        step(driver, "", "t@111")
        assert found(store, ["x"])["x"] == [("q", 50_000), ("s", 110_000), ("t", 111_000)]
        step(driver, "", "u@500")
        assert found(store, ["x"])["x"] == [("u", 500_000)]


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


# -- the rows that wait ------------------------------------------------------------------------------------------------


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
    with lone(lambda: answers.pop(0), refresh=0) as driver:
        got = [passed(driver, step(driver, left)) for left in ("a@10", "b@12", "", "c@10 d@11", "", "e@30")]
        assert got == ["", "", "a", "c", "", "db"]
        txid = driver.end_of_input()
        driver.commit(txid)
        assert passed(driver, txid) == "e"


def test_a_report_has_the_type_of_the_field():
    moment = EPOCH + timedelta(seconds=10)
    builder = TransactionalTopologyBuilder("lone", "feed", FeedSpout({"l": ("id", "key", "at")}))
    left = Side("feed", "l", key="key", time="at", id="id")
    sync = DataDelaySync(left, report=lambda: moment, refresh=Duration(0))
    builder.set_bolt("sync", sync).fields_grouping("feed", "l", ["key"])
    with start(builder) as driver:
        txid = driver.feed({"l": [("a", "x", moment), ("b", "x", moment - timedelta(microseconds=1))]})
        driver.commit(txid)
        assert passed(driver, txid) == "b"


def test_a_report_is_asked_once_per_planned_transaction():
    """A14: replays and restarts of a planned transaction see the same."""
    answers = []

    def report():
        answers.append(10 * (len(answers) + 1))
        return answers[-1]

    with lone(report, refresh=0) as driver:
        first = fed(driver, "a@5 b@15 c@25")
        driver.fail(first)
        driver.advance(10)
        driver.ack(first)
        driver.fail(first)
        driver.advance(10)
        assert answers == [10]
        driver.restart()
        assert driver.active == {first: "processing"}
        driver.commit(first)
        assert (passed(driver, first), answers) == ("a", [10])
        second = step(driver)
        assert (passed(driver, second), answers) == ("b", [10, 20])


def test_a_report_is_asked_again_after_refresh():
    """A14: after one second of stamps by default."""
    asked = []
    with lone(lambda: asked.append(None) or len(asked)) as driver:
        for at in (0, 400, 999, 1001, 1900, 2002):
            step(driver, "a@50", at=at)
        assert len(asked) == 3


def test_a_timer_asks_again_while_rows_wait():
    """A14: no data has to come for it."""
    answers = [10]
    with lone(lambda: answers[-1]) as driver:
        step(driver, "a@20", at=0)
        answers.append(21)
        driver.advance(0.5)
        assert not driver.active
        driver.advance(1.5)
        (txid,) = driver.active
        driver.commit(txid)
        assert passed(driver, txid) == "a"
        driver.advance(60)
        assert not driver.active


def test_a_failing_report_leaves_the_previous_one_in_force():
    answers = [10]

    def report():
        if not answers:
            raise OSError
        return answers.pop()

    with lone(report, refresh=0) as driver:
        assert passed(driver, step(driver, "a@5")) == "a"
        assert passed(driver, step(driver, "b@9 c@10")) == "b"


def test_a_consumed_time_outlives_a_restart():
    answers = [None, 100]
    with lone(lambda: answers.pop() if answers else None, refresh=0) as driver:
        step(driver, "a@99 b@200")
        driver.restart()
        txids = [step(driver), step(driver, "c@50")]
        assert passed(driver, txids[-1]) == "c"
        assert [row["id"] for row in driver.state("sync-left").to_pylist()] == ["b"]


def test_the_end_of_input_passes_everything():
    with both(MemoryStore()) as driver:
        assert pairs(driver, step(driver, "a@10 b@500", "p@9")) == ""
        txid = driver.end_of_input()
        driver.commit(txid)
        assert pairs(driver, txid) == "a-p b-"
        assert driver.emitted("match", txid, stream="unmatched_left") == [("b", "x", 500, "l0")]


# -- the join ----------------------------------------------------------------------------------------------------------

TYPES = {
    "inner": [("a", "p"), ("a", "q"), ("c", "t")],
    "left": [("a", "p"), ("a", "q"), ("b", None), ("c", "t"), ("d", None)],
    "semi": [("a", "x", 10, "l0"), ("c", "y", 30, "l0")],
    "anti": [("b", "x", 20, "l0"), ("d", None, 31, "l0")],
}


@pytest.mark.parametrize("how", [*TYPES, "left_outer", "leftsemi"])
def test_types(how):
    """A12, A18: each row of the bounds, both included; unmatched rows have a stream of their own for each type."""
    with both(MemoryStore(), how=how, before=5, after=2) as driver:
        txid = step(driver, "a:x@10 b:x@20 c:y@30 d:None@31", "p:x@5 q:x@12 s:x@4 u:x@13 t:y@30 v:None@31 w:y@40")
        kind = {"left_outer": "left", "leftsemi": "semi"}.get(how, how)
        assert driver.emitted("match", txid) == TYPES[kind]
        assert [one[0] for one in driver.emitted("match", txid, stream="unmatched_left")] == ["b", "d"]


def test_a_feeder_and_a_joiner_apart(make_store):
    """A16: two topologies share the store; the report says how far the feeder is."""
    consumed = []
    builder = TransactionalTopologyBuilder("feeder", "feed", FeedSpout({"r": FIELDS}))
    feeder(builder, make_store())
    with start(builder) as feeding, lone(lambda: consumed[-1], store=make_store(), refresh=0) as joining:
        consumed.append(None)
        assert pairs(joining, step(joining, "a@10 b@20")) == ""
        feeding.commit(feeding.feed({"r": rows("p@5 q@15 s@16", "r0")}))
        consumed.append(16)
        assert pairs(joining, step(joining)) == "a-p"
        feeding.commit(feeding.feed({"r": rows("t@20 u@21", "r0")}))
        consumed.append(21)
        assert pairs(joining, step(joining)) == "b-q b-s b-t"


# -- failures ----------------------------------------------------------------------------------------------------------


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
        assert found(store, ["x"])["x"] == [("p", 9000)]
        assert pairs(driver, step(driver, "b@11", "s@11")) == "a-p"


def test_a_restart_between_decision_and_put():
    """A13: the staged rows are put by the next start, whatever it was that stopped the first."""
    inner = MemoryStore()
    store = CountingStore(inner)
    with both(store) as driver:
        step(driver, "", "p@5")
        held, store.put_many = store.put_many, refuse
        txid = fed(driver, "a@10", "q@9 s@30")
        driver.ack(txid)
        with pytest.raises(Exception, match=r".+"):
            driver.ack(txid)
        store.put_many = held
        driver.restart()
        assert pairs(driver, txid) == "a-p a-q"
        assert [id_ for id_, _ in found(inner, ["x"])["x"]] == ["p", "q", "s"]


def refuse(_rows):
    msg = "the test stops here"
    raise RuntimeError(msg)


def random_steps(chance, *, parts=2):
    """Return steps (left rows, right rows, failures) in which no partition is out of order."""
    now = {f"{one}{n}": chance.randrange(60) for one in "lr" for n in range(parts)}
    steps, number = [], 0
    for _ in range(chance.randint(3, 9)):
        given = {"l": [], "r": []}
        for _ in range(chance.randrange(12)):
            part = chance.choice(list(now))
            now[part] += chance.choice((0, 0, 1, 3, 20))
            number += 1
            key = chance.choice(("x", "y", "z", None))
            given[part[0]].append((f"{part[0]}{number}", key, now[part], part))
        steps.append((given, chance.choice(("", "", "process", "commit", "restart"))))
    return steps


def sql(steps, before, after):
    """Return pairs and unmatched left rows as SQL finds them."""
    left = [row for given, _ in steps for row in given["l"]]
    right = [row for given, _ in steps for row in given["r"]]
    matches = {
        one[0]: [two[0] for two in right if one[1] == two[1] is not None and -before <= two[2] - one[2] <= after]
        for one in left
    }
    return Counter((id_, other) for id_, some in matches.items() for other in some or [None])


def play(driver, steps, component):
    for given, failure in steps:
        txid = driver.feed(given)
        if failure == "commit":
            driver.ack(txid)
        if failure in ("process", "commit"):
            driver.fail(txid)
            driver.advance(10)
        if failure == "restart":
            driver.restart()
        driver.commit(txid)
    txid = driver.end_of_input()
    driver.commit(txid)
    got = driver.emitted(component)
    unmatched = driver.emitted(component, stream="unmatched_left")
    assert sorted(one[0] for one in unmatched) == sorted(one for one, other in got if other is None)
    return Counter(got)


def interval(before, after, tasks):
    parts = ("0", "1")
    join = IntervalJoin(
        side("l", parts), side("r", parts), before=Duration(before), after=Duration(after), how="left", select=SELECT
    )
    builder = TransactionalTopologyBuilder("state", "feed", FeedSpout({"l": FIELDS, "r": FIELDS}))
    declarer = builder.set_bolt("match", join, tasks).fields_grouping("feed", "l", ["key"])
    declarer.fields_grouping("feed", "r", ["key"])
    return start(builder)


@pytest.mark.slow
def test_state_and_store_agree_with_sql(make_store):
    """A13, A20: random schedules in order, with failures in both phases and restarts."""
    parts = {"partitions": ("0", "1")}
    for seed in range(SEED, SEED + SCHEDULES):
        chance = random.Random(seed)
        before, after, tasks = chance.randrange(15), chance.randrange(8), chance.choice((1, 2))
        steps = random_steps(chance)
        expected = sql(steps, before, after)
        with interval(before, after, tasks) as driver:
            assert play(driver, steps, "match") == expected, f"seed {seed}: IntervalJoin"
        size = chance.choice((None, 1, 3))
        options = {"before": before, "after": after, "tasks": tasks, "batch_size": size, "retain": 10**6}
        with both(make_store(f"s{seed}"), right=parts, **parts, **options) as driver:
            assert play(driver, steps, "match") == expected, f"seed {seed}: StoreJoin"


# -- data delay --------------------------------------------------------------------------------------------------------

TIMES = {"p": {0: 5, 1: 40, 2: 60}, "q": {0: 10, 7: 70}, "s": {3: 55}}
DELAYS = {
    "one is behind": ({"p": 1}, {"p": 3}, {"p": 40}, [], 40),
    "the oldest of two": ({"p": 1, "q": 7}, {"p": 3, "q": 9}, {"p": 40, "q": 70}, [], 40),
    "at the end: no delay": ({"p": 2}, {"p": 3}, {"p": 60}, ["p"], 100),
    "one at its end holds nothing back": ({"q": 0, "p": 2}, {"q": 1, "p": 9}, {"q": 10, "p": 60}, ["q"], 60),
    "an unknown end is none": ({"p": 2, "q": 7}, {"p": None, "q": 8}, {"p": 60, "q": 70}, ["q"], 60),
    "all at their ends": ({"p": 2, "s": 3}, {"p": 3, "s": 4}, {"p": 60, "s": 55}, ["p", "s"], 100),
}


@pytest.mark.parametrize("name", DELAYS)
def test_data_delay(name):
    """A14, A15."""
    consumed, ends, times, caught_up, time = DELAYS[name]
    report = collect(consumed, lambda partition, offset: TIMES[partition][offset], ends, 100)
    assert dict(report.times) == times
    assert sorted(report.caught_up) == caught_up
    assert (report.consumed_time, report.delay) == (time, 100 - time)
