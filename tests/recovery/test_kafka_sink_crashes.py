"""SIGKILL between any two steps of a transaction that goes to a Kafka topic; a reader finds each record once."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, groupby

import pytest
from crash_job import SPOUTS, TXIDS, lines
from recovery_cases import KILLED, check
from servers.kafka_reading import committed_records

pytestmark = pytest.mark.integration

# Table 1 is ``changes/counts``, 2 is the outlet; in P0 it comes after ``state/counts``.
ONCE = ["kafka.created", "kafka.fenced", "p0.3.raised"]
FENCING = ["kafka.begun", "kafka.sent", "kafka.committed"]  # the first passage raises the mark's epoch
STEPS = ["p6.before", "p6.after", "p7.2.before", *FENCING, "p7.2.written", "p8.before"]


def batches(spout: str) -> dict[int, list[str]]:
    """The words of each transaction."""
    rows = lines(TXIDS)
    one, two = rows[::2], rows[1::2]
    return {
        txid: " ".join(
            rows[4 * txid - 4 : 4 * txid]
            if spout == "file"
            else one[2 * txid - 2 : 2 * txid] + two[2 * txid - 2 : 2 * txid]
        ).split()
        for txid in range(1, TXIDS + 1)
    }


def check_topic(bootstrap: str, topic: str, spout: str) -> None:
    """Every word once, with its txid; in txid order within each partition; positions within a txid without gaps."""
    records = committed_records(bootstrap, topic)
    sent = Counter((record.txid, record.value["word"]) for record in records)
    assert sent == Counter((txid, word) for txid, words in batches(spout).items() for word in words)
    for _, partition in groupby(records, lambda record: record.partition):
        places = [(record.txid, record.index) for record in partition]
        assert places == sorted(places)
    for txid, words in batches(spout).items():
        assert sorted(record.index for record in records if record.txid == txid) == list(range(len(words)))
    assert {record.headers["txstorm.topology"] for record in records} == {"crash"}
    assert all(record.key == record.value["word"] for record in records)


def killed_and_started_again(forks, kafka_broker, place, spout: str, *crashes: str) -> None:
    topic = kafka_broker.make_topic(partitions=3)
    argv = [place / "data", "--spout", spout, "--tables", 1, "--kafka", kafka_broker.bootstrap, topic]
    for fault in crashes:
        status, output = forks.run(argv, fault)
        assert status == KILLED, f"{fault} was not reached: {output}"
    status, output = forks.run(argv)
    assert status == 0, output
    check(place / "data", TXIDS)
    check_topic(kafka_broker.bootstrap, topic, spout)


FAULTS = [
    *(f"{point}:kill:1" for point in [*ONCE, *FENCING]),
    *(f"{point}:kill:3" for point in STEPS),
]


@pytest.mark.parametrize(("fault", "spout"), list(zip(FAULTS, cycle(SPOUTS), strict=False)))
def test_killed_at_any_step_and_started_again(forks, kafka_broker, place, fault, spout):
    killed_and_started_again(forks, kafka_broker, place, spout, fault)


@pytest.mark.parametrize("fault", ["kafka.fenced", "kafka.sent", "kafka.committed", "p7.2.written"])
def test_killed_again_while_it_is_rolled_forward(forks, kafka_broker, place, fault):
    nth = 2 if fault in ("kafka.sent", "kafka.committed") else 1  # the first one raises the epoch
    killed_and_started_again(forks, kafka_broker, place, "opaque", "kafka.sent:kill:3", f"{fault}:kill:{nth}")
