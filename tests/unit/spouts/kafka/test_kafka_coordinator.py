"""Planning by the Kafka spout's coordinator: ranges, budgets and metadata, and against in-memory brokers."""

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka_fake import Brokers, source
from runtime_samples import Clock

from txstorm import NOT_READY, SourceFacts
from txstorm.errors import SpoutError
from txstorm.spouts.kafka.brokers import Offsets
from txstorm.spouts.kafka.coordinator import KafkaCoordinator
from txstorm.spouts.kafka.ranges import Batch, Lost, Positions, Sizes, plan_ranges, ranges_of, shares


def coordinator(brokers: Brokers, *, clock: Clock | None = None, patience: float = 60, **options) -> KafkaCoordinator:
    return KafkaCoordinator(source(**options), "spout", brokers, clock or Clock(), patience)


def plans(planner: KafkaCoordinator, count: int, first: int = 1, meta=None) -> list:
    """Plan up to `count` txids from `first`; return their metadata, fewer if the source is not ready for another."""
    found = []
    for txid in range(first, first + count):
        made = planner.initialize_transaction(txid, meta)
        if made is NOT_READY:
            break
        meta = made
        found.append(meta)
    return found


def started(brokers: Brokers, **options) -> tuple[KafkaCoordinator, dict]:
    """Return a coordinator that has planned txid 1, and its metadata."""
    planner = coordinator(brokers, **options)
    [first] = plans(planner, 1)
    return planner, first


def test_a_clock_is_what_metadata_of_its_positions_give():
    brokers = Brokers(t={0: [5, 155], 1: [0, 20], 2: [0, 3]})
    planner = coordinator(brokers)
    clock = {"t-0": 84, "t-1": -1}
    made = planner.at_clock(clock)
    assert planner.clock(made) == clock
    assert made["topics"]["t"]["id"] == "id-t"
    [first] = plans(planner, 1, meta=made)  # a partition that the clock lacks is new
    assert ranges_of(first) == {("t", 0): (85, 155), ("t", 1): (0, 20), ("t", 2): (0, 3)}
    with pytest.raises(SpoutError, match="the clock has partition 'u-0', but the topics are t"):
        planner.at_clock({"u-0": 1})
    with pytest.raises(SpoutError, match=r"t/0: offsets 3 to 4 .*begins at 5 now"):
        plans(coordinator(brokers), 1, meta=planner.at_clock({"t-0": 2}))


def test_consecutive_ranges_reach_the_end_of_the_log_with_few_requests_and_a_budget_per_topic():
    planner = coordinator(Brokers(t={0: [5, 155], 1: [0, 20]}))
    first, second = plans(planner, 9)
    assert ranges_of(first) == {("t", 0): (5, 85), ("t", 1): (0, 20)}
    assert ranges_of(second) == {("t", 0): (85, 155)}
    assert first["topics"]["t"]["id"] == "id-t"
    assert planner.initialize_transaction(3, second) is NOT_READY
    _, first = started(Brokers(a={0: [0, 1000], 1: [0, 1000]}, b={0: [0, 30]}), topics=["a", "b"])
    assert ranges_of(first) == {("a", 0): (0, 50), ("a", 1): (0, 50), ("b", 0): (0, 30)}
    brokers = Brokers(t={number: [0, 10_000] for number in range(8)})
    planner, first = started(brokers)
    brokers.requests.clear()
    assert len(plans(planner, 100, 2, first)) == 100
    assert brokers.requests == []
    brokers = Brokers(t={0: [0, 10], 1: [0, 10]})
    planner, first = started(brokers)
    brokers.requests.clear()
    brokers.bounds["t"][1][1] = 15
    [second] = plans(planner, 1, 2, first)
    assert brokers.requests == ["offsets", "offsets"]  # the partitions have two leaders
    assert ranges_of(second) == {("t", 1): (10, 15)}


def test_new_partitions_and_topics_are_read_from_their_beginning_and_a_recreated_one_is_another():
    brokers, clock = Brokers(t={0: [0, 10]}), Clock()
    planner, first = started(brokers, clock=clock, start="latest")
    assert ranges_of(first) == {} and first["topics"]["t"]["next"] == {"0": 10}
    brokers.bounds["t"][1] = [0, 4]
    assert planner.initialize_transaction(2, first) is NOT_READY  # metadata has not been refreshed yet
    clock.now += 11
    second = planner.initialize_transaction(2, first)
    assert ranges_of(second) == {("t", 1): (0, 4)} and second["new"] == ["t/1"]
    assert any("t/1 is new" in notice for notice in planner.notices())
    brokers, clock = Brokers(other={0: [0, 5]}), Clock()
    planner = coordinator(brokers, clock=clock, topics="^web-")
    assert planner.initialize_transaction(1, None) is NOT_READY
    brokers.bounds["web-1"], brokers.ids["web-1"] = {0: [0, 5]}, "new"
    assert ranges_of(planner.initialize_transaction(1, None)) == {("web-1", 0): (0, 5)}
    brokers, clock = Brokers(t={0: [0, 10]}), Clock()
    (transactional, first), (opaque, _) = started(brokers), started(brokers, opaque=True, clock=clock)
    brokers.ids["t"], brokers.bounds["t"] = "made anew", {0: [0, 3]}
    # The topic ends before the stored position, which triggers an immediate check.
    with pytest.raises(SpoutError, match=r"t/0: offset 10 and later .*recreated"):
        transactional.initialize_transaction(2, first)
    second = opaque.initialize_transaction(2, first)
    assert ranges_of(second) == {("t", 0): (0, 3)}
    assert second["topics"]["t"]["id"] == "made anew" and second["lost"][0]["from"] == 10
    brokers, clock = Brokers(t={0: [0, 10]}), Clock()
    planner, first = started(brokers, clock=clock)
    del brokers.bounds["t"]
    clock.now += 11
    with pytest.raises(SpoutError, match="t/0: not at fake:9092 any more"):
        planner.initialize_transaction(2, first)


def test_the_first_transaction_pins_the_start_position_within_the_log():
    _, first = started(Brokers(t={0: [0, 10]}), start="latest")
    assert first["topics"]["t"]["next"] == {"0": 10}
    later = coordinator(Brokers(t={0: [0, 12]}), start="latest")
    assert ranges_of(later.initialize_transaction(2, first)) == {("t", 0): (10, 12)}
    for offset in (3, 30):
        with pytest.raises(SpoutError, match="t/0"):
            coordinator(Brokers(t={0: [5, 20]}), start={"t": {0: offset}}).initialize_transaction(1, None)


@pytest.mark.parametrize(
    ("bounds", "said", "lost", "ranges"),
    [
        ([50, 60], r"t/0: offsets 10 to 49 \(it begins at 50", (10, 50), {("t", 0): (50, 60)}),
        ([0, 4], r"t/0: offsets 4 to 9 \(it ends at 4", (4, 10), {}),
    ],
)
def test_lost_offsets_stop_a_transactional_spout_and_are_recorded_by_an_opaque_one(bounds, said, lost, ranges):
    brokers = Brokers(t={0: [0, 10]})
    _, first = started(brokers)
    brokers.bounds["t"] = {0: bounds}
    with pytest.raises(SpoutError, match=said):
        coordinator(brokers).initialize_transaction(2, first)
    planner = coordinator(brokers, opaque=True)
    second = planner.initialize_transaction(2, first)
    assert [(one["from"], one["to"]) for one in second["lost"]] == [lost]
    assert ranges_of(second) == ranges
    assert any("lost: t/0" in notice for notice in planner.notices())


@pytest.mark.parametrize("opaque", [False, True])
def test_a_partition_without_a_reachable_leader_keeps_its_position(opaque):
    brokers = Brokers(t={0: [0, 10], 1: [0, 10]})
    planner, first = started(brokers, opaque=opaque)
    brokers.bounds["t"] = {0: [0, 20], 1: [0, 20]}
    brokers.down = {1}
    second = planner.initialize_transaction(2, first)
    assert ranges_of(second) == {("t", 0): (10, 20)}
    assert second["away"] == ["t/1"] and second["topics"]["t"]["next"]["1"] == 10
    brokers.down = set()
    brokers.bounds["t"][0] = [0, 21]
    for _ in range(3):  # a leader that is back is only monitored at first
        third = planner.initialize_transaction(3, second)
    assert ranges_of(third)["t", 1] == (10, 20)
    notices = planner.notices()
    assert [word in notice for word, notice in zip(("away: t/1", "back: t/1"), notices, strict=True)] == [True, True]


def test_a_silent_leader_delays_the_first_request_and_unreachable_brokers_are_reported_once():
    brokers = Brokers(t={0: [0, 10], 1: [0, 10]})
    brokers.silent = {1}
    offsets, topics = Offsets(brokers, 0.01), brokers.topics(["t"], 1)
    wanted = {("t", 0): -1, ("t", 1): -1}
    assert offsets.ask(topics, wanted) == {("t", 0): 10}
    brokers.requests.clear()
    assert offsets.ask(topics, wanted) == {("t", 0): 10}
    assert brokers.requests == ["offsets"]
    brokers, clock = Brokers(t={0: [0, 10]}), Clock()
    brokers.unreachable = True
    planner = coordinator(brokers, clock=clock)
    assert planner.initialize_transaction(1, None) is NOT_READY
    assert planner.initialize_transaction(1, None) is NOT_READY
    brokers.unreachable = False
    assert ranges_of(planner.initialize_transaction(1, None)) == {("t", 0): (0, 10)}
    said = [notice.rpartition(": ")[2] for notice in planner.notices()]
    assert said == ["nobody is there", "the brokers answer again"]


def test_a_failed_txid_is_replanned_from_the_current_log_even_if_no_records_are_left():
    brokers = Brokers(t={0: [0, 1000]})
    planner = coordinator(brokers, opaque=True)
    first, second = plans(planner, 2)
    brokers.bounds["t"][0] = [150, 1000]
    again = planner.initialize_transaction(2, first)
    assert ranges_of(second) == {("t", 0): (100, 200)}
    assert ranges_of(again) == {("t", 0): (150, 250)}
    assert again["lost"] == [{"topic": "t", "partition": 0, "from": 100, "to": 150, "cause": again["lost"][0]["cause"]}]
    brokers = Brokers(t={0: [0, 200]})
    planner = coordinator(brokers, opaque=True)
    assert len(plans(planner, 9)) == 2
    brokers.bounds["t"][0] = [150, 200]
    first, second = plans(planner, 9)
    assert (ranges_of(first), ranges_of(second)) == ({("t", 0): (150, 200)}, {})


class Slow(Brokers):
    """Fake brokers whose topic requests block until `answers` is set."""

    def __init__(self, **bounds):
        super().__init__(**bounds)
        self.asked, self.answers = threading.Event(), threading.Event()

    def topics(self, names, seconds):
        self.asked.set()
        assert self.answers.wait(60)
        return super().topics(names, seconds)


def poll_plan(planner: KafkaCoordinator, txid: int, before):
    """Poll the coordinator until it returns a plan for `txid`; return the plan."""
    while (made := planner.initialize_transaction(txid, before)) is NOT_READY:
        threading.Event().wait(0.001)
    return made


def test_slow_brokers_do_not_block_the_caller_and_leave_no_thread_after_close():
    brokers = Slow(t={0: [0, 150]})
    planner = coordinator(brokers, patience=0.01, opaque=True)
    assert planner.initialize_transaction(1, None) is NOT_READY
    assert brokers.asked.wait(60) and not brokers.answers.is_set()
    assert planner.initialize_transaction(1, None) is NOT_READY
    assert brokers.requests == []  # the one request is still unanswered
    brokers.answers.set()
    first = poll_plan(planner, 1, None)
    assert ranges_of(first) == {("t", 0): (0, 100)}

    # An answer that arrives when its plan is no longer wanted is discarded.
    second = poll_plan(planner, 2, first)
    brokers.answers.clear()
    assert planner.initialize_transaction(2, first) is NOT_READY
    assert planner.initialize_transaction(1, None) is NOT_READY
    brokers.answers.set()
    assert poll_plan(planner, 1, None) == first
    assert poll_plan(planner, 2, first) == second
    brokers = Slow(t={0: [0, 150]})
    planner = coordinator(brokers, patience=0.01)
    before = set(threading.enumerate())
    assert planner.initialize_transaction(1, None) is NOT_READY
    [started] = set(threading.enumerate()) - before
    planner.close()
    assert started.is_alive()
    brokers.answers.set()
    started.join(60)
    assert not started.is_alive()


def test_a_mark_is_reached_when_all_is_read_and_a_topic_caught_up_if_all_leaders_have_answered():
    brokers = Brokers(t={0: [0, 10], 1: [0, 0], 2: [0, 10]})
    planner = coordinator(brokers)
    mark = planner.latest()
    assert not planner.reached(None, mark)
    [first] = plans(planner, 1)
    brokers.bounds["t"][0][1] = 20
    assert planner.reached(first, mark)
    assert not planner.reached(first, planner.latest())
    empty = coordinator(Brokers(t={0: [7, 7]}))
    mark = empty.latest()
    assert empty.initialize_transaction(1, None) is NOT_READY
    assert empty.reached(None, mark)  # without a transaction
    brokers = Brokers(t={0: [0, 200]})
    planner, first = started(brokers)
    assert planner.facts(first) == SourceFacts(("0",), caught_up=False)
    brokers.bounds["t"][0][1] = 250
    [second] = plans(planner, 1, 2, first)
    assert ranges_of(second) == {("t", 0): (100, 200)}
    assert not planner.facts(second).caught_up
    [third] = plans(planner, 1, 3, second)
    assert planner.facts(third).caught_up
    brokers = Brokers(t={0: [0, 50], 1: [0, 0]})
    planner, first = started(brokers)
    assert planner.facts(first).caught_up
    brokers.down.add(1)
    assert planner.initialize_transaction(2, first) is NOT_READY
    assert not planner.facts(first).caught_up
    brokers, clock = Slow(t={0: [0, 50]}), Clock()
    brokers.answers.set()
    planner = coordinator(brokers, clock=clock, patience=0.01)
    first = poll_plan(planner, 1, None)
    assert planner.facts(first).caught_up
    brokers.answers.clear()
    clock.now += 100  # the topics are listed again
    assert planner.initialize_transaction(2, first) is NOT_READY
    assert not planner.facts(first).caught_up
    brokers.answers.set()
    brokers.bounds["t"][0][1] = 51
    assert planner.facts(poll_plan(planner, 2, first)).caught_up


def test_offsets_for_a_time_need_all_partitions():
    """A4: per partition the first offset of the time or later, else its end; times equal offsets here."""
    brokers = Brokers(t={0: [0, 150], 1: [0, 20]})
    planner = coordinator(brokers)
    assert planner.offsets_at(99_001) == {"t/0": 100, "t/1": 20}
    [first] = plans(planner, 1)
    assert planner.offsets(first) == {"t/0": 80, "t/1": 20}
    assert planner.offsets(None) == {}
    brokers.down.add(1)
    with pytest.raises(SpoutError, match="t/1: not available, so its offsets are unknown"):
        coordinator(brokers).offsets_at(5_000)
    brokers.unreachable = True
    with pytest.raises(SpoutError, match="the brokers do not answer"):
        coordinator(brokers).offsets_at(5_000)


waiting = st.dictionaries(st.tuples(st.just("t"), st.integers(0, 20)), st.integers(1, 1000))


@given(waiting, st.integers(1, 2000))
def test_a_budget_is_exhausted_and_shared_fairly(waiting, budget):
    given_ = shares(waiting, budget)
    assert sum(given_.values()) == min(budget, sum(waiting.values()))
    assert all(0 < count <= waiting[one] for one, count in given_.items())
    # A partition that got less than another is exhausted, except for a remainder of one row.
    short = [given_.get(one, 0) for one in waiting if given_.get(one, 0) < waiting[one]]
    assert not short or max(given_.values()) - min(short) <= 1


def test_metadata_hold_all_the_next_transaction_needs_and_unknown_ends_are_not_planned():
    positions = Positions({"t": "id"}, {("t", 0): 5, ("t", 11): 7})
    batch = Batch(positions, {("t", 11): (7, 9)}, new=[("t", 11)], lost=[Lost(("t", 0), 3, 5, "gone")])
    stored = json.loads(json.dumps(batch.to_json()))
    assert Positions.after(stored) == Positions({"t": "id"}, {("t", 0): 5, ("t", 11): 9})
    assert ranges_of(stored) == {("t", 11): (7, 9)}
    assert stored["new"] == ["t/11"]
    assert stored["lost"] == [{"topic": "t", "partition": 0, "from": 3, "to": 5, "cause": "gone"}]
    with pytest.raises(SpoutError, match="version 2, expected 1"):
        Positions.after({"v": 2})
    assert plan_ranges({("t", 0): 5, ("t", 1): 5}, {("t", 1): 8}, {"t": 10}) == {("t", 1): (5, 8)}


@given(st.integers(1, 7), st.sets(st.integers(0, 30), min_size=1))
def test_every_partition_is_read_by_the_same_single_task(tasks, reading):
    known = {("t", number): 10 for number in range(31)}
    ranges = {("t", number): (10, 20) for number in reading}
    meta = Batch(Positions({"t": "id"}, known), ranges).to_json()
    everything = Batch(Positions({"t": "id"}, known), dict.fromkeys(known, (10, 20))).to_json()
    mine = [ranges_of(meta, task, tasks) for task in range(tasks)]
    assert {one: extent for part in mine for one, extent in part.items()} == ranges
    assert sum(map(len, mine)) == len(ranges)
    for task, part in enumerate(mine):
        assert set(part) <= set(ranges_of(everything, task, tasks))


@pytest.mark.parametrize(
    ("size", "mean", "waiting", "budget", "asked"),
    [
        (1 << 20, 1024.0, {("t", 0): (0, 500), ("t", 1): (0, 9000)}, 1024, [(("t", 1), (0, 100))]),
        (64 << 20, None, {("t", 0): (0, 64)}, 10_000, []),
        (1 << 20, None, {("t", 0): (0, 9000)}, 1024, [(("t", 0), (0, 100))]),
    ],
    ids=["one sample", "even the largest records fit", "a sample without records"],
)
def test_record_sizes_are_estimated_from_occasional_samples(size, mean, waiting, budget, asked):
    samples = []

    def sample(*sampled):
        samples.append(sampled)
        return mean

    found = Sizes(10_000, size, sample, lambda: 0.0)
    assert found.budget("t", waiting) == budget
    assert found.budget("t", waiting) == budget
    assert samples == asked


def test_no_transaction_passes_a_clock_and_new_partitions_wait():
    brokers, clock, upto = Brokers(t={0: [5, 20], 1: [0, 4]}), Clock(), {"t-0": 9, "t-1": 9}
    planner = coordinator(brokers, clock=clock)
    first = planner.initialize_transaction(1, None, upto)
    assert planner.clock(first) == {"t-0": 9, "t-1": 3}
    brokers.bounds["t"][2] = [0, 7]
    clock.now += 11
    assert planner.initialize_transaction(2, first, upto) is NOT_READY
    brokers.bounds["t"][1][1] = 15
    second = planner.initialize_transaction(2, first, upto)
    assert planner.clock(second) == upto
    brokers.requests.clear()
    assert planner.initialize_transaction(3, second, upto) is NOT_READY
    assert brokers.requests == []
    assert planner.clock(planner.initialize_transaction(3, second)) == {"t-0": 19, "t-1": 14, "t-2": 6}
    # The first transaction records where each partition begins, also if it gives nothing.
    later = coordinator(Brokers(t={0: [0, 10], 1: [0, 10]}), start="latest")
    assert later.initialize_transaction(1, None, {"t-0": 20})["topics"]["t"]["next"] == {"0": 10, "1": 10}
