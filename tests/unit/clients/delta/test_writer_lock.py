"""Writer lock of tables that Spark commits to: it excludes other processes and threads, and is released on exit."""

import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from txstorm.clients.delta import handle as delta
from txstorm.clients.delta.entry import Commit
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.delta.writer_lock import LOCK, is_held, is_shared, locked, one_thread, share, wait_for
from txstorm.errors import BlockedError

HOLD = (
    "import sys; from pathlib import Path; from txstorm.clients.delta.writer_lock import locked\n"
    "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def table(tmp_path):
    return DeltaHandle.create(tmp_path, pa.schema([("n", pa.int64())]), {}, Commit({}, {"kind": "create"}))


@contextmanager
def holder(path):
    """Context manager: start another process that holds the lock at `path`; kill it at the end."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.kill()


def test_a_table_never_written_by_spark_has_no_lock(table):
    table.commit(Commit({"app": 1}, {"n": 1}))
    assert not is_shared(table.path)
    assert not (table.path / LOCK).exists()
    assert [share(table.path), share(table.path)] == [True, False]


def test_a_commit_waits_until_the_lock_holder_exits(table, monkeypatch):
    share(table.path)
    with holder(table.path) as child, monkeypatch.context() as patched:
        with one_thread(table.path):
            assert is_held(table.path)
        patched.setattr(delta, "locked", lambda path: locked(path, 0.1))
        with pytest.raises(BlockedError, match=rf"cannot commit to it: for 0.1 s another process has held .*{LOCK}"):
            table.commit(Commit({"app": 1}, {"n": 1}))
        child.kill()
        child.wait()
    table.commit(Commit({"app": 1}, {"n": 1}))
    table.refresh()
    assert table.version == 1


def test_threads_of_a_process_exclude_each_other(table):
    share(table.path)
    entered, leave, raised = threading.Event(), threading.Event(), []

    def other():
        entered.wait()
        try:
            with locked(table.path, 0.05):
                raised.append(None)
        except BlockedError as error:
            raised.append(error)
        leave.set()

    thread = threading.Thread(target=other)
    thread.start()
    with locked(table.path):
        entered.set()
        leave.wait()
    thread.join()
    assert raised[0] is not None


def test_waiting_ends_at_the_time_limit():
    times, slept = iter(range(10)), []
    with pytest.raises(BlockedError):
        wait_for(lambda: False, Path("t"), 3, slept.append, lambda: next(times))
    assert len(slept) == 2
