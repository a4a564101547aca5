"""Declarations of collections and times to live: rejected ones, and the display of valid ones."""

import json
from datetime import timedelta

import pytest

from txstorm import BatchBolt, CollectionState, Committer, KeyedState, TransactionalTopologyBuilder
from txstorm.errors import TopologyError
from txstorm.plan.explain import explain
from txstorm.spouts import MemoryTransactionalSpout

DAY = timedelta(days=1)


class Keep(BatchBolt, Committer):
    def __init__(self, *states):
        self.states = states

    def execute(self, tuple):
        pass


def built(*states, grouping=("user",), parallelism=2):
    builder = TransactionalTopologyBuilder("t", "lines", MemoryTransactionalSpout([[]], ["user", "at"]))
    builder.set_committer_bolt("keep", Keep(*states), parallelism).fields_grouping("lines", grouping)
    return builder.build_topology()


def events(**changes):
    given = {"key": {"user": str}, "order": {"at": int}, "value": {"n": int}}
    return CollectionState("events", **{**given, **changes})


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (KeyedState("s", {"k": str}, {"n": int}, ttl=timedelta(0)), "ttl is a timedelta above 0 or None, got"),
        (KeyedState("s", {"k": str}, {"n": int}, ttl=5), "ttl is a timedelta above 0 or None, got 5"),
        (KeyedState("s", {"k": str}, {"n": int}, writer="spark", layout="merge"), "writer 'spark' and the layout"),
        (KeyedState("s", {"k": str}, {"n": int}, layout="rows"), "expected the layout changes or merge, got 'rows'"),
        (events(layout="merge"), "a collection cannot have the layout 'merge': each append would rewrite"),
        (events(order={}), "order is a mapping of one column to its type; write order={'at': datetime}"),
        (events(order="at"), "order is a mapping of one column to its type"),
        (events(order={"at": int, "to": int}), "order is a mapping of one column to its type"),
        (events(order={"at": str}), "order: column 'at': expected datetime or int, got <class 'str'>"),
        (events(order={"_at": int}), "field '_at' starts with '_'"),
        (events(order={"user": int}), "column 'user' is declared twice"),
        (events(order={"N": int}), "differ only in case"),
    ],
)
def test_invalid_keyed_declarations_are_rejected_when_the_topology_is_built(state, says):
    with pytest.raises(TopologyError) as caught:
        built(state)
    assert "component 'keep'" in str(caught.value)
    assert says in str(caught.value)


def test_a_collection_belongs_to_the_task_of_its_key():
    assert built(events()).warnings == ()
    (warning,) = built(events(), grouping=("user", "at")).warnings
    assert "state 'events'" in warning


def test_keyed_declarations_are_displayed_and_part_of_the_fingerprint():
    kept = KeyedState("kept", key={"user": str}, value={"n": int}, ttl=DAY)
    topology = built(kept, events(ttl=DAY))
    assert "state/events, changes/events, by user, in the order of at, kept for 1 day" in str(explain(topology))
    assert "state events (user → [at, n, …])" in topology.describe()
    shown = json.loads(topology.describe("json"))["components"][1]["states"]
    assert shown == [
        {"name": "kept", "key": ["user"], "ttl": 86400.0, "value": ["n"]},
        {"name": "events", "key": ["user"], "order": ["at"], "ttl": 86400.0, "value": ["n"]},
    ]
    shapes = [built(*states).fingerprint() for states in ([kept], [KeyedState("kept", {"user": str}, {"n": int})])]
    shapes += [built(events()).fingerprint(), built(events(ttl=DAY)).fingerprint()]
    assert len(set(shapes)) == 4
