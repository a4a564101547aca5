"""Storm's guarantees about bolts and phases, by observable results on both engines (storm.md, items 32 to 48).

Storm's own tests and worked examples are replayed on the test driver (the files name the items), and its
test-transactional-topology (item 80) as a complete run, whose committed values are those of the transcript.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import storm_topologies as storm
from runs import ended
from storm_topologies import transactional_topology
from storm_world import Keep, OfWorld, PlainLog, Watch, WatchEach, World, fail_on, finished, lines_by_txid
from watched import Gathering

from txstorm import SinkTable, TransactionalTopologyBuilder, run
from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine
from txstorm.errors import TopologyFailed
from txstorm.results.read import read_sink, read_state
from txstorm.testing import run_transcript
from txstorm.testing.transcript import Step, Transcript

Factory = Callable[[], Engine]


class Net:
    """Builder of a topology over one log of lines, with a short method for each kind of bolt."""

    def __init__(self, world: World, tmp_path: Path, engine: Factory):
        self.world, self.data_dir, self.engine = world, tmp_path / "data", engine
        self.builder = TransactionalTopologyBuilder("net", "log", PlainLog(world))
        self.builder.set_settings({"compact_on_stop": False, "retry_backoff": 0.001})

    def bolt(self, id: str, *sources: str, kind=Watch, tasks: int = 1, committer: bool = False) -> Net:
        add = self.builder.set_committer_bolt if committer else self.builder.set_bolt
        declarer = add(id, kind(self.world), tasks)
        for source in sources:
            declarer.fields_grouping(source, ["line"])
        return self

    def start(self, **options):
        self.builder.set_settings(options.pop("settings", {}))
        options = options or {"available_now": True}
        self.world.handle = run(self.builder.build_topology(), engine=self.engine(), data_dir=self.data_dir, **options)
        return self.world.handle

    def finish(self, **options):
        handle = self.start(**options)
        finished(handle)
        return handle

    @property
    def order(self) -> list[tuple[str, int]]:
        """(component, txid) of every `finish_batch` call, in call order."""
        return [(note[1], note[3]) for note in self.world.notes("finish")]

    def lines(self) -> dict[int, list[str]]:
        return lines_by_txid(self.data_dir)


@pytest.fixture
def net(world: World, make_engine: Factory, tmp_path: Path) -> Net:
    world.append(0, *"abcdef")
    return Net(world, tmp_path, make_engine)


PLACES = ["each-execute", "watch-execute", "watch-finish", "keep-execute", "keep-finish", "after-keep"]


@pytest.mark.parametrize("place", PLACES)
def test_item_32_34_44_45_66_a_retry_runs_both_phases_again_from_zero(place: str, net: Net) -> None:
    """Each attempt of each task has its own bolt instance (T16), and states are as if the failed one had not been.

    A failure in `execute` fails at once (T27), in the commit phase both phases are repeated (T29). Also T14.
    """
    for txid in (1, 2, 5):
        net.world.ticket(f"{place}-{txid}-failed")
    net.world.append(0, *"aabbcc")
    net.bolt("each", "log", kind=WatchEach).bolt("watch", "each").bolt("keep", "watch", kind=Keep)
    assert net.finish(settings={"batch_timeout": 3600, "max_spout_pending": 1}).progress.replays == 3
    assert {note[5] for note in net.world.notes("finish")} == {2}
    emitted = Counter(note[1] for note in net.world.notes("emit"))
    assert emitted == {txid: 1 + (txid in (1, 2, 5)) for txid in range(1, 7)}
    assert net.lines() == {txid: [*lines] for txid, lines in enumerate("ab cd ef aa bb cc".split(), 1)}
    counts = {row["line"]: row["n"] for row in read_state(net.data_dir, "counts").to_pylist()}
    assert counts == {**dict.fromkeys("abc", 3), **dict.fromkeys("def", 1)}


def test_item_33_every_task_finishes_every_batch_also_without_tuples(net: Net) -> None:
    """T15, T22: a task is notified of the end of a batch even if it received no tuples."""
    net.bolt("watch", "log", tasks=3).bolt("keep", "watch", kind=Keep, tasks=4).finish()
    finishes = Counter(tuple(note[1:4]) for note in net.world.notes("finish"))
    tasks = [("watch", task) for task in range(3)] + [("keep", task) for task in range(4)]
    assert finishes == Counter((bolt, task, txid) for bolt, task in tasks for txid in (1, 2, 3))


def test_item_35_a_batch_that_times_out_is_dropped_without_finishing(world: World, tmp_path: Path) -> None:
    class Slow(Watch):
        def execute(self, tuple):
            super().execute(tuple)
            if self.world.take("hang"):
                self.world.await_ticket("go-on")

    world.append(0, *"abcdef")
    world.ticket("hang")
    net = Net(world, tmp_path, LocalEngine)
    net.bolt("watch", "log", kind=Slow).bolt("keep", "watch", kind=Keep)
    net.finish(settings={"batch_timeout": 0.5})
    world.ticket("go-on")
    assert net.lines() == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"]}
    assert [note[1] for note in world.notes("kept")] == [1, 2, 3]


def test_item_41_basic_bolts_see_each_tuple_once_per_attempt(net: Net) -> None:
    """T21: a basic bolt processes single tuples, independent of batches."""
    net.bolt("each", "log", kind=WatchEach, tasks=2).bolt("watch", "each").bolt("keep", "watch", kind=Keep)
    net.world.ticket("watch-finish-2-failed")
    net.finish()
    seen = Counter((note[3], note[4], note[5]) for note in net.world.notes("execute"))
    assert set(seen.values()) == {1}
    attempts = {txid: {attempt for t, attempt, _ in seen if t == txid} for txid in (1, 2, 3)}
    assert len(attempts[2]) == 2
    for txid, lines in net.lines().items():
        for attempt in attempts[txid]:
            assert {line for t, a, line in seen if (t, a) == (txid, attempt)} <= set(lines)
    assert net.lines() == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"]}


def test_item_38_39_what_is_behind_a_committer_finishes_in_the_same_commit_phase(net: Net) -> None:
    """T28: batch bolts and committers downstream of a committer finish in its commit phase."""
    net.bolt("first", "log", committer=True).bolt("plain", "first").bolt("second", "plain", kind=Keep)
    net.bolt("third", "second", "log", committer=True)
    net.finish(settings={"max_spout_pending": 3, "max_pack_txids": 3})
    chain = ["first", "plain", "second", "third"]
    assert net.order == [(bolt, txid) for txid in (1, 2, 3) for bolt in chain]
    assert net.lines() == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"]}


def test_item_37_40_the_diagram_with_a_batch_bolt_fed_by_both_phases(net: Net) -> None:
    """T28: the bolts A to D in the diagram of Storm's documentation; A processes the next txid while one commits.

    T40: a committer finishes a batch once it has all tuples and all earlier txids are committed. Also T23.
    """
    net.world.hold(1)
    net.bolt("A", "log").bolt("B", "A", kind=Keep).bolt("C", "A", "B").bolt("D", "C", committer=True)
    handle = net.start(until_txid=2, settings={"max_spout_pending": 2, "max_pack_txids": 1})
    net.world.await_hold(lambda: ("A", 2) in net.order)
    assert (sorted(net.order), handle.committed) == ([("A", 1), ("A", 2), ("B", 1)], 0)
    net.world.release(1)
    assert handle.awaitTermination(120)
    commits = [pair for pair in net.order if pair[0] != "A"]
    assert commits == [(bolt, txid) for txid in (1, 2) for bolt in "BCD"]
    tuples = {(note[1], note[3]): note[5] for note in net.world.notes("finish")}
    assert tuples["C", 1] == 4
    assert tuples["D", 2] == 4


def test_a_reported_failure_is_shown(net: Net) -> None:
    net.world.ticket("watch-finish-2-reported")
    handle = net.bolt("watch", "log").bolt("keep", "watch", kind=Keep).finish()
    assert handle.status["lastFailure"] is None, "its txid is committed"
    cause = next(one.cause for one in handle.recentProgress if one.txid == 2)
    assert "ReportedFailedException" in cause
    assert "watch-finish of 2" in cause


@pytest.mark.parametrize("place", ["each-execute", "watch-finish", "keep-finish", "emit"])
def test_item_47_any_other_exception_ends_the_topology_and_a_restart_replays(place: str, net: Net) -> None:
    net.world.ticket(f"{place}-2-other")
    net.bolt("each", "log", kind=WatchEach).bolt("watch", "each").bolt("keep", "watch", kind=Keep)
    handle = net.start(available_now=True)
    with pytest.raises(TopologyFailed, match=rf"txid 2 .*ValueError at .*storm_world.py:\d+ in fail_on: {place} of 2"):
        handle.awaitTermination(120)
    assert handle.committed == 1
    assert net.lines() == {1: ["a", "b"]}
    net.finish()
    assert net.lines() == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"]}


def test_item_48_retries_are_not_limited(net: Net) -> None:
    net.world.ticket("watch-finish-1-failed", times=15)
    handle = net.bolt("watch", "log").bolt("keep", "watch", kind=Keep).finish(settings={"retry_backoff_max": 0.002})
    assert handle.progress.replays == 15
    assert net.lines() == {1: ["a", "b"], 2: ["c", "d"], 3: ["e", "f"]}


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


TRANSCRIPT_FILES = Path(__file__).parents[1] / "golden"
TRANSCRIPTS = {
    "storm_transactional_topology": storm.transactional_topology,  # item 80
    "storm_opaque_transactional_topology": storm.opaque_topology,  # item 54
    "storm_transactional_topology_restart": storm.restart_topology,  # item 62
    "storm_source_document": storm.source_document,  # item 77
    "storm_stale_failure": storm.stale_failure,  # item 81
    "storm_late_commit": storm.late_commit,  # item 82
    "storm_no_phantom_batch": storm.no_phantom_batch,  # item 83
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str) -> None:
    run_transcript(TRANSCRIPT_FILES / f"{name}.json", TRANSCRIPTS[name]())
