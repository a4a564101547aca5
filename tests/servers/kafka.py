"""Kafka brokers in KRaft mode: each one broker and controller, replication 1."""

from __future__ import annotations

import base64
import subprocess
import uuid
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from servers.cluster import Cluster
from servers.java import java_command, kafka_classpath
from servers.process import ServerError, ServerProcess, free_ports

HEAP = "384m"

# Topics of the broker's own are small and not replicated; what brokers do now and then, they do at once: tests wait
# for retention, compaction, and for a dead producer's transaction to be aborted.
CONFIG = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=5000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=8388608
log.cleaner.backoff.ms=200
log.initial.task.delay.ms=500
log.retention.check.interval.ms=500
log.segment.delete.delay.ms=1000
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""


class Kafka(Cluster):
    """Running brokers, numbered from 0; broker i has the node id i + 1."""

    def __init__(self, directory: Path, ports: list[int], controllers: list[int], *, detached: bool = False) -> None:
        self.ports = ports
        voters = ",".join(f"{i + 1}@127.0.0.1:{port}" for i, port in enumerate(controllers))
        servers = []
        for i, (port, controller) in enumerate(zip(ports, controllers, strict=True)):
            home = directory / f"broker-{i}"
            home.mkdir(parents=True, exist_ok=True)
            settings = {"node": i + 1, "voters": voters, "port": port, "controller": controller, "data": home / "data"}
            (home / "server.properties").write_text(CONFIG.format_map(settings), encoding="utf-8")
            command = _command(home, "kafka.Kafka", str(home / "server.properties"))
            servers.append(ServerProcess(f"Kafka broker {i}", command, home / "log", detached=detached))
        super().__init__(directory, servers)

    @property
    def bootstrap(self) -> str:
        """For ``bootstrap.servers``: all brokers."""
        return ",".join(map(self.address, range(len(self.ports))))

    def address(self, i: int) -> str:
        """HOST:PORT of broker i."""
        return f"127.0.0.1:{self.ports[i]}"

    def format(self) -> None:
        """Prepare the data directories that are not yet; all get the id of one new cluster."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formats = []
        for server in self.servers:
            home = server.log.parent
            if not (home / "data" / "meta.properties").exists():
                call = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(home / "server.properties")]
                log = (home / "log").open("ab")
                formats.append((server, subprocess.Popen(_command(home, *call), stdout=log, stderr=log)))
                log.close()
        for server, process in formats:
            if process.wait(60):
                raise server.failure("could not be formatted")

    def ready(self, i: int) -> bool:
        """Whether broker i serves and the controllers count it in."""
        if not self.listens(self.ports[i]):
            return False
        try:
            found = self.admin(i).list_topics(timeout=1)
        except KafkaException:
            return False
        return i + 1 in found.brokers

    def admin(self, i: int | None = None) -> AdminClient:
        """A client for what no test here is about: topics, partitions, records to delete. Asks broker i first."""
        servers = self.bootstrap if i is None else self.address(i)
        return AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def make_topic(self, name: str = "", partitions: int = 1, **config: str) -> str:
        """A new topic with replication 1; its name, one nobody else uses unless it is given.

        `config` holds the topic's settings with ``_`` for ``.``: ``cleanup_policy="compact"``.
        """
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = self.admin()
        made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)], operation_timeout=30)
        made[name].result(30)
        for i, server in enumerate(self.servers):
            if server.alive:
                self.wait(partial(self._all_led, name, partitions, i), f"broker {i} to know the leaders of {name}")
        return name

    def leaders(self, topic: str, i: int | None = None) -> dict[int, int | None]:
        """By partition, the number of the broker that leads it, None where that one is away, as broker i sees it."""
        found = self.admin(i).list_topics(topic, timeout=5).topics[topic].partitions
        return {number: partition.leader - 1 if partition.leader > 0 else None for number, partition in found.items()}

    def _all_led(self, topic: str, partitions: int, i: int) -> bool:
        leaders = self.leaders(topic, i)
        return len(leaders) == partitions and None not in leaders.values()


def _command(home: Path, *call: str) -> list[str]:
    return java_command(kafka_classpath(), HEAP, home / "log4j2.properties", *call)


def start_kafka(directory: Path, brokers: int = 1, *, detached: bool = False) -> Kafka:
    """Start brokers with their data below `directory`, and return when all of them serve.

    They end with this process, unless `detached`. Data of an earlier start in the same directory is used again if it
    had as many brokers.
    """
    ports = free_ports(2 * brokers)
    kafka = Kafka(directory, ports[:brokers], ports[brokers:], detached=detached)
    try:
        kafka.format()
        kafka.start()
    except (ServerError, subprocess.TimeoutExpired):
        kafka.close()
        raise
    return kafka
