"""Producer of generated tweets for a Kafka topic, up to a count or until interrupted; aborts some transactions.

python -m jobs.kafka_producer 127.0.0.1:9092 tweets --count 10000 --abort 0.3
python -m jobs.kafka_producer 127.0.0.1:9092 tweets --rate 500

A tweet is JSON: ``{"id", "created_at", "user", "lang", "text"}``, its key is the user. At the end it prints the
hashtags in the committed records, which are always the same for the same seed and count.
"""

import argparse
import itertools
import json
import random
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TAGS = (
    "#kafka #spark #python #delta #streaming #storm #exactlyonce #data #zookeeper #parquet #lakehouse #sql #arrow "
    "#java #devops #opensource #microbatch #eventtime #watermarks #idempotence"
).split()
PHRASES = (
    "Reading about {0} and {1} on the train",
    "Our counts add up again. Thank you, {0}! {1}",
    "Slides of tonight's talk are online {0} {1}",
    "Why is everybody talking about {0} all of a sudden?",
    "Short note to self: a replay is not a duplicate {0} {1} {2}",
    "Coffee, rain, and a log that never ends",
    "Moved the pipeline over the weekend, without a minute of downtime {0}",
)
LANGUAGES = ("en", "en", "en", "de", "es", "ja", "pt")


def tweets(rng: random.Random) -> Iterator[dict[str, Any]]:
    """Generate an endless stream of tweets; the hashtag of rank n is about 1/n times as frequent as the first."""
    weights = [1 / rank for rank in range(1, len(TAGS) + 1)]
    for number in itertools.count(1):
        yield {
            "id": number,
            "created_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "user": f"user{rng.randint(1, 500)}",
            "lang": rng.choice(LANGUAGES),
            "text": rng.choice(PHRASES).format(*rng.choices(TAGS, weights, k=3)),
        }


def produce(producer: Producer, options: argparse.Namespace) -> tuple[int, int, Counter[str]]:
    """Send tweets in transactions; return the numbers of committed and aborted tweets, and the committed hashtags."""
    rng, started = random.Random(options.seed), time.monotonic()  # noqa: S311 - tweets are no secrets
    source = itertools.islice(tweets(rng), options.count)
    committed, aborted, tags = 0, 0, Counter[str]()
    try:
        while batch := list(itertools.islice(source, options.batch)):
            send(producer, options.topic, batch)
            if rng.random() < options.abort:
                producer.abort_transaction()
                aborted += len(batch)
            else:
                producer.commit_transaction()
                committed += len(batch)
                tags.update(tag for tweet in batch for tag in re.findall(r"#\w+", tweet["text"]))
            if options.rate:
                time.sleep(max(0.0, (committed + aborted) / options.rate - (time.monotonic() - started)))
    except KeyboardInterrupt:
        pass
    return committed, aborted, tags


def send(producer: Producer, topic: str, batch: Sequence[dict[str, Any]]) -> None:
    """Send the records of one transaction, without committing it."""
    producer.begin_transaction()
    for tweet in batch:
        producer.produce(topic, json.dumps(tweet).encode(), tweet["user"].encode())
    producer.flush()


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of all clients; errors are raised, so librdkafka does not have to log them."""
    return {"bootstrap.servers": options.bootstrap, "log_level": 2}


def make_topic(options: argparse.Namespace) -> None:
    """Create the topic unless it exists."""
    topic = NewTopic(options.topic, options.partitions, 1)
    admin = AdminClient(settings(options))  # kept in a variable: pending requests end with the client
    made = admin.create_topics([topic], request_timeout=5)
    try:
        made[options.topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bootstrap", help="HOST:PORT of a broker")
    made.add_argument("topic")
    made.add_argument("--partitions", type=int, default=8, help="partitions of the topic, if it is created (8)")
    made.add_argument("--count", type=int, help="total number of tweets; default: until Ctrl-C")
    made.add_argument("--rate", type=float, help="tweets per second; default: as fast as possible")
    made.add_argument("--batch", type=int, default=100, help="tweets per transaction (100)")
    made.add_argument("--abort", type=float, default=0.0, help="fraction of transactions to abort (0.0)")
    made.add_argument("--seed", type=int, default=7, help="seed of everything random (7)")
    return made


def main(argv: Sequence[str]) -> int:
    """Create the topic and send; return the exit code."""
    options = parser().parse_args(argv)
    try:
        make_topic(options)
        producer = Producer({**settings(options), "transactional.id": f"tweets-{uuid.uuid4().hex}", "linger.ms": 5})
        producer.init_transactions(10)
        committed, aborted, tags = produce(producer, options)
    except KafkaException as error:
        print(f"error: {options.bootstrap}: {error.args[0].str()}; is the broker running?", file=sys.stderr)
        return 1
    lines = [f"{committed:,} tweets committed, {aborted:,} in aborted transactions; hashtags of the committed ones:"]
    for tag, count in sorted(tags.items(), key=lambda pair: (-pair[1], pair[0]))[:5]:
        lines.append(f"{tag:<16}{count:>8,}")
    sys.stdout.write("\n".join(lines) + "\n")  # in one write, also unbuffered: `head` may close the pipe early
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
