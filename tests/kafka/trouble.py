"""Fault injection for a topology with a Kafka source and a ZooKeeper ledger; a seed determines kinds and durations."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import NewPartitions
from servers.kafka import is_transaction_end
from servers.kafka_reading import committed_values
from servers.proxy import LossyProxy
from servers.running import Kafka, ZooKeeper
from servers.zookeeper import is_write
from trouble_parties import Drivers, Lease, Writer, logs, wait_until
from trouble_tables import Ended, Known, verify

SESSION = 2.0
PARTITIONS = 8
PATIENCE = 90.0
"""Maximum seconds from the end of a fault to the next commit."""

POINTS = [
    "p0.epoch", "p0.2.raised", "p0.raised", "p1.before", "p1.after", "p2.after", "p3.after", "p4.before", "p4.after",
    "p5.before", "p5.staged.after", "p6.before", "p6.after", "p7.1.written", "p7.2.before", "p7.2.written",
    "p7.3.before", "p7.3.written", "p8.before", "p8.after", "ledger.before", "ledger.written", "kafka.fenced",
    "kafka.begun", "kafka.sent", "kafka.committed",
]  # fmt: skip

Trouble = Callable[[random.Random], None]


@dataclass
class World(AbstractContextManager["World"]):
    """One topology under fault injection, with servers, proxies, drivers and producer; it starts where it is entered.

    `lossy`: whether records may be deleted, which takes an opaque spout; `longest`: outage of a server, in seconds.
    """

    kafka: Kafka
    zookeeper: ZooKeeper
    place: Path
    seed: int
    say: Callable[[str], None]
    lossy: bool = True
    longest: float = 2.0
    known: Known = field(default_factory=Known)

    def __post_init__(self) -> None:
        self.rng, kafka = random.Random(self.seed), self.kafka
        self.proxies = [kafka.proxy(i) for i in range(len(kafka.ports))]
        self.before_zookeeper = LossyProxy("127.0.0.1", self.zookeeper.ports[0])
        self.topic = kafka.make_topic(partitions=PARTITIONS)
        self.target = kafka.make_topic(partitions=4)
        self._admin = kafka.admin()
        self._changing = threading.Lock()  # serializes changes to the topic and outages of brokers
        self.writer = Writer(kafka.bootstrap, self.topic, PARTITIONS, random.Random(self.rng.random()))
        chroot = f"trouble-{self.topic}"
        self.lease = Lease(self.zookeeper.hosts, f"/{chroot}")
        brokers = ",".join(proxy.address for proxy in self.proxies)
        job = f"trouble_job:topology({brokers!r}, {self.topic!r}, {self.target!r}, opaque={self.lossy})"
        options = ["--ledger", f"zookeeper:{self.before_zookeeper.address}/{chroot}"]
        for name, value in {"session_timeout": SESSION, "connect_timeout": 60, "patience": 120}.items():
            options += ["--set", f"zookeeper_{name}={value}"]
        self.drivers = Drivers(self.place, job, options)

    def __enter__(self) -> World:
        try:
            self.writer.start()
            self.drivers.start()
            self.await_commit()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def inject(self, troubles: list[str], *, at_once: int = 1) -> None:
        """Inject the faults `troubles`, `at_once` at a time, and wait for a commit after each group."""
        with ThreadPoolExecutor(at_once) as threads:
            while troubles:
                some, troubles = troubles[:at_once], troubles[at_once:]
                made = [threads.submit(self._make, name, random.Random(self.rng.random())) for name in some]
                for one in made:
                    one.result()
                self.await_commit()
                time.sleep(self.rng.uniform(0, 0.5))

    def _make(self, name: str, rng: random.Random) -> None:
        self.say(name)
        trouble: Trouble = getattr(self, name)
        trouble(rng)

    def await_commit(self) -> None:
        """Wait until one more transaction is committed; fail after `PATIENCE` seconds."""
        before = self.drivers.committed()
        try:
            wait_until(lambda: self.drivers.committed() > before, "a commit", PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs(self.place)}") from None

    def end(self) -> dict[str, int]:
        """Stop the producer, have one driver read the rest of the topic, verify the tables, and return their counts."""
        self.writer.end()
        self.say(self.drivers.finish(PATIENCE).splitlines()[-1][:200])
        kafka = self.kafka
        found = verify(self.drivers.data_dir, self.topic, self._id(), self.known, self.target, kafka.bootstrap)
        codes = Counter(code for code, _ in self.drivers.ended)
        self.say(f"{found}; ended with: {dict(codes)}")
        assert self.drivers.unexpected() == []
        return found

    def close(self) -> None:
        """Stop the producer and the drivers, but not the servers."""
        try:
            self.drivers.close()
            if self.writer.is_alive():
                self.writer.end()
        finally:
            self.before_zookeeper.close()

    def broker_killed(self, rng: random.Random) -> None:
        number = rng.randrange(len(self.kafka.servers))
        with self._changing:
            self.kafka.kill(number)
            time.sleep(rng.uniform(0.2, self.longest))
            self.kafka.restart(number)

    def zookeeper_killed(self, rng: random.Random) -> None:
        self.zookeeper.kill()
        time.sleep(rng.uniform(0.5, self.longest))
        self.zookeeper.restart()

    def zookeeper_answer_lost(self, rng: random.Random) -> None:
        """Drop ZooKeeper's responses to one to three writes, which do take effect."""
        self._lose(self.before_zookeeper, rng.randint(1, 3), is_write)

    def kafka_answer_lost(self, rng: random.Random) -> None:
        """Drop one to four responses of a broker, either to any requests or only to ends of transactions."""
        proxy = rng.choice(self.proxies)
        self._lose(proxy, rng.randint(1, 4), rng.choice([None, is_transaction_end]))

    def _lose(self, proxy: LossyProxy, count: int, matching: Callable[[bytes], bool] | None) -> None:
        expected, until = proxy.dropped + count, time.monotonic() + 3
        proxy.drop_answers(count, matching)
        while proxy.dropped < expected and time.monotonic() < until:
            time.sleep(0.05)
        proxy.heal()

    def zookeeper_disconnected(self, rng: random.Random) -> None:
        """Disconnect the drivers from ZooKeeper, for less or more than the session timeout."""
        self.before_zookeeper.cut()
        time.sleep(rng.uniform(0.1, self.longest))
        self.before_zookeeper.heal()

    def driver_killed(self, rng: random.Random) -> None:
        leader = self.drivers.leader(self.lease)
        if leader is not None:
            leader.kill()

    def driver_killed_at_fault_point(self, rng: random.Random) -> None:
        """Kill both drivers; the first of their successors is killed at a random fault point."""
        point = f"{rng.choice(POINTS)}:kill:{rng.randint(1, 3)}"
        self.say(f"  {point}")
        driver, until = self.drivers.replace_all(point), time.monotonic() + 10
        while driver.poll() is None and time.monotonic() < until:
            time.sleep(0.05)

    def driver_frozen(self, rng: random.Random) -> None:
        """Suspend the leading driver with SIGSTOP, for less or more than the session timeout."""
        seconds = rng.uniform(0.5, 2 * SESSION + 1)
        with self._frozen():
            time.sleep(seconds)

    def session_expired(self, rng: random.Random) -> None:
        found = self.lease.holder()
        if found is not None:
            self.lease.expire(found[1])

    @contextmanager
    def _frozen(self):
        leader = self.drivers.leader(self.lease)
        if leader is not None:
            leader.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if leader is not None:
                leader.send_signal(signal.SIGCONT)

    def partitions_added(self, rng: random.Random) -> None:
        """Add one or two partitions to the topic, up to twice the initial number."""
        with self._changing:
            count = min(self.writer.partitions + rng.randint(1, 2), 2 * PARTITIONS)
            if count > self.writer.partitions:
                done = self._admin.create_partitions([NewPartitions(self.topic, count)])[self.topic]
                done.result(30)
                self._wait_for_partitions(count)
                self.writer.partitions = count

    def records_deleted(self, rng: random.Random) -> None:
        """Delete the first records of some partitions while the leading driver is suspended."""
        with self._changing, self._frozen():
            time.sleep(rng.uniform(0.2, 1))
            id, ends = self._archive(), {}
            for (place, offset), _ in self.known.values.items():
                if place[0] == id:
                    ends[place[1]] = max(offset + 1, ends.get(place[1], 0))
            chosen = rng.sample(sorted(ends), min(len(ends), rng.randint(1, 4)))
            # Usually all records, because the unread ones are at the end.
            before = {number: ends[number] - rng.choice([0, 0, 5]) for number in chosen}
            done = self._admin.delete_records([TopicPartition(self.topic, n, max(end, 0)) for n, end in before.items()])
            for place, answer in done.items():
                low = answer.result().low_watermark
                self.known.deleted[id, place.partition] = Ended(low)

    def topic_recreated(self, rng: random.Random) -> None:
        """Delete the topic with its records, and create a new one with the same name."""
        unread = self._frozen() if rng.random() < 0.5 else nullcontext()
        with self._changing, unread:
            time.sleep(rng.uniform(0, 0.5))
            self._recreate(rng)

    def _recreate(self, rng: random.Random) -> None:
        with self.writer.quiet():
            id = self._archive()
            count = self.writer.partitions
            self._admin.delete_topics([self.topic])[self.topic].result(30)
            for number in range(count):
                self.known.deleted[id, number] = Ended(None)
            time.sleep(rng.uniform(0, 1.5))
            wait_until(lambda: self.topic not in self._admin.list_topics(timeout=10).topics, "the topic to go", 30)
            self.kafka.make_topic(self.topic, partitions=PARTITIONS)
            self.writer.partitions = PARTITIONS

    def _archive(self) -> str:
        """Add all currently readable records to `known`; return the topic's id."""
        id = self._id()
        for partition, offset, value in committed_values(self.kafka.bootstrap, self.topic):
            self.known.values[(id, partition), offset] = value
        return id

    def _id(self) -> str:
        found = self._admin.describe_topics(TopicCollection([self.topic]))[self.topic].result(30)
        return str(found.topic_id)

    def _wait_for_partitions(self, count: int) -> None:
        def led() -> bool:
            try:
                leaders = self.kafka.leaders(self.topic)
            except KafkaException:
                return False
            return len(leaders) == count and None not in leaders.values()

        wait_until(led, f"{count} partitions", 30)


HARMLESS = [
    "broker_killed", "zookeeper_killed", "zookeeper_answer_lost", "kafka_answer_lost", "zookeeper_disconnected",
    "driver_killed", "driver_killed_at_fault_point", "driver_frozen", "session_expired", "partitions_added",
]  # fmt: skip
LOSSY = ["records_deleted", "topic_recreated"]
"""Faults after which an exact replay is impossible, so that only opaque spouts survive them."""
