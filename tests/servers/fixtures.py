"""Fixtures: a Kafka broker and a ZooKeeper server, each started when a test first asks for it, one per test process.

A test takes topics and a chroot of its own, and leaves the servers running.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from servers.cluster import Cluster
from servers.running import Kafka, ZooKeeper, start_kafka, start_zookeeper


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One running broker; `kafka_broker.bootstrap` is its address."""
    kafka = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    _close(kafka)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """One running server; `zookeeper_server.hosts` is its address."""
    zookeeper = start_zookeeper(tmp_path_factory.mktemp("zookeeper"))
    yield zookeeper
    _close(zookeeper)


def _close(cluster: Cluster) -> None:
    """End the servers. Their logs stay with pytest's other files, their data is too big for that."""
    cluster.close()
    for data in cluster.directory.glob("*/data"):
        shutil.rmtree(data)
