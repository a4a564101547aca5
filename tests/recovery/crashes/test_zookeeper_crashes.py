"""Runs with the ledger in ZooKeeper: killed at its steps, fenced, and with servers and connections lost."""

from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from recovery_cases import ended, killed, wait_free
from scenarios.words import SPOUTS
from servers.proxy import LossyProxy
from servers.running import ZooKeeper
from servers.zookeeper import is_write
from spout_samples import PartitionedSpout
from watched import Diary, Endless, Watch, watched_topology

from txstorm.clients.zookeeper.operations import Verify
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.errors import FencedError
from txstorm.ledger.values import decode_value
from txstorm.operations.status import read_inspection, read_status
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout

pytestmark = pytest.mark.integration

PATIENCE = 120
SESSION = 1.5
LASTING = {"zookeeper_session_timeout": 20, "zookeeper_connect_timeout": 60, "zookeeper_patience": 120}
FAULTS = [
    "ledger.written:kill:2",
    "ledger.before:kill:5",
    "ledger.written:kill:5",
    "p6.after:kill:2",
    "p7.2.written:kill:2",
]


@pytest.fixture
def ledger(zookeeper_server: ZooKeeper) -> str:
    """Return the URI of a ledger used by this test alone, as `--ledger` takes it."""
    return f"zookeeper:{zookeeper_server.new_chroot()}"


@pytest.fixture
def seen(zookeeper_server: ZooKeeper, ledger: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper_server.hosts)
    client.start(timeout=10)
    yield client
    client.stop()
    client.close()


def root_of(ledger: str) -> str:
    return "/" + ledger.partition("/")[2]


@pytest.mark.parametrize(("fault", "spout"), [(fault, SPOUTS[i % len(SPOUTS)]) for i, fault in enumerate(FAULTS)])
def test_killed_and_restarted(ends_as_undisturbed, data_dir, ledger, fault, spout):
    argv = [data_dir, "--spout", spout]
    killed(fault, *argv, "--set", f"ledger={ledger}", "--set", f"zookeeper_session_timeout={SESSION}")
    wait_free(data_dir)  # nobody could tell ZooKeeper; its lease ends with the session
    ends_as_undisturbed(*argv, extra=["--set", f"ledger={ledger}"])
    assert not (data_dir / "ledger.db").exists()
    assert read_status(data_dir)["ledger"] == ledger


def session(handle: RunHandle) -> ZooKeeperSession:
    return handle._driver._session.books.ledger._session


def wait_for(handle: RunHandle, txid: int) -> None:
    while handle.txid < txid:
        assert not handle.awaitTermination(0.01)


def check_totals(handle: RunHandle, txids: int) -> None:
    """Check the totals: transaction N of `Endless` has the numbers 2N - 1 and 2N."""
    assert [row["n"] for row in handle.state("total").to_pylist()] == [txids * (2 * txids + 1)]
    assert sorted(row["n"] for row in handle.sink("numbers").to_pylist()) == list(range(1, 2 * txids + 1))


def check_goes_on(handle: RunHandle) -> None:
    """Check that a run goes on, and that its tables are right when it is stopped."""
    wait_for(handle, handle.txid + 5)
    handle.stop()
    assert handle.exception() is None
    check_totals(handle, handle.committed)


def test_a_run_whose_session_ends_steps_down_and_the_next_one_goes_on(watch, ledger):
    handle = watch.start(Endless(), ledger=ledger)
    wait_for(handle, 5)
    # As a second client with the number of the session ends it.
    second = KazooClient(session(handle).hosts, client_id=session(handle)._kazoo.client_id)
    second.start(timeout=10)
    second.stop()
    second.close()
    with pytest.raises(FencedError, match="expected this run to still hold the lease, got: "):
        handle.awaitTermination(PATIENCE)
    left = read_inspection(watch.data_dir)
    last = left["committed_txid"] + 5
    again = watch.ends(Endless(), until_txid=last)
    # What was decided when the session ended is rolled forward; it may be a large group.
    check_totals(again, max([last, *(group["last"] for group in left["decided"])]))


@pytest.fixture
def proxy(zookeeper_server: ZooKeeper) -> Iterator[LossyProxy]:
    """Yield a proxy before the server, which can lose answers and break connections."""
    with LossyProxy("127.0.0.1", zookeeper_server.ports[0]) as made:
        yield made


@pytest.fixture
def behind(ledger: str, proxy: LossyProxy, zookeeper_server: ZooKeeper) -> str:
    return ledger.replace(zookeeper_server.hosts, proxy.address)


def lose_answer(handle: RunHandle, proxy: LossyProxy) -> None:
    before = proxy.dropped
    proxy.drop_answers(1, matching=is_write)
    while proxy.dropped == before:
        assert not handle.awaitTermination(0.01)


def test_answers_that_are_lost_and_connections_that_break_cost_pauses(watch, behind, proxy):
    handle = watch.start(Endless(), ledger=behind, **LASTING)
    for _ in range(5):
        lose_answer(handle, proxy)
    proxy.cut()
    proxy.heal()
    check_goes_on(handle)
    assert handle.progress.replays == 0


def test_servers_that_are_away_cost_a_pause(watch, behind, proxy):
    handle = watch.start(Endless(), ledger=behind, until_txid=30, **LASTING)
    wait_for(handle, 4)
    proxy.cut()
    assert not handle.awaitTermination(0.5)
    proxy.heal()
    assert handle.awaitTermination(PATIENCE)
    check_totals(handle, 30)


@pytest.mark.long
def test_server_outages_of_1_to_20_seconds_only_pause_a_run(watch, ledger, zookeeper_server):
    """Server outages of 1 to 20 seconds only pause a run, with the default settings (session timeout below 20 s)."""
    handle = watch.start(Endless(), ledger=ledger, min_interval=0.01)
    for outage in (1, 2, 5, 10, 20):
        wait_for(handle, handle.txid + 5)
        zookeeper_server.kill()
        assert not handle.awaitTermination(outage)
        zookeeper_server.restart()
    check_goes_on(handle)


@pytest.mark.long
def test_a_hundred_answers_lost_after_the_write_and_a_hundred_before_it(watch, behind, proxy):
    handle = watch.start(Endless(), ledger=behind, min_interval=0.01, **LASTING)
    for _ in range(100):
        lose_answer(handle, proxy)
        # What is held back now never reaches the server.
        proxy.stall()
        assert not handle.awaitTermination(0.05)
        proxy.cut()
        proxy.heal()
    check_goes_on(handle)


class Numbers(PartitionedSpout):
    """A user-defined partitioned spout: each partition emits two numbers per transaction."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def num_partitions(self):
        return self.partitions

    def emit_partition_batch_new(self, attempt, collector, partition, last_metadata):
        metadata = [last_metadata[1] if last_metadata else 0, attempt.txid * 2]
        self.emit_partition_batch(attempt, collector, partition, metadata)
        return metadata

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for number in range(*metadata):
            collector.emit(number)


def memory(partitions: int) -> MemoryTransactionalSpout:
    return MemoryTransactionalSpout({partition: list(range(100)) for partition in range(partitions)}, ["n"], take=2)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the ZooKeeper requests of a leading coordinator: the paths of each transaction, without its guards."""
    sent: list[list[str]] = []
    transact = ZooKeeperSession.transact

    def spied(self: ZooKeeperSession, ops: Any, *more: Any) -> Any:
        sent.append([op.path for op in ops[1:] if not isinstance(op, Verify)])
        return transact(self, ops, *more)

    monkeypatch.setattr(ZooKeeperSession, "transact", spied)
    return sent


# The plan, the decision and the completion, with which goes what was read; where the tasks plan, that is written first.
@pytest.mark.parametrize(("source", "writes"), [(memory, 3), (Numbers, 4)])
def test_writes_per_transaction_do_not_grow_with_the_partitions(place, ledger, transactions, source, writes):
    txids, counted = 6, []
    for partitions in (1, 12):
        transactions.clear()
        watch, own = Watch(place / str(partitions)), f"{ledger}/{partitions}"
        watch.ends(source(partitions), ledger=own, until_txid=txids, max_spout_pending=1)
        own_ones = [paths for paths in transactions if not any(path.endswith("/status") for path in paths)]
        of_txids = [paths for paths in own_ones if any("/coordinator/" in p or "/intents/" in p for p in paths)]
        counted.append(len(of_txids))
    assert counted == [writes * txids, writes * txids]


def test_partitions_have_nodes_of_their_own_only_for_spouts_with_storms_interface(place, ledger, seen):
    found = {}
    for name, source in {"numbers": Numbers(3), "memory": memory(3)}.items():
        Watch(place / name).ends(source, ledger=f"{ledger}/{name}", until_txid=4, max_spout_pending=1)
        root = f"{root_of(ledger)}/{name}"
        assert decode_value(None, seen.get(f"{root}/coordinator/currtx")[0]) == 5
        assert "4" in seen.get_children(f"{root}/coordinator/meta")
        found[name] = sorted(seen.get_children(f"{root}/user")) if seen.exists(f"{root}/user") else None
    assert found == {"numbers": ["0", "1", "2"], "memory": None}
    root = f"{root_of(ledger)}/numbers"
    assert seen.get_children(f"{root}/user/1") == seen.get_children(f"{root}/coordinator/meta")
    assert decode_value(None, seen.get(f"{root}/user/1/4")[0]) == [6, 8]


def test_storms_settings_choose_the_ledger(place, zookeeper_server, seen, ledger):
    host, port = zookeeper_server.hosts.split(":")
    keys = {"servers": [host], "port": int(port), "root": root_of(ledger)}
    settings = {f"transactional.zookeeper.{key}": value for key, value in keys.items()}
    ended(watched_topology(Endless(), Diary(place / "diary")), place / "data", settings=settings, until_txid=3)
    assert decode_value(None, seen.get(f"{root_of(ledger)}/watched/coordinator/currtx")[0]) == 4
    assert read_status(place / "data")["ledger"] == f"{ledger}/watched"
