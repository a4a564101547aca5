"""Fraud per card: small payments in a row within ten minutes, and then a large one, raise an alarm.

txstorm run jobs.card_fraud --engine local --available-now
python jobs/replay.py --data-dir txstorm-data/card-fraud --into new --topology "jobs.card_fraud:topology(small=4)"

The second command fills new tables by another rule; the alarms of both are in sinks/alarms. What is kept of a card does
not depend on the rule, so txstorm replay shows for a transaction which alarms the other rule drops or adds.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from txstorm import BatchBolt, Committer, KeyedState, Topology, TransactionalTopologyBuilder, run
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout

PAYMENTS = Path(__file__).parent / "data" / "payments-*.jsonl"
FIELDS = {"id": int, "card": str, "at": datetime, "amount": Decimal}
SMALL, LARGE, KEPT = Decimal(5), Decimal(250), 6


class Alarms(BatchBolt, Committer):
    """A committer that keeps the times of each card's last small payments until another one, and emits alarms."""

    fields = tuple(FIELDS)
    state = KeyedState("cards", key={"card": str}, value={"small": pa.list_(pa.timestamp("us", tz="UTC"))})

    def __init__(self, small: int, within: timedelta) -> None:
        self.small, self.within = small, within

    def prepare(self, context, collector, attempt):
        self.cards, self.collector, self.payments = context.state("cards"), collector, []

    def execute(self, tuple):
        self.payments.append(tuple)

    def finish_batch(self):
        for one in self.payments:
            times = self.cards.get(one["card"]) or []
            if one["amount"] >= LARGE and len(times) >= self.small and one["at"] - times[-self.small] <= self.within:
                self.collector.emit(*(one[name] for name in FIELDS))
            self.cards.put(one["card"], [*times, one["at"]][-KEPT:] if one["amount"] <= SMALL else [])


def topology(path: str | Path = PAYMENTS, small: int = 3, minutes: int = 10) -> Topology:
    """Build the topology over files of payments, which raises an alarm after `small` small payments."""
    spout = FileSpout(path, types=FIELDS, max_batch_rows=40)
    builder = TransactionalTopologyBuilder("card-fraud", "payments", spout, 2)
    builder.set_bolt("alarms", Alarms(small, timedelta(minutes=minutes)), 2).fields_grouping("payments", ["card"])
    builder.set_bolt("kept", DeltaSink("alarms", FIELDS)).global_grouping("alarms")
    return builder.set_setting("on_error", "dead_letter").build_topology()


if __name__ == "__main__":
    run(topology(), available_now=True).awaitTermination()
