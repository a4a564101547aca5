"""User-defined spouts of Storm's three kinds, on both engines (storm.md, items 46 and 49 to 61)."""

import random
from pathlib import Path

import pytest
from storm_world import OpaqueLog, OpaquePlainLog, PartitionedLog, PlainLog, World, finished

from txstorm.books.books import Books
from txstorm.errors import MetadataError
from txstorm.ledger.open import open_ledger
from txstorm.results.read import read_sink
from txstorm.spouts import OpaqueMemoryTransactionalSpout

ALONE = {"max_spout_pending": 1}


@pytest.fixture
def batches(tmp_path: Path):
    def read() -> dict[int, dict[int, list[str]]]:
        found: dict[int, dict[int, list[str]]] = {}
        for row in read_sink(tmp_path / "data", "rows").to_pylist():
            found.setdefault(row["_txid"], {}).setdefault(row["partition"], []).append(row["line"])
        return found

    return read


def emissions(world: World, word: str, txid: int | None = None) -> list[tuple[int, int, object]]:
    """Return (txid, partition, metadata) of the recorded calls of one kind, in order."""
    notes = [(note[1], note[4], note[5]) for note in world.notes(word)]
    return [note for note in notes if txid in (None, note[0])]


KINDS = [PlainLog, OpaquePlainLog, PartitionedLog, OpaqueLog]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_every_line_once(kind, start, world, batches) -> None:
    """T30, T31, T32: each of the three kinds of spouts emits every line exactly once."""
    for partition, size in enumerate((5, 0, 7)):
        world.append(partition, *(f"{partition}.{n}" for n in range(size)))
    finished(start(kind, tasks=2, available_now=True))
    assert batches() == {
        1: {0: ["0.0", "0.1"], 2: ["2.0", "2.1"]},
        2: {0: ["0.2", "0.3"], 2: ["2.2", "2.3"]},
        3: {0: ["0.4"], 2: ["2.4", "2.5"]},
        4: {2: ["2.6"]},
    }


FAILURES = [
    (PlainLog, "watch-execute"),
    (PlainLog, "after-keep"),
    (OpaquePlainLog, "watch-finish"),
    (PartitionedLog, "watch-finish"),
    (PartitionedLog, "keep-finish"),
    (PartitionedLog, "emit"),
    (OpaqueLog, "after-keep"),
    (OpaqueLog, "emit"),
]


@pytest.mark.parametrize(("kind", "place"), FAILURES)
def test_item_43_44_45_46_a_failed_exception_fails_at_once_and_is_replayed(kind, place, start, world, batches) -> None:
    """T27, T35: transactions after the failed one are emitted again after it. T31: a replay emits the stored batch."""
    world.append(0, *map(str, range(8)))
    world.ticket(f"{place}-2-failed", times=2)
    handle = start(kind, available_now=True)
    finished(handle)
    assert batches() == {1: {0: ["0", "1"]}, 2: {0: ["2", "3"]}, 3: {0: ["4", "5"]}, 4: {0: ["6", "7"]}}
    assert handle.progress.replays == 2
    kept = [note[1:] for note in world.notes("kept")]
    assert [txid for txid, _ in kept if txid != 2] == sorted(txid for txid, _ in kept if txid != 2)
    attempts = {row["_txid"]: row["attempt"] for row in read_sink(handle.data_dir, "rows").to_pylist()}
    assert attempts[1] < attempts[2] < attempts[3] < attempts[4]
    # Those after the failed one are emitted again with new attempts; the one before it ran once.
    word = {PartitionedLog: "new", OpaqueLog: "opaque"}.get(kind, "emit")
    emitted = [tuple(note[1:3]) for note in world.notes(word)]
    assert len([txid for txid, _ in emitted if txid == 1]) == 1
    if kind is not PartitionedLog:
        tries = sorted(attempt for txid, attempt in emitted if txid == 2)
        assert len(tries) == 3
        assert attempts[2] == tries[-1]
    elif place != "emit":  # its metadata is stored before the failure
        assert emissions(world, "new", 2) == [(2, 0, [2, 4])]
        assert emissions(world, "again", 2) == [(2, 0, [2, 4])] * 2


class SilentLog(PlainLog):
    """A spout whose source cannot report how much it holds."""

    def latest(self):
        return None


def test_process_all_available_asks_a_source_that_cannot_tell_what_it_holds(start, world, batches) -> None:
    world.append(0, "a", "b", "c")
    handle = start(SilentLog)
    world.wait(lambda: handle.committed == 2 and not handle.in_flight, "all of it")
    for line in "defgh":
        world.append(0, line)
        handle.processAllAvailable()
        assert [line for lines in batches().values() for line in lines[0]][-1] == line
    handle.stop()


@pytest.mark.parametrize("kind", [PartitionedLog, OpaqueLog])
def test_process_all_available_is_not_fooled_by_transactions_from_before(kind, start, world, batches) -> None:
    world.append(0, "a")
    world.hold(2)
    handle = start(kind, settings={"max_spout_pending": 4, "max_group_txids": 1})
    world.await_hold(lambda: len(handle.in_flight) == 4)
    world.append(0, "b")
    done = handle._driver.wait_for_all()
    handle._driver.ask(lambda: (world.directory / "hold-2").unlink()).result(60)
    world.release(2)
    done.result(120)
    assert [lines for lines in batches().values() if lines] == [{0: ["a"]}, {0: ["b"]}]
    handle.stop()


APPENDED = {
    "items 49, 64: a line never enters a replay": (
        PartitionedLog,
        1,
        ["abc", (0, "late")],
        {1: {0: ["a", "b"]}, 2: {0: ["c"]}, 3: {0: ["late"]}},
    ),
    "item 50: a new partition joins with the next new transaction": (
        PartitionedLog,
        2,
        ["abcdef", (1, "new")],
        {1: {0: ["a", "b"]}, 2: {0: ["c", "d"]}, 3: {0: ["e", "f"], 1: ["new"]}},
    ),
    "item 59: a new partition of an opaque spout joins with the replay": (
        OpaqueLog,
        2,
        ["abcd", (1, "new")],
        {1: {0: ["a", "b"]}, 2: {0: ["c", "d"], 1: ["new"]}},
    ),
}


@pytest.mark.parametrize("name", APPENDED)
def test_what_is_appended_before_a_replay(name, start, world, batches) -> None:
    """Items 49, 50, 59, 64; T31: a replay emits the metadata's batch. Also T17.

    T32: an opaque spout is asked for the number of partitions again at every attempt.
    """
    kind, tasks, (lines, appended), expected = APPENDED[name]
    world.append(0, *lines)
    world.hold(2, fails=True)
    handle = start(kind, tasks=tasks, settings=ALONE, until_txid=len(expected))
    world.await_hold()
    world.append(*appended)
    world.release(2)
    finished(handle)
    if kind is PartitionedLog:
        batch = [(2, 0, [2, min(4, len(lines))])]
        assert (emissions(world, "new", 2), emissions(world, "again", 2)) == (batch, batch)
    assert batches() == expected


def test_item_51_a_partition_that_gave_nothing_gives_nothing_in_a_replay(start, world, batches) -> None:
    world.append(0, *"abcdef")
    world.append(1, *"ABCDEF")
    world.ticket("away-1-2")
    world.hold(2, fails=True)
    handle = start(PartitionedLog, settings={"max_spout_pending": 4}, until_txid=4)
    world.await_hold()
    world.wait(lambda: bool(emissions(world, "new", 3)), "the emission of 3")
    world.release(2)
    finished(handle)
    expected = {1: {0: [*"ab"], 1: [*"AB"]}, 2: {0: [*"cd"]}, 3: {0: [*"ef"], 1: [*"CD"]}, 4: {1: [*"EF"]}}
    assert batches() == expected
    assert emissions(world, "again", 2) == [(2, 0, [2, 4])]


@pytest.mark.parametrize("kind", [PartitionedLog, OpaqueLog, PlainLog])
def test_item_52_another_number_of_tasks_moves_partitions_and_changes_no_batch(kind, start, world, batches) -> None:
    """T31, T37: batches do not depend on the number of emitter tasks; there is always one coordinator."""
    for partition in range(3):
        world.append(partition, *(f"{partition}.{n}" for n in range(8)))
    finished(start(kind, tasks=1, until_txid=2))
    finished(start(kind, tasks=3, until_txid=4))
    owners = {(note[4], note[3]) for word in ("new", "again", "opaque") for note in world.notes(word) if note[1] > 2}
    assert owners == ({(p, p) for p in range(3)} if kind is not PlainLog else set())
    expected = {t: {p: [f"{p}.{2 * t - 2}", f"{p}.{2 * t - 1}"] for p in range(3)} for t in range(1, 5)}
    assert batches() == expected


@pytest.mark.parametrize("kind", [PartitionedLog, OpaqueLog])
def test_item_53_empty_batches_are_transactions(kind, start, world, batches) -> None:
    world.append(0, "a", "b", "c")
    handle = start(kind, until_txid=5)
    finished(handle)
    assert handle.committed == 5
    assert batches() == {1: {0: ["a", "b"]}, 2: {0: ["c"]}}
    for bolt in ("watch", "keep"):
        assert [(n[3], n[5]) for n in world.notes("finish") if n[1] == bolt] == [(1, 2), (2, 1), (3, 0), (4, 0), (5, 0)]


WORDS = ["dog", "cat", "apple", "dog"]
IN_MEMORY = OpaqueMemoryTransactionalSpout([[(0, word) for word in WORDS]], ["partition", "line"], 2)


@pytest.mark.parametrize("spout", [OpaqueLog, IN_MEMORY], ids=["log", "memory"])
def test_item_54_pipelined_opaque_batches_do_not_overlap(spout, start, world, batches) -> None:
    """T33: nor do those of the in-memory opaque spout."""
    world.append(0, *WORDS)
    finished(start(spout, settings={"max_spout_pending": 2}, until_txid=2))
    assert batches() == {1: {0: ["dog", "cat"]}, 2: {0: ["apple", "dog"]}}


@pytest.mark.parametrize("kind", [OpaqueLog, OpaquePlainLog])
@pytest.mark.parametrize("place", ["watch-finish", "after-keep"])
def test_item_55_56_57_a_replay_begins_where_the_previous_transaction_ended(kind, place, start, world, batches) -> None:
    """T32, T36: an opaque replay begins where the previous transaction ended."""
    world.append(0, *map(str, range(12)))
    world.hold(1)
    world.ticket(f"{place}-2-failed")
    handle = start(kind, settings={"max_spout_pending": 3, "max_pack_txids": 3, "max_group_txids": 1}, until_txid=4)
    world.await_hold()
    if place == "after-keep":
        world.wait(lambda: len(world.notes("finish")) >= 3, "the processing of 3")
    else:
        world.wait(lambda: any(n[:2] + n[3:4] == ["finish", "watch", 2] for n in world.notes()), "the failure of 2")
    world.amount = 3
    world.release(1)
    finished(handle)
    got = batches()
    assert got[1] == {0: ["0", "1"]}
    lines = [line for txid in sorted(got) for line in got[txid].get(0, [])]
    assert lines == [str(n) for n in range(len(lines))]
    if place == "after-keep":
        assert [got[txid] for txid in (2, 3, 4)] == [{0: [*"234"]}, {0: [*"567"]}, {0: ["8", "9", "10"]}]
    if kind is OpaqueLog:
        assert {str(last) for _, _, last in emissions(world, "opaque", 2)} == {str({"end": 2})}


def test_item_58_what_was_processed_but_not_decided_is_processed_again_after_a_stop(start, world, batches) -> None:
    world.append(0, *map(str, range(12)))
    world.hold(2)
    handle = start(OpaqueLog, settings={"max_spout_pending": 3, "max_group_txids": 1}, until_txid=4)
    world.await_hold()
    world.wait(lambda: bool(emissions(world, "opaque", 3)), "the emission of 3")
    world.release(2)
    handle.stop()
    world.amount = 3
    finished(start(OpaqueLog, settings={"max_spout_pending": 3}, until_txid=4))
    got = batches()
    assert got[1] == {0: ["0", "1"]}
    lines = [line for txid in sorted(got) for line in got[txid][0]]
    assert lines == [str(n) for n in range(len(lines))]
    assert len(got[4][0]) == 3


def test_item_60_a_partition_that_cannot_be_read_keeps_its_position(start, world, batches) -> None:
    """T32: a partition whose broker is unavailable keeps its position."""
    world.append(0, "a", "b", "c", "d", "e", "f")
    world.append(1, "A", "B", "C", "D")
    world.ticket("away-1-2")
    finished(start(OpaqueLog, until_txid=3))
    assert batches() == {1: {0: ["a", "b"], 1: ["A", "B"]}, 2: {0: ["c", "d"]}, 3: {0: ["e", "f"], 1: ["C", "D"]}}


@pytest.mark.parametrize("stop_at", [2, 3], ids=["restart-before", "restart-after"])
def test_item_61_no_metadata_means_the_last_there_was(stop_at, start, world, batches) -> None:
    world.append(0, "a", "b", "c", "d", "e", "f", "g")
    world.append(1, "A", "B", "C", "D")
    for txid in (2, 3):
        world.ticket(f"null-1-{txid}")
    finished(start(OpaqueLog, until_txid=stop_at))
    finished(start(OpaqueLog, until_txid=4))
    expected = {1: {0: [*"ab"], 1: [*"AB"]}, 2: {0: [*"cd"]}, 3: {0: [*"ef"]}, 4: {0: ["g"], 1: [*"CD"]}}
    assert batches() == expected
    assert [last for _, partition, last in emissions(world, "opaque") if partition == 1][1:] == [{"end": 2}] * 3


def test_item_29_31_what_is_kept_of_committed_transactions(start_on_threads, world, batches, tmp_path) -> None:
    """The positions of all partitions, including empty ones, are retained until the next transaction has them."""
    world.append(0, *"abcdef")
    world.append(1, *"AB")
    world.ticket("null-1-3")
    finished(start_on_threads(OpaqueLog, until_txid=3))
    ledger = open_ledger(tmp_path / "data", create=False)
    ledger.acquire("logs")
    metas = Books(ledger, tmp_path / "data" / "intents").metas()
    ledger.close()
    assert {txid: meta.document for txid, meta in metas.items()} == {
        3: {"parts": {"0": {"batch": {"end": 6}}, "1": {"kept": {"end": 2}}}}
    }


def test_item_17_63_metadata_is_made_once_over_restarts(start, world, batches) -> None:
    """T19, T43: metadata persists in the directory, and is not computed again after a restart. Also T30."""
    world.append(0, *map(str, range(8)))
    world.hold(2)
    handle = start(PlainLog, settings={"max_spout_pending": 4, "max_group_txids": 1})
    world.await_hold()
    world.wait(lambda: any(note[1] == 4 for note in world.notes("emit")), "the emission of 4")
    world.release(2)
    handle.stop()
    world.amount = 5
    world.ticket("not-ready", times=1)
    finished(start(PlainLog, available_now=True))
    made = [note[1] for note in world.notes("initialize")]
    assert made[:4] == [1, 2, 3, 4]
    assert [txid for txid in made if txid <= 4] == [1, 2, 3, 4]
    assert batches() == {t: {0: [str(2 * t - 2), str(2 * t - 1)]} for t in range(1, 5)}


def test_item_18_a_coordinator_that_fails_is_asked_again(start, world, batches) -> None:
    world.append(0, "a", "b", "c")
    world.ticket("initialize-1-failed", times=2)
    world.ticket("initialize-2-failed")
    finished(start(PlainLog, available_now=True))
    assert batches() == {1: {0: ["a", "b"]}, 2: {0: ["c"]}}


def test_emitters_hear_what_is_committed_and_coordinators_are_closed(start, world) -> None:
    world.append(0, *map(str, range(8)))
    finished(start(PlainLog, settings=ALONE, available_now=True))
    assert [note[1] for note in world.notes("cleanup")] == [1, 2, 3]
    assert len(world.notes("coordinator closed")) == 1


def test_opaque_tuples_without_metadata_are_refused(world, start) -> None:
    class Forgetful(OpaqueLog):
        def emit_partition_batch(self, *arguments):
            super().emit_partition_batch(*arguments)

    world.append(0, "a")
    with pytest.raises(MetadataError, match=r"log.*partition 0.*txid 1.*no metadata"):
        start(Forgetful, available_now=True).awaitTermination(60)


PLACES = ["watch-execute", "watch-finish", "keep-finish", "after-keep", "emit"]


def storm(world: World, rng: random.Random, kind: type) -> dict[int, list[str]]:
    """Write lines to three partitions and schedule a dozen random failures; return the lines by partition."""
    lines = {p: [f"{p}.{n}" for n in range(rng.randint(0, 25))] for p in range(3)}
    for partition, content in lines.items():
        world.append(partition, *content[: rng.randint(0, len(content))])
    for _ in range(12):
        world.ticket(f"{rng.choice(PLACES)}-{rng.randint(1, 8)}-failed", times=rng.randint(1, 2))
    for _ in range(4):
        away = rng.choice(["away", "null"]) if kind is OpaqueLog else "away"
        world.ticket(f"{away}-{rng.randrange(3)}-{rng.randint(1, 8)}")
    return lines


def committed_lines(batches, partition: int) -> list[str]:
    return [line for _, found in sorted(batches().items()) for line in found.get(partition, [])]


ON_SPARK = [pytest.param(kind, 0, "spark", marks=pytest.mark.spark) for kind in (PartitionedLog, OpaqueLog)]
ENDURING = [*((kind, seed, "local") for kind in KINDS for seed in range(3)), *ON_SPARK]


@pytest.mark.parametrize(("kind", "seed", "make_engine"), ENDURING, indirect=["make_engine"])
def test_whatever_fails_every_line_is_committed_once_and_in_order(kind, seed, start, world, batches) -> None:
    rng = random.Random(f"{kind.__name__} {seed}")
    lines = storm(world, rng, kind)
    handle = start(kind, tasks=rng.randint(1, 3), settings={"max_spout_pending": rng.randint(1, 6)})
    for partition, content in lines.items():
        handle.processAllAvailable()
        world.append(partition, *content[len(world.lines(partition)) :])
        if kind.__name__.startswith("Opaque"):
            world.amount = rng.randint(1, 5)
    # A source that cannot tell what it holds may have been away when it was asked.
    while any(committed_lines(batches, p) != lines[p] for p in lines if lines[p]):
        handle.processAllAvailable()
    handle.stop()
    assert {p: committed_lines(batches, p) for p in lines} == lines
    counts = {row["line"]: row["n"] for row in handle.state("counts").to_pylist()}
    assert counts == {line: 1 for content in lines.values() for line in content}
    attempts = {row["_txid"]: row["attempt"] for row in read_sink(handle.data_dir, "rows").to_pylist()}
    assert sorted(attempts.values()) == [attempts[txid] for txid in sorted(attempts)]
