import logging

import pytest
from runs import ended
from topology_samples import Keep, Lines, Partial, Plain, Silent, Split, builder, rich, source_diagram, word_count

from txstorm.api.output import Grouping
from txstorm.api.tuples import Fields
from txstorm.bolts import CountByKey
from txstorm.errors import TopologyError
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.builder import TransactionalTopologyBuilder


class ByFirst:
    def prepare(self, component, stream, targets):
        self.targets = targets

    def choose_tasks(self, source_task, values):
        return [0]


def inputs_of(declare):
    """Return the inputs of a built bolt after `declare` was called with its declarer."""
    made = builder()
    made.set_bolt("p", Partial()).shuffle_grouping("lines")
    declare(made.set_bolt("b", Plain()))
    return made.build_topology().component("b").inputs


def test_the_topology_of_the_design_is_built_by_marker_or_set_committer_bolt_and_sorted():
    """The word-count topology of the design document has the expected components (T18, T20, T24)."""
    topology = word_count()
    found = [(one.id, one.kind, one.parallelism) for one in topology.components]
    assert found == [("lines", "spout", 2), ("split", "basic", 2), ("partial", "batch", 2), ("counts", "committer", 2)]
    assert topology.spout.id == "lines"
    assert str(topology.component("counts").inputs[0].grouping) == "fields word"
    assert topology.component("partial").streams["errors"].fields == ("why",)
    made = builder()
    made.set_bolt("marked", Keep()).global_grouping("lines")
    made.set_committer_bolt("added", Plain()).global_grouping("lines")
    topology = made.build_topology()
    assert {topology.component(name).kind for name in ("marked", "added")} == {"committer"}
    made = builder()
    made.set_bolt("z", Plain()).shuffle_grouping("y")
    made.set_bolt("c", Split()).shuffle_grouping("lines")
    made.set_bolt("y", Plain()).shuffle_grouping("lines")
    made.set_bolt("a", Split()).shuffle_grouping("lines")
    components = made.build_topology().components
    assert [one.id for one in components] == ["lines", "c", "y", "z", "a"]
    assert {one.parallelism for one in components} == {1}  # by default


@pytest.mark.parametrize(
    ("declare", "stream", "grouping"),
    [
        (lambda d: d.shuffle_grouping("p"), "default", Grouping("shuffle")),
        (lambda d: d.shuffle_grouping("p", "errors"), "errors", Grouping("shuffle")),
        (lambda d: d.fields_grouping("p", ["word"]), "default", Grouping("fields", ("word",))),
        (lambda d: d.fields_grouping("p", "word"), "default", Grouping("fields", ("word",))),
        (lambda d: d.fields_grouping("p", Fields("word", "n")), "default", Grouping("fields", ("word", "n"))),
        (lambda d: d.fields_grouping("p", ["why"], stream="errors"), "errors", Grouping("fields", ("why",))),
        (lambda d: d.fields_grouping("p", "errors", ["why"]), "errors", Grouping("fields", ("why",))),
        (lambda d: d.fields_grouping("p", ["why"], "errors"), "errors", Grouping("fields", ("why",))),
        (lambda d: d.partial_key_grouping("p", "errors", ["why"]), "errors", Grouping("partial_key", ("why",))),
        (lambda d: d.global_grouping("p"), "default", Grouping("global")),
        (lambda d: d.all_grouping("p"), "default", Grouping("all")),
        (lambda d: d.none_grouping("p"), "default", Grouping("none")),
        (lambda d: d.local_or_shuffle_grouping("p"), "default", Grouping("local_or_shuffle")),
        (lambda d: d.grouping("p", Grouping("global"), "errors"), "errors", Grouping("global")),
        (lambda d: d.grouping("p", "shuffle"), "default", Grouping("shuffle")),
        (lambda d: d.shuffleGrouping("p"), "default", Grouping("shuffle")),
        (lambda d: d.fieldsGrouping("p", "errors", ["why"]), "errors", Grouping("fields", ("why",))),
        (lambda d: d.partialKeyGrouping("p", ["n"]), "default", Grouping("partial_key", ("n",))),
        (lambda d: d.globalGrouping("p"), "default", Grouping("global")),
        (lambda d: d.allGrouping("p"), "default", Grouping("all")),
        (lambda d: d.noneGrouping("p"), "default", Grouping("none")),
        (lambda d: d.localOrShuffleGrouping("p"), "default", Grouping("local_or_shuffle")),
    ],
)
def test_every_grouping_is_declared_in_both_spellings(declare, stream, grouping):
    """Every grouping has a snake_case and a camelCase method with the same effect (T20)."""
    (given,) = inputs_of(declare)
    assert (given.component, given.stream, given.grouping) == ("p", stream, grouping)


@pytest.mark.parametrize("spelling", ["custom_grouping", "customGrouping"])
def test_custom_groupings_accept_their_arguments_in_both_orders(spelling):
    chosen = ByFirst()
    (ours,) = inputs_of(lambda d: getattr(d, spelling)("p", chosen, "errors"))
    (storms,) = inputs_of(lambda d: getattr(d, spelling)("p", "errors", chosen))
    assert ours == storms
    assert ours.grouping.custom is chosen
    assert ours.stream == "errors"


@pytest.mark.parametrize("spelling", ["direct_grouping", "directGrouping"])
def test_direct_groupings_read_direct_streams(spelling):
    class Direct(Silent):
        def declare_output_fields(self, declarer):
            declarer.declare("x", direct=True)

    made = builder()
    made.set_bolt("d", Direct()).shuffle_grouping("lines")
    getattr(made.set_bolt("r", Plain()), spelling)("d")
    assert made.build_topology().component("r").inputs[0].grouping.kind == "direct"


def test_camel_case_builds_the_same_topology_and_overrides_declare_streams():
    made = TransactionalTopologyBuilder("word-count", "lines", Lines(), 2)
    made.setBolt("split", Split(), 2).shuffleGrouping("lines")
    made.setBolt("partial", Partial(), 2).localOrShuffleGrouping("split")
    made.setCommitterBolt("counts", Keep(), 2).fieldsGrouping("partial", ["word"])
    assert made.buildTopology().fingerprint() == word_count().fingerprint()

    class Shouting(Silent):
        def declareOutputFields(self, declarer):
            declarer.declareStream("loud", ["word"])

    made = builder()
    made.set_bolt("shout", Shouting()).shuffle_grouping("lines")
    assert made.build_topology().component("shout").streams["loud"].fields == ("word",)


def test_settings_of_builder_and_spout_declarer_are_taken_and_invalid_ones_reported():
    made = builder()
    made.set_setting("max_jobs", "3").set_settings({"topology.message.timeout.secs": 5})
    made.getSpoutDeclarer().setMaxSpoutPending(4).addConfiguration("on_error", "retry(2)")
    made.get_spout_declarer().add_configuration("depth", 1)
    made.set_bolt("split", Split()).shuffle_grouping("lines").addConfiguration("colour", "red")
    topology = made.build_topology()
    settings = topology.settings
    assert (settings.max_jobs, settings.batch_timeout, settings.max_spout_pending) == (3, 5, 4)
    assert settings.error_retries == 2
    assert dict(topology.spout.configuration) == {"depth": 1}
    assert dict(topology.component("split").configuration) == {"colour": "red"}
    made = builder()
    made.set_bolt("split", Split())
    for _ in range(3):
        assert len(made.validate().faults) == 1  # without building it
    made.set_setting("max_jobs", 0)
    with pytest.raises(TopologyError) as refused:
        made.build_topology()
    assert len(refused.value.faults) == 2
    assert any("max_jobs" in fault for fault in refused.value.faults)


def test_a_built_topology_is_independent_of_later_builder_calls_and_has_a_commit_phase():
    made = builder()
    declarer = made.set_bolt("split", Split()).shuffle_grouping("lines")
    topology = made.build_topology()
    declarer.add_configuration("late", 1)
    made.set_bolt("more", Split()).shuffle_grouping("lines")
    assert [one.id for one in topology.components] == ["lines", "split"]
    assert not topology.component("split").configuration
    assert source_diagram().commit_phase == {"B", "C", "D"}
    assert word_count().commit_phase == {"counts"}
    assert rich().commit_phase == {"counts", "audit"}
    assert builder().build_topology().commit_phase == frozenset()


def test_warnings_are_kept_and_logged_once_when_the_topology_runs(caplog, tmp_path):
    made = TransactionalTopologyBuilder("warned", "words", MemoryTransactionalSpout([["a"]], "word"))
    made.set_committer_bolt("counts", CountByKey("word", table="counts"), 2).shuffle_grouping("words")
    with caplog.at_level(logging.WARNING, "txstorm"):
        topology = made.build_topology()
        assert len(topology.warnings) == 1
        assert not caplog.records  # a worker that imports the module also builds the topology
        ended(topology, tmp_path, until_txid=1)
    assert [topology.warnings[0] in one.getMessage() for one in caplog.records] == [True]
