"""Storm's own test-transactional-topology (storm.md, item 80) as a complete run, on both engines.

The transcript `storm_transactional_topology` lists its steps; these tests compare the committed values with it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from runs import ended
from storm_topologies import transactional_topology
from storm_world import OfWorld, World, fail_on
from watched import Gathering

from txstorm import SinkTable
from txstorm.engine.port import Engine
from txstorm.results.read import read_sink
from txstorm.testing.transcript import Step, Transcript

GOLDEN = Path(__file__).parents[1] / "golden" / "storm_transactional_topology.json"
COMPONENTS = ("global", "gcommit", "sum", "count", "count2")


class Results(OfWorld, Gathering):
    """A committer that stores the emissions of all components, and fails on demand after all others have finished."""

    sink = SinkTable("results", {"source": str, "word": str, "n": int})

    def execute(self, tuple):
        self.taken.append((tuple.source_component, tuple["word"] if "word" in tuple else "", tuple["n"]))

    def finish_batch(self):
        for row in self.taken:
            self.context.sink("results").append(*row)
        self.world.note("finished", self.attempt.txid)
        fail_on(self.world, "results", self.attempt)


def committed_values(steps: list[Step]) -> dict[int, Counter]:
    """Return txid → values emitted by its last attempt, for the txids 1 to 4, of which all values are known."""
    last = {(txid, name): rows for step in steps for name, txids in step.emits.items() for txid, rows in txids.items()}
    found: dict[int, Counter] = {}
    for (txid, name), rows in last.items():
        found.setdefault(txid, Counter()).update((name, "".join(word), n) for *word, n in rows)
    return {txid: found[txid] for txid in range(1, 5)}


def test_item_80_test_transactional_topology(world: World, make_engine: Callable[[], Engine], tmp_path: Path) -> None:
    def results(builder):
        committer = builder.set_committer_bolt("results", Results(world))
        for component in COMPONENTS:
            committer.global_grouping(component)

    topology = transactional_topology(results)
    topology = topology.with_settings({"max_spout_pending": 2, "max_pack_txids": 1, "max_group_txids": 1})
    steps = Transcript.load(GOLDEN).steps
    world.ticket("results-2-failed")
    ended(topology, tmp_path / "data", make_engine(), until_txid=2)
    for method, *arguments in (call for step in steps for call in step.source):
        getattr(topology.spout.object, method)(*arguments)
    ended(topology, tmp_path / "data", make_engine(), until_txid=6)

    found: dict[int, Counter] = {}
    for row in read_sink(tmp_path / "data", "results").to_pylist():
        found.setdefault(row["_txid"], Counter())[row["source"], row["word"], row["n"]] += 1
    empty = Counter({("global", "", 0): 1, ("gcommit", "", 0): 1})
    assert found == {**committed_values(steps), 5: empty, 6: empty}
    assert [txid for _, txid in world.notes("finished")] == [1, 2, 2, 3, 4, 5, 6]
