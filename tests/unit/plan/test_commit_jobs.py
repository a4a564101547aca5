"""Commit jobs in the plan: which committers can commit large transactions as a job, and why others cannot."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from plan_samples import Batch, Each, Keep, builder, word_count
from topology_samples import source_diagram

from txstorm import CollectionState, KeyedState, MemoryBackend, SinkTable
from txstorm.api.external import OUTLET_METHODS, MapState, Outlet
from txstorm.plan.commit_jobs import commit_job_tables, obstacles
from txstorm.plan.stages import compile_plan

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
