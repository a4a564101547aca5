"""Life-cycle commands from other processes: their effect on a run, persistence over restarts, and refusals."""

import json
import logging
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from drivers import assert_as_undisturbed, committed, goes_on
from programs import Program, loaded
from recovery_cases import ended, environment, eventually, finish, open_books, start
from scenarios.endless import life
from watched import Diary

from txstorm.books.requests import Request, put_request, read_request
from txstorm.errors import BusyError, DataDirectoryError, HeldError, InputError, NotRunningError
from txstorm.ledger import paths as names
from txstorm.ledger.lease import utc_now
from txstorm.ledger.port import Put
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.operations.lifecycle import Waiting, activate, deactivate, kill, rebalance
from txstorm.operations.status import list_topologies, read_inspection, read_status
from txstorm.runtime.control import CORE_COMMANDS

SHORT = Waiting(patience=0.5)


@pytest.fixture
def child(data_dir: Path, diary: Diary) -> Iterator[Program]:
    """Yield a separate process that runs the topology, once it has committed a transaction."""
    process = start("life", data_dir, diary.path)
    eventually(lambda: data_dir.exists() and committed(data_dir) > 2)
    yield process
    process.kill()
    process.communicate()


def txstorm(*arguments: Any) -> tuple[int, dict[str, Any]]:
    """Run a command in a separate process; return its exit code and its last line of output, parsed."""
    done = loaded().run("-m", "txstorm", *arguments, "--json", env=environment())
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_deactivated_what_is_in_flight_commits_and_nothing_begins(go, data_dir):
    handle = go(more=3)
    told = deactivate(data_dir)
    assert (told["topology"], told["active"], told["running"]) == ("life", False, True)
    status = eventually(lambda: (now := read_status(data_dir))["mode"] == "inactive" and not now["in_flight"] and now)
    assert handle.status["phase"] == "inactive"
    # Looked at again and again, the source would have given something.
    looked = handle._driver.ask(lambda: handle._driver.state.started).result()
    eventually(lambda: handle._driver.control._look_at > handle._session.lanes.monotonic() + 0.1)
    assert handle.committed == status["committed_txid"] == looked - 1

    assert activate(data_dir)["active"]
    eventually(lambda: handle.committed > status["committed_txid"])
    assert eventually(lambda: read_status(data_dir)["mode"] == "active")
    handle.stop(drain=True)
    assert_as_undisturbed(data_dir, handle.committed)


@pytest.mark.integration
def test_inactive_it_is_killed_and_started_again_inactive_and_activated(child, go, data_dir, caplog):
    assert txstorm("deactivate", data_dir)[0] == 0
    child.kill()
    child.wait()
    assert read_status(data_dir)["mode"] == "dead"
    before = committed(data_dir)

    with caplog.at_level(logging.WARNING):
        handle = go()
        # The phase is set before the line is written.
        eventually(lambda: "is inactive and starts no new transaction; txstorm activate" in caplog.text)
    assert handle.phase == "inactive"
    # What had begun before is finished; nothing new is.
    eventually(lambda: handle._driver.state.drained)
    assert handle.committed - before <= 4
    assert activate(data_dir)["running"]
    eventually(lambda: handle.committed > before + 8)
    handle.stop(drain=True)
    assert_as_undisturbed(data_dir, handle.committed)


def test_a_topology_that_does_not_run_is_activated_and_deactivated_for_its_next_start(go, data_dir):
    go(until_txid=2).awaitTermination()
    told = deactivate(data_dir)
    assert (told["running"], told["active"], told["committed_txid"]) == (False, False, 2)
    assert not read_status(data_dir)["active"]
    handle = go()
    eventually(lambda: handle.phase == "inactive")
    assert handle.committed == 2
    handle.stop()
    assert activate(data_dir)["active"]
    go(until_txid=4).awaitTermination()
    assert_as_undisturbed(data_dir, 4)


def test_rebalanced_from_the_next_txid_on(make_engine, go, data_dir, diary):
    handle = go(make_engine(), more=3)
    told = rebalance(data_dir, {"pass": 3, "count": 2, "numbers": 1})
    assert told["parallelism"] == {"numbers": 1, "pass": 3, "last": 1, "count": 2, "total": 1}
    first = told["from_txid"]
    eventually(lambda: handle.committed >= first + 2)
    assert handle.status["parallelism"]["pass"] == 3
    eventually(lambda: read_status(data_dir)["parallelism"]["pass"] == 3)
    handle.stop(drain=True)

    shape = {(txid, parallelism) for txid, _, parallelism in diary.of("pass")}
    assert {(txid, tasks) for txid, tasks in shape if tasks != (3 if txid >= first else 1)} == set()
    assert_as_undisturbed(data_dir, handle.committed)


@pytest.mark.integration
def test_a_restart_keeps_it_until_the_code_changes_its_number(child, go, data_dir, diary):
    code, told = txstorm("rebalance", data_dir, "-e", "pass=3")
    assert (code, told["parallelism"]["pass"]) == (0, 3)
    eventually(lambda: committed(data_dir) > told["from_txid"])
    child.kill()  # whatever it was about to do
    child.wait()

    handle = go()
    assert {one.id: one.parallelism for one in handle.topology.components}["pass"] == 3
    handle.stop()
    handle = go(tasks=2)
    assert handle.topology.component("pass").parallelism == 2
    goes_on(lambda: handle.committed, 4)
    handle.stop(drain=True)
    assert {tasks for _, _, tasks in diary.of("pass")} == {1, 2, 3}
    assert_as_undisturbed(data_dir, handle.committed)


def test_rebalanced_while_inactive_it_stays_inactive(go, data_dir):
    handle = go(more=3)
    deactivate(data_dir)
    rebalance(data_dir, {"pass": 2})
    eventually(lambda: handle.topology.component("pass").parallelism == 2)
    assert handle.phase == "inactive"
    activate(data_dir)
    goes_on(lambda: handle.committed, 4)
    handle.stop(drain=True)
    assert_as_undisturbed(data_dir, handle.committed)


BAD_NUMBERS = (
    ({"pas": 2}, r"no component 'pas' \(did you mean 'pass'\?\)"),
    ({"split": 2}, "topology 'life' has no component 'split'; it has numbers, pass, last"),
    ({"pass": 0}, "expected a number of tasks from 1 to 32768, got 0"),
    ({"total": 2}, "several tasks might change one row of its state 'total'"),
    ({"pas": 2, "pass": -1}, r"(?s)no component 'pas'.*got -1"),
)


def test_numbers_that_cannot_be_are_refused_and_change_nothing(go, data_dir):
    handle = go()
    for numbers, text in BAD_NUMBERS:
        with pytest.raises(InputError, match=text):
            rebalance(data_dir, numbers)
    goes_on(lambda: handle.committed, 4)
    assert handle.phase == "running"
    with open_books(data_dir) as books:
        assert books.parallelism() == {}


@pytest.mark.integration
def test_killed_it_commits_what_is_in_flight_and_ends_with_code_0(child, data_dir):
    code, told = txstorm("kill", data_dir)
    assert (code, told["ended"]) == (0, True)
    status, output = finish(child)
    assert status == 0, output
    assert f"committed {told['committed_txid']}, killed by pid " in output
    assert read_status(data_dir)["mode"] == "killed"
    assert_as_undisturbed(data_dir, told["committed_txid"])
    # Nothing was left in the middle: with --wait everything that began was committed.
    with open_books(data_dir) as books:
        assert list(books.metas()) == [told["committed_txid"]]


@pytest.mark.integration
@pytest.mark.parametrize("wait", [0, 0.4])
def test_transactions_in_flight_beyond_the_wait_are_dropped(data_dir, diary, go, wait):
    """They are processed by the next start."""
    child = start("life", data_dir, diary.path, 3600)
    eventually(lambda: (data_dir / "ledger.db").exists() and _planned(data_dir))
    told = kill(data_dir, wait)
    assert (told["ended"], told["committed_txid"]) == (True, 0)
    assert not wait or told["in_flight"] == 4
    status, output = finish(child)
    assert status == 0, output
    assert committed(data_dir) == 0
    go(until_txid=5).awaitTermination()
    assert_as_undisturbed(data_dir, 5)


def _planned(data_dir: Path) -> bool:
    try:
        return bool(read_status(data_dir)["in_flight"])
    except DataDirectoryError:
        return False


@pytest.mark.integration
def test_a_run_that_hangs_is_named_and_the_request_is_withdrawn(child, data_dir):
    text = f"no answer within 0.5 s; the lease is held by 'life' .pid {child.pid} on .* this one is withdrawn"
    with hanging(child, data_dir), pytest.raises(HeldError, match=text):
        deactivate(data_dir, SHORT)
    goes_on(lambda: committed(data_dir), 8)
    assert read_status(data_dir)["active"]


def test_a_run_that_hangs_in_the_middle_of_a_commit_is_named_too(go, data_dir):
    handle = go(more=1)
    text = f"no answer within 0.5 s; the lease is held by 'life' .pid {os.getpid()} .* it is in the middle of a commit"
    with closing(sqlite3.connect(data_dir / "ledger.db", isolation_level=None)) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        with pytest.raises(HeldError, match=text):
            deactivate(data_dir, SHORT)
        assert read_status(data_dir)["running"]
    goes_on(lambda: handle.committed, 4)


@contextmanager
def hanging(child: Program, data_dir: Path) -> Iterator[None]:
    """Suspend the run within the context, but not during a commit, which would block the test's own commit."""
    while True:
        os.kill(child.pid, signal.SIGSTOP)
        ledger = SqliteLedger(data_dir / "ledger.db", create=False, busy=0.1)
        try:
            ledger.commit([Put("probe", b"")])
            break
        except HeldError:
            child.send_signal(signal.SIGCONT)
        finally:
            ledger.close()
    try:
        yield
    finally:
        child.send_signal(signal.SIGCONT)


def _open(data_dir: Path) -> Request | None:
    with open_books(data_dir) as books:
        return read_request(books.ledger)[0]


@pytest.mark.integration
def test_of_two_commands_at_once_the_second_names_the_first(child, data_dir):
    first: list[Any] = []
    asker = threading.Thread(target=lambda: first.append(rebalance(data_dir, {"pass": 2})))
    with hanging(child, data_dir):
        asker.start()
        eventually(lambda: _open(data_dir))
        message = rf"kill: rebalance \(asked by pid {os.getpid()} on .*\) is under way"
        with pytest.raises(BusyError, match=message) as busy:
            kill(data_dir, 0, SHORT)
        assert busy.value.exit_code == 3
    asker.join()
    assert first[0]["parallelism"]["pass"] == 2
    assert child.poll() is None
    assert kill(data_dir)["ended"]


@pytest.mark.integration
def test_a_request_whose_asker_died_long_ago_is_removed_and_not_carried_out(child, data_dir):
    old = Request("x" * 32, "kill", {"wait_seconds": 0}, "pid 1 on nowhere", (utc_now() - timedelta(60)).isoformat())
    with hanging(child, data_dir), open_books(data_dir, write=True) as books:
        books.ledger.commit([put_request(old, read_request(books.ledger)[1])])
        # Whoever asks next is not kept from it, and who runs does not obey it.
        with pytest.raises(HeldError, match="no answer"):
            deactivate(data_dir, SHORT)
        books.ledger.commit([put_request(old, read_request(books.ledger)[1])])
    eventually(lambda: _open(data_dir) is None)
    goes_on(lambda: committed(data_dir), 4)
    with open_books(data_dir) as books:
        assert books.ledger.scan(names.ANSWERS) == {}


def test_a_request_to_a_run_that_has_ended_does_not_reach_the_next_one(go, data_dir):
    for command in (*CORE_COMMANDS, "front.end"):
        go(more=1).stop()
        with open_books(data_dir, write=True) as books:
            request = Request(command * 5, command, {"wait_seconds": 0}, "pid 1", utc_now().isoformat())
            books.ledger.commit([put_request(request, read_request(books.ledger)[1])])
            handle = go(more=2)
            assert read_request(books.ledger)[0] is None
            assert books.ledger.scan(names.ANSWERS) == {}, command  # neither carried out nor refused
        assert handle.isActive
        handle.stop()


@pytest.mark.parametrize(
    "value", [b"\xff", b"[]", b'{"format": 1, "value": {"format": "txstorm-request", "version": 2}}']
)
def test_a_request_that_cannot_be_read_ends_nothing(go, data_dir, value):
    go(more=1)
    with open_books(data_dir, write=True) as books:
        books.ledger.commit([Put(names.REQUEST, value)])
        eventually(lambda: b'"request":null' in books.ledger.get(names.REQUEST).value)
    assert not deactivate(data_dir)["active"]


def test_commands_of_another_version_are_refused_by_the_run(go, data_dir):
    handle = go(more=1)
    for command, arguments in (("dance", {}), ("kill", {"wait": "long"})):
        request = Request(command * 5, command, arguments, "pid 1", utc_now().isoformat())
        with open_books(data_dir, write=True) as books:
            books.ledger.commit([put_request(request, read_request(books.ledger)[1])])
            answer = eventually(lambda: books.ledger.get(names.answer_path(command * 5)))  # noqa: B023
        assert b"unknown" in answer.value or b"not understood" in answer.value
    assert handle.isActive


@pytest.mark.integration
def test_a_topology_that_is_not_running_cannot_be_killed_or_rebalanced(go, data_dir):
    go(until_txid=2).awaitTermination()
    for ask in (lambda: kill(data_dir), lambda: rebalance(data_dir, {"pass": 2})):
        with pytest.raises(NotRunningError, match=r"topology 'life' in .* is not running; its last run, pid \d+") as no:
            ask()
        assert no.value.exit_code == 2
    code, told = txstorm("kill", data_dir)
    assert (code, told["error"]["type"]) == (2, "NotRunningError")


@pytest.mark.integration
def test_a_run_that_dies_while_it_is_asked(child, data_dir):
    with hanging(child, data_dir), pytest.raises(NotRunningError, match="is not running"):
        threading.Timer(0.3, child.kill).start()
        rebalance(data_dir, {"pass": 2})
    with open_books(data_dir) as books:
        assert read_request(books.ledger)[0] is None


COMMANDS = (deactivate, activate, kill, read_status, read_inspection, lambda path: rebalance(path, {"pass": 2}))


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_directory_and_one_that_is_something_else(command, go, data_dir, place):
    go(until_txid=1).awaitTermination()
    with pytest.raises(DataDirectoryError, match=r"dat does not exist \(did you mean 'data'\?\)"):
        command(place / "dat")
    (place / "letters").mkdir()
    (place / "letters" / "dear.txt").write_text("")
    with pytest.raises(DataDirectoryError, match=r"holds something else \(dear.txt\)"):
        command(place / "letters")
    assert sorted(os.listdir(place / "letters")) == ["dear.txt"]


@pytest.mark.integration
def test_the_list_shows_what_runs_what_has_ended_and_what_is_damaged(child, diary, place):
    ended(life(diary), place / "ended", until_txid=3)
    (place / "torn").mkdir()
    (place / "torn" / "format.json").write_text("{")
    found = {Path(one["data_dir"]).name: one for one in list_topologies(place)}
    modes = {name: (one["mode"], one["running"]) for name, one in found.items()}
    assert modes == {"data": ("active", True), "ended": ("stopped", False), "torn": ("unreadable", False)}
    assert f"pid {child.pid} on" in found["data"]["holder"]
    assert found["ended"]["committed_txid"] == 3
    assert "is damaged" in found["torn"]["error"]
    with pytest.raises(InputError, match="expected a directory that contains data directories"):
        list_topologies(place / "none")


def test_inspection_of_a_live_run_and_after_its_end(go, data_dir):
    handle = go(more=3)
    live = eventually(lambda: (now := read_inspection(data_dir))["in_flight"] and now)
    assert (live["topology"], live["epoch"], live["running"]) == ("life", 1, True)
    assert live["incarnation"] == handle.id
    assert set(live["tables"]) == {"changes/seen", "changes/total"}
    handle.stop()
    after = read_inspection(data_dir)
    assert (after["currtx"], after["mode"], after["decided"]) == (handle.committed + 1, "stopped", [])
    first = 4 * handle.committed - 3
    assert after["metadata"][str(handle.committed)]["document"] == {"meta": [first, first + 4]}
