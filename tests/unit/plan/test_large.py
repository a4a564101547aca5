"""Which committers can commit a large transaction as a job."""

from dataclasses import replace

import pytest
from plan_samples import Batch, Each, Keep, builder, source_diagram, word_count

from txstorm import MemoryBackend
from txstorm.api.maps import MapState
from txstorm.api.state import CollectionState, KeyedState, SinkTable
from txstorm.plan.large import spread_tables
from txstorm.plan.stages import compile_plan

COUNTS, LOG = Keep.tables
PAIR = KeyedState("pair", {"word": str, "why": str}, {"n": int})
OTHER = replace(COUNTS, name="other")


def spread(tables, group=lambda bolt: bolt.fields_grouping("s", ["word"]), *, more=None, external=False):
    made = builder()
    made.set_bolt("each", Each()).shuffle_grouping("s")
    bolt = Batch()
    bolt.tables = tables
    group(made.set_committer_bolt("keep", bolt, 2, external=external))
    if more is not None:
        more(made)
    return spread_tables(compile_plan(made.build_topology()))


def test_grouped_by_the_key_of_all_states():
    assert spread_tables(compile_plan(word_count())) == {"counts": (COUNTS, LOG)}
    assert spread((COUNTS,), lambda bolt: bolt.fields_grouping("s", ["word"]).fields_grouping("each", ["word"])) != {}
    assert spread((COUNTS, OTHER, LOG)) == {"keep": (COUNTS, OTHER, LOG)}


@pytest.mark.parametrize(
    "tables",
    [
        (LOG,),
        (PAIR,),
        (COUNTS, PAIR),
        (KeyedState("one", {}, {"n": int}),),
        (CollectionState("rows", {"word": str}, {"n": int}, order={"at": int}),),
        (replace(COUNTS, key={"other": str}),),
    ],
)
def test_other_tables(tables):
    assert spread(tables) == {}


@pytest.mark.parametrize("kind", ["shuffle_grouping", "global_grouping", "all_grouping"])
def test_other_groupings(kind):
    assert spread((COUNTS,), lambda bolt: getattr(bolt, kind)("s")) == {}
    assert spread((COUNTS,), lambda bolt: getattr(bolt.fields_grouping("s", ["word"]), kind)("each")) == {}


def test_effects_elsewhere():
    assert spread((COUNTS,), external=True) == {}
    assert spread((COUNTS, MapState("map", MemoryBackend()))) == {}


def test_what_is_behind_or_before_another_one_in_the_commit_phase():
    assert spread_tables(compile_plan(source_diagram())) == {}

    def behind(made):
        last = Batch()
        last.tables = (OTHER,)
        made.set_committer_bolt("last", last).fields_grouping("keep", ["word"])

    assert spread((COUNTS,), more=behind) == {}


def test_a_sink_of_its_own_beside_it_changes_nothing():
    def beside(made):
        sink = Batch()
        sink.tables = (SinkTable("words", {"word": str}),)
        made.set_committer_bolt("sink", sink).shuffle_grouping("s")

    assert spread((COUNTS,), more=beside) == {"keep": (COUNTS,)}
