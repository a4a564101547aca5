"""A coordinator that decides on three groups, and writes them one after the other to a Kafka topic.

``kafka_fencing_job.py DIRECTORY BROKERS TOPIC``: before each group after the first it waits for a file ``go-<txid>``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from txstorm.errors import TxstormError
from txstorm.sinks.kafka import KafkaSink
from txstorm.state.commit_group import CommitGroup, CommitTables
from txstorm.state.external.registry import ExternalStores
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import OUTLET, Intent, TxidRecord, encode

OWNER = TopologyIdentity("fencing", "incarnation")
TXIDS = (1, 2, 3)
ROWS = 100


def store(place: Path, brokers: str, topic: str) -> ExternalStores:
    """The outlet as a coordinator has it."""
    outlet = KafkaSink("out", topic, brokers, progress_topic=f"{topic}-marks").outlet
    return ExternalStores(place, OWNER, {}, {"send": [outlet]})


def decided(tables: CommitTables, txid: int) -> Intent:
    """An intent with rows for the outlet."""
    group = CommitGroup(txid, tables)
    group.activate(True)
    sink = group.resources.sink("send", 0, "out")
    for row in range(ROWS):
        sink.append(None, str(row).encode(), 0)
    group.end_txid(txid)
    record = TxidRecord(txid, txid, "digest", None, 0)
    return Intent(OWNER.topology, OWNER.incarnation, 0, 1, (record,), tuple(group.stage([record], 1)))


def main(place: Path, brokers: str, topic: str) -> None:
    outside = store(place, brokers, topic)
    outside.lead(1, 0, {}, [])
    groups = outside.groups()
    tables = CommitTables({}, outside.of_kind(OUTLET, groups), list(outside.members(groups).values()))
    intents = [decided(tables, txid) for txid in TXIDS]
    for intent in intents:
        (place / f"intent-{intent.last}").write_bytes(encode(intent))
    for intent in intents:
        (place / f"ready-{intent.last}").touch()
        while intent.last > 1 and not (place / f"go-{intent.last}").exists():
            time.sleep(0.01)
        outside.roll_forward(intent, 1)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except TxstormError as error:
        print(f"{type(error).__name__}: {error}")
