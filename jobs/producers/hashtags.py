"""Producer of the hashtags of ``jobs/data/hashtags`` for a Kafka topic: the files in turn, again and again.

txstorm hailstorm run_sample_emitter --broker 127.0.0.1:9092 --topic test --count 20000
"""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from txstorm.errors import InputError

FILES = sorted((Path(__file__).parents[1] / "data" / "hashtags").glob("*.txt"))
PARTITIONS = 4
PATIENCE = 30.0


def emit(servers: str, topic: str, sleep: float, batch: int, count: int | None) -> int:
    """Send `count` hashtags (None: until interrupted), as UTF-8, with a pause after each batch; return their number.

    Raises:
        InputError: no broker answers, or one refuses the topic.
    """
    # What clients log while no broker answers is in the error that follows.
    settings = {"bootstrap.servers": servers, "log_level": 0, "error_cb": lambda error: None}
    producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 5})
    try:
        create(AdminClient(settings), topic)
        sent = 0
        source = itertools.islice(hashtags(), count)
        while tags := list(itertools.islice(source, batch)):
            for number, tag in enumerate(tags, sent):
                producer.produce(topic, tag, partition=number % PARTITIONS)
            sent += len(tags)
            producer.poll(0)
            if len(producer) > batch + 10_000:
                producer.flush(PATIENCE)
            time.sleep(sleep)
    except KeyboardInterrupt:
        pass
    except KafkaException as error:
        msg = f"{servers}: {error.args[0].str()}; check --broker, and that the broker runs: scripts/kafka starts one"
        raise InputError(msg) from None
    if left := producer.flush(PATIENCE):
        msg = f"{servers}: {left} hashtags were not acknowledged in {PATIENCE:.0f} s; check the broker"
        raise InputError(msg)
    return sent


def create(admin: AdminClient, topic: str) -> None:
    """Create the topic, unless it exists."""
    (made,) = admin.create_topics([NewTopic(topic, PARTITIONS, 1)], request_timeout=10).values()
    try:
        made.result(15)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def hashtags() -> Iterator[bytes]:
    """Yield the hashtags of the files, each file in turn, without end."""
    for path in itertools.cycle(FILES):
        yield from path.read_bytes().splitlines()
