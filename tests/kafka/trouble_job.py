"""Topology for fault injection: stores a topic's records, counts them by word, and sends them to another topic."""

from typing import Any

from kafka_cases import COLUMNS

from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey, Map
from txstorm.sinks import DeltaSink, KafkaSink
from txstorm.spouts import OpaqueTransactionalKafkaSpout, TransactionalKafkaSpout
from txstorm.topology.graph import Topology

SETTINGS = {"retry_backoff": 0.05, "retry_backoff_max": 0.5, "max_group_txids": 4, "min_interval": 0.02}


def word(row: Any) -> str:
    return row["value"].partition(" ")[0]


def topology(brokers: str, source: str, target: str, *, opaque: bool, rows: int = 300) -> Topology:
    """Build the topology; used as ``txstorm run "trouble_job:topology(…)"``."""
    kind = OpaqueTransactionalKafkaSpout if opaque else TransactionalKafkaSpout
    options = {"max_batch_rows": rows, "patience": 1.0, "discover_seconds": 1.0}
    builder = TransactionalTopologyBuilder(
        "trouble", "records", kind(source, brokers, fields=tuple(COLUMNS), **options), 2
    )
    builder.set_bolt("words", Map(word, "word"), 2).local_or_shuffle_grouping("records")
    builder.set_bolt("counts", CountByKey("word", table="counts"), 2).fields_grouping("words", ["word"])
    builder.set_bolt("rows", DeltaSink("rows", COLUMNS)).global_grouping("records")
    # The open transaction of a killed driver must not block readers until the test times out.
    sink = KafkaSink("sent", target, brokers, value="value", settings={"transaction.timeout.ms": 10_000})
    builder.set_bolt("sent", sink, 2).local_or_shuffle_grouping("records")
    return builder.set_settings(SETTINGS).build_topology()
