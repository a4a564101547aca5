"""Topology of a ready-made join: two topics, parsed; the join, in a state or over a store; sinks for its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from txstorm.api.bolt import BasicBolt
from txstorm.api.composite import CompositeSpout
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.joins.delay.feed import StoreFeed
from txstorm.joins.delay.store_join import StoreJoin
from txstorm.joins.delay.sync import DataDelaySync
from txstorm.joins.interval.interval_join import IntervalJoin
from txstorm.joins.service.configuration import PARTITION, JoinService, SideConfig, StorePart
from txstorm.misfits import Misfits
from txstorm.sinks.delta import DeltaSink
from txstorm.spouts.json_objects import JsonObjects, declared_types
from txstorm.spouts.kafka.spout import OpaqueTransactionalKafkaSpout
from txstorm.topology.program import Call, ComponentCall, Program, Subscription


class ReadyMadeJoin:
    """Builder of the topology of one configuration.

    Its components are ``topics`` (the spout), ``left`` and ``right`` (parsed records), ``join``, and the sinks
    ``results``, ``unmatched_left`` and ``unmatched_right``. With a store there are ``feed``, and ``parsed``: left rows
    as they come, before ``left`` holds them. So the sides have the same names in all variants.
    """

    def __init__(self, config: JoinService) -> None:
        self._config = config
        sources = {"left": self._spout(config.left), "right": self._spout(config.right)}
        spout = ComponentCall("topics", Call(CompositeSpout, sources), config.parallelism)
        self._program = Program(config.name, spout, settings=config.settings)

    def program(self) -> Program:
        """Return the calls that build the topology."""
        config = self._config
        parsed = "left" if config.store is None else "parsed"
        for component, source, side in ((parsed, "left", config.left), ("right", "right", config.right)):
            self._bolt(component, Call(JsonFields, side.types), ("local_or_shuffle_grouping", "topics", source))
        if config.store is None:
            self._join_in_state()
        else:
            self._join_over(config.store.call(config.variant, config.name), config.store)
        self._keep_results()
        return self._program

    def _bolt(self, component: str, call: Call, *inputs: tuple[Any, ...], tasks: int | None = None) -> None:
        """Add a bolt; each input is the method that declares it, and the arguments of that."""
        subscriptions = tuple(Subscription(method, tuple(arguments)) for method, *arguments in inputs)
        self._program.bolts.append(ComponentCall(component, call, tasks or self._config.parallelism, subscriptions))

    def _spout(self, side: SideConfig) -> Call:
        return Call(
            OpaqueTransactionalKafkaSpout,
            side.topic,
            self._config.servers,
            start=side.start,
            max_batch_rows=side.max_batch_rows,
            max_batch_bytes=side.max_batch_bytes,
            fields=["value", PARTITION],
            settings=self._config.kafka or None,
        )

    def _join_in_state(self) -> None:
        left, right = self._config.left, self._config.right
        join = Call(IntervalJoin, left.side("left"), right.side("right"), **self._rules())
        self._bolt("join", join, ("fields_grouping", "left", left.key), ("fields_grouping", "right", right.key))

    def _join_over(self, store: Call, part: StorePart) -> None:
        left, right = self._config.left, self._config.right
        rules = self._rules()
        feed = Call(StoreFeed, right.side("right"), store, retain=part.retain, batch_size=part.batch_size)
        self._bolt("feed", feed, ("fields_grouping", "right", right.key))
        sync = Call(DataDelaySync, left.side("parsed"), after=rules["after"])
        self._bolt("left", sync, ("fields_grouping", "parsed", left.key), ("all_grouping", "feed", "position"))
        join = Call(StoreJoin, left.side("left"), store, **rules, batch_size=part.batch_size)
        self._bolt("join", join, ("fields_grouping", "left", left.key))

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
                self._bolt(
                    component, self._sink(component, name, columns), ("global_grouping", "join", stream), tasks=1
                )

    def _sink(self, component: str, name: str, columns: Mapping[str, type]) -> Call:
        if self._config.sink.type == "delta":
            return Call(DeltaSink, name, columns)
        from txstorm.sinks.kafka import KafkaSink

        key = self._config.sink.key if component == "results" else None
        settings = self._config.kafka or None
        return Call(KafkaSink, component, name, self._config.servers, key=key, settings=settings)


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
