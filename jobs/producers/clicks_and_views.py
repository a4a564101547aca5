"""Producer of views and clicks, for Kafka or in the process: the clicks pause, resume far behind, and catch up.

python -m jobs.producers.clicks_and_views 127.0.0.1:9092
python -m jobs.producers.clicks_and_views 127.0.0.1:9092 --minutes-per-second 10

An hour has 600 views; 360 of them are clicked within ten minutes. From the 11th minute to the 24th no clicks are
produced, and then those of three minutes per minute. Events are JSON, with a time in ms since 1970; the topics are
created if they do not exist. Times of events begin now, in the process at 2026-01-31T12:00:00Z.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence

from txstorm.spouts import MemoryTransactionalSpout

FIELDS = {"views": ("view", "ad", "at"), "clicks": ("click", "view", "at")}
RECORD = ("value", "partition")
START, MINUTE = 1_769_860_800_000, 60_000
LAST = 70
_VIEWS = [{"view": n, "ad": f"ad{n % 7}", "at": 6000 * n} for n in range(600)]
_CLICKS = [{"click": n, "view": n, "at": 6000 * n + n * 37 % 570 * 1000} for n in range(600) if n % 5 < 3]
_EVENTS = {"views": _VIEWS, "clicks": sorted(_CLICKS, key=lambda click: click["at"])}


def produced(topic: str, minute: int) -> int:
    """Return how many minutes of events a topic has after `minute`."""
    return min(minute, 60) if topic == "views" else min(minute, LAST, 10 + 3 * max(0, minute - 24))


def events(topic: str, minute: int, start: int = START) -> list[str]:
    """Return the records that a topic gets in `minute`; the first is 1, which begins at the time `start`."""
    first, end = (MINUTE * produced(topic, one) for one in (minute - 1, minute))
    return [json.dumps({**one, "at": start + one["at"]}) for one in _EVENTS[topic] if first <= one["at"] < end]


def minutes(topic: str) -> MemoryTransactionalSpout:
    """Return a spout over one of the topics: its transaction n has the records of minute n."""
    sizes = [len(events(topic, minute)) for minute in range(1, LAST + 1)]
    records = [(value, 0) for minute in range(1, LAST + 1) for value in events(topic, minute)]
    return MemoryTransactionalSpout([records], RECORD, take=lambda txid: sizes[txid - 1] if txid <= LAST else 0)


def main(argv: Sequence[str]) -> int:
    """Send all events; return the exit code."""
    from confluent_kafka import KafkaException, Producer

    from jobs.kafka_producer import make_topic

    options = parser().parse_args(argv)
    start = time.time_ns() // 1_000_000
    try:
        for options.topic in FIELDS:
            make_topic(options)
        producer = Producer({"bootstrap.servers": options.bootstrap, "log_level": 2, "enable.idempotence": True})
        for minute in range(1, LAST + 1):
            for topic in FIELDS:
                for value in events(topic, minute, start):
                    producer.produce(topic, value.encode(), str(json.loads(value)["view"]).encode())
            producer.flush()
            time.sleep(1 / options.minutes_per_second)
    except KafkaException as error:
        print(f"error: {options.bootstrap}: {error.args[0].str()}; is the broker running?", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    print("views: 600, clicks: 360")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bootstrap", help="HOST:PORT of a broker")
    made.add_argument("--partitions", type=int, default=2, help="partitions of a topic that is created (2)")
    made.add_argument("--minutes-per-second", metavar="N", type=float, default=1.0, help="pace (1)")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
