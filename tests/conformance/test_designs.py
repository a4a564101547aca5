"""The three designs in Storm's document on transactional topologies, and which steps may run ahead of the commit.

T5: one tuple per transaction. T6: one batch after the other. T7 and T23: processing overlaps, commits are in order, and
a committer's `execute` belongs to neither: only its `finish_batch` waits for its turn.
"""

import threading
from pathlib import Path

import pytest
from storm_world import Keep, PlainLog, Watch, World, lines_by_txid, start_net

from txstorm.engine.local import LocalEngine
from txstorm.errors import StateError, TopologyFailed
from txstorm.results.read import read_sink, read_state


@pytest.fixture
def world(world: World) -> World:
    world.amount = 1
    return world


class Noted(Keep):
    """A committer that stores lines, and records every `execute` and the threads of `prepare` and `finish_batch`."""

    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.thread = threading.get_ident()

    def execute(self, tuple):
        self.world.note("executed", *self.attempt, tuple["line"])
        super().execute(tuple)

    def finish_batch(self):
        assert self.thread == threading.get_ident()
        super().finish_batch()


class Hangs(Noted):
    """A committer whose first attempt at txid 3 hangs in `execute`, and tries to write when it is released."""

    def execute(self, tuple):
        super().execute(tuple)
        if self.world.take(f"hang-{self.attempt.txid}"):
            self.world.await_ticket("let-go")
            with pytest.raises(StateError):
                self.context.state("counts").put("late", 1)
            self.world.note("refused")


class Waits(Watch):
    """A bolt that blocks while it processes a txid for which a file exists."""

    def finish_batch(self):
        if (self.world.directory / f"wait-{self.attempt.txid}").exists():
            self.world.await_ticket(f"go-{self.attempt.txid}")
        super().finish_batch()


def start(world: World, data_dir: Path, make_engine, keep=Noted, **settings):
    bolts = {"watch": Waits, "keep": keep}
    return start_net(world, data_dir, make_engine, PlainLog, settings=settings, available_now=True, **bolts)


def lines_of(data_dir: Path) -> list[str]:
    return [line for _, lines in sorted(lines_by_txid(data_dir).items()) for line in lines]


@pytest.mark.parametrize("pending", [1, "auto"])
def test_t5_t6_one_tuple_per_transaction(pending, world, make_engine, tmp_path) -> None:
    lines = list("abcdefgh")
    world.append(0, *lines)
    handle = start(world, tmp_path / "data", make_engine, max_spout_pending=pending)
    assert handle.awaitTermination(120)
    assert lines_of(tmp_path / "data") == lines
    assert {row["_txid"] for row in read_sink(tmp_path / "data", "rows").to_pylist()} == set(range(1, 9))
    if pending == 1:
        what = [(note[0], note[1]) for note in world.notes() if note[0] in ("emit", "kept")]
        assert what == [(word, txid) for txid in range(1, 9) for word in ("emit", "kept")]
        assert {one.pack for one in handle.recentProgress} == {1}


def start_behind_1(world: World, data_dir: Path, ticket: str = "", times: int = 1, lines: str = "abcd", **more):
    """Start a run of a tuple per transaction, of which the processing of txid 1 waits for the ticket ``go-1``."""
    world.append(0, *lines)
    (world.directory / "wait-1").touch()
    if ticket:
        world.ticket(ticket, times)
    return start(world, data_dir, LocalEngine, max_spout_pending=4, max_pack_txids=1, max_jobs=4, **more)


def await_execution(world: World, *txids: int) -> None:
    world.wait(lambda: {*txids} <= {note[1] for note in world.notes("executed")}, f"the execution of {txids}")


def counted(data_dir: Path) -> dict[str, int]:
    return {row["line"]: row["n"] for row in read_state(data_dir, "counts").to_pylist()}


def test_t7_t23_only_finish_batch_waits_for_its_turn(world, tmp_path) -> None:
    handle = start_behind_1(world, tmp_path / "data")
    await_execution(world, 2, 3, 4)
    assert not [note for note in world.notes("finish") if note[1] == "keep"]
    world.ticket("go-1")
    assert handle.awaitTermination(60)
    assert [note[1] for note in world.notes("kept")] == [1, 2, 3, 4]
    assert sorted(note[1] for note in world.notes("executed")) == [1, 2, 3, 4]  # each once
    assert lines_of(tmp_path / "data") == list("abcd")


def test_a_failure_ahead_of_its_turn_replays_at_once(world, tmp_path) -> None:
    """Item 45 for committers: a failure in `execute` is reported at once, ahead of the commit order."""
    handle = start_behind_1(world, tmp_path / "data", "keep-execute-3-failed")
    replays = (1 << 32) + 5  # after the first attempts at four txids

    def replayed() -> set[int]:
        return {txid for _, txid, attempt, _ in world.notes("executed") if attempt >= replays}

    world.wait(lambda: replayed() == {3, 4}, "the next execution of 3 and 4")
    assert not world.notes("kept")
    world.ticket("go-1")
    assert handle.awaitTermination(60)
    assert handle.progress.replays == 1
    assert [note[1] for note in world.notes("kept")] == [1, 2, 3, 4]
    assert counted(tmp_path / "data") == dict.fromkeys("abcd", 1)


def test_an_exception_ahead_of_its_turn_ends_the_topology_after_the_txids_before_it(world, tmp_path) -> None:
    # Ahead of its turn; and again in its turn, if its group is being committed before the driver has seen the failure.
    handle = start_behind_1(world, tmp_path / "data", "keep-execute-3-other", 2)
    await_execution(world, 3)
    world.ticket("go-1")
    with pytest.raises(TopologyFailed, match=r"txid 3 .*keep\[0\] raised ValueError.*keep-execute of 3"):
        handle.awaitTermination(60)
    assert lines_of(tmp_path / "data") == ["a", "b"]


def test_what_was_executed_for_a_discarded_attempt_is_dropped(world, tmp_path) -> None:
    handle = start_behind_1(world, tmp_path / "data", "watch-finish-1-failed")
    await_execution(world, 2, 3, 4)
    (world.directory / "wait-1").unlink()
    world.ticket("go-1")
    assert handle.awaitTermination(60)
    kept = {note[1]: note[2] for note in world.notes("kept")}
    first = {note[1]: note[2] for note in world.notes("executed")[:3]}
    assert all(kept[txid] > first[txid] for txid in (2, 3, 4))
    assert counted(tmp_path / "data") == dict.fromkeys("abcd", 1)


def test_a_committer_that_hangs_ahead_of_its_turn_holds_up_no_other(world, tmp_path) -> None:
    """A hanging committer thread is abandoned; earlier commits that need it continue on a new thread."""
    handle = start_behind_1(world, tmp_path / "data", "hang-3", lines="abcdef", keep=Hangs, batch_timeout=2)
    await_execution(world, 3)
    (world.directory / "wait-1").unlink()
    world.ticket("go-1")
    assert handle.awaitTermination(60)
    assert lines_of(tmp_path / "data") == list("abcdef")
    assert [note[1] for note in world.notes("kept")] == [1, 2, 3, 4, 5, 6]
    world.ticket("let-go")
    world.handle = None
    world.wait(lambda: world.notes("refused"), "the end of the thread that was left behind")
    assert lines_of(tmp_path / "data") == list("abcdef")
