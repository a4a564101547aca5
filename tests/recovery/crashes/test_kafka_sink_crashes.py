"""SIGKILL between any two steps of sending a transaction to a Kafka topic: consumers read each record once."""

from collections import Counter
from itertools import cycle, groupby

import pytest
from grid_tables import check_sent, start_grid, verify
from programs import Program
from recovery_cases import check, ends, is_frozen, killed, long_if, reaches
from scenarios.words import SPOUTS, TXIDS, batches
from servers.kafka_reading import committed_records

pytestmark = pytest.mark.integration

# Table 1 is ``changes/counts``, 2 is the outlet; in P0 it comes after ``state/counts``.
ONCE = ["kafka.created", "kafka.fenced", "p0.3.raised"]
FENCING = ["kafka.begun", "kafka.sent", "kafka.committed"]  # the first passage raises the mark's epoch
STEPS = ["p6.after", "p7.2.before", "kafka.sent", "kafka.committed", "p7.2.written"]
WITHOUT_KAFKA = ["p6.before", "kafka.begun", "p8.before"]
"""At these the topic is as it was, or all of it is done: what test_crash_grid.py kills there differs in nothing else."""


def check_topic(bootstrap: str, topic: str, spout: str) -> None:
    """Check that the topic has each word once with its txid, in txid order per partition, without gaps in positions."""
    records = committed_records(bootstrap, topic)
    found = dict(enumerate(batches(spout), start=1))
    sent = Counter((record.txid, record.value["word"]) for record in records)
    assert sent == Counter((txid, word) for txid, words in found.items() for word in words)
    for _, partition in groupby(records, lambda record: record.partition):
        places = [(record.txid, record.index) for record in partition]
        assert places == sorted(places)
    for txid, words in found.items():
        assert sorted(record.index for record in records if record.txid == txid) == list(range(len(words)))
    assert {record.headers["txstorm.topology"] for record in records} == {"crash"}
    assert all(record.key == record.value["word"] for record in records)


CRASHES = [
    *([f"{point}:kill:1"] for point in [*ONCE, *FENCING]),
    *([f"{point}:kill:3"] for point in [*STEPS, *WITHOUT_KAFKA]),
    # again while it is rolled forward, where the first passage raises the epoch
    *(["kafka.sent:kill:3", f"{point}:kill:1"] for point in ("kafka.fenced", "p7.2.written")),
    *(["kafka.sent:kill:3", f"{point}:kill:2"] for point in ("kafka.sent", "kafka.committed")),
]
ONLY_LONG = {*(f"{point}:kill:3" for point in WITHOUT_KAFKA), "kafka.committed:kill:2", "p7.2.written:kill:1"}


@pytest.mark.parametrize(
    ("crashes", "spout"), long_if(lambda crashes, _: crashes[-1] in ONLY_LONG, zip(CRASHES, cycle(SPOUTS)))
)
def test_killed_at_any_step_and_started_again(kafka_broker, place, crashes, spout):
    """U12: every record is in the topic once, in txid order, for readers of committed records."""
    topic = kafka_broker.make_topic(partitions=3)
    argv = [place / "data", "--spout", spout, "--tables", 1, "--kafka", kafka_broker.bootstrap, topic]
    for fault in crashes:
        killed(fault, *argv)
    ends(*argv)
    check(place / "data", TXIDS)
    check_topic(kafka_broker.bootstrap, topic, spout)


def says(program: Program, text: str) -> None:
    reaches(program, lambda: text in program.complained)


def test_a_takeover_waits_for_unavailable_brokers(kafka_broker, place):
    """After a takeover, groups decided but not sent are sent once the brokers are available again."""
    proxy = kafka_broker.proxy()
    target = kafka_broker.make_topic(partitions=3)
    arguments = ["transactional", "before", 1, str(place), proxy.address, "", target]
    first = start_grid(place, arguments, "--available-now", TXSTORM_FAULT="p6.after:freeze:3")
    reaches(first, lambda: is_frozen(first.pid))
    second = start_grid(place, arguments, "--available-now", "--standby")
    try:
        says(second, "standing by for")
        proxy.cut()
        first.kill()
        says(second, "cannot lead yet, retrying for a while: topic")
        proxy.heal()
        _, complained = second.communicate(120)
    finally:
        first.kill()
        second.kill()
        proxy.heal()
    assert second.returncode == 0, complained
    assert "responds again" in complained
    rows = verify(place / "data").rows
    check_sent(kafka_broker.bootstrap, target, rows)
    assert len(rows) == 6
