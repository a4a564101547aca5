import random
from dataclasses import replace
from types import SimpleNamespace

import cloudpickle
import pytest
from plan_samples import Batch, Each, Keep, branches, builder, word_count
from topology_samples import source_diagram

from txstorm import CollectionState, KeyedState, MemoryBackend, SinkTable
from txstorm.api.external import OUTLET_METHODS, MapState, Outlet
from txstorm.errors import InputError
from txstorm.plan.commit_jobs import commit_job_tables, obstacles
from txstorm.plan.stages import Edge, Stage, compile_plan


def chain(*steps, spout=1):
    """Compile a plan for a chain of bolts, given as (grouping, parallelism) pairs; `spout`: the spout's parallelism."""
    made = builder(spout)
    before = "s"
    for i, (grouping, parallelism) in enumerate(steps):
        getattr(made.set_bolt(f"b{i}", Each(), parallelism), f"{grouping}_grouping")(before)
        before = f"b{i}"
    return compile_plan(made.build_topology())


def test_edges_are_numbered_by_target_then_input_and_local_ones_across_stages_not_fused():
    plan = compile_plan(branches())
    assert [edge.index for edge in plan.edges] == list(range(6))
    pairs = [f"{edge.source} → {edge.target}" for edge in plan.edges]
    assert pairs == ["s → near", "near → far", "near → meet", "far → meet", "far → faults", "meet → faults"]
    assert [edge.index for edge in plan.in_edges("meet")] == [2, 3]
    assert [edge.index for edge in plan.out_edges("far")] == [3, 4]
    grouping = plan.topology.component("faults").inputs[0].grouping
    assert plan.in_edges("faults")[0] == Edge(4, "far", "errors", "faults", grouping, 3, 1, local=False, boundary=True)
    assert cloudpickle.loads(cloudpickle.dumps(plan)).edges == plan.edges  # it can be shipped
    plan = compile_plan(branches())
    over = next(edge for edge in plan.edges if (edge.source, edge.target) == ("near", "meet"))
    assert over.local
    assert [plan.level(name) for name in ("s", "near", "far", "meet", "faults")] == [0, 0, 1, 2, 3]
    assert not plan.fused(over)
    assert plan.fused(plan.edges[0])
    with pytest.raises(InputError, match="no component 'fara'"):
        plan.level("fara")


@pytest.mark.parametrize(
    ("grouping", "spout", "bolt", "local"),
    [
        ("local_or_shuffle", 2, 2, True),
        ("local_or_shuffle", 2, 3, False),
        ("shuffle", 2, 2, False),
        ("all", 2, 2, False),
        ("shuffle", 1, 1, True),
        ("global", 1, 1, True),
        ("global", 2, 1, False),
    ],
)
def test_local_edges(grouping, spout, bolt, local):
    plan = chain((grouping, bolt), spout=spout)
    assert plan.edges[0].local is local
    assert len(plan.stages) == (1 if local else 2)


def test_a_chain_has_one_stage_per_exchange_of_as_many_tasks_as_its_widest_component():
    local = ("local_or_shuffle", 2)
    plan = chain(local, ("shuffle", 2), local, ("shuffle", 5), ("global", 1), ("all", 1), spout=2)
    assert [stage.components for stage in plan.stages] == [("s", "b0"), ("b1", "b2"), ("b3",), ("b4", "b5")]
    assert [stage.tasks for stage in plan.stages] == [2, 2, 5, 1]
    made = builder(2)
    made.set_bolt("a", Each(), 3).shuffle_grouping("s")
    made.set_bolt("b", Each(), 7).shuffle_grouping("s")
    assert compile_plan(made.build_topology()).stages[1] == Stage(1, 7, ("a", "b"))
    plan = compile_plan(builder(3).build_topology())  # a spout alone
    assert (plan.stages, plan.commit, plan.edges) == ((Stage(0, 3, ("s",)),), (), ())


@pytest.mark.parametrize("seed", range(40))
def test_random_plans_satisfy_the_invariants(seed):
    chosen = random.Random(seed)
    made = builder(chosen.randint(1, 4))
    names = ["s"]
    for i in range(chosen.randint(1, 15)):
        add = made.set_committer_bolt if chosen.random() < 0.2 else made.set_bolt
        declarer = add(f"b{i}", Batch(), chosen.randint(1, 4))
        for source in chosen.sample(names, min(len(names), chosen.randint(1, 3))):
            getattr(declarer, chosen.choice(("shuffle", "local_or_shuffle", "all")) + "_grouping")(source)
        names.append(f"b{i}")
    topology = made.build_topology()
    plan = compile_plan(topology)
    placed = [name for stage in plan.stages for name in stage.components]
    assert sorted([*placed, *plan.commit]) == sorted(names), seed
    assert set(plan.commit) == topology.commit_phase, seed
    assert all(stage.components for stage in plan.stages), seed
    order = {one.id: at for at, one in enumerate(topology.components)}
    assert list(plan.commit) == sorted(plan.commit, key=order.get), seed
    for edge in plan.edges:
        assert order[edge.source] < order[edge.target], seed
        if edge.source in topology.commit_phase:
            assert edge.target in topology.commit_phase, seed
        if edge.target not in topology.commit_phase:
            assert plan.level(edge.target) >= plan.level(edge.source) + (0 if edge.local else 1), seed
        if edge.local:
            assert edge.sources == edge.targets, seed


COUNTS, LOG = Keep.tables
PAIR = KeyedState("pair", {"word": str, "why": str}, {"n": int})
OTHER = replace(COUNTS, name="other")


def spread(tables, group=lambda bolt: bolt.fields_grouping("s", ["word"]), *, more=None, external=False):
    """Return the tables of committers that can run as a job, or else the reasons why the committer `keep` cannot."""
    made = builder()
    made.set_bolt("each", Each()).shuffle_grouping("s")
    bolt = Batch()
    bolt.tables = tables
    group(made.set_committer_bolt("keep", bolt, 2, external=external))
    if more is not None:
        more(made)
    plan = compile_plan(made.build_topology())
    found = commit_job_tables(plan)
    assert ("keep" in found) is not bool(obstacles(plan, "keep"))
    return found or obstacles(plan, "keep")


def test_committers_grouped_by_the_key_of_all_states():
    assert commit_job_tables(compile_plan(word_count())) == {"counts": (COUNTS, LOG)}
    assert spread((COUNTS,), lambda bolt: bolt.fields_grouping("s", ["word"]).fields_grouping("each", ["word"])) != {}
    assert spread((COUNTS, OTHER, LOG)) == {"keep": (COUNTS, OTHER, LOG)}


@pytest.mark.parametrize(
    ("tables", "reasons"),
    [
        ((LOG,), ["it has no keyed state"]),
        ((PAIR,), ["its input from s is grouped by fields word, not by fields word, why"]),
        ((COUNTS, PAIR), ["its states have different keys: counts by word and pair by word, why"]),
        (
            (KeyedState("one", {}, {"n": int}),),
            ["state one has one row, so there is nothing to divide", "its input from s is grouped by fields word"],
        ),
        (
            (CollectionState("rows", {"word": str}, {"n": int}, order={"at": int}),),
            ["state rows holds collections, and what a scan reads is not bounded by the input"],
        ),
        ((replace(COUNTS, key={"other": str}),), ["its input from s is grouped by fields word, not by fields other"]),
    ],
)
def test_other_tables(tables, reasons):
    assert spread(tables) == reasons


@pytest.mark.parametrize("kind", ["shuffle", "global", "all"])
def test_other_groupings(kind):
    reason = "its input from {} is grouped by " + kind + ", not by fields word"
    grouping = f"{kind}_grouping"
    assert spread((COUNTS,), lambda bolt: getattr(bolt, grouping)("s")) == [reason.format("s")]
    both = spread((COUNTS,), lambda bolt: getattr(bolt.fields_grouping("s", ["word"]), grouping)("each"))
    assert both == [reason.format("each")]


def test_external_effects_prevent_a_commit_job_and_other_committers_only_upstream():
    assert spread((COUNTS,), external=True) == ["it has effects of its own (external)"]
    writer = SimpleNamespace(**dict.fromkeys(OUTLET_METHODS, print))
    stores = (MapState("own", MemoryBackend()), Outlet("out", {"word": str}, writer))
    elsewhere = "is reached through a connection of the driver"
    assert spread((COUNTS, *stores)) == [f"map own {elsewhere}", f"outlet out {elsewhere}"]
    plan = compile_plan(source_diagram())
    assert commit_job_tables(plan) == {}
    assert obstacles(plan, "D") == ["it has no keyed state", "its input from C is produced in the commit phase"]

    def behind_and_beside(made):
        last, sink = Batch(), Batch()
        last.tables, sink.tables = (OTHER,), (SinkTable("words", {"word": str}),)
        behind = made.set_committer_bolt("last", last).fields_grouping("keep", ["word"])
        behind.fields_grouping("keep", ["why"], "errors")
        made.set_committer_bolt("sink", sink).shuffle_grouping("s")

    assert spread((COUNTS,), more=behind_and_beside) == {"keep": (COUNTS,)}
