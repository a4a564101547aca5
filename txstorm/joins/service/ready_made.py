"""Topology of a ready-made join: two topics, parsed; the join, in a state or over a store; sinks for its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt
from txstorm.api.composite import CompositeSpout
from txstorm.api.join_store import JoinStore
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.joins.delay.feed import StoreFeed
from txstorm.joins.delay.store_join import StoreJoin
from txstorm.joins.delay.sync import DataDelaySync
from txstorm.joins.interval.interval_join import IntervalJoin
from txstorm.joins.service.configuration import PARTITION, JoinService, SideConfig
from txstorm.sinks.delta import DeltaSink
from txstorm.spouts.json_objects import JsonObjects, declared_types
from txstorm.spouts.kafka.spout import OpaqueTransactionalKafkaSpout
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology
from txstorm.typed import Misfits
from txstorm.windows.rules.forms import Duration


class ReadyMadeJoin:
    """Builder of the topology of one configuration.

    Its components are ``topics`` (the spout), ``left`` and ``right`` (parsed records), ``join``, and the sinks
    ``results``, ``unmatched_left`` and ``unmatched_right``. With a store there are ``feed``, and ``parsed``: left rows
    as they come, before ``left`` holds them. So the sides have the same names in all variants.
    """

    def __init__(self, config: JoinService) -> None:
        self._config = config
        self._builder = TransactionalTopologyBuilder(
            config.name,
            "topics",
            CompositeSpout({"left": self._spout(config.left), "right": self._spout(config.right)}),
            config.parallelism,
        )

    def topology(self) -> Topology:
        """Build the topology."""
        config, builder = self._config, self._builder
        builder.set_settings(config.settings)
        parsed = "left" if config.store is None else "parsed"
        for component, source, side in ((parsed, "left", config.left), ("right", "right", config.right)):
            parse = JsonFields(side.types)
            builder.set_bolt(component, parse, config.parallelism).local_or_shuffle_grouping("topics", source)
        if config.store is None:
            self._join_in_state()
        else:
            store = config.store.opened(config.variant, config.name)
            self._join_over(store, config.store.batch_size, Duration(config.store.retain))
        self._keep_results()
        return builder.build_topology()

    def _spout(self, side: SideConfig) -> OpaqueTransactionalKafkaSpout:
        return OpaqueTransactionalKafkaSpout(
            side.topic,
            self._config.servers,
            start=side.start,
            max_batch_rows=side.max_batch_rows,
            max_batch_bytes=side.max_batch_bytes,
            fields=["value", PARTITION],
            settings=self._config.kafka,
        )

    def _join_in_state(self) -> None:
        left, right, tasks = self._config.left, self._config.right, self._config.parallelism
        join = IntervalJoin(left.side("left"), right.side("right"), **self._rules())
        declarer = self._builder.set_bolt("join", join, tasks).fields_grouping("left", left.key)
        declarer.fields_grouping("right", right.key)

    def _join_over(self, store: JoinStore, size: int, retain: Duration) -> None:
        left, right, tasks = self._config.left, self._config.right, self._config.parallelism
        rules = self._rules()
        feed = StoreFeed(right.side("right"), store, retain=retain, batch_size=size)
        self._builder.set_bolt("feed", feed, tasks).fields_grouping("right", right.key)
        sync = DataDelaySync(left.side("parsed"), after=rules["after"])
        declarer = self._builder.set_bolt("left", sync, tasks).fields_grouping("parsed", left.key)
        declarer.all_grouping("feed", "position")
        join = StoreJoin(left.side("left"), store, **rules, batch_size=size)
        self._builder.set_bolt("join", join, tasks).fields_grouping("left", left.key)

    def _rules(self) -> dict[str, Any]:
        join = self._config.join
        select = [f"{one.side}:{one.field}" for one in self._config.selected()]
        return {"before": join.before, "after": join.after, "how": join.how, "select": select}

    def _keep_results(self) -> None:
        """Add the sinks of the results and of unmatched rows."""
        sink = self._config.sink
        results = [
            (DEFAULT_STREAM, "results", sink.name, self._config.columns()),
            ("unmatched_left", "unmatched_left", sink.unmatched_left, self._config.left.types),
            ("unmatched_right", "unmatched_right", sink.unmatched_right, self._config.right.types),
        ]
        for stream, component, name, columns in results:
            if name is not None:
                self._builder.set_bolt(component, self._sink(component, name, columns)).global_grouping("join", stream)

    def _sink(self, component: str, name: str, columns: Mapping[str, type]) -> Any:
        if self._config.sink.type == "delta":
            return DeltaSink(name, columns)
        from txstorm.sinks.kafka import KafkaSink

        key = self._config.sink.key if component == "results" else None
        return KafkaSink(component, name, self._config.servers, key=key, settings=self._config.kafka)


class JsonFields(BasicBolt):
    """Bolt that parses JSON objects, the values of Kafka records, into typed fields, and adds their partition.

    Args:
        types: field → type; other fields are left out, missing ones are None.
    """

    def __init__(self, types: Mapping[str, type]) -> None:
        self._objects = JsonObjects(declared_types(types, "ready-made join"))

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields, and the partition."""
        declarer.declare([*self._objects.types, PARTITION])

    def execute_batch(self, batch: Any, collector: Collector) -> None:
        """Parse a record batch; raise `Misfits` for records that are no objects, or have a field of another type."""
        found = self._objects.read(batch.column("value").to_pylist())
        if found.bad:
            raise Misfits(found.bad)
        columns = [*found.batch.columns, batch.column(PARTITION)]
        collector.emit_batch(pa.table(columns, [*self._objects.types, PARTITION]))
