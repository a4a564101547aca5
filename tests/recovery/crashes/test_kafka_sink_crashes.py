"""SIGKILL between any two steps of sending a transaction to a Kafka topic: consumers read each record once."""

from __future__ import annotations

from collections import Counter
from itertools import cycle, groupby
from pathlib import Path

import pytest
from grid_tables import verify
from programs import Program, loaded
from recovery_cases import check, ends, environment, eventually, is_frozen, killed
from scenarios.words import SPOUTS, TXIDS, lines
from servers.kafka_reading import committed_records
from servers.running import Kafka

pytestmark = pytest.mark.integration

# Table 1 is ``changes/counts``, 2 is the outlet; in P0 it comes after ``state/counts``.
ONCE = ["kafka.created", "kafka.fenced", "p0.3.raised"]
FENCING = ["kafka.begun", "kafka.sent", "kafka.committed"]  # the first passage raises the mark's epoch
STEPS = ["p6.after", "p7.2.before", "kafka.sent", "kafka.committed", "p7.2.written"]
WITHOUT_KAFKA = ["p6.before", "kafka.begun", "p8.before"]
"""At these the topic is as it was, or all of it is done: what test_crash_grid.py kills there differs in nothing else."""


def batches(spout: str) -> dict[int, list[str]]:
    """Return the words of each transaction."""
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
    """Check that the topic has each word once with its txid, in txid order per partition, without gaps in positions."""
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


def killed_and_started_again(kafka_broker, place, spout: str, *crashes: str) -> None:
    topic = kafka_broker.make_topic(partitions=3)
    argv = [place / "data", "--spout", spout, "--tables", 1, "--kafka", kafka_broker.bootstrap, topic]
    for fault in crashes:
        killed(fault, *argv)
    ends(*argv)
    check(place / "data", TXIDS)
    check_topic(kafka_broker.bootstrap, topic, spout)


FAULTS = [
    *(f"{point}:kill:1" for point in [*ONCE, *FENCING]),
    *(f"{point}:kill:3" for point in [*STEPS, *WITHOUT_KAFKA]),
]


def short(fault: str) -> bool:
    return fault.removesuffix(":kill:3") not in WITHOUT_KAFKA


@pytest.mark.parametrize(
    ("fault", "spout"),
    [
        pytest.param(fault, spout, marks=() if short(fault) else pytest.mark.long)
        for fault, spout in zip(FAULTS, cycle(SPOUTS), strict=False)
    ],
)
def test_killed_at_any_step_and_started_again(kafka_broker, place, fault, spout):
    """U12: every record is in the topic once, in txid order, for readers of committed records."""
    killed_and_started_again(kafka_broker, place, spout, fault)


@pytest.mark.parametrize(
    "fault",
    [
        "kafka.fenced",
        "kafka.sent",
        *(pytest.param(at, marks=pytest.mark.long) for at in ("kafka.committed", "p7.2.written")),
    ],
)
def test_killed_again_while_it_is_rolled_forward(kafka_broker, place, fault):
    nth = 2 if fault in ("kafka.sent", "kafka.committed") else 1  # the first one raises the epoch
    killed_and_started_again(kafka_broker, place, "opaque", "kafka.sent:kill:3", f"{fault}:kill:{nth}")


# --- a start while the brokers are away -------------------------------------------------------------------------------


class Sending:
    """Starts runs of the grid's topology from an in-memory spout into a topic, each in its own process."""

    def __init__(self, place: Path, kafka: Kafka, brokers: str) -> None:
        self.place = place
        self.target = kafka.make_topic(partitions=3)
        self._brokers = brokers

    def start(self, *options: str, fault: str = "") -> Program:
        arguments = ["transactional", "before", 1, str(self.place), self._brokers, "", self.target]
        target = f"scenarios.grid:from_source({', '.join(map(repr, arguments))})"
        command = ["run", target, "--engine", "local", "--data-dir", str(self.place / "data"), "--json"]
        return loaded().start("-m", "txstorm", *command, *options, env=environment(TXSTORM_FAULT=fault))


def says(program: Program, text: str) -> None:
    eventually(lambda: text in program.complained or program.poll() is not None)
    assert program.poll() is None, program.complained


def test_a_takeover_waits_for_unavailable_brokers(kafka_broker, place):
    """After a takeover, groups decided but not sent are sent once the brokers are available again."""
    proxy = kafka_broker.proxy()
    sending = Sending(place, kafka_broker, proxy.address)
    first = sending.start("--available-now", fault="p6.after:freeze:3")
    eventually(lambda: first.poll() is not None or is_frozen(first.pid))
    second = sending.start("--available-now", "--standby")
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
    sent = Counter((one.txid, one.value["word"]) for one in committed_records(kafka_broker.bootstrap, sending.target))
    assert sent == Counter((txid, word) for txid, some in rows.items() for *_, word in some)
    assert len(rows) == 6
