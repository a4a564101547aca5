"""Committers finish the next group while one is published: same rows, same order, even after failures."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import loaded
from recovery_cases import KILLED, check, committed_versions, ended, environment, eventually, open_books, sums
from watched import NUMBERS, Diary, Keep, ShelfSpout, Watched, at, numbers, raising

from txstorm import FailedException, TransactionalTopologyBuilder, faults
from txstorm.errors import TopologyFailed
from txstorm.results.read import read_changes

ALONE = {"finish_ahead": True, "max_group_txids": 1, "max_spout_pending": 8, "max_pack_txids": 2}

Publishing = Callable[[Callable[[int], object]], None]


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch) -> Publishing:
    """Return a hook setter: the hook gets 1, 2, … on the publishing thread, before the first table of each group."""

    def hold(before: Callable[[int], object]) -> None:
        groups, point = 0, faults.point

        def held(name: str) -> None:
            nonlocal groups
            point(name)
            if name == "p7.1.before":
                groups += 1
                before(groups)

        monkeypatch.setattr(faults, "point", held)

    return hold


def finished(diary: Diary, txid: int) -> bool:
    """Return whether the committer's `finish_batch` of `txid` was called."""
    return txid in diary.txids("commit")


def running_sums(data_dir: Path) -> list[int]:
    return [row["n"] for row in read_changes(data_dir, "total", 1, 10).sort_by("_txid").to_pylist()]


def assert_everything_once(data_dir: Path) -> None:
    assert sums(data_dir) == dict.fromkeys(NUMBERS, 1)
    assert running_sums(data_dir) == [sum(NUMBERS[: 2 * txid]) for txid in range(1, 11)]
    check(data_dir, 10)


def test_finish_batch_runs_while_the_group_before_it_is_published(watch, publishing):
    publishing(lambda n: n == 10 or eventually(lambda: finished(watch.diary, n + 1)))
    watch.ends(**ALONE)
    assert watch.diary.txids("commit") == list(range(1, 11))  # in order, each once
    assert committed_versions(watch.data_dir) == list(range(1, 11))
    assert_everything_once(watch.data_dir)


def test_no_more_than_the_next_group_is_finished_ahead(watch, publishing):
    diary = watch.diary

    def look(group: int) -> None:
        if group == 2:
            eventually(lambda: len(diary.of("process")) >= 8)  # there is enough to go on with
            eventually(lambda: finished(diary, 4))
            diary.note("most", max(diary.txids("commit")))

    publishing(look)
    watch.ends(**{**ALONE, "max_group_txids": 2, "max_pack_txids": 4})
    ((most,),) = diary.of("most")
    assert most <= 6  # groups 1, 2 of at most two txids each, and the next
    assert_everything_once(watch.data_dir)


class Threads(Keep):
    def prepare(self, context, collector, attempt):
        super().prepare(context, collector, attempt)
        self.prepared_on = threading.get_ident()

    def finish_batch(self):
        self.diary.note("thread", self.prepared_on, threading.get_ident())
        super().finish_batch()


def test_a_committer_is_on_one_thread_only(data_dir, diary, publishing):
    publishing(lambda n: n == 10 or eventually(lambda: finished(diary, n + 1)))
    builder = TransactionalTopologyBuilder("watched", "numbers", numbers())
    builder.set_bolt("commit", Threads(diary, "commit")).global_grouping("numbers")
    ended(builder.build_topology().with_settings(ALONE), data_dir)
    assert len({ident for one in diary.of("thread") for ident in one}) == 1


def test_what_fails_ahead_is_replayed_and_what_is_published_stays(watch, publishing):
    def trouble(txid, nth):
        if txid in (3, 7) and nth == 1:
            raise FailedException("once")

    publishing(lambda n: n in (2, 6) and eventually(lambda: finished(watch.diary, n + 1)))
    handle = watch.ends(commit=trouble, **ALONE)
    # What is behind a failed txid is not finished before it.
    assert watch.diary.txids("commit") == [1, 2, 3, 3, 4, 5, 6, 7, 7, 8, 9, 10]
    assert handle.progress.replays >= 2
    assert_everything_once(watch.data_dir)


def test_an_error_ahead_ends_the_topology_after_what_comes_before_it(watch, publishing):
    publishing(lambda n: n == 2 and eventually(lambda: finished(watch.diary, 3)))
    with pytest.raises(TopologyFailed, match=r"txid 3 .*broken"):
        watch.ends(commit=at(3, raising(ValueError("broken"))), **ALONE)
    assert committed_versions(watch.data_dir) == [1, 2]
    assert watch.diary.txids("commit") == [1, 2, 3]


def test_a_committer_that_hangs_ahead_is_taken_away(watch, publishing):
    diary = watch.diary
    publishing(lambda n: n == 4 and eventually(lambda: finished(diary, 5)))
    trouble = at(5, lambda: eventually(lambda: diary.of("over")), times=1)
    watch.ends(commit=trouble, batch_timeout=1, on_error="retry(20)", **ALONE)
    diary.note("over")
    assert diary.calls("commit")[5] >= 2
    assert_everything_once(watch.data_dir)


def test_a_stop_drops_what_was_finished_ahead(watch, publishing):
    stopped = threading.Event()
    publishing(lambda n: n == 2 and eventually(lambda: finished(watch.diary, 3)) and stopped.wait(60))
    handle = watch.start(**ALONE)
    eventually(lambda: finished(watch.diary, 3))
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    eventually(lambda: handle._driver.stopping.is_set())
    stopped.set()
    stopping.join()
    assert handle.committed == 2
    assert committed_versions(watch.data_dir) == [1, 2]

    watch.ends(**ALONE)
    assert_everything_once(watch.data_dir)


def test_an_opaque_replay_discards_rows_written_ahead(watch, shelf, publishing):
    shelf.write(NUMBERS)
    expected = [*NUMBERS[:6], *range(101, 115)]

    def change():
        shelf.write(expected, take=3)
        raise FailedException("other rows now")

    publishing(lambda n: n == 3 and eventually(lambda: finished(watch.diary, 4)))
    handle = watch.ends(ShelfSpout(shelf), commit=at(4, change, times=1), **ALONE)
    assert sums(watch.data_dir) == dict.fromkeys(expected, 1)
    assert running_sums(watch.data_dir)[2:4] == [sum(expected[:6]), sum(expected[:9])]
    check(watch.data_dir, handle.committed)


class Outside(Watched):
    def finish_batch(self):
        with open_books(Path(self.diary.path).parent / "data") as books:
            self.diary.note("currtx", books.currtx())
        super().finish_batch()


def test_effects_outside_wait_for_the_transaction_before(place, diary):
    builder = TransactionalTopologyBuilder("watched", "numbers", numbers())
    builder.set_committer_bolt("commit", Outside(diary, "commit"), external=True).global_grouping("numbers")
    ended(builder.build_topology().with_settings({**ALONE, "max_group_txids": 4}), place / "data")
    assert diary.of("currtx") == [[txid] for txid in range(1, 11)]


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from test_finishing_ahead import ALONE
from watched import Watch, at

place = Path(sys.argv[1])

def die():
    while (place / "trace").read_text().split().count("p7.2.before") < 3:
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)

Watch(place).ends(commit=at(4, die), **ALONE)
"""


@pytest.mark.integration
def test_sigkill_between_two_tables_while_the_next_group_is_finished(place, watch):
    """Txid 3 is decided, one of its tables is published, another hangs, and txid 4 is finishing ahead of it."""
    faults = {"TXSTORM_FAULT": "p7.2.before:hang:3", "TXSTORM_FAULT_TRACE": str(place / "trace")}
    child = loaded().run("-c", SCRIPT, place, env=environment(**faults))
    assert child.returncode == KILLED, child.stderr
    with open_books(watch.data_dir) as books:
        assert books.currtx() == 3
        assert [intent.last for intent in books.live_intents()] == [3]

    watch.ends(**ALONE)
    assert watch.diary.txids("commit") == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10]  # of txid 3 no code ran again
    assert_everything_once(watch.data_dir)
