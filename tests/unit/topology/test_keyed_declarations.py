"""Declarations of collections and times to live: whose keys they have, and how they are displayed."""

import json
from datetime import timedelta

from topology_samples import Silent

from txstorm import CollectionState, Committer, KeyedState, TransactionalTopologyBuilder, explain
from txstorm.spouts import MemoryTransactionalSpout

DAY = timedelta(days=1)


class Keep(Silent, Committer):
    def __init__(self, *states):
        self.states = states


def built(*states, grouping=("user",), parallelism=2):
    builder = TransactionalTopologyBuilder("t", "lines", MemoryTransactionalSpout([[]], ["user", "at"]))
    builder.set_committer_bolt("keep", Keep(*states), parallelism).fields_grouping("lines", grouping)
    return builder.build_topology()


def events(**changes):
    given = {"key": {"user": str}, "order": {"at": int}, "value": {"n": int}}
    return CollectionState("events", **{**given, **changes})


def test_keyed_declarations_are_displayed_in_the_fingerprint_and_owned_by_the_task_of_the_key():
    assert built(events()).warnings == ()
    (warning,) = built(events(), grouping=("user", "at")).warnings
    assert "state 'events'" in warning
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
