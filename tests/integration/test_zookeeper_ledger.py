"""The ledger in ZooKeeper under failures of servers, connections, sessions and responses, on real servers."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from servers.proxy import LossyProxy
from servers.running import ZooKeeper, start_zookeeper
from servers.tls import certificate
from servers.zookeeper import is_write

from txstorm.clients.zookeeper.operations import Unreachable, ZooKeeperOptions
from txstorm.clients.zookeeper.session import ZooKeeperSession
from txstorm.errors import DataDirectoryError, FencedError, HeldError, InputError, LedgerCorrupt
from txstorm.ledger.credentials import AUTH
from txstorm.ledger.port import ABSENT, MAX_COMMIT, MAX_VALUE, Check, Delete, Entry, Ledger, Put, in_commits
from txstorm.ledger.zookeeper import lease as zookeeper_lease
from txstorm.ledger.zookeeper.ledger import ZooKeeperLedger
from txstorm.ledger.zookeeper.open import ACL, open_zookeeper
from txstorm.topology.settings import Settings

pytestmark = pytest.mark.integration

QUICK = ZooKeeperOptions(session_timeout=2.0, connect_timeout=60.0, patience=120.0)
SECONDS = 180
LASTING = ZooKeeperOptions(session_timeout=60.0, connect_timeout=60.0, patience=120.0)


class Place:
    """A chroot used by one test, and handles on the ledger in it."""

    def __init__(self, hosts: str, root: str) -> None:
        self.hosts, self.root = hosts, root
        self._handles: list[Ledger] = []
        self._clients: list[KazooClient] = []
        self.threads = ThreadPoolExecutor(3)

    def ledger(
        self, hosts: str = "", options: ZooKeeperOptions = QUICK, holder: str = "", **more: Any
    ) -> ZooKeeperLedger:
        """Return a handle, which has acquired the lease if a holder is named."""
        handle = ZooKeeperLedger(ZooKeeperSession(hosts or self.hosts, options), self.root, create=True, **more)
        self._handles.append(handle)
        if holder:
            handle.acquire(holder)
        return handle

    def client(self, hosts: str = "") -> KazooClient:
        """Return an independent client, which may inspect and modify the ledger."""
        client = KazooClient((hosts or self.hosts) + self.root)
        client.start(timeout=10)
        self._clients.append(client)
        return client

    def expire(self, ledger: ZooKeeperLedger) -> None:
        second = KazooClient(self.hosts, client_id=ledger._session._kazoo.client_id)
        second.start(timeout=10)
        second.stop()
        second.close()

    def close(self) -> None:
        self.threads.shutdown(wait=False)
        for handle in self._handles:
            handle.close()
        for client in self._clients:
            client.stop()
            client.close()


@contextlib.contextmanager
def place_at(server: ZooKeeper) -> Iterator[Place]:
    place = Place(server.hosts, server.new_chroot().removeprefix(server.hosts))
    yield place
    place.close()


@pytest.fixture
def place(zookeeper_server: ZooKeeper) -> Iterator[Place]:
    with place_at(zookeeper_server) as made:
        yield made


@pytest.fixture
def proxy(zookeeper_server: ZooKeeper) -> Iterator[LossyProxy]:
    with LossyProxy("127.0.0.1", zookeeper_server.ports[0]) as made:
        yield made


def test_a_commit_whose_response_is_lost_happens_once(place: Place, proxy: LossyProxy) -> None:
    ledger = place.ledger(proxy.address, holder="run")
    ledger.commit([Put("coordinator/currtx", b"1"), Put("log/0", b"")])
    for number in range(1, 6):
        proxy.drop_answers(1, matching=is_write)
        ledger.commit([Put("coordinator/currtx", str(number).encode(), number - 1), Put(f"log/{number}", b"", ABSENT)])
    assert proxy.dropped == 5
    assert ledger.get("coordinator/currtx") == Entry(b"5", 5)
    assert ledger.children("log") == ["0", "1", "2", "3", "4", "5"]
    ledger.check_lease()


def test_a_first_commit_without_a_lease_whose_answer_is_lost_happens_once(place: Place, proxy: LossyProxy) -> None:
    ledger = place.ledger(proxy.address)
    proxy.drop_answers(1, matching=is_write)
    ledger.commit([Put("a", b"1")])
    assert proxy.dropped == 1
    assert ledger.get("a") == Entry(b"1", 0)
    ledger.commit([Put("a", b"2")])
    assert ledger.get("a") == Entry(b"2", 1)


def test_a_commit_that_never_arrived_is_sent_again(place: Place, proxy: LossyProxy) -> None:
    ledger = place.ledger(proxy.address, holder="run")
    ledger.commit([Put("a", b"1")])
    # Held back on the way, and then gone with the connection.
    proxy.stall()
    committing = place.threads.submit(ledger.commit, [Put("a", b"2", 0)])
    while not ledger._session._kazoo._pending:  # in flight
        time.sleep(0.01)
    proxy.cut()
    proxy.heal()
    committing.result(SECONDS)
    assert ledger.get("a") == Entry(b"2", 1)
    ledger.check_lease()


def test_a_lease_taken_or_given_back_with_a_lost_answer_is_taken_or_given_back(place: Place, proxy: LossyProxy) -> None:
    first, second = place.ledger(proxy.address), place.ledger()
    proxy.drop_answers(1, matching=is_write)
    first.acquire("one")
    assert "'one'" in str(second.holder())
    with pytest.raises(HeldError, match="'one'"):
        second.acquire("two")
    proxy.drop_answers(1, matching=is_write)
    first.release()
    assert proxy.dropped == 2
    second.acquire("two")
    first.check_lease()


def test_a_connection_that_comes_back_costs_a_pause(place: Place, proxy: LossyProxy) -> None:
    ledger, other = place.ledger(proxy.address, LASTING, "run"), place.ledger()
    ledger.commit([Put("a", b"1")])
    proxy.cut()
    calls = [(ledger.commit, [Put("a", b"2", 0)]), (ledger.check_lease,), (ledger.get, "a")]
    waiting = [place.threads.submit(*call) for call in calls]
    with pytest.raises(HeldError):
        other.acquire("other")
    proxy.heal()
    for call in waiting:
        call.result(SECONDS)
    assert other.get("a") == Entry(b"2", 1)


def test_a_server_that_is_killed_and_restarted_costs_a_pause(place: Place, zookeeper_server: ZooKeeper) -> None:
    ledger = place.ledger(options=LASTING, holder="run")
    ledger.commit([Put("a", b"before")])
    zookeeper_server.kill()
    committing = place.threads.submit(ledger.commit, [Put("a", b"during", 0), Put("log/0", b"", ABSENT)])
    zookeeper_server.restart()
    committing.result(SECONDS)
    assert ledger.get("a") == Entry(b"during", 1)
    ledger.check_lease()
    assert "'run'" in str(place.ledger().holder())


@pytest.mark.long
def test_an_ensemble_serves_on_when_its_leader_dies(tmp_path: Path) -> None:
    with start_zookeeper(tmp_path, servers=3) as ensemble, place_at(ensemble) as place:
        ledger, reader = place.ledger(options=LASTING, holder="run"), place.ledger()
        ledger.commit([Put("a", b"0")])
        ensemble.kill(ensemble.leader())
        for number in range(10):
            ledger.commit([Put("a", str(number).encode(), number), Put(f"log/{number}", b"", ABSENT)])
        ledger.check_lease()
        assert ledger.get("a") == Entry(b"9", 10)
        reader._session.sync(place.root)
        assert len(reader.scan("log")) == 10


def test_a_holder_without_contact_for_too_long_steps_down(place: Place, proxy: LossyProxy) -> None:
    hasty = ZooKeeperOptions(session_timeout=2, patience=0.5)
    ledger, other = place.ledger(proxy.address, hasty, "run"), place.ledger(proxy.address, hasty)
    proxy.cut()
    with pytest.raises(FencedError, match=r"expected an answer, got none: Connection dropped: .*refused"):
        ledger.commit([Put("a", b"1")])
    with pytest.raises(Unreachable, match="expected an answer, got none"):
        other.commit([Put("a", b"1")])
    assert not other.wait_free(0.1)
    proxy.heal()
    with pytest.raises(FencedError):
        ledger.check_lease()
    assert place.ledger().get("a") is None


def test_a_holder_whose_session_has_ended_writes_nothing_more(place: Place) -> None:
    first, second = place.ledger(holder="one"), place.ledger()
    first.commit([Put("a", b"1")])
    place.expire(first)
    assert second.wait_free(60)
    with pytest.raises(FencedError, match=r"the session 0x[0-9a-f]+ has ended"):
        first.commit([Put("a", b"2")])
    with pytest.raises(FencedError, match="has ended"):
        first.check_lease()
    with pytest.raises(FencedError):
        first.commit([])
    second.acquire("two")
    with pytest.raises(FencedError):
        first.commit([Put("a", b"2")])
    # What it reads is another matter, and given back it may begin anew.
    assert first.get("a") == Entry(b"1", 0)
    first.release()
    first.commit([Put("a", b"3")])
    with pytest.raises(HeldError, match="'two'"):
        first.acquire("one")


FROZEN = """
import sys
from txstorm.errors import FencedError
from txstorm.ledger.port import Put
from txstorm.ledger.zookeeper.open import open_zookeeper
from txstorm.topology.settings import Settings
settings = Settings(zookeeper_session_timeout=1, zookeeper_connect_timeout=60)
ledger = open_zookeeper(sys.argv[1], sys.argv[2], settings, create=False)
ledger.acquire("frozen")
for what in (ledger.check_lease, lambda: ledger.commit([Put("a", b"frozen")])):
    print("ready", flush=True)
    input()
    try:
        what()
    except FencedError as error:
        print(type(error).__name__, flush=True)
"""


def test_a_holder_that_was_frozen_does_nothing_when_it_wakes_up(place: Place) -> None:
    first = place.ledger()
    first.commit([Put("a", b"before")])
    argv = [sys.executable, "-c", FROZEN, place.hosts, place.root]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGSTOP)
        try:
            assert first.wait_free(60)
            first.acquire("second")
            child.stdin.write("go\ngo\n")
            child.stdin.flush()
        finally:
            child.send_signal(signal.SIGCONT)
        assert child.stdout.read() == "FencedError\nready\nFencedError\n"
    assert first.get("a") == Entry(b"before", 0)
    first.check_lease()


def test_a_handle_without_a_lease_goes_on_in_another_session(place: Place) -> None:
    ledger = place.ledger()
    ledger.commit([Put("a", b"1")])
    place.expire(ledger)
    while True:
        try:
            ledger.commit([Put("a", b"2", 0)])
            break
        except Exception as error:  # noqa: BLE001 - the commit may have met the end of its session
            assert "has ended" in str(error)
    assert ledger.get("a") == Entry(b"2", 1)


def test_a_removed_lease_is_lost_at_the_next_commit(place: Place) -> None:
    first, second = place.ledger(holder="one"), place.ledger()
    place.client().delete("/%lease")
    with pytest.raises(FencedError, match="its node removed"):
        first.commit([Put("a", b"1")])
    first.release()
    first.acquire("again")
    place.client().delete("/%lease")
    second.acquire("two")
    with pytest.raises(FencedError, match="another epoch"):
        first.commit([Put("a", b"1")])
    second.check_lease()
    assert second.get("a") is None


def test_the_lease_is_looked_at_when_it_was_not_seen_for_a_while_only(place: Place, proxy: LossyProxy) -> None:
    times = [0.0]
    ledger = place.ledger(proxy.address, ZooKeeperOptions(session_timeout=9), "run", now=lambda: times[0])
    place.client().delete("/%lease")
    times[0] = 2.9
    ledger.check_lease()  # as after a moment
    times[0] = 3.1
    with pytest.raises(FencedError, match="its node removed"):
        ledger.check_lease()  # as after a freeze
    ledger.release()
    ledger.acquire("again")
    times[0] = 6.0
    ledger.commit([Put("a", b"1")])
    place.client().delete("/%lease")
    times[0] = 8.9
    ledger.check_lease()  # that commit has seen it


def test_a_handle_that_waits_is_notified_of_the_release(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = place.ledger(holder="one"), place.ledger()
    # Nobody looks again by itself.
    monkeypatch.setattr(zookeeper_lease, "_LOOK", 1000.0)
    free = place.threads.submit(second.wait_free, 1000)
    while not second._session._kazoo._data_watchers:
        time.sleep(0.01)
    place.expire(first)
    assert free.result(SECONDS) is True
    second.acquire("two")


def test_entries_are_at_storms_paths_as_they_were_put(place: Place) -> None:
    """Ledger entries are stored at Storm's paths, unchanged (row T12)."""
    ledger = place.ledger(holder="run")
    ledger.commit([Put("coordinator/currtx", b'{"format":1,"value":4}'), Put("coordinator/meta/3", b"{}")])
    seen = place.client()
    assert seen.get("/coordinator/currtx")[0] == b'{"format":1,"value":4}'
    assert seen.get_children("/coordinator/meta") == ["3"]
    assert seen.get("/")[0] == b'{"format": "txstorm-ledger", "version": 1}'
    assert b'"epoch": 0' in seen.get("/%lease")[0]


def test_a_commit_is_one_write_however_many_entries_it_has(place: Place) -> None:
    ledger, seen = place.ledger(holder="run"), place.client()

    def writes(partitions: int) -> int:
        """Return the number of server transactions for two commits of a txid, by their zxids."""
        before = seen.create(f"/before-{partitions}", include_data=True)[1].czxid
        positions = {partition: [17, 42] for partition in range(partitions)}
        ledger.commit([Put(f"coordinator/meta/{partitions}", repr(positions).encode())])
        ledger.commit([Put("coordinator/currtx", b"2"), *(Put(f"user/{p}/{partitions}", b"") for p in positions)])
        return seen.create(f"/after-{partitions}", include_data=True)[1].czxid - before - 1

    assert writes(1) == writes(64) == 2


def test_a_commit_that_zookeeper_would_not_take_is_refused_before_it_is_sent(place: Place) -> None:
    ledger = place.ledger()
    full = [Put(f"a/{number}", b"x" * MAX_VALUE) for number in range(MAX_COMMIT // MAX_VALUE)]
    ledger.commit(full)
    with pytest.raises(InputError, match=rf"at most {MAX_COMMIT} bytes, got 1049"):
        ledger.commit([*full, Put("b", b"x" * MAX_VALUE)])
    # Short values have their cost as well; as many as may be come through.
    many = [Put(f"deep/in/the/tree/{number:040d}", b"") for number in range(4700)]
    with pytest.raises(InputError, match=rf"at most {MAX_COMMIT} bytes"):
        ledger.commit(many)
    for some in in_commits([[op] for op in many]):
        ledger.commit(some)
    assert len(place.client().get_children("/deep/in/the/tree")) == len(many)
    assert ledger.get("b") is None


def test_a_read_only_handle_writes_nothing(place: Place) -> None:
    place.ledger().commit([Put("a", b"1")])
    reader = place.ledger(read_only=True)
    assert reader.get("a") == Entry(b"1", 0)
    for write in (lambda: reader.commit([Delete("a")]), lambda: reader.acquire("x"), lambda: reader.commit([])):
        with pytest.raises(InputError, match="read_only=True"):
            write()


def test_foreign_content_is_not_accepted_as_a_ledger(place: Place) -> None:
    place.ledger()
    opened = place.client()
    opened.delete("/%writers", recursive=True)
    for data, says in [
        (b"", r"expected a txstorm ledger, got a node with b''"),
        (b"7", "expected a txstorm ledger, got a node with b'7'"),
        (b'{"format": "txstorm-ledger", "version": 2}', "expected format txstorm-ledger 1, got 2"),
    ]:
        opened.set("/", data)
        with pytest.raises(DataDirectoryError, match=says):
            place.ledger()
    assert opened.get_children("/") == []


def test_a_lease_that_is_none_of_ours_is_refused(place: Place) -> None:
    ledger = place.ledger()
    place.client().create("/%lease", b"junk")
    with pytest.raises(LedgerCorrupt, match="got b'junk'"):
        ledger.acquire("run")


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "no-such-host.invalid:2181"])
def test_a_host_that_cannot_be_reached_is_named_with_the_cause(hosts: str) -> None:
    with pytest.raises(Unreachable, match=rf"ZooKeeper {hosts}: expected an answer, got none: Con|Cannot resolve"):
        open_zookeeper(hosts, "/wc", Settings(zookeeper_connect_timeout=1), create=False)


def test_a_chroot_without_a_ledger_is_named(place: Place) -> None:
    with pytest.raises(
        DataDirectoryError, match=f"zookeeper:{place.hosts}{place.root}: expected a ledger, got no such"
    ):
        open_zookeeper(place.hosts, place.root, create=False)
    place.ledger().commit([Put("a", b"1")])
    found = open_zookeeper(place.hosts, place.root, create=False, read_only=True)
    assert found.get("a") == Entry(b"1", 0)
    found.close()


@pytest.mark.parametrize(
    ("hosts", "chroot"),
    [("", "/a"), ("a:b", "/a"), ("h:1,,h:2", "/a"), ("h", ""), ("h", "/"), ("h", "/a//b"), ("h", "/../a")],
)
def test_malformed_addresses_are_refused(hosts: str, chroot: str) -> None:
    with pytest.raises(InputError, match=r"ZooKeeper (servers|chroot) '"):
        open_zookeeper(hosts, chroot, Settings(zookeeper_connect_timeout=0.1), create=True)


def test_what_one_user_made_no_other_reads_or_writes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"{place.root}/deep/wc"
    monkeypatch.setenv(AUTH, "owner:right")
    owned = open_zookeeper(place.hosts, root, create=True)
    owned.acquire("run")
    owned.commit([Put("coordinator/currtx", b"1")])
    for auth, who in [("owner:wrong", "user 'owner' with the given password"), ("", "a client without credentials")]:
        monkeypatch.setenv(AUTH, auth)
        for create in (True, False):
            with pytest.raises(InputError, match=f"got a refusal for {who}") as caught:
                open_zookeeper(place.hosts, root, create=create)
            assert "wrong" not in str(caught.value)
    everything = KazooClient(place.hosts, auth_data=[("digest", "owner:right")])
    everything.start(timeout=10)
    for node in all_nodes(everything, place.root):
        acls, _ = everything.get_acls(node)
        found = [(acl.perms, acl.id.scheme, acl.id.id.partition(":")[0]) for acl in acls]
        assert found == [(31, "digest", "owner")], node
    everything.stop()
    everything.close()
    owned.commit([Check("coordinator/currtx", 0), Put("coordinator/currtx", b"2")])
    owned.close()


def test_nodes_that_everybody_may_change_are_made_only_when_asked_for(place, monkeypatch, caplog):
    monkeypatch.delenv(ACL, raising=False)
    root, asked = f"{place.root}/acl", Settings.parse({"zookeeper_acl": "open"})
    with pytest.raises(InputError, match=r"expected credentials to make its nodes with, got none") as refused:
        open_zookeeper(place.hosts, root, create=True)
    assert "--set zookeeper_acl=open" in str(refused.value)
    client = place.client()
    assert client.exists("/acl") is None
    open_zookeeper(place.hosts, root, asked, create=True).close()
    assert caplog.messages == []
    for create in (True, False):  # what was made before is used, with a warning
        caplog.clear()
        open_zookeeper(place.hosts, root, create=create).close()
        (warning,) = caplog.messages
        assert f"{root}: every client of these servers may change and remove its nodes" in warning
    caplog.clear()
    open_zookeeper(place.hosts, root, create=False, read_only=True).close()
    monkeypatch.setenv(AUTH, "owner:right")
    open_zookeeper(place.hosts, f"{place.root}/own", create=True).close()
    assert caplog.messages == []
    acls, _ = client.get_acls("/acl")
    assert [one.id.scheme for one in acls] == ["world"]


def all_nodes(client: KazooClient, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from all_nodes(client, f"{path}/{name}")


def test_tls_with_the_right_authority_only(zookeeper_server: ZooKeeper) -> None:
    other = certificate("another").pem
    server, root = zookeeper_server, zookeeper_server.new_chroot().partition("/")[2]
    trusting = {"zookeeper_connect_timeout": 30, "zookeeper_ca": str(server.ca), "zookeeper_check_hostname": False}
    ledger = open_zookeeper(server.tls_hosts, f"/{root}", Settings.parse(trusting), create=True)
    ledger.commit([Put("a", b"1")])
    assert ledger.get("a") == Entry(b"1", 0)
    ledger.close()
    for setting in ({"zookeeper_ca": str(other)}, {"zookeeper_ca": "", "zookeeper_tls": "true"}):
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            open_zookeeper(server.tls_hosts, f"/{root}", Settings.parse({**trusting, **setting}), create=True)
    with pytest.raises(Unreachable, match="TLS where they ask for it"):
        open_zookeeper(server.tls_hosts, f"/{root}", Settings(zookeeper_connect_timeout=1), create=True)


def test_stalled_requests_arrive_after_healing(place: Place, proxy: LossyProxy) -> None:
    place.ledger()
    client, direct = place.client(proxy.address), place.client()
    proxy.stall()
    writing = client.create_async("/late", b"1")
    assert direct.exists("/late") is None
    assert not writing.ready()
    proxy.heal()
    assert writing.get(timeout=10) == "/late"


def test_events_of_watches_are_no_answers(place: Place, proxy: LossyProxy) -> None:
    place.ledger()
    client, direct = place.client(proxy.address), place.client()
    seen = threading.Event()
    client.exists("/watched", watch=lambda event: seen.set())
    proxy.drop_answers(1, matching=is_write)
    direct.create("/watched", b"1")
    assert seen.wait(30)
    assert proxy.dropped == 0
    with pytest.raises(ConnectionLoss):
        client.set("/watched", b"2")
    assert (proxy.dropped, direct.get("/watched")[0]) == (1, b"2")
