"""Ends of runs: stopped, interrupted, replaced, refused, fenced; the next run continues from there."""

import signal
import threading
from pathlib import Path

import pytest
from programs import Program, loaded
from recovery_cases import check_tiling, environment, eventually, finish, last_decided, open_books, reaches, start
from watched import Endless, Watch, at

from txstorm.errors import BlockedError, FencedError, HeldError, StoppedError
from txstorm.results.read import read_sink
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.table import open_table


def go_on(watch: Watch) -> None:
    """Continue with another run; check that every transaction was committed exactly once."""
    until = last_decided(watch.data_dir) + 5
    watch.ends(Endless(), until_txid=until)
    assert_once(watch.data_dir, until)


def assert_once(data_dir: Path, txids: int) -> None:
    rows = [(row["_txid"], row["n"]) for row in read_sink(data_dir, "numbers").to_pylist()]
    assert rows == [(txid, number) for txid in range(1, txids + 1) for number in (2 * txid - 1, 2 * txid)]
    check_tiling(data_dir, txids)


def assert_clean(data_dir: Path) -> int:
    """Assert that a run has ended with nothing left to recover; return the last committed txid."""
    with open_books(data_dir) as books:
        assert books.live_intents() == []
        assert books.history() == {}
        assert books.ledger.holder() is None
        last = books.currtx() - 1
    assert_once(data_dir, last)
    for name in ("seen", "total"):  # a plain reader of the state table sees the last txid
        table = open_table(data_dir, TableRef("state", name))
        assert table.last_txid() == open_table(data_dir, TableRef("changes", name)).last_txid() == last
    return last


def undecided(data_dir: Path) -> list[int]:
    with open_books(data_dir) as books:
        return [txid for txid in books.metas() if txid >= books.currtx()]


def test_stop_commits_the_group_that_commits_and_nothing_else(make_engine, watch, place):
    stop_now, stopped = place / "stop", place / "stopped"

    def wait():
        stop_now.touch()
        eventually(stopped.exists)

    handle = watch.start(Endless(), make_engine(), commit=at(5, wait), max_group_txids=1)
    eventually(stop_now.exists)
    eventually(lambda: handle.committed == 4)  # from here on it is txid 5 that commits, not only one finished ahead
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    eventually(lambda: len(handle.in_flight) == 1)
    stopped.touch()
    stopping.join()

    assert handle.exception() is None
    assert not handle.isActive
    assert assert_clean(watch.data_dir) == 5 == handle.committed
    assert undecided(watch.data_dir)[0] == 6  # its metadata stays
    calls = len(watch.diary.of("process"))
    go_on(watch)
    assert len(watch.diary.of("process")) > calls


def test_stop_with_drain_commits_what_is_in_flight_and_starts_nothing_new(make_engine, watch, place):
    gate = place / "gate"
    trouble = at(4, lambda: eventually(gate.exists))
    handle = watch.start(Endless(), make_engine(), process=trouble, max_spout_pending=6, max_pack_txids=1)
    eventually(lambda: handle.committed == 3 and len(handle.in_flight) == 6)
    stopping = threading.Thread(target=lambda: handle.stop(drain=True))
    stopping.start()
    gate.touch()
    stopping.join()

    assert assert_clean(watch.data_dir) == 9
    assert undecided(watch.data_dir) == []
    go_on(watch)


def test_stopping_twice_or_after_the_end_does_nothing(watch):
    handle = watch.ends(Endless(), until_txid=3)
    handle.stop()
    handle.stop(drain=True)
    assert assert_clean(watch.data_dir) == 3

    handle = watch.start(Endless())
    eventually(lambda: handle.committed > 5)
    threads = [threading.Thread(target=handle.stop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert assert_clean(watch.data_dir) == handle.committed


def test_a_listener_may_stop_the_run_that_calls_it(watch):
    handles = []

    def listener(progress):
        if progress.txid == 3:
            eventually(lambda: handles)
            handles[0].stop()

    handles.append(watch.start(Endless(), listeners=[listener]))
    handles[0].awaitTermination()
    assert assert_clean(watch.data_dir) >= 3


def test_stop_does_not_wait_for_a_bolt_that_hangs(watch, place):
    gate = place / "gate"
    handle = watch.start(Endless(), process=at(3, lambda: eventually(gate.exists, 600)))
    eventually(lambda: watch.diary.of("process")[2:])
    handle.stop()
    gate.touch()
    assert handle.exception() is None
    go_on(watch)


def test_process_all_available_returns_when_the_run_is_stopped(watch, place):
    gate, told = place / "gate", []
    handle = watch.start(process=at(2, lambda: eventually(gate.exists, 600)))

    def wait() -> None:
        try:
            handle.processAllAvailable()
        except StoppedError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: watch.diary.of("process")[1:])
    handle.stop()
    waiting.join()
    gate.touch()
    assert len(told) == 1


@pytest.fixture
def child(watch: Watch) -> Program:
    """Return a driver script in a separate process, which has committed a few transactions."""
    made = start("endless", watch.data_dir, watch.diary.path, "local")
    return reaches(made, lambda: len(watch.diary.of("commit")) > 6)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_script_that_gets_a_signal_ends_by_it(watch, child, number):
    """Ctrl-C ends a script cleanly, with the status of every Python script; a SIGTERM is survived like any death."""
    child.send_signal(number)
    status, output = finish(child)
    assert status == -number, output
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in output
        assert assert_clean(watch.data_dir) >= 1  # of what had finished, a group may not have been decided yet
    go_on(watch)


SCRIPT = """
import signal, sys, threading, time
from pathlib import Path
from watched import Endless, Watch

watch = Watch(Path(sys.argv[1]))
handle = watch.start(Endless())
"""
INTERRUPTED = """
def interrupt():
    while len(watch.diary.of("commit")) < 3:
        time.sleep(0.05)
    time.sleep(0.5)  # the main thread is asleep by now, and this one takes the signal
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
handle.awaitTermination()
"""


@pytest.mark.integration
def test_ctrl_c_that_another_thread_gets_ends_a_driver_script_too(place, watch):
    done = loaded().run("-c", SCRIPT + INTERRUPTED, place, env=environment())
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "KeyboardInterrupt" in done.stderr
    go_on(watch)


@pytest.mark.integration
def test_ctrl_c_ends_a_driver_script_whose_bolt_hangs(watch):
    child = start("endless", watch.data_dir, watch.diary.path, "local", 3)
    eventually(lambda: watch.diary.of("process")[2:])
    child.send_signal(signal.SIGINT)
    status, output = finish(child)
    assert status == -signal.SIGINT, output
    assert assert_clean(watch.data_dir) <= 2
    go_on(watch)


@pytest.mark.integration
def test_a_script_that_just_ends_stops_its_run_cleanly(place, watch):
    done = loaded().run("-c", SCRIPT, place, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    with open_books(watch.data_dir) as books:
        assert books.ledger.holder() is None
        assert books.live_intents() == []
    go_on(watch)


def test_a_second_start_in_the_same_process_takes_over(make_engine, watch):
    first = watch.start(Endless(), make_engine())
    eventually(lambda: first.committed > 3)
    second = watch.start(Endless(), make_engine())
    assert not first.isActive
    assert first.exception() is None
    before = first.committed
    eventually(lambda: second.committed > before + 3)
    second.stop()
    assert assert_clean(watch.data_dir) == second.committed


def refused(watch: Watch, child: Program) -> None:
    with pytest.raises(HeldError, match=f"pid {child.pid} "):
        watch.start(Endless())


@pytest.mark.integration
def test_a_second_process_is_refused_until_the_first_is_dead(watch, child):
    refused(watch, child)
    count = len(watch.diary.of("commit"))
    eventually(lambda: len(watch.diary.of("commit")) > count + 3)  # the first one does not notice

    child.send_signal(signal.SIGSTOP)
    refused(watch, child)  # frozen is not dead
    child.send_signal(signal.SIGCONT)
    eventually(lambda: len(watch.diary.of("commit")) > count + 6)
    assert child.poll() is None

    child.kill()
    child.wait()
    go_on(watch)  # at once: nothing has to time out


@pytest.mark.integration
@pytest.mark.parametrize("where", ["changes/seen", "sinks/numbers", "state/total"])
def test_a_run_whose_table_was_taken_over_stops_and_publishes_nothing_more(watch, child, where):
    kind, _, name = where.partition("/")
    ref = TableRef(kind.removesuffix("s") if kind == "sinks" else kind, name)
    table = open_table(watch.data_dir, ref)

    def raised() -> bool:
        try:
            table.raise_epoch(table.epoch() + 1)
        except BlockedError:  # on a slow machine the run commits ten times meanwhile: only the ledger can stop it
            return False
        return True

    eventually(raised)
    version = table.version
    if kind == "state":  # it is written when the run is asked to stop, or idle
        child.send_signal(signal.SIGINT)
    status, output = finish(child)
    assert status != 0
    if kind != "state":
        assert "FencedError" in output
        assert "a coordinator with epoch 2 has taken over from this one with epoch 1" in output
    assert open_table(watch.data_dir, ref).version == version

    with open_books(watch.data_dir, write=True) as books:
        books.raise_epoch()  # who takes over raises the ledger's first
    go_on(watch)


def test_a_run_whose_ledger_was_taken_over_stops_and_decides_nothing_more(watch):
    """It says so on its handle."""
    handle = watch.start(Endless())
    eventually(lambda: handle.committed > 3)
    with open_books(watch.data_dir, write=True) as books:
        assert books.raise_epoch() == 2
        currtx, intents = books.currtx(), len(books.intents())
    with pytest.raises(FencedError, match="another coordinator has taken over"):
        handle.awaitTermination()
    assert isinstance(handle.exception(), FencedError)
    assert handle.status["phase"] == "failed"
    with open_books(watch.data_dir) as books:
        assert books.currtx() == currtx
        assert len(books.intents()) == intents
    go_on(watch)
