"""Rebalancing: components whose parallelism may change, fixed ones, and overrides after a code change."""

import logging

import pytest
from topology_samples import Silent

from txstorm import BasicBolt, Committer, KeyedState, MapState, MemoryBackend, TransactionalTopologyBuilder
from txstorm.errors import InputError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.graph import Topology
from txstorm.topology.rebalance import rebalanced, rebalanced_before


class Pass(BasicBolt):
    fields = ("word", "size")

    def execute(self, tuple, collector):
        collector.emit(tuple["word"], len(tuple["word"]))


class Keep(Silent, Committer):
    def __init__(self, table: KeyedState | MapState) -> None:
        self.table = table


def made(split: int = 2, sums: int = 1) -> Topology:
    builder = TransactionalTopologyBuilder("words", "source", MemoryTransactionalSpout([["a"]], "word"), 2)
    builder.set_bolt("split", Pass(), split).shuffle_grouping("source")
    builder.set_bolt("one", Pass()).global_grouping("source")
    n = {"n": int}
    builder.set_committer_bolt("keep", Keep(KeyedState("words", {"word": str}, n)), 1).fields_grouping("split", "word")
    builder.set_committer_bolt("mixed", Keep(KeyedState("m", {"size": int}, n))).fields_grouping("split", "word")
    builder.set_committer_bolt("sum", Keep(KeyedState("sum", {}, n)), sums).shuffle_grouping("split")
    builder.set_committer_bolt("map", Keep(MapState("counts", MemoryBackend()))).shuffle_grouping("split")
    return builder.build_topology()


def tasks(topology: Topology) -> dict[str, int]:
    return {one.id: one.parallelism for one in topology.components}


def test_rebalancing_keeps_other_components_and_the_current_parallelism_is_always_allowed():
    before = made()
    after = rebalanced(before, {"split": 5, "keep": 3})
    assert tasks(after) == {**tasks(before), "split": 5, "keep": 3}
    assert tasks(before)["split"] == 2
    assert after.component("split").object is before.component("split").object
    assert tasks(rebalanced(made(), {"one": 1, "sum": 1})) == tasks(made())
    # The code itself declares several tasks, which logged a warning.
    assert tasks(rebalanced(made(sums=2), {"sum": 3}))["sum"] == 3


REFUSED = {
    "one": "all its tuples go to one task",
    "mixed": r"state 'm' in one txid.*fields of the state's key \(size\)",
    "sum": r"state 'sum' in one txid.*\(it has none\)",
    "map": "map 'counts' in one txid.*the fields that its keys are made of",
    "spilt": r"no component 'spilt' \(did you mean 'split'\?\)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_fixed_parallelism_and_unknown_components_are_rejected(name):
    with pytest.raises(InputError, match=REFUSED[name]):
        rebalanced(made(), {name: 2})


@pytest.mark.parametrize("number", [0, -1, True, "2", 2.0, 32769])
def test_invalid_parallelism_is_rejected(number):
    with pytest.raises(InputError, match="expected a number of tasks from 1 to 32768"):
        rebalanced(made(), {"split": number})


def test_an_override_applies_while_the_codes_parallelism_is_unchanged_and_allows_it(caplog):
    known = {"split": {"declared": 2, "chosen": 4}}
    assert tasks(rebalanced_before(made(), known))["split"] == 4
    with caplog.at_level(logging.WARNING):
        changed = made(split=3)
        assert rebalanced_before(changed, known) is changed
    assert "the code of split has changed" in caplog.text
    known = {"sum": {"declared": 1, "chosen": 2}, "gone": {"declared": 1, "chosen": 2}}
    topology = made()
    with caplog.at_level(logging.WARNING):
        assert rebalanced_before(topology, known) is topology
    assert "the code no longer allows the earlier rebalance" in caplog.text
    assert "the code of gone has changed" in caplog.text
