"""A coordinator that falls asleep in a put: ``late_put.py PLACE URL``.

It puts txid 1, stages 2 and 3 and writes their intents, then begins to put 2 and sleeps, after it has looked at the
mark, until the file ``awake`` is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from txstorm import MapState
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.errors import TxstormError
from txstorm.state.commit_group import CommitGroup, CommitTables
from txstorm.state.external.registry import ExternalStores
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import MAP, Intent, TxidRecord, encode

OWNER = TopologyIdentity("late", "incarnation")
VALUES = {1: {"a": 1, "b": 1}, 2: {"a": 2, "b": 2}, 3: {"a": 3}}


class Sleepy(SqlAlchemyBackend):
    def put_marked(self, rows, expected, mark):
        if mark.txid == 2:
            (place / "asleep").touch()
            while not (place / "awake").exists():
                time.sleep(0.01)
        return super().put_marked(rows, expected, mark)


def decided(tables: CommitTables, txid: int) -> Intent:
    group = CommitGroup(txid, tables)
    group.activate(True)
    group.resources.state("count", 0, "late").put_many(VALUES[txid])
    group.end_txid(txid)
    record = TxidRecord(txid, txid, "digest", None, 0)
    return Intent(OWNER.topology, OWNER.incarnation, 0, 1, (record,), tuple(group.stage([record], 1)))


place = Path(sys.argv[1])
maps = ExternalStores(place, OWNER, {"count": [MapState("late", Sleepy(sys.argv[2], "late"))]})
maps.lead(1, 0, {}, [])
groups = maps.groups()
tables = CommitTables(maps.of_kind(MAP, groups), {}, list(maps.members(groups).values()))
intents = [decided(tables, txid) for txid in VALUES]
for intent in intents:
    (place / f"intent-{intent.last}").write_bytes(encode(intent))
maps.roll_forward(intents[0], 1)
try:
    maps.roll_forward(intents[1], 1)
except TxstormError as error:
    print(f"{type(error).__name__}: {error}")
