"""Ends of runs: stopped, interrupted, replaced, refused, fenced; the next run continues from there."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from programs import Program, loaded
from recovery_cases import check_tiling, environment, eventually, finish, open_books, start
from watched import Diary, Endless, watched_topology

from txstorm import run
from txstorm.errors import FencedError, HeldError, StoppedError
from txstorm.results.read import read_sink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.table import open_table


@pytest.fixture
def diary(place: Path) -> Diary:
    return Diary(place / "diary")


def go_on(data_dir: Path, diary: Diary, more: int = 5) -> None:
    """Continue with another run; check that every transaction was committed exactly once."""
    with open_books(data_dir) as books:
        until = max([books.currtx() - 1, *(intent.last for intent in books.live_intents())]) + more
    run(watched_topology(Endless(), diary), engine="local", data_dir=data_dir, until_txid=until).awaitTermination()
    assert_once(data_dir, until)


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


# --- stop -------------------------------------------------------------------------------------------------------------


def test_stop_commits_the_group_that_commits_and_nothing_else(make_engine, place, diary):
    stop_now = place / "stop"
    stopped = place / "stopped"

    def trouble(txid, nth):
        if txid == 5:
            stop_now.touch()
            eventually(stopped.exists)

    topology = watched_topology(Endless(), diary, commit=trouble, max_group_txids=1)
    handle = run(topology, engine=make_engine(), data_dir=place / "data")
    eventually(stop_now.exists)
    eventually(lambda: handle.committed == 4)  # from here on it is txid 5 that commits, not only one finished ahead
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    eventually(lambda: len(handle.in_flight) == 1)
    stopped.touch()
    stopping.join()

    assert handle.exception() is None
    assert not handle.isActive
    assert assert_clean(place / "data") == 5 == handle.committed
    assert undecided(place / "data")[0] == 6  # its metadata stays
    calls = len(diary.of("process"))
    go_on(place / "data", diary)
    assert len(diary.of("process")) > calls


def test_stop_with_drain_commits_what_is_in_flight_and_starts_nothing_new(make_engine, place, diary):
    gate = place / "gate"

    def trouble(txid, nth):
        if txid == 4:
            eventually(gate.exists)

    topology = watched_topology(Endless(), diary, process=trouble, max_spout_pending=6, max_pack_txids=1)
    handle = run(topology, engine=make_engine(), data_dir=place / "data")
    eventually(lambda: handle.committed == 3 and len(handle.in_flight) == 6)
    stopping = threading.Thread(target=lambda: handle.stop(drain=True))
    stopping.start()
    gate.touch()
    stopping.join()

    last = assert_clean(place / "data")
    assert last == 9
    assert undecided(place / "data") == []
    go_on(place / "data", diary)


def test_stopping_twice_or_after_the_end_does_nothing(place, diary):
    handle = run(watched_topology(Endless(), diary), engine="local", data_dir=place / "data", until_txid=3)
    handle.awaitTermination()
    handle.stop()
    handle.stop(drain=True)
    assert assert_clean(place / "data") == 3

    handle = run(watched_topology(Endless(), diary), engine="local", data_dir=place / "data")
    eventually(lambda: handle.committed > 5)
    threads = [threading.Thread(target=handle.stop) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert assert_clean(place / "data") == handle.committed


def test_a_listener_may_stop_the_run_that_calls_it(place, diary):
    handles = []

    def listener(progress):
        if progress.txid == 3:
            eventually(lambda: handles)
            handles[0].stop()

    topology = watched_topology(Endless(), diary)
    handles.append(run(topology, engine="local", data_dir=place / "data", listeners=[listener]))
    handles[0].awaitTermination()
    assert assert_clean(place / "data") >= 3


def test_stop_does_not_wait_for_a_bolt_that_hangs(place, diary):
    gate = place / "gate"

    def trouble(txid, nth):
        if txid == 3:
            eventually(gate.exists, 600)

    handle = run(watched_topology(Endless(), diary, process=trouble), engine="local", data_dir=place / "data")
    eventually(lambda: diary.of("process")[2:])
    handle.stop()
    gate.touch()
    assert handle.exception() is None
    go_on(place / "data", diary)


def test_process_all_available_returns_when_the_run_is_stopped(place, diary):
    gate = place / "gate"

    def trouble(txid, nth):
        if txid == 2:
            eventually(gate.exists, 600)

    source = MemoryTransactionalSpout([list(range(10))], ["n"], take=2)
    handle = run(watched_topology(source, diary, process=trouble), engine="local", data_dir=place / "data")
    told: list[BaseException] = []

    def wait() -> None:
        try:
            handle.processAllAvailable()
        except StoppedError as error:
            told.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: diary.of("process")[1:])
    handle.stop()
    waiting.join()
    gate.touch()
    assert len(told) == 1


# --- signals to a driver script ---------------------------------------------------------------------------------------


def running(place: Path, *options: object, more: int = 6) -> Program:
    """Start a driver script in a separate process; return it once it has committed a few transactions."""
    child = start("endless", place / "data", place / "diary", *(options or ("local",)))
    eventually(lambda: len(Diary(place / "diary").of("commit")) > more or child.poll() is not None)
    assert child.poll() is None, child.printed
    return child


@pytest.mark.integration
def test_ctrl_c_ends_a_driver_script_cleanly(place, diary):
    child = running(place)
    child.send_signal(signal.SIGINT)
    status, output = finish(child)
    assert status == -signal.SIGINT, output  # as every Python script that is interrupted
    assert "KeyboardInterrupt" in output
    assert assert_clean(place / "data") >= 1  # of what had finished, a group may not have been decided yet
    go_on(place / "data", diary)


@pytest.mark.integration
def test_ctrl_c_that_another_thread_gets_ends_a_driver_script_too(place, diary):
    program = (
        "import signal, threading, time; from pathlib import Path; from watched import *; from txstorm import run\n"
        "def interrupt():\n"
        f"    while len(Diary(Path({diary.path!r})).of('commit')) < 3: time.sleep(0.05)\n"
        "    time.sleep(0.5)  # the main thread is asleep by now, and this one takes the signal\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGINT)\n"
        f"topology = watched_topology(Endless(), Diary(Path({diary.path!r})))\n"
        f"handle = run(topology, engine='local', data_dir={str(place)!r} + '/data')\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "handle.awaitTermination()\n"
    )
    done = loaded().run("-c", program, env=environment())
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "KeyboardInterrupt" in done.stderr
    go_on(place / "data", diary)


@pytest.mark.integration
def test_ctrl_c_ends_a_driver_script_whose_bolt_hangs(place, diary):
    child = start("endless", place / "data", diary.path, "local", 3)
    eventually(lambda: diary.of("process")[2:])
    child.send_signal(signal.SIGINT)
    status, output = finish(child)
    assert status == -signal.SIGINT, output
    assert assert_clean(place / "data") <= 2
    go_on(place / "data", diary)


@pytest.mark.integration
def test_sigterm_is_survived_like_any_death(place, diary):
    child = running(place)
    child.terminate()
    status, output = finish(child)
    assert status == -signal.SIGTERM, output
    go_on(place / "data", diary)


@pytest.mark.integration
def test_a_script_that_just_ends_stops_its_run_cleanly(place, diary):
    program = (
        "from pathlib import Path; from watched import *; from txstorm import run\n"
        f"topology = watched_topology(Endless(), Diary(Path({diary.path!r})))\n"
        f"run(topology, engine='local', data_dir={str(place)!r} + '/data')\n"
    )
    done = loaded().run("-c", program, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    with open_books(place / "data") as books:
        assert books.ledger.holder() is None
        assert books.live_intents() == []
    go_on(place / "data", diary)


# --- one run at a time ------------------------------------------------------------------------------------------------


def test_a_second_start_in_the_same_process_takes_over(make_engine, place, diary):
    first = run(watched_topology(Endless(), diary), engine=make_engine(), data_dir=place / "data")
    eventually(lambda: first.committed > 3)
    second = run(watched_topology(Endless(), diary), engine=make_engine(), data_dir=place / "data")
    assert not first.isActive
    assert first.exception() is None
    before = first.committed
    eventually(lambda: second.committed > before + 3)
    second.stop()
    assert assert_clean(place / "data") == second.committed


def refused(place: Path, diary: Diary, child: Program) -> None:
    with pytest.raises(HeldError, match=f"pid {child.pid} "):
        run(watched_topology(Endless(), diary), engine="local", data_dir=place / "data")


@pytest.mark.integration
def test_a_second_process_is_refused_until_the_first_is_dead(place, diary):
    child = running(place)
    refused(place, diary, child)
    count = len(diary.of("commit"))
    eventually(lambda: len(diary.of("commit")) > count + 3)  # the first one does not notice

    child.send_signal(signal.SIGSTOP)
    refused(place, diary, child)  # frozen is not dead
    child.send_signal(signal.SIGCONT)
    eventually(lambda: len(diary.of("commit")) > count + 6)
    assert child.poll() is None

    child.kill()
    child.wait()
    go_on(place / "data", diary)  # at once: nothing has to time out


# --- fenced -----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("where", ["changes/seen", "sinks/numbers", "state/total"])
def test_a_run_whose_table_was_taken_over_stops_and_publishes_nothing_more(place, diary, where):
    child = running(place)
    kind, _, name = where.partition("/")
    ref = TableRef(kind.removesuffix("s") if kind == "sinks" else kind, name)
    table = open_table(place / "data", ref)
    table.raise_epoch(table.epoch() + 1)
    version = table.version
    if kind == "state":  # it is written when the run is asked to stop, or idle
        child.send_signal(signal.SIGINT)
    status, output = finish(child)
    assert status != 0
    if kind != "state":
        assert "FencedError" in output
        assert "a coordinator with epoch 2 has taken over from this one with epoch 1" in output
    assert open_table(place / "data", ref).version == version

    with open_books(place / "data", write=True) as books:
        books.raise_epoch()  # who takes over raises the ledger's first
    go_on(place / "data", diary)


@pytest.mark.integration
def test_a_run_whose_ledger_was_taken_over_stops_and_decides_nothing_more(place, diary):
    child = running(place)
    with open_books(place / "data", write=True) as books:
        assert books.raise_epoch() == 2
        currtx, intents = books.currtx(), len(books.intents())
    status, output = finish(child)
    assert status == 1
    assert "FencedError: another coordinator has taken over" in output
    with open_books(place / "data") as books:
        assert books.currtx() == currtx
        assert len(books.intents()) == intents
    go_on(place / "data", diary)


def test_a_fenced_run_says_so_on_its_handle(place, diary):
    handle = run(watched_topology(Endless(), diary), engine="local", data_dir=place / "data")
    eventually(lambda: handle.committed > 3)
    with open_books(place / "data", write=True) as books:
        books.raise_epoch()
    with pytest.raises(FencedError, match="another coordinator"):
        handle.awaitTermination()
    assert isinstance(handle.exception(), FencedError)
    assert handle.status["phase"] == "failed"
    go_on(place / "data", diary)
