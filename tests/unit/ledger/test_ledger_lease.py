"""The lease among real processes."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from txstorm.errors import DataDirectoryError, HeldError
from txstorm.ledger.lease import FileLease
from txstorm.ledger.sqlite import SqliteLedger

integration = pytest.mark.integration
TRY = """
ledger = SqliteLedger(path, create=False)
try:
    ledger.acquire("second")
    print("held")
except HeldError as error:
    print(error)
"""


@integration
def test_a_second_process_is_refused_and_told_who_has_it(ledger_file: Path, processes) -> None:
    holder = processes.holding(ledger_file, "word-count")
    with SqliteHandle(ledger_file) as ledger:
        with pytest.raises(HeldError) as caught:
            ledger.acquire("second")
        assert f"'word-count' (pid {holder.pid} on {socket.gethostname()}, since 20" in str(caught.value)
        assert f"'word-count' (pid {holder.pid} on" in str(ledger.holder())
        # Neither look nor attempt may have freed it.
        assert f"pid {holder.pid}" in processes.run(TRY, ledger_file)


@integration
def test_the_lease_of_a_killed_process_is_free_at_once(ledger_file: Path, processes) -> None:
    holder = processes.holding(ledger_file, "word-count")
    with SqliteHandle(ledger_file) as ledger:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert ledger.holder() is None
        ledger.acquire("second")
        assert "'second'" in str(ledger.holder())


@integration
def test_closing_other_handles_in_the_process_does_not_free_it(ledger_file: Path, processes) -> None:
    with SqliteHandle(ledger_file) as holder:
        holder.acquire("first")
        other = SqliteLedger(ledger_file, create=False)
        with pytest.raises(HeldError, match=f"pid {os.getpid()} "):
            other.acquire("again")
        assert other.holder() == holder.holder()
        other.close()
        SqliteLedger(ledger_file, create=False, read_only=True).close()
        assert f"'first' (pid {os.getpid()} " in processes.run(TRY, ledger_file)
        holder.release()
        assert processes.run(TRY, ledger_file) == "held\n"


@integration
def test_links_lead_to_the_same_lease(ledger_file: Path, processes) -> None:
    link = ledger_file.parent / "link"
    link.symlink_to(ledger_file.parent)
    with SqliteHandle(ledger_file) as ledger, SqliteHandle(link / ledger_file.name) as linked:
        ledger.acquire("first")
        with pytest.raises(HeldError):
            linked.acquire("second")
        linked.close()
        assert "'first'" in processes.run(TRY, ledger_file)


@integration
def test_a_forked_child_neither_has_nor_frees_the_lease(ledger_file: Path, processes) -> None:
    lease = FileLease(ledger_file.with_name("ledger.db.lock"))
    lease.acquire("parent")
    child = os.fork()
    if child == 0:
        try:
            FileLease(ledger_file.with_name("ledger.db.lock")).acquire("child")
        except HeldError:
            lease.release()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert "'parent'" in processes.run(TRY, ledger_file)
    lease.release()


@integration
def test_a_holder_that_has_not_written_its_name_yet_is_known_by_its_pid(ledger_file: Path, processes) -> None:
    holder = processes.holding(ledger_file, "word-count")
    lock = ledger_file.with_name("ledger.db.lock")
    for left_over in (b"", b"{", b'["x"]', b'{"owner": "old", "pid": 1, "host": "h", "since": "s"}'):
        lock.write_bytes(left_over)
        with SqliteHandle(ledger_file) as ledger:
            assert ledger.holder() == f"'another run' (pid {holder.pid} on an unknown host, since unknown)"


def test_the_name_of_a_holder_that_is_gone_means_nothing(ledger_file: Path) -> None:
    ledger_file.with_name("ledger.db.lock").write_text('{"owner": "old", "pid": 1, "host": "h", "since": "s"}')
    with SqliteHandle(ledger_file) as ledger:
        assert ledger.holder() is None
        ledger.acquire("new")


def test_a_lock_file_that_cannot_be_made_is_named(ledger_file: Path) -> None:
    lock = ledger_file.with_name("ledger.db.lock")
    lock.mkdir()
    with SqliteHandle(ledger_file) as ledger, pytest.raises(DataDirectoryError, match=str(lock)):
        ledger.acquire("first")


class SqliteHandle:
    """A ledger that is closed at the end of the block."""

    def __init__(self, path: Path) -> None:
        self._ledger = SqliteLedger(path, create=False)

    def __enter__(self) -> SqliteLedger:
        return self._ledger

    def __exit__(self, *_: object) -> None:
        self._ledger.close()
