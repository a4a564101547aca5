"""Scenarios of fencing: parts of a coordinator that are suspended while another process takes over.

- ``kafka-outlet DIRECTORY BROKERS TOPIC``: decides three groups, and sends them one after the other to a topic; before
  each group after the first it waits for a file ``go-<txid>``;
- ``late-put DIRECTORY URL``: puts txid 1 into a database, stages 2 and 3 and writes their intents, then begins to put 2
  and, after it has read the commit mark, waits for a file ``awake``;
- ``ledger-sweep DATA_DIR LEDGER``: writes a long value and drops it again, so that the value's file has to be removed,
  and is frozen when its sweep reaches that file.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txstorm import MapState, faults
from txstorm.books.books import Books
from txstorm.books.records import Meta
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.errors import TxstormError
from txstorm.ledger.location import parse_ledger
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import MAX_VALUE
from txstorm.sinks.kafka import KafkaSink
from txstorm.state.commit_group import CommitGroup, Targets
from txstorm.state.external.maps import StoredMap
from txstorm.state.external.targets import StoredOutlet
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import Intent, TxidRecord, encode
from txstorm.topology.settings import Settings


def decide(targets: Targets, owner: TopologyIdentity, txid: int, write: Callable[[Any], None]) -> Intent:
    """Return an intent of one txid, with the rows that `write` puts into its handles."""
    group = CommitGroup(txid, targets)
    group.activate(True)
    write(group.resources)
    group.end_txid(txid)
    record = TxidRecord(txid, txid, "digest", None, 0)
    return Intent(owner.topology, owner.incarnation, 0, 1, (record,), tuple(group.stage([record], 1)))


def roll_forward(stores: Targets, intent: Intent) -> None:
    """Publish the intent with epoch 1; print the error, if any."""
    try:
        stores.roll_forward(intent, 1)
    except TxstormError as error:
        print(f"{type(error).__name__}: {error}")
        raise SystemExit from None


OWNER = TopologyIdentity("fencing", "incarnation")
TXIDS = (1, 2, 3)
ROWS = 100


def store(place: Path, brokers: str, topic: str) -> Targets:
    outlet = KafkaSink("out", topic, brokers, progress_topic=f"{topic}-marks").outlet
    return Targets([StoredOutlet(place, OWNER, "send", outlet)])


def decided(targets: Targets, txid: int) -> Intent:
    def write(resources: Any) -> None:
        sink = resources.sink("send", 0, "out")
        for row in range(ROWS):
            sink.append(None, str(row).encode(), 0)

    return decide(targets, OWNER, txid, write)


def send_groups(directory: str, brokers: str, topic: str) -> None:
    """Acquire the lead, decide all groups, and send each once its file ``go-<txid>`` exists."""
    place = Path(directory)
    outside = store(place, brokers, topic)
    outside.lead(1, 0, {}, [])
    intents = [decided(outside, txid) for txid in TXIDS]
    for intent in intents:
        (place / f"intent-{intent.last}").write_bytes(encode(intent))
    for intent in intents:
        (place / f"ready-{intent.last}").touch()
        while intent.last > 1 and not (place / f"go-{intent.last}").exists():
            time.sleep(0.01)
        roll_forward(outside, intent)


LATE = TopologyIdentity("late", "incarnation")
VALUES = {1: {"a": 1, "b": 1}, 2: {"a": 2, "b": 2}, 3: {"a": 3}}


class Sleepy(SqlAlchemyBackend):
    """A database backend that waits in the put of txid 2."""

    place: Path

    def put_marked(self, rows, expected, mark):
        if mark.txid == 2:
            (self.place / "asleep").touch()
            while not (self.place / "awake").exists():
                time.sleep(0.01)
        return super().put_marked(rows, expected, mark)


def put_late(directory: str, url: str) -> None:
    """Put two transactions, blocking in the second put until the file ``awake`` exists."""
    place, backend = Path(directory), Sleepy(url, "late")
    backend.place = place
    maps = Targets([StoredMap(place, LATE, "count", MapState("late", backend))])
    maps.lead(1, 0, {}, [])
    intents = [
        decide(maps, LATE, txid, lambda resources, rows=rows: resources.state("count", 0, "late").put_many(rows))
        for txid, rows in VALUES.items()
    ]
    for intent in intents:
        (place / f"intent-{intent.last}").write_bytes(encode(intent))
    for intent in intents[:2]:
        roll_forward(maps, intent)


LONG = Meta({"lines": ["x" * MAX_VALUE]}, 1)


def lead(data_dir: Path, ledger: str) -> Books:
    settings = Settings(zookeeper_session_timeout=1.5)
    opened = open_ledger(data_dir, create=True, ledger=parse_ledger(ledger), settings=settings)
    assert opened.wait_free(60)
    opened.acquire("sweeper")
    (data_dir / "intents").mkdir(exist_ok=True)
    books = Books(opened, data_dir / "intents")
    books.raise_epoch()
    return books


def sweep_frozen(data_dir: str, ledger: str) -> None:
    """Sweep unreferenced value files from the ledger, and freeze during the sweep."""
    books = lead(Path(data_dir), ledger)
    books.write_metas({1: LONG})
    books.write_metas({}, remove=[1])
    faults.arm("sweep.values:freeze:1")
    books.sweep()
    books.ledger.close()
