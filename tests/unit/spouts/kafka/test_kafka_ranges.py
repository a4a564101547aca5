"""Kafka spout: offset ranges, division of the row budget among partitions, and batch metadata."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txstorm.errors import SpoutError
from txstorm.spouts.kafka.ranges import Batch, Lost, Positions, plan_ranges, ranges_of, shares
from txstorm.spouts.kafka.sizes import Sizes

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
