"""Source facts: what spouts report when a transaction is planned, and how it is stored in the spout document."""

from pathlib import Path
from typing import Any

import pytest
from spout_samples import PlainSpout

from txstorm import NOT_READY, CompositeSpout, SourceFacts
from txstorm.api.context import PlanFacts, TaskContext
from txstorm.books.records import checked
from txstorm.errors import LedgerCorrupt, MetadataError
from txstorm.ledger import paths
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.spouts.executors import planner, skipped_parts
from txstorm.spouts.facts import facts_of, kind_of, with_facts
from txstorm.spouts.port import SpoutPlanner

ATTEMPT = (3 << 32) + 7


def planner_of(spout: Any) -> SpoutPlanner:
    return planner(spout, TaskContext("t", "spout", 0, 1))


class Reported(PlainSpout):
    """A spout whose coordinator reports the facts that a function returns for a txid."""

    def __init__(self, reported: Any) -> None:
        self.reported = reported

    def facts(self, metadata: Any) -> Any:
        return self.reported(metadata)


def test_facts_also_of_a_users_coordinator_survive_their_storage_and_defaults_are_not_stored():
    assert with_facts({"meta": 1}, PlanFacts(sources={"spout": SourceFacts()})) == {"meta": 1}
    found = facts_of({"meta": 1}, ["spout"], ATTEMPT)
    assert found == PlanFacts("data", {"spout": SourceFacts()}, {}, epoch=3)
    assert with_facts({"meta": 1}, PlanFacts(epoch=2)) == {"meta": 1}
    assert facts_of({"meta": 1}, [], ATTEMPT, 2).epoch == 2  # that of the metadata, if it is known
    for document in (None, {"meta": None}, {"meta": {"facts": {"kind": "end"}}}, 7):
        assert kind_of(document) == "data"
    facts = PlanFacts(
        "end", {"a": SourceFacts(("0", "1"), caught_up=True), "b": SourceFacts(ended=True)}, {"bolt": [1]}, 2
    )
    stored = with_facts({"sources": {}}, facts)
    assert checked(paths.meta_path(4), {"document": stored, "stamp": 1, "digests": {}})["document"] == stored
    found = facts_of(stored, ["a", "b", "c"], ATTEMPT)
    assert (found.kind, found.pinned, found.epoch, found.system) == ("end", {"bolt": [1]}, 3, True)
    assert found.sources == {**facts.sources, "c": SourceFacts()}
    made = planner_of(Reported(lambda txid: SourceFacts((str(txid),), caught_up=txid > 1)))
    assert made.facts(made.plan(1, None)) == {"spout": SourceFacts(("1",))}
    assert made.facts(made.plan(2, None)) == {"spout": SourceFacts(("2",), caught_up=True)}


@pytest.mark.parametrize(
    "facts",
    [
        [],
        {"kind": "data"},
        {"other": 1},
        {"sources": {"a": {"partitions": "01"}}},
        {"sources": {"a": {"caught_up": 1}}},
        {"sources": [1]},
        {"pinned": []},
    ],
)
def test_damaged_facts_are_refused_with_their_entry(facts):
    with pytest.raises(LedgerCorrupt, match=r"ledger entry .*4: expected document"):
        checked(paths.meta_path(4), {"document": {"meta": 1, "facts": facts}, "stamp": 1})


@pytest.mark.parametrize("answer", [None, ("0",), SourceFacts((0,)), SourceFacts("0")])  # type: ignore[arg-type]
def test_a_coordinator_that_returns_something_else_is_named(answer):
    made = planner_of(Reported(lambda txid: answer))
    with pytest.raises(MetadataError, match=r"spout 'spout': facts\(\) returned"):
        made.facts(made.plan(1, None))


@pytest.mark.parametrize("bounded", [False, True])
def test_files_are_caught_up_when_all_is_read_and_end_only_if_nothing_can_be_added(tmp_path: Path, bounded: bool):
    (tmp_path / "a.txt").write_text("1\n2\n3\n", encoding="utf-8")
    made = planner_of(FileSpout(tmp_path / "*.txt", max_batch_rows=2, bounded=bounded))
    first = made.plan(1, None)
    assert made.facts(first) == {"spout": SourceFacts()}
    second = made.plan(2, first)
    assert made.facts(second) == {"spout": SourceFacts(caught_up=True, ended=bounded)}
    assert made.plan(3, second) is NOT_READY


def test_a_composite_spout_reports_each_source_and_can_skip_all_of_them(tmp_path: Path):
    (tmp_path / "a.txt").write_text("1\n", encoding="utf-8")
    made = planner_of(
        CompositeSpout({"a": FileSpout(tmp_path / "a.txt"), "b": MemoryTransactionalSpout([[1, 2]], "n", take=1)})
    )
    first = made.plan(1, None)
    assert made.sources == ("a", "b")
    assert made.facts(first) == {"a": SourceFacts(caught_up=True)}
    skipped = made.skip(first)
    assert all(one["skipped"] for one in skipped["sources"].values())
    second = made.plan(2, skipped)
    assert second["sources"]["b"]["meta"] == {"0": [1, 1]}
    assert made.reached(second, made.latest())


def test_partitions_keep_their_positions_where_no_source_emits():
    carried = {"0": {"batch": 5}, "1": {"kept": 7}, "2": {"batch": 9}}
    assert skipped_parts({"parts": None}, carried, 0, 2) == {"0": {"kept": 5}, "2": {"kept": 9}}
    nested = {"sources": {"a": {"parts": None}, "b": {"meta": 1}}}
    under = {f"a/{key}": part for key, part in carried.items()}
    assert skipped_parts(nested, under, 1, 2) == {"a/1": {"kept": 7}}
    assert skipped_parts({"meta": 1}, {}, 0, 1) == {}
