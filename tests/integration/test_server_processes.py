"""Processes of test servers: they end with the tests that started them, even if those are killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers.cluster import Cluster
from servers.family import member
from servers.process import DetachedProcess, GuardedProcess, ServerError, free_ports, is_free

pytestmark = pytest.mark.integration

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)", "marker"]
STARTER = """
import sys, time
from pathlib import Path
from servers.process import GuardedProcess
server = GuardedProcess("sleeper", sys.argv[2:], Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def test_servers_do_not_outlive_tests_that_were_killed(tmp_path: Path):
    tests = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", STARTER, str(tmp_path / "log"), *SLEEP]
    starter = subprocess.Popen(command, cwd=tests, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert member(pid) is not None
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    starter.stdout.close()
    Cluster.wait(lambda: member(pid) is None, "the server to end", 60)


@pytest.mark.parametrize("kind", [GuardedProcess, DetachedProcess])
def test_stop_kill_and_start_again(kind: type[GuardedProcess | DetachedProcess], tmp_path: Path):
    server = kind("sleeper", SLEEP, tmp_path / "log")
    server.start()
    with pytest.raises(ServerError, match=f"sleeper runs already, pid {server.pid}"):
        server.start()
    server.stop()
    assert not server.alive
    server.start()
    server.wait_ready(lambda: server.log.read_text().count("up") >= 1)
    server.kill()
    assert not server.alive
    Cluster.wait(lambda: member(server.pid or 0) is None, "the server to end", 60)


def test_a_server_that_ends_shows_its_log(tmp_path: Path):
    command = [sys.executable, "-c", "raise SystemExit('no such port')"]
    server = GuardedProcess("failing", command, tmp_path / "log")
    server.start()
    with pytest.raises(ServerError, match=r"failing ended while it started; the end of .*log:\nno such port"):
        server.wait_ready(lambda: False)


def test_a_foreign_process_with_the_pid_is_left_alone(tmp_path: Path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (tmp_path / "pid").write_text(f"{other.pid}\n")
    server = DetachedProcess("sleeper", SLEEP, tmp_path / "log")
    assert not server.alive
    server.kill()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_ports_are_free_and_differ():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(map(is_free, ports))
