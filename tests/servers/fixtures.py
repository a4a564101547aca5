"""Fixtures: one Kafka broker, ZooKeeper server and Redis server per test process, started when first used.

All tests that use them run in one process (see `spread`). Each uses its own topics, chroot and namespaces; a test that
stops a server must restart it, which is another JVM: a proxy that is cut is cheaper where unavailability is enough.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from spread import group

from servers.cluster import Cluster
from servers.running import Kafka, Redis, ZooKeeper, start_kafka, start_redis, start_zookeeper

RUNNING = ExitStack()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    """Run one Kafka broker for the whole test session; its address is `kafka_broker.bootstrap`."""
    return _running(start_kafka(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> ZooKeeper:
    """Run one ZooKeeper server for the whole test session, at `zookeeper_server.hosts` and, with TLS, `tls_hosts`."""
    return _running(start_zookeeper(tmp_path_factory.mktemp("zookeeper"), encrypted=True))


@pytest.fixture(scope="session")
def redis_installed() -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed; scripts/redis --install does it")


@pytest.fixture(scope="session")
def redis_server(redis_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Redis:
    """Run one Redis server for the whole test session; `redis_server.conf()` configures a state provider for it."""
    return _running(start_redis(tmp_path_factory.mktemp("redis")))


@pytest.fixture
def redis(redis_server: Redis) -> Redis:
    """Return the Redis server of the test session, empty."""
    redis_server.flush()
    return redis_server


@pytest.fixture
def own_redis(redis_installed: None, tmp_path: Path) -> Iterator[Redis]:
    """Yield a Redis server that the test may kill or spoil."""
    with start_redis(tmp_path / "own-redis") as redis:
        yield redis


def _running(cluster: Any) -> Any:
    RUNNING.callback(_close, cluster)
    return cluster


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Close the servers after the last test of the groups, which come first (see `spread`): idle ones cost, too."""
    if nextitem is None or group(nextitem) is None:
        RUNNING.close()


def _close(cluster: Cluster) -> None:
    """Kill the servers and delete their data, which is too large to keep; their logs remain in pytest's directory."""
    cluster.close()
    for data in cluster.directory.glob("*/data"):
        shutil.rmtree(data)
