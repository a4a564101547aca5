"""Worlds with a stateful bolt: its counts are right in its state, and in what it emits, transaction by transaction."""

from collections import Counter

from stateful_nets import SharedWordCount, TypedWordCount
from world_bolts import Record, recorded

from txstorm.results.read import read_state
from txstorm.simulation.topologies.kind import WorldKind

WORDS = ("the", "cow", "moon", "cat", "a")


class StatefulWorld(WorldKind):
    name = "stateful"
    streams = {"default": ("word",)}

    def declare(self, rng):
        self.shared, self.tasks = rng.random() < 0.3, rng.choice([1, 2])

    def build(self, builder, world):
        bolt = SharedWordCount() if self.shared else TypedWordCount()
        builder.set_bolt("count", bolt, self.tasks).fields_grouping("feed", ["word"])
        builder.set_committer_bolt("record", Record()).global_grouping("count")

    def rows(self, partition):
        return [("default", (self.rng.choice(WORDS),)) for _ in range(self.rng.randrange(4))]

    def check(self, batches, data_dir):
        counts, found = Counter(), recorded(data_dir)
        for batch in batches:
            expected = []
            for _, (word,) in batch.rows:
                counts[word] += 1
                expected.append([word, counts[word]])
            if sorted(found.pop(batch.txid, {}).get("default", [])) != sorted(expected):
                return f"txid {batch.txid} does not emit {expected}"
        if found:
            return f"there are rows of {sorted(found)}"
        state = {row["key"]: row["value"] for row in read_state(data_dir, "count").to_pylist()}
        return None if state == counts else f"the state has {state}, not {counts}"
