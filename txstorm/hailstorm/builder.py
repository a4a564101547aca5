"""Hailstorm topology builder: spouts with clocks, monoid bolts and sinks, which become an ordinary topology."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.composite import CompositeSpout
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.spout import SpoutCoordinator, TransactionalSpout
from txstorm.errors import InputError, TopologyError
from txstorm.hailstorm.companion import companion_for
from txstorm.hailstorm.conversion import Convert, ConvertedSpout
from txstorm.hailstorm.file_source import HailstormFileSource
from txstorm.hailstorm.sinks import Sink
from txstorm.spouts.memory import MemoryTransactionalSpout
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.checks.validate import Report
from txstorm.topology.declarers import BoltDeclarer, Declaration, SpoutDeclarer
from txstorm.topology.graph import Topology
from txstorm.user_code import described

SPOUTS = "spouts"
"""Id of the spout of a topology with several sources."""
_KAFKA = re.compile(r"kafka://(?P<servers>[^/\s]+)/(?P<topic>[^/\s]+)")
_NO_SPOUT = "it has no spout; add one with set_spout"
_HAS_CLOCKS = "use HailstormFileSource, a Kafka topic, or a spout whose coordinator has a method clock(metadata)"
Source = HailstormFileSource | TransactionalSpout | str


class HailstormTopologyBuilder(TransactionalTopologyBuilder):
    """Builds a topology of spouts with clocks, bolts that are commutative monoids, and sinks.

    The result is an ordinary topology; any bolt may be among its bolts.

    Example::

        builder = HailstormTopologyBuilder("trends", store="dir:snapshots")
        builder.set_spout("tags", HailstormFileSource("tags.txt"), lambda line: (line.decode(), 1), ["tag", "n"])
        builder.set_bolt("counts", MonoidBolt("counts", Sum(), "tag"), 2).fields_grouping("tags", "tag")
        builder.set_sink("out", Sink(LinesSink("counts.txt"), every=100)).global_grouping("counts")
        topology = builder.build_topology()

    Args:
        id: the name of the topology and of its data directory.
        store: where snapshots of the states are saved: a spec as for `txstorm.hailstorm.open_store`, a store, or None.
    """

    def __init__(self, id: str, store: Any = None) -> None:
        self._id = id
        self._declarations: list[Declaration] = []
        self._settings: dict[str, Any] = {}
        self._sources: dict[str, ConvertedSpout] = {}
        self._faults: list[str] = []
        self._store = store

    def set_spout(
        self,
        name: str,
        source: Source,
        convert: Convert | None = None,
        fields: Sequence[str] | str = (),
        instances: int = 1,
        *,
        max_batch_rows: int = 1000,
    ) -> HailstormTopologyBuilder:
        """Add a source, of which instance i of n reads partitions i, i + n, and so on.

        Several sources become one composite spout, named ``spouts``; bolts still read them by their names.

        Args:
            name: the name by which bolts read it.
            source: a `HailstormFileSource`, ``kafka://HOST:PORT/TOPIC``, or a spout with clocks, such as a Kafka spout
                whose first field is the record, or a memory spout.
            convert: a pure function of a record (bytes), which returns a tuple of values, a list of such tuples, the
                bare value of a single field, or None for no tuple. None: the tuples of a spout as they are.
            fields: names of the values that `convert` returns.
            instances: number of tasks.
            max_batch_rows: of files and Kafka topics, the maximum number of records in a transaction.

        Raises:
            InputError: a number is no int of at least 1.
        """
        for what, number in (("instances", instances), ("max_batch_rows", max_batch_rows)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InputError(f"set_spout {name!r}: {what}: expected an int of at least 1, got {number!r}")
        names = (fields,) if isinstance(fields, str) else tuple(fields)
        try:
            spout = _spout(source, max_batch_rows)
        except InputError as error:
            self._faults.append(f"spout {name!r}: {error}")
            spout = MemoryTransactionalSpout([], names or "value")
        if name in self._sources:
            self._faults.append(f"spout {name!r} is there twice; give each its own name")
        if (convert is None) != (not names) or (convert is not None and not callable(convert)):
            self._faults.append(
                f"spout {name!r}: give a convert function and the fields of what it returns, or neither"
            )
        elif convert is None and not isinstance(source, TransactionalSpout):
            self._faults.append(f"spout {name!r}: give a convert function, which turns a record (bytes) into a tuple")
        self._sources[name] = ConvertedSpout(spout, convert, names, instances)
        return self

    def set_sink(self, name: str, sink: Any) -> BoltDeclarer:
        """Add a sink; return the declarer of its inputs.

        Args:
            name: the component's id.
            sink: a `Sink`; or what consumes every tuple: a `FileSink`, a `LinesSink`, another committer such as
                `DeltaSink` or `KafkaSink`, or a function of values, txid and number.
        """
        whole = isinstance(sink, BatchBolt) and isinstance(sink, Committer)
        return self.set_bolt(name, sink if whole or isinstance(sink, Sink) else Sink(sink))

    def get_spout_declarer(self) -> SpoutDeclarer:
        """Return the declarer of the spout, to limit its rate."""
        return SpoutDeclarer(Declaration(SPOUTS, None, None, "spout"), self._settings)

    def validate(self) -> Report:
        """Return all faults and warnings of the topology as declared so far, without changing anything."""
        if not self._sources:
            return Report((*self._faults, _NO_SPOUT), ())
        report = self._plain().validate()
        timeless = [
            f"spout {name!r}: {why}; {_HAS_CLOCKS}"
            for name, spout in self._sources.items()
            if (why := no_clocks(spout, name)) is not None
        ]
        return Report((*self._faults, *timeless, *report.faults), report.warnings)

    def build_topology(self) -> Topology:
        """Check the topology and build the frozen graph.

        Raises:
            TopologyError: the topology has faults, such as a spout without clocks; lists all of them at once.
        """
        if faults := self.validate().faults:
            raise TopologyError(str(self._id), faults)
        return replace(self._plain().build_topology(), companion=companion_for(self._store))

    def _plain(self) -> TransactionalTopologyBuilder:
        """Return an ordinary builder with the same components."""
        (first, *others), several = self._sources.items(), len(self._sources) > 1
        name, spout = (SPOUTS, CompositeSpout(dict((first, *others)))) if several else first
        tasks = max(one.instances for one in self._sources.values())
        made = TransactionalTopologyBuilder(self._id, name, spout, tasks)
        for one in self._declarations:
            inputs = [
                replace(given, component=SPOUTS, stream=given.component)
                if several and given.component in self._sources and given.stream == DEFAULT_STREAM
                else given
                for given in one.inputs
            ]
            made._declarations.append(replace(one, inputs=inputs))  # noqa: SLF001 - of its base class
        return made.set_settings(self._settings)

    setSpout = set_spout  # noqa: N815 - camelCase throughout
    setSink = set_sink  # noqa: N815 - camelCase throughout


def _spout(source: Any, rows: int) -> TransactionalSpout:
    """Return the spout of a source; raise `InputError` if it is none."""
    if isinstance(source, HailstormFileSource):
        return source.spout(rows)
    if isinstance(source, str) and (found := _KAFKA.fullmatch(source)) is not None:
        from txstorm.spouts.kafka.spout import TransactionalKafkaSpout

        return TransactionalKafkaSpout(
            found["topic"], found["servers"], fields=["value"], value="bytes", max_batch_rows=rows
        )
    if isinstance(source, TransactionalSpout):
        return source
    what = repr(source) if isinstance(source, str) else described(source)
    # Spouts planned by tasks are no `TransactionalSpout`: their positions are known only after a batch was read.
    raise InputError(f"{what} has no clocks; {_HAS_CLOCKS}; a topic is kafka://HOST:PORT/TOPIC")


def no_clocks(spout: Any, name: str) -> str | None:
    """Return why a spout has no clocks; None if it has. `name`: its component's id."""
    if isinstance(spout, CompositeSpout):
        return next((why for each, one in spout.sources.items() if (why := no_clocks(one, each)) is not None), None)
    inner = spout.inner if isinstance(spout, ConvertedSpout) else spout
    if type(inner).__module__.startswith("txstorm.spouts.kafka"):
        return None  # without a coordinator, which would ask the brokers
    if type(inner).__name__ == "FileSpout" and type(inner).__module__.startswith("txstorm."):
        return "FileSpout reads its files one after another, by bytes, and has no clocks"
    if not isinstance(inner, TransactionalSpout) or getattr(inner, "emits_frames", False):
        return f"{described(inner)} has no clocks"
    coordinator = inner.coordinator(TaskContext("", name, 0, 1))
    try:
        return None if type(coordinator).clock is not SpoutCoordinator.clock else f"{described(inner)} has no clocks"
    finally:
        coordinator.close()


def as_hailstorm(topology: Topology, store: Any = None, *, from_beginning: bool = False) -> Topology:
    """Return a topology whose runs have a negotiator and save snapshots, whichever builder made it.

    Args:
        topology: the topology.
        store: where snapshots are saved; None: where the topology says.
        from_beginning: whether a new data directory begins at the beginning, whatever the store has.

    Raises:
        InputError: its spout has no clocks.
    """
    if (why := no_clocks(topology.spout.object, topology.spout.id)) is not None:
        raise InputError(f"topology {topology.id!r}, spout {topology.spout.id!r}: {why}; {_HAS_CLOCKS}")
    given = {} if store is None else {"store": store}
    made: Any = topology.companion or companion_for()
    return replace(topology, companion=partial(made, from_beginning=from_beginning, **given))
