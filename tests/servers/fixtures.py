"""Fixtures: one Kafka broker and one ZooKeeper server per test process, started when first used.

Each test uses its own topics and chroot; a test that stops a server must restart it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from servers.cluster import Cluster
from servers.running import Kafka, ZooKeeper, start_kafka, start_zookeeper


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Run one Kafka broker for the whole test session; its address is `kafka_broker.bootstrap`."""
    kafka = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    _close(kafka)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Run one ZooKeeper server for the whole test session; its address is `zookeeper_server.hosts`."""
    zookeeper = start_zookeeper(tmp_path_factory.mktemp("zookeeper"))
    yield zookeeper
    _close(zookeeper)


def _close(cluster: Cluster) -> None:
    """Kill the servers and delete their data, which is too large to keep; their logs remain in pytest's directory."""
    cluster.close()
    for data in cluster.directory.glob("*/data"):
        shutil.rmtree(data)
