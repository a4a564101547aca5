"""Tests of the ZooKeeper server that other tests use, and of the proxy in front of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError
from servers.cluster import Cluster
from servers.proxy import LossyProxy
from servers.running import ZooKeeper
from servers.tls import certificate
from servers.zookeeper import is_write

pytestmark = pytest.mark.integration


@pytest.fixture
def proxy(zookeeper_server: ZooKeeper) -> Iterator[LossyProxy]:
    with LossyProxy("127.0.0.1", zookeeper_server.ports[0]) as made:
        yield made


def connected(hosts: str) -> KazooClient:
    client = KazooClient(hosts, timeout=10)
    client.start(timeout=10)
    return client


@pytest.fixture
def client(proxy: LossyProxy, zookeeper_server: ZooKeeper) -> Iterator[KazooClient]:
    """Yield a client that connects through the proxy, in its own chroot."""
    chroot = zookeeper_server.new_chroot().removeprefix(zookeeper_server.hosts)
    direct = connected(zookeeper_server.hosts)
    direct.ensure_path(chroot)
    direct.stop()
    direct.close()
    made = connected(proxy.address + chroot)
    yield made
    proxy.heal()
    made.stop()
    made.close()


def test_lost_answer_of_a_write_that_happened(client: KazooClient, proxy: LossyProxy):
    proxy.drop_answers(1, matching=is_write)
    assert client.exists("/node") is None  # no write: its answer comes
    with pytest.raises(ConnectionLoss):
        client.create("/node", b"1")
    assert proxy.dropped == 1
    assert client.retry(client.get, "/node")[0] == b"1"
    client.set("/node", b"2")


def test_cut_refuses_until_healed(client: KazooClient, proxy: LossyProxy):
    client.create("/node", b"1")
    proxy.cut()
    assert proxy.connections == 0
    with pytest.raises(KazooTimeoutError):
        KazooClient(proxy.address).start(timeout=0.5)
    proxy.heal()
    assert client.retry(client.get, "/node")[0] == b"1"


@pytest.fixture
def direct(client: KazooClient, zookeeper_server: ZooKeeper) -> Iterator[KazooClient]:
    """Yield a client in the same chroot that bypasses the proxy."""
    made = connected(zookeeper_server.hosts + client.chroot)
    yield made
    made.stop()
    made.close()


def test_stalled_requests_arrive_after_healing(client: KazooClient, proxy: LossyProxy, direct: KazooClient):
    proxy.stall()
    writing = client.create_async("/late", b"1")
    assert direct.exists("/late") is None
    assert not writing.ready()
    proxy.heal()
    assert writing.get(timeout=10) == "/late"


def test_delayed_answers_of_writes_that_happened(client: KazooClient, proxy: LossyProxy, direct: KazooClient):
    proxy.delay(600)
    writing = client.create_async("/late", b"1")
    Cluster.wait(lambda: direct.exists("/late") is not None, "the write")
    assert not writing.ready()
    proxy.heal()
    assert writing.get(timeout=10) == "/late"


def test_events_of_watches_are_no_answers(client: KazooClient, proxy: LossyProxy, direct: KazooClient):
    seen = threading.Event()
    client.exists("/watched", watch=lambda event: seen.set())
    proxy.drop_answers(1, matching=is_write)
    direct.create("/watched", b"1")
    assert seen.wait(30)
    assert proxy.dropped == 0
    with pytest.raises(ConnectionLoss):
        client.set("/watched", b"2")
    assert (proxy.dropped, direct.get("/watched")[0]) == (1, b"2")


def test_tls_is_checked(zookeeper_server: ZooKeeper):
    server = zookeeper_server
    for hosts, options in (server.hosts, {}), (server.tls_hosts, {"use_ssl": True, "ca": str(server.ca)}):
        client = KazooClient(hosts, **options)
        client.start(timeout=10)
        assert client.exists("/zookeeper")
        client.stop()
        client.close()
    with pytest.raises(KazooTimeoutError):
        KazooClient(server.tls_hosts, use_ssl=True, ca=str(certificate("another").pem)).start(timeout=1)
