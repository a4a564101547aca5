"""Map-side stages: parts of bolts that run in the tasks of their sources, in either phase."""

from typing import Any

import pytest
from spout_samples import Pass

from txstorm import BatchBolt, Committer, Topology, TransactionalTopologyBuilder, explain
from txstorm.api.bolt import EVERYWHERE
from txstorm.plan.stages import compile_plan
from txstorm.testing import FeedSpout, TopologyTestDriver


class Extract(BatchBolt):
    """Adds the double of `n`, and tells all tasks the greatest `n` of its task."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = (*fields, "double")
        self.streams = {EVERYWHERE: ("greatest",)}

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self.collector, self.greatest = collector, 0

    def execute(self, tuple: Any) -> None:
        self.greatest = max(self.greatest, tuple["n"])
        self.collector.emit(*tuple.values, 2 * tuple["n"])

    def finish_batch(self) -> None:
        self.collector.emit(self.greatest, stream=EVERYWHERE)


class Collect(BatchBolt):
    fields = ("task", "rows", "greatest")

    def map_side(self, source: str, stream: str, fields: tuple[str, ...]) -> BatchBolt:
        return Extract(fields)

    def prepare(self, context: Any, collector: Any, attempt: Any) -> None:
        self.context, self.collector, self.rows, self.greatest = context, collector, [], []

    def execute(self, tuple: Any) -> None:
        if tuple.source_stream == EVERYWHERE:
            self.greatest.append(tuple["greatest"])
        else:
            self.rows.append(tuple.values)

    def finish_batch(self) -> None:
        self.collector.emit(self.context.task, sorted(self.rows), sorted(self.greatest))


class Commit(Collect, Committer):
    pass


class Again(Pass, Committer):
    pass


def topology(bolt: Any, *, first: BatchBolt | None = None) -> Topology:
    builder = TransactionalTopologyBuilder("halves", "feed", FeedSpout({"numbers": ("n",)}), 2)
    source, stream = "feed", "numbers"
    if first is not None:
        builder.set_bolt("first", first, 2).shuffle_grouping("feed", "numbers")
        source, stream = "first", "default"
    builder.set_bolt("bolt", bolt, 3).fields_grouping(source, stream, ["n"])
    return builder.build_topology()


@pytest.mark.parametrize("bolt", [Collect, Commit])
@pytest.mark.parametrize("first", [None, Again], ids=["of the spout", "of a committer"])
def test_data_are_distributed_by_the_grouping_and_global_values_reach_every_task(bolt, first):
    made = topology(bolt(), first=None if first is None else first())
    with TopologyTestDriver(made) as driver:
        txid = driver.feed({"numbers": [(n,) for n in range(1, 9)]})
        driver.commit(txid)
        found = driver.emitted("bolt", txid)
    assert sorted(row for _, rows, _ in found for row in rows) == [(n, 2 * n) for n in range(1, 9)]
    assert len({tuple(greatest) for *_, greatest in found}) == 1
    assert max(found[0][2]) == 8
    assert len(found[0][2]) == 2


def test_the_stage_runs_in_the_tasks_of_its_source_hidden_from_topology_counts_and_errors():
    plan = compile_plan(topology(Collect()))
    assert [component.id for component in plan.topology.components] == ["feed", "bolt (from feed/numbers)", "bolt"]
    assert plan.stages[0].components == ("feed", "bolt (from feed/numbers)")
    assert "bolt (from feed/numbers): map-side stage of bolt, 2 tasks" in explain(plan)
    made = topology(Collect())
    assert [component.id for component in made.components] == ["feed", "bolt"]
    with TopologyTestDriver(made) as driver:
        txid = driver.feed({"numbers": [(1,)]})
        driver.commit(txid)
        assert driver.history()["tuples"].to_pylist() == [1 + 3]
    with (
        TopologyTestDriver(topology(Collect())) as driver,
        pytest.raises(Exception, match=r"bolt\[0\] raised TypeError"),
    ):
        driver.feed({"numbers": [(None,)]})
