"""The lease of a ledger, contended by real processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from txstorm.errors import FencedError, HeldError
from txstorm.ledger.lease import POLL, FileLease, poll_free
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Put
from txstorm.ledger.sqlite import SqliteLedger

integration = pytest.mark.integration
FORK = """
import os, time
ledger = SqliteLedger(path, create=False)
ledger.acquire("parent")
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""
TRY = """
ledger = SqliteLedger(path, create=False)
try:
    ledger.acquire("second")
    print("held")
except HeldError as error:
    print(error)
"""


def opened(path: Path) -> closing[SqliteLedger]:
    return closing(SqliteLedger(path, create=False))


@integration
def test_a_second_process_is_refused_and_the_holder_is_named(ledger_file: Path, processes) -> None:
    holder = processes.holding(ledger_file, "word-count")
    with opened(ledger_file) as ledger:
        with pytest.raises(HeldError) as caught:
            ledger.acquire("second")
        assert f"'word-count' (pid {holder.pid} on {socket.gethostname()}, since 20" in str(caught.value)
        assert f"'word-count' (pid {holder.pid} on" in str(ledger.holder())
        # Neither reading the holder nor the failed attempt may have released the lease.
        assert f"pid {holder.pid}" in processes.run(TRY, ledger_file)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert ledger.holder() is None
        ledger.acquire("second")
        assert "'second'" in str(ledger.holder())


@integration
def test_other_handles_reading_and_copying_in_the_process_do_not_free_it(
    ledger_file: Path, processes, tmp_path_factory
) -> None:
    """Neither of handles on the same path, nor of handles on a path through links."""
    link = ledger_file.parent / "link"
    link.symlink_to(ledger_file.parent)
    with opened(ledger_file) as holder:
        holder.acquire("first")
        for path in (ledger_file, link / ledger_file.name):
            other = SqliteLedger(path, create=False)
            with pytest.raises(HeldError, match=f"pid {os.getpid()} "):
                other.acquire("again")
            assert other.holder() == holder.holder()
            other.close()
            SqliteLedger(path, create=False, read_only=True).close()
            assert f"'first' (pid {os.getpid()} " in processes.run(TRY, ledger_file)
        holder.release()
        assert processes.run(TRY, ledger_file) == "held\n"
    with opened(ledger_file) as ledger:
        ledger.acquire("first")
        ledger_file.with_name("ledger.db.lock").read_bytes()
        shutil.copytree(ledger_file.parent, tmp_path_factory.mktemp("copies") / "copy", symlinks=True)
        assert "'first'" in processes.run(TRY, ledger_file)
        ledger.check_lease()


@integration
def test_a_forked_child_neither_has_nor_frees_the_lease(ledger_file: Path, processes, in_child) -> None:
    lease = FileLease(ledger_file.with_name("ledger.db.lock"))
    lease.acquire("parent")

    def child() -> None:
        with pytest.raises(HeldError):
            FileLease(ledger_file.with_name("ledger.db.lock")).acquire("child")
        with pytest.raises(FencedError):
            lease.check()
        lease.release()

    assert in_child(child) == 0
    assert "'parent'" in processes.run(TRY, ledger_file)
    lease.check()
    lease.release()


@integration
def test_a_forked_child_that_outlives_its_parent_does_not_keep_the_lease(ledger_file: Path, processes) -> None:
    parent = processes.start(FORK, ledger_file)
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    try:
        with opened(ledger_file) as ledger:
            assert ledger.holder() is None
            ledger.acquire("second")
    finally:
        os.kill(child, signal.SIGKILL)


@integration
def test_the_name_left_by_an_earlier_holder_is_not_reported_for_the_current_one(ledger_file: Path, processes) -> None:
    processes.holding(ledger_file, "word-count")
    lock = ledger_file.with_name("ledger.db.lock")
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = json.dumps({"owner": "old", "pid": ended.pid, "host": socket.gethostname(), "since": "s"})
    for left_over in (b"", b"{", b'["x"]', gone.encode()):
        lock.write_bytes(left_over)
        with opened(ledger_file) as ledger:
            assert "'another run'" in str(ledger.holder())


def test_a_lease_whose_file_was_removed_is_lost_and_nothing_is_written_with_it(ledger_file: Path) -> None:
    with opened(ledger_file) as ledger:
        ledger.acquire("first")
        ledger.check_lease()
        ledger_file.with_name("ledger.db.lock").unlink()
        with pytest.raises(FencedError, match=r"ledger\.db\.lock.*its lock file was removed"):
            ledger.check_lease()
        with pytest.raises(FencedError):
            ledger.commit([Put("a", b"")])
        assert ledger.get("a") is None
        ledger.release()
        ledger.check_lease()
        ledger.acquire("again")
        ledger.commit([Put("a", b"")])


def test_a_lease_that_expired_in_memory_is_lost_and_nothing_is_written_with_it() -> None:
    first = MemoryLedger()
    second = MemoryLedger(first)
    first.acquire("first")
    first.expire()
    assert second.wait_free(0)
    second.acquire("second")
    with pytest.raises(FencedError, match="it is held by 'second'"):
        first.check_lease()
    with pytest.raises(FencedError):
        first.commit([Put("a", b"")])
    assert second.get("a") is None
    first.release()
    assert "'second'" in str(second.holder())


def test_polling_checks_at_once_pauses_in_between_and_stops_in_time() -> None:
    looks, pauses, clock = [False, False, True], list[float](), iter([0.0, 0.1, 0.9])
    assert poll_free(lambda: looks.pop(0), 1.0, pause=pauses.append, now=lambda: next(clock))
    assert pauses == [POLL, pytest.approx(0.1)]
    never = iter([0.0, 1.0])
    assert not poll_free(lambda: False, 1.0, pause=pauses.append, now=lambda: next(never))
    assert len(pauses) == 2
