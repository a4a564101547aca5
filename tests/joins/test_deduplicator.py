"""Deduplicator: quiet and keep, starts, recent ids and results, ids of every kind, replays, and a naive model of it."""

import pytest
from fed import fed_bolt
from recovery_cases import long_if
from runs import ended
from seeded import seeded

from txstorm import Duration, TransactionalTopologyBuilder, recent_in_sink, recent_in_state, recent_in_topic
from txstorm.bolts import CountBy, SumByKey
from txstorm.errors import InputError, StateError
from txstorm.joins import Deduplicator
from txstorm.results.joins import deduplicator, deduplicators_in
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import FeedSpout, TopologyTestDriver
from txstorm.windows.rules.event_time import instant

QUIET = Duration.seconds(10)
BEGIN = 1_800_000_000_000
"""The second 0 of the tests, in milliseconds."""


def second(at):
    return BEGIN + round(at * 1000)


def topology(bolt, streams=None, tasks=1, by=("id",), **feed):
    return fed_bolt("once", bolt, streams or {"s": ("id", "n")}, by, tasks, **feed).build_topology()


@pytest.fixture
def started():
    drivers = []

    def start(bolt, *arguments, pending=None, **options):
        drivers.append(TopologyTestDriver(topology(bolt, *arguments, **options), pending=pending))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


def passed(driver, at, *ids, stream="s"):
    """Feed tuples with these ids at a second; return the ids that pass."""
    txid = driver.feed({stream: [(one, number) for number, one in enumerate(ids)]}, at=second(at))
    driver.commit(txid)
    return [one for one, _ in driver.emitted("once", txid, stream=stream)]


def known(driver):
    return {row["id"] for row in driver.state("once-ids").to_pylist()}


def test_a_known_id_is_dropped_while_it_is_active(started):
    """A8: within a batch and across batches, each id passes once, with all its fields, in order."""
    driver = started(Deduplicator("id", quiet=QUIET))
    txid = driver.feed({"s": [("b", 1), ("a", 2), ("b", 3), (None, 4), ("c", 5), ("a", 6), (None, 7)]}, at=second(1))
    driver.commit(txid)
    assert driver.emitted("once", txid, stream="s") == [("b", 1), ("a", 2), (None, 4), ("c", 5), (None, 7)]
    assert passed(driver, 2, "c", "d", "a") == ["d"]
    assert known(driver) == {"a", "b", "c", "d"}


def test_a_tuple_switches_it_off_when_the_last_duplicate_is_quiet_ago(started):
    """A8: at the last duplicate + quiet, not before; then duplicates pass until the next start, at no cost."""
    driver = started(Deduplicator("id", quiet=QUIET))
    assert passed(driver, 100, "a") == ["a"]
    assert passed(driver, 109, "a", "b") == ["b"]
    assert passed(driver, 118, "b") == []
    shown = deduplicator(driver.data_dir, "once")
    last = instant(second(118) * 1000).isoformat()
    assert (shown["active"], shown["last_duplicate"], shown["known"]) == (True, last, 2)
    assert passed(driver, 127, "c") == ["c"]
    assert deduplicator(driver.data_dir, "once", 3)["active"]
    assert passed(driver, 128, "c", "d", "d") == ["c", "d", "d"]
    assert passed(driver, 129, "c", "a") == ["c", "a"]
    assert known(driver) == set()
    shown = deduplicator(driver.data_dir, "once")
    assert (shown["active"], shown["off_since"], shown["known"]) == (False, instant(second(128) * 1000).isoformat(), 0)
    assert deduplicators_in(driver.data_dir) == ["once"]
    driver.restart()
    assert passed(driver, 130, "e") == ["e"]
    assert deduplicator(driver.data_dir, "once")["active"]


def test_each_start_switches_it_on_and_loads_recent_ids(started):
    """A7, A8: what input delivered again after a restart gave already is dropped."""
    found, calls = ["old"], []

    def recent():
        calls.append(1)
        return list(found)

    driver = started(Deduplicator("id", quiet=QUIET, recent=recent))
    assert passed(driver, 0, "old", "a") == ["a"]
    assert passed(driver, 20, "old", "a") == ["old", "a"]
    found += ["a", "b"]
    driver.restart()
    assert passed(driver, 21, "a", "b", "c", "old") == ["c"]
    assert passed(driver, 22, "c", "d") == ["d"]
    assert passed(driver, 32, "c") == ["c"]
    assert len(calls) == 2


def test_a_replay_knows_the_same_recent_ids(started):
    """A8: the recent ids are part of the plan, so a replay does not depend on what is recent by then."""
    found = ["a"]
    driver = started(Deduplicator("id", quiet=QUIET, recent=lambda: found))
    txid = driver.feed({"s": [("a", 1), ("b", 2)]}, at=second(1))
    found.append("b")
    driver.ack(txid)
    driver.fail(txid)
    driver.commit(txid)
    assert driver.emitted("once", txid, stream="s") == [("b", 2)]


def test_a_restart_before_the_decision_keeps_the_plan_and_its_start(started):
    found = ["a"]
    driver = started(Deduplicator("id", quiet=QUIET, recent=lambda: found))
    txid = driver.feed({"s": [("a", 1), ("b", 2)]}, at=second(1))
    found[:] = ["c"]
    driver.restart()
    driver.commit(txid)
    assert driver.emitted("once", txid, stream="s") == [("b", 2)]
    assert passed(driver, 2, "c", "a", "b", "d") == ["d"]


def test_an_opaque_transaction_that_is_planned_again_still_loads_recent_ids(started):
    driver = started(Deduplicator("id", quiet=QUIET, recent=lambda: ["a"]), opaque=True)
    driver.fail(driver.feed({"s": [("a", 1), ("b", 2)]}, at=second(1)))
    assert passed(driver, 2, "a", "c") == ["c"]


def test_recent_that_fails_is_asked_again_and_warned_of(started, caplog):
    answers = [OSError("sink away"), ["a"]]

    def recent():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    driver = started(Deduplicator("id", quiet=QUIET, recent=recent))
    assert passed(driver, 0, "b") == ["b"]
    assert "once: pin() failed: OSError('sink away')" in caplog.text
    assert passed(driver, 1, "a", "b", "c") == ["c"]


@pytest.mark.parametrize(
    ("answer", "said"), [(range(100_001), "more than 100,000 ids"), *((one, "once") for one in ("abc", None, 5))]
)
def test_too_many_recent_ids_and_answers_that_are_no_list_are_a_warning(started, caplog, answer, said):
    driver = started(Deduplicator("id", quiet=QUIET, recent=lambda: answer))
    assert passed(driver, 0, "a", "b", "a", 5) == ["a", "b", 5]
    assert said in caplog.text


def test_keep_is_always_active_and_forgets(started):
    """U14: an id is known for `keep` after it has passed; then it leaves the state."""
    driver = started(Deduplicator("id", keep=QUIET))
    assert passed(driver, 0, "a") == ["a"]
    assert passed(driver, 5, "a", "b") == ["b"]
    assert passed(driver, 9, "a") == []
    driver.restart()
    assert passed(driver, 9.999, "a") == []
    assert passed(driver, 10, "a", "b") == ["a"]
    assert passed(driver, 15, "a", "b") == ["b"]
    assert passed(driver, 30) == []
    assert known(driver) == set()


@pytest.mark.parametrize("how", ["quiet", "keep"])
def test_the_state_is_bounded(started, how):
    """U14: with keep it holds the ids of that time, with quiet none once it is off."""
    driver = started(Deduplicator("id", **{how: QUIET}))
    most = 0
    for at in range(0, 60, 2):
        passed(driver, at, *range(at * 10, at * 10 + 20))
        most = max(most, len(known(driver)))
    assert most == 100
    assert len(known(driver)) == (0 if how == "quiet" else 100)


def test_ids_of_every_type_are_told_apart(started):
    driver = started(Deduplicator("id", keep=QUIET, recent=lambda: ["=5", 7, True, 2.5, (1, "x")]))
    ids = [5, "5", "=5", "==5", 7, "7", 2.5, True, "true", "=true", (1, "x"), (1, "y"), 5, "==5", b"5", b"5"]
    assert passed(driver, 0, *ids) == [5, "5", "==5", "7", "true", "=true", (1, "y"), b"5"]
    assert passed(driver, 1, 5, 6, 7) == [6]
    assert passed(driver, 1, "5", "=5", "==5", "=6") == ["=6"]


def test_an_id_of_several_fields(started):
    bolt = Deduplicator(["user", "n"], keep=QUIET, recent=lambda: [("a,b", 1), ("c", 2)])
    driver = started(bolt, {"s": ("n", "user", "x")}, by=["user"], tasks=2)
    rows = [(1, "a,b", 0), (1, "a", 1), (1, "a\\", 2), (2, "c", 3), (1, "c", 4), (None, "c", 5), (1, "a", 6)]
    driver.commit(driver.feed({"s": rows}, at=second(0)))
    assert sorted(driver.emitted("once", 1, stream="s"), key=lambda row: row[2]) == [rows[1], rows[2], rows[4], rows[5]]


def test_each_input_has_its_stream_and_all_share_the_ids(started):
    driver = started(Deduplicator("id", keep=QUIET), {"l": ("id", "n"), "r": ("m", "id")})
    driver.commit(driver.feed({"l": [("a", 1), ("b", 2)], "r": [(1, "b"), (2, "c")]}, at=second(0)))
    driver.commit(driver.feed({"l": [("c", 1), ("d", 2)]}, at=second(1)))
    assert driver.emitted("once", stream="l") == [("a", 1), ("b", 2), ("d", 2)]
    assert driver.emitted("once", stream="r") == [(2, "c")]
    assert "default" not in driver.topology.component("once").streams


def test_the_default_stream_has_the_tuples_of_all_inputs_with_the_same_fields(started):
    driver = started(Deduplicator("id", keep=QUIET), {"l": ("id", "n"), "r": ("id", "n")})
    driver.commit(driver.feed({"l": [("a", 1), ("b", 2)], "r": [("b", 1), ("c", (2, 3))]}, at=second(0)))
    assert driver.emitted("once") == [("a", 1), ("b", 2), ("c", (2, 3))]
    assert driver.emitted("once", stream="r") == [("c", (2, 3))]


def test_another_parallelism_and_another_way_after_a_restart(started):
    driver = started(Deduplicator("id", quiet=QUIET), tasks=3)
    ids = list(range(20))
    assert sorted(passed(driver, 0, *ids)) == ids
    driver.restart(topology(Deduplicator("id", quiet=QUIET), tasks=2))
    assert passed(driver, 5, *ids) == []
    driver.restart(topology(Deduplicator("id", keep=QUIET)))
    assert passed(driver, 9, *ids, 20) == [20]
    assert passed(driver, 10, *ids, 20) == ids


def test_on_both_engines(make_engine, tmp_path):
    """A7, A8: with several tasks, groups of transactions and a restart in the middle, each id is passed once."""
    rows = [(f"id-{(n * 7) % 40}", n) for n in range(200)]
    for until in (4, 10):
        spout = MemoryTransactionalSpout([rows[::2], rows[1::2]], ("id", "n"), take=10)
        builder = TransactionalTopologyBuilder("results", "rows", spout, 2)
        once = Deduplicator("id", quiet=Duration.hours(1), recent=lambda: ["id-0", "id-1"])
        builder.set_bolt("once", once, 2).fields_grouping("rows", ["id"])
        builder.set_committer_bolt("keep", DeltaSink("out", {"id": str, "n": int})).global_grouping("once")
        handle = ended(builder.build_topology(), tmp_path / "data", make_engine(), until_txid=until)
    found = handle.sink("out").to_pylist()
    assert sorted(row["id"] for row in found) == sorted(f"id-{n}" for n in range(2, 40))
    assert len({row["_txid"] for row in found}) > 1


class Model:
    """Naive model of a deduplicator: sets and dicts."""

    def __init__(self, quiet, keep):
        self.quiet, self.keep, self.known = quiet, keep, {}

    def start(self, recent):
        self.active, self.last, self.recent = True, None, recent

    def feed(self, at, ids):
        if self.last is None:
            self.last = at
            self.known.update((one, at) for one in self.recent if not self.knows(one, at))
        out = []
        for one in ids:
            if self.quiet is not None and (not self.active or at >= self.last + self.quiet):
                self.active, self.known = False, {}
                out.append(one)
            elif one is not None and self.knows(one, at):
                self.last = at if self.quiet is not None else self.last
            else:
                self.known[one] = at
                out.append(one)
        return out

    def knows(self, one, at):
        return one in self.known and (self.keep is None or self.known[one] > at - self.keep)


@pytest.mark.parametrize("number", long_if(lambda number: number >= 4, range(40)))
def test_it_does_what_the_model_does(started, number):
    rng = seeded()
    how = rng.choice(["quiet", "keep"])
    span = rng.randint(3, 20)
    recent = []
    tasks = rng.choice([1, 2])
    driver = started(Deduplicator("id", **{how: Duration.seconds(span)}, recent=lambda: list(recent)), tasks=tasks)
    model = Model(**{"quiet": None, "keep": None, how: span})
    model.start([])
    at = 0
    for _ in range(40):
        at += rng.choice([0, 0, 1, 2, span - 1, span])
        if rng.random() < 0.1:
            recent[:] = rng.sample(range(12), 3)
            driver.restart()
            model.start(list(recent))
        ids = [rng.choice([None, *range(12)]) for _ in range(rng.randrange(6))]
        expected = model.feed(at, ids)
        found = passed(driver, at, *ids)
        if tasks == 1:
            assert found == expected
        assert sorted(map(str, found)) == sorted(map(str, expected))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({}, "got neither"),
        ({"quiet": QUIET, "keep": QUIET}, "got both"),
        ({"quiet": 10}, "expected a Duration"),
        ({"keep": Duration(0)}, "longer than 0"),
        ({"keep": QUIET, "recent": ["a"]}, "expected a function that returns ids"),
        ({"keep": QUIET, "id": []}, "expected the name of a field"),
        ({"keep": QUIET, "id": ["a", "a"]}, "expected the name of a field"),
        ({"keep": QUIET, "id": 5}, "expected the name of a field"),
    ],
)
def test_wrong_arguments(arguments, match):
    with pytest.raises(InputError, match=match):
        Deduplicator(**{"id": "id", **arguments})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"bolt": Deduplicator("idd", keep=QUIET)}, "has no field 'idd'.*did you mean 'id'"),
        ({"tasks": 2, "by": ["n"]}, "two tasks may get tuples with the same id; use fields_grouping"),
    ],
)
def test_wrong_topologies(options, match):
    with pytest.raises(InputError, match=match):
        topology(**{"bolt": Deduplicator("id", keep=QUIET), **options})


def test_two_inputs_of_one_name_with_other_fields():
    builder = fed_bolt("count", CountBy("id"), {"s": ("id", "n")}, ["id"])
    builder.set_bolt("again", CountBy("id", count="m")).fields_grouping("feed", "s", ["id"])
    once = builder.set_bolt("once", Deduplicator("id", keep=QUIET)).fields_grouping("count", ["id"])
    builder.build_topology()
    once.fields_grouping("again", ["id"])
    with pytest.raises(InputError, match="'count' have the same name, but other fields"):
        builder.build_topology()


@pytest.fixture
def results(tmp_path):
    """Return a directory with three transactions: a sink with the ids 1 to 6, and a state by id and user."""
    builder = TransactionalTopologyBuilder("old", "feed", FeedSpout({"s": ("id", "user")}))
    builder.set_committer_bolt("rows", DeltaSink("results", {"id": int, "user": str})).global_grouping("feed", "s")
    builder.set_bolt("count", CountBy("id", "user")).fields_grouping("feed", "s", ["id", "user"])
    sums = SumByKey({"id": int, "user": str}, "n", "sums")
    builder.set_committer_bolt("sums", sums).fields_grouping("count", ["id", "user"])
    with TopologyTestDriver(builder.build_topology(), data_dir=tmp_path / "old") as driver:
        for first in (1, 3, 5):
            driver.commit(driver.feed({"s": [(first, "ann"), (first + 1, "bob")]}))
    return tmp_path / "old"


def test_ids_in_a_sink(results):
    """A8: recent results come from the last transactions of a sink."""
    assert recent_in_sink(results, "results", "id")() == [1, 2, 3, 4, 5, 6]
    assert recent_in_sink(results, "results", "id", txids=2)() == [3, 4, 5, 6]
    assert recent_in_sink(results, "results", ["user", "id"], txids=1)() == [("ann", 5), ("bob", 6)]


def test_ids_in_a_state(results):
    assert sorted(recent_in_state(results, "sums", "id")()) == [1, 2, 3, 4, 5, 6]
    assert ("ann", 5) in recent_in_state(results, "sums", ["user", "id"])()


def test_a_directory_without_transactions_has_no_recent_results(tmp_path):
    assert recent_in_sink(tmp_path, "results", "id")() == []
    assert recent_in_state(tmp_path / "new", "sums", "id")() == []


def test_wrong_names_and_numbers(results):
    with pytest.raises(StateError, match="no sink 'reslts'"):
        recent_in_sink(results, "reslts", "id")()
    with pytest.raises(InputError, match=r"sink 'results' has no column 'idd'.*did you mean 'id'"):
        recent_in_sink(results, "results", "idd")()
    with pytest.raises(StateError, match="no state 'sum'"):
        recent_in_state(results, "sum", "id")()
    with pytest.raises(InputError, match="txids: expected an int of at least 1, got 0"):
        recent_in_sink(results, "results", "id", txids=0)
    with pytest.raises(InputError, match="records: expected an int of at least 1, got None"):
        recent_in_topic("results", "nowhere:9092", "id", records=None)


def test_a_new_topology_drops_what_an_old_one_has_given(results, tmp_path):
    """A7, A8: a redeployed topology reads input again, and drops the results that the former one has written."""
    recent = recent_in_sink(results, "results", ["user", "id"])
    once = Deduplicator(["user", "id"], quiet=Duration.minutes(10), recent=recent)
    made = fed_bolt("once", once, {"s": ("id", "user")}, ["user"], 2).build_topology()
    with TopologyTestDriver(made) as driver:
        driver.commit(driver.feed({"s": [(5, "ann"), (5, "bob"), (6, "bob"), (7, "ann")]}))
        assert sorted(driver.emitted("once", stream="s")) == [(5, "bob"), (7, "ann")]


def test_a_topology_that_reads_its_own_sink(tmp_path):
    """A8: from its second start on, a topology knows the results in its own sink."""
    recent = recent_in_sink(tmp_path / "own", "results", "id")
    once = Deduplicator("id", quiet=Duration.seconds(1), recent=recent)
    builder = fed_bolt("once", once, {"s": ("id",)}, ["id"])
    builder.set_committer_bolt("rows", DeltaSink("results", {"id": str})).global_grouping("once", "s")
    with TopologyTestDriver(builder.build_topology(), data_dir=tmp_path / "own") as driver:
        driver.commit(driver.feed({"s": [("a",), ("b",)]}))
        driver.advance(5)
        driver.commit(driver.feed({"s": [("a",)]}))
        assert driver.emitted("once", 2, stream="s") == [("a",)]  # it is off, and has forgotten the ids
        driver.restart()
        driver.commit(driver.feed({"s": [("a",), ("c",)]}))
        assert driver.emitted("once", 3, stream="s") == [("c",)]
