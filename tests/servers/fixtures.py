"""Fixtures: a Kafka broker and a ZooKeeper server, one each per test process, started at first use.

Each test uses its own topics and chroot, and leaves the servers running.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from servers.cluster import Cluster
from servers.running import Kafka, ZooKeeper, start_kafka, start_zookeeper


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Run one broker; its address is `kafka_broker.bootstrap`."""
    kafka = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    _close(kafka)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Run one server; its address is `zookeeper_server.hosts`."""
    zookeeper = start_zookeeper(tmp_path_factory.mktemp("zookeeper"))
    yield zookeeper
    _close(zookeeper)


def _close(cluster: Cluster) -> None:
    """End the servers; keep their logs with pytest's other files, but remove their data, which is too large to keep."""
    cluster.close()
    for data in cluster.directory.glob("*/data"):
        shutil.rmtree(data)
