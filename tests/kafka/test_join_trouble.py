"""A join of two topics while one producer pauses, a broker is away, and drivers are killed.

What it must find is computed from the topics' records in SQL, without txstorm's code. The seed is printed;
``TXSTORM_TROUBLE_SEED`` overrides it.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from join_job import BEFORE
from servers.kafka_reading import committed_values
from servers.running import Kafka, start_kafka
from trouble_parties import start_driver

pytestmark = pytest.mark.integration

PARTITIONS, KEYS, STEP = 2, 40, 5
"""Partitions of a topic; distinct keys; milliseconds of event time between two records of a side."""
KILLED = -signal.SIGKILL


def write_side(kafka: Kafka, topic: str, name: str, records: int, pause: float, seed: int) -> int:
    """Produce one side, with a pause after a third; return the number of records that were not delivered."""
    rng = random.Random(seed)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "enable.idempotence": True})
    for i in range(records):
        if i == records // 3:
            producer.flush(60)
            time.sleep(pause)
        value = f"k{rng.randrange(KEYS)} {1_700_000_000_000 + i * STEP} {name}{i}"
        producer.produce(topic, value, partition=i % PARTITIONS)
        if i % 50 == 0:
            producer.poll(0)
            time.sleep(0.05)
    return producer.flush(120)


Outage = Callable[[random.Random, str], None]
"""Makes the broker of a partition of a topic unavailable for a second or two."""


@dataclass(frozen=True)
class Trouble:
    """Size of a run: records of a side, seconds of its pause, drivers killed, and the way in which a broker goes away."""

    records: int
    pause: float
    kills: int
    away: Outage


def run_trouble(place: Path, say: Callable[[str], None], kafka: Kafka, brokers: str, trouble: Trouble) -> None:
    seed = int(os.environ.get("TXSTORM_TROUBLE_SEED", random.randrange(1 << 30)))
    say(f"TXSTORM_TROUBLE_SEED={seed}")
    rng = random.Random(seed)
    left, right = (kafka.make_topic(partitions=PARTITIONS) for _ in range(2))
    target = f"join_job:topology{(brokers, left, right)!r}"
    sides = [(left, "l", trouble.records, 0, rng.randrange(1 << 30))]
    sides += [(right, "r", trouble.records, trouble.pause, rng.randrange(1 << 30))]
    with ThreadPoolExecutor(2) as threads:
        undelivered = [threads.submit(write_side, kafka, *side) for side in sides]
        for number in range(trouble.kills):
            driver = start_driver(place, target)
            try:
                time.sleep(rng.uniform(2.0, 5.0))
                if number == 1:
                    trouble.away(rng, right)
                assert driver.poll() is None, driver.printed
            finally:
                driver.kill()
                assert driver.wait(30) == KILLED
            say(f"driver {number + 1} killed")
        assert [one.result() for one in undelivered] == [0, 0]
    last = start_driver(place, target, "--end-of-input")
    try:
        assert last.wait(120) == 0, last.printed
    finally:
        last.kill()
    verify(place / "data", *(rows_of(kafka, topic) for topic in (left, right)), say)


def rows_of(kafka: Kafka, topic: str) -> list[tuple[str, int, str]]:
    values = [value.split() for _, _, value in committed_values(kafka.bootstrap, topic)]
    return [(key, int(at), id) for key, at, id in values]


def verify(data_dir: Path, left: list, right: list, say: Callable[[str], None]) -> None:
    with duckdb.connect() as sql:
        for name, rows in (("l", left), ("r", right)):
            sql.execute(f"create table {name} (key text, ms bigint, id text)")
            sql.executemany(f"insert into {name} values (?, ?, ?)", rows)
        on = f"l.key = r.key and r.ms between l.ms - {BEFORE} and l.ms"
        pairs = sql.execute(f"select l.id, r.id from l left join r on {on}").fetchall()
        alone = {
            name: [row[0] for row in sql.execute(f"select {name}.id from {name} anti join {other} on {on}").fetchall()]
            for name, other in (("l", "r"), ("r", "l"))
        }
    found = DeltaTable(data_dir / "sinks" / "results").to_pyarrow_table().to_pylist()
    assert Counter((row["left_id"], row["right_id"]) for row in found) == Counter(pairs)
    for name, sink in (("l", "unmatched_left"), ("r", "unmatched_right")):
        rows = DeltaTable(data_dir / "sinks" / sink).to_pyarrow_table().to_pylist()
        assert Counter(row["id"] for row in rows) == Counter(alone[name]), sink
    say(f"{len(left)} left rows, {len(right)} right rows, {len(pairs)} results, {len(alone['l'])} without a match")
    assert alone["l"]
    assert alone["r"]


@pytest.mark.slow
def test_every_row_once_whatever_pauses_is_cut_off_or_killed(kafka_broker, tmp_path, progress):
    """A1, A7, A17, A23: two topics of a real broker, joined as SQL joins what is in them."""
    proxy = kafka_broker.proxy()

    def cut(rng: random.Random, topic: str) -> None:
        proxy.cut()
        time.sleep(rng.uniform(1.0, 2.0))
        proxy.heal()
        progress("connections to the broker cut and healed")

    run_trouble(tmp_path, progress, kafka_broker, proxy.address, Trouble(600, 2, 2, cut))


@pytest.mark.long
@pytest.mark.parametrize(("records", "pause", "kills"), [(3000, 6, 3), (40_000, 60, 20)])
def test_every_row_once_though_the_leader_of_a_partition_is_killed(tmp_path, progress, records, pause, kills):
    with start_kafka(tmp_path / "kafka", brokers=2) as kafka:

        def kill(rng: random.Random, topic: str) -> None:
            leader = kafka.leaders(topic)[rng.randrange(PARTITIONS)]
            assert leader is not None
            kafka.kill(leader)
            time.sleep(rng.uniform(1.0, 2.0))
            kafka.restart(leader)
            progress(f"broker {leader} killed and restarted")

        run_trouble(tmp_path, progress, kafka, kafka.bootstrap, Trouble(records, pause, kills, kill))
