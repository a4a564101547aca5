"""Kafka brokers in KRaft mode, each both broker and controller, with replication factor 1."""

import base64
import subprocess
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from servers import tls
from servers.cluster import Cluster, Ports, started
from servers.java import java_command, kafka_classpath
from servers.process import READY_WITHIN, GuardedProcess, ServerProcess
from servers.proxy import LossyProxy
from servers.tls import certificate

HEAP = "384m"
USER = "storm"
PASSWORD = "thunder"

# Internal topics are small and not replicated. Periodic tasks of the broker have short intervals, because tests wait
# for retention, for compaction, and for transactions of dead producers to be aborted.
CONFIG = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},\
  SECURE://127.0.0.1:{secure},PROXIED://127.0.0.1:{behind}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://127.0.0.1:{secure},PROXIED://127.0.0.1:{before}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL,PROXIED:PLAINTEXT
listener.name.secure.ssl.keystore.type=PKCS12
listener.name.secure.ssl.keystore.location={keystore}
listener.name.secure.ssl.keystore.password={keystore_password}
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
  user_{user}="{password}";
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


def is_transaction_end(request: bytes) -> bool:
    """Return whether `request` commits or aborts a transaction; a filter for `LossyProxy.drop_answers`."""
    return request[4:6] == b"\x00\x1a"


class Kafka(Cluster):
    """Kafka cluster; its brokers are numbered from 0, and broker i has the node id i + 1.

    Each broker has a plain listener, one for clients with the `secure` settings, and one for clients that connect
    through its `proxy`, which get the proxy's address in metadata responses.
    """

    PORTS = ("port", "controller", "secure", "behind", "before")
    """Those of its listeners, of which `behind` is for connections from the proxy; and that of the proxy, `before`."""

    def __init__(
        self, directory: Path, ports: list[Ports], *, process: type[ServerProcess] = GuardedProcess, quick: bool = False
    ) -> None:
        self._ports = ports
        self._proxies: dict[int, LossyProxy] = {}
        self._certificate = certificate("kafka")
        voters = ",".join(f"{i + 1}@127.0.0.1:{broker['controller']}" for i, broker in enumerate(ports))
        servers = []
        for i, broker in enumerate(ports):
            home = directory / f"broker-{i}"
            home.mkdir(parents=True, exist_ok=True)
            (home / "server.properties").write_text(self._config(i, broker, voters, home), encoding="utf-8")
            command = _command(home, ["kafka.Kafka", str(home / "server.properties")], quick=quick)
            servers.append(process(f"Kafka broker {i}", command, home / "log"))
        super().__init__(directory, ports, servers)

    def _config(self, i: int, ports: Ports, voters: str, home: Path) -> str:
        store = {"keystore": self._certificate.keystore, "keystore_password": tls.PASSWORD}
        login = {"user": USER, "password": PASSWORD}
        return CONFIG.format(node=i + 1, voters=voters, data=home / "data", **ports, **store, **login)

    @property
    def bootstrap(self) -> str:
        return self.addresses

    @property
    def secure(self) -> dict[str, str]:
        """Client settings for TLS with a password; the broker rejects a client if any of them is wrong."""
        return {
            "bootstrap.servers": ",".join(f"127.0.0.1:{broker['secure']}" for broker in self._ports),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self._certificate.pem),
        }

    def proxy(self, i: int = 0) -> LossyProxy:
        """Return the proxy for broker i, started at the first call; use its `address` as ``bootstrap.servers``."""
        if i not in self._proxies:
            ports = self._ports[i]
            self._proxies[i] = LossyProxy("127.0.0.1", ports["behind"], port=ports["before"])
        return self._proxies[i]

    def close(self) -> None:
        """Kill all brokers immediately with SIGKILL, and close their proxies."""
        super().close()
        for proxy in self._proxies.values():
            proxy.close()

    def start(self) -> None:
        """Format new data directories, start all brokers, and wait until all are ready."""
        self._format()
        super().start()

    def _format(self) -> None:
        """Format all unformatted data directories with one new cluster id."""
        # One in 64 random ids would begin with "-" and be parsed as an option; with a zero byte, ids begin with "A".
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        new = [server for server in self.servers if not (server.log.parent / "data" / "meta.properties").exists()]
        formats = [(server, _format(server.log.parent, cluster)) for server in new]
        try:
            for server, process in formats:
                if process.wait(READY_WITHIN):
                    raise server.failure("could not be formatted")
        finally:
            for _, process in formats:
                process.kill()

    def ready(self, i: int) -> bool:
        """Return whether broker i accepts clients and is active according to the cluster metadata."""
        if not self.listens(self.ports[i]):
            return False
        try:
            found = self.admin(i).list_topics(timeout=1)
        except KafkaException:
            return False
        return i + 1 in found.brokers

    def admin(self, i: int | None = None) -> AdminClient:
        """Create an admin client for test setup that bootstraps from broker i, or from all brokers if None."""
        servers = self.bootstrap if i is None else self.address(i)
        return AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def make_topic(self, name: str = "", partitions: int = 1, **config: str) -> str:
        """Create a topic with replication factor 1; return its name, a new unique one if `name` is empty.

        `config` has the topic's settings, with ``_`` instead of ``.``, as in ``cleanup_policy="compact"``.
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

    def produce(
        self, topic: str, values: Iterable[object], partition: int = 0, *, times: Sequence[int] = (), **settings: object
    ) -> None:
        """Write records, of these times in milliseconds if given; return when all are written.

        A value is written as text, unless it is bytes or None; `settings` are those of the producer.
        """
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, **settings})
        for number, one in enumerate(values):
            value = one if one is None or isinstance(one, bytes) else str(one)
            producer.produce(topic, value, partition=partition, timestamp=times[number] if times else 0)
        assert producer.flush(30) == 0

    def leaders(self, topic: str, i: int | None = None) -> dict[int, int | None]:
        """Return the leader of each partition (a broker number, or None) as seen by broker i (None: by any broker)."""
        found = self.admin(i).list_topics(topic, timeout=5).topics[topic].partitions
        return {number: partition.leader - 1 if partition.leader > 0 else None for number, partition in found.items()}

    def _all_led(self, topic: str, partitions: int, i: int) -> bool:
        leaders = self.leaders(topic, i)
        return len(leaders) == partitions and None not in leaders.values()


def _command(home: Path, call: list[str], *, quick: bool) -> list[str]:
    return java_command(kafka_classpath(), HEAP, home / "log4j2.properties", call, quick=quick)


def _format(home: Path, cluster: str) -> subprocess.Popen[bytes]:
    call = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(home / "server.properties")]
    with (home / "log").open("ab") as log:
        return subprocess.Popen(_command(home, call, quick=True), stdout=log, stderr=log)


def start_kafka(directory: Path, brokers: int = 1, *, quick: bool = True) -> Kafka:
    """Start a Kafka cluster with its data in `directory`; return it when all brokers are ready.

    The brokers end with this process. Existing data in the directory is reused if it is of a cluster of the same size.
    For performance measurements set `quick` to False, so that the JIT compiler fully optimizes the brokers' code.
    """
    return started(Kafka(directory, Kafka.pick_ports(brokers), quick=quick))
