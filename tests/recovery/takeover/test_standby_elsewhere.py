"""Two drivers with a remote ledger: when its session expires, a paused driver loses its lease."""

import signal
import time
from pathlib import Path

import pytest
from drivers import assert_as_undisturbed
from recovery_cases import eventually, finish, is_frozen, reaches, start
from scenarios.fencing import LONG, lead
from servers.proxy import LossyProxy

from txstorm.storage.tables.history import read_history

pytestmark = pytest.mark.integration

SESSION = 2.0


def leaders(data_dir: Path) -> list[int]:
    """Return the epoch in which each txid was committed, in txid order."""
    return [attempt >> 32 for attempt in read_history(data_dir)["attempt"].to_pylist()]


@pytest.mark.parametrize("driving", ["zookeeper", pytest.param("delta", marks=pytest.mark.long)], indirect=True)
def test_a_driver_that_was_frozen_never_commits_again_and_says_so(driving, data_dir):
    first = driving.leader()
    second = driving("--standby")
    second.says("standing by for")
    first.signal(signal.SIGSTOP)
    second.leads()

    first.signal(signal.SIGCONT)
    code, told = first.ends()
    assert (code, told["error"]["type"]) == (3, "FencedError")
    assert "another run may lead by now" in first.said
    second.leads()
    second.ends_killed()
    epochs = leaders(data_dir)
    assert epochs == sorted(epochs)
    assert set(epochs) == {1, 2}


def test_a_coordinator_frozen_in_its_sweep_removes_no_file_of_the_next(place, zookeeper_server):
    ledger = f"zookeeper:{zookeeper_server.new_chroot()}"
    child = start("ledger-sweep", place / "data", ledger)
    try:
        reaches(child, lambda: is_frozen(child.pid))
        left = {path.name for path in (place / "data/intents").iterdir()}
        books = lead(place / "data", ledger)  # once the other one's session is over
        books.write_metas({1: LONG})  # the very value whose file the other one is about to remove
        child.send_signal(signal.SIGCONT)
        finish(child)
        assert not left & {path.name for path in (place / "data/intents").iterdir()}
        assert books.metas() == {1: LONG}
        books.ledger.close()
    finally:
        child.kill()


ALONE = {"max_group_txids": 1, "zookeeper_session_timeout": SESSION}


def test_a_connection_that_comes_back_within_the_session_costs_a_pause(go, data_dir, zookeeper_server):
    host, port = zookeeper_server.address(0).split(":")
    chroot = zookeeper_server.new_chroot().partition("/")[2]
    with LossyProxy(host, int(port)) as proxy:
        handle = go(ledger=f"zookeeper:{proxy.address}/{chroot}", settings=ALONE)
        eventually(lambda: handle.committed > 2)
        for _ in range(3):
            proxy.cut()
            before = handle.committed
            time.sleep(SESSION / 4)
            assert handle.committed <= before + 1  # the one whose write was answered just before
            proxy.heal()
            eventually(lambda before=before: handle.committed > before + 3)
        handle.stop(drain=True)
        assert handle.exception() is None
        assert set(leaders(data_dir)) == {1}
        assert_as_undisturbed(data_dir, handle.committed)
