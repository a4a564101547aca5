"""Puppet master: an operator network as a topology of one spout and one committer, which replica processes carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator
from txstorm.dadstorm.conditions import UNROUTED
from txstorm.dadstorm.configuration import Configuration, load
from txstorm.dadstorm.master.carrier import PLAN, Carrier
from txstorm.dadstorm.master.companion import NetworkCompanion
from txstorm.dadstorm.master.network_run import NetworkOptions, NetworkRun
from txstorm.dadstorm.processes.fleet import FleetSettings
from txstorm.dadstorm.source import FileParts, FilesSpout, Part, Room, Rows, TopicSpout
from txstorm.dadstorm.topology import topology_id
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.graph import Topology

SOURCE, NETWORK = "source", "network"
"""Ids of spout and committer."""
FILES = "files"
"""Name of the files in `read` of the metadata; a topic has that of its operator and its URL."""
SETTINGS = {"finish_ahead": False, "enable_timeouts": False}
"""Nothing is carried ahead of its turn; and an Interval or a slow CUSTOM may take any time: `ack_timeout` is for that.
"""


def replica_topology(
    configuration: Configuration,
    options: NetworkOptions | None = None,
    id: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Topology, NetworkRun]:
    """Return the topology that carries `configuration` by replicas, and the run that it has when it is started.

    Args:
        configuration: the network.
        options: options of the run.
        id: the topology's id; None: the name of the configuration's file.
        settings: settings of the core.
    """
    options = options or NetworkOptions()
    run = NetworkRun(configuration, options)
    builder = TransactionalTopologyBuilder(
        id or topology_id(configuration), SOURCE, NetworkSource(configuration, run, options.max_batch_rows)
    )
    carrier = Carrier(configuration, run, options.max_batch_rows, options.fleet.allow)
    builder.set_bolt(NETWORK, carrier).global_grouping(SOURCE).global_grouping(SOURCE, PLAN)
    built = builder.set_settings({**SETTINGS, **(settings or {})}).build_topology()
    return replace(built, companion=partial(NetworkCompanion, run=run)), run


def replicas(path: str, allow: tuple[str, ...] = (), id: str | None = None) -> Topology:
    """Return the topology of the configuration in a file: the target of replays, audits and rewinds."""
    return replica_topology(load(path), NetworkOptions(fleet=FleetSettings(allow=tuple(allow))), id)[0]


class NetworkSource(FilesSpout):
    """Spout of a network: tuples of the started first operators, and the conditions of each transaction.

    Metadata: ``{"txid", "conditions", "lines", "topics": {name: position}, "read": [source, …]}``: of files, what
    `FileParts` has, and of topics, what their coordinators have, of this or an earlier transaction; `read` names those
    that this one reads.
    """

    def __init__(self, configuration: Configuration, run: NetworkRun, rows: int) -> None:
        super().__init__(configuration, rows, Rows())
        self.configuration, self.run = configuration, run
        self.topics = {
            f"{one.id} {source.text}": TopicSpout(source.text, one.id, one.replicas, rows, Rows())
            for one in configuration.operators
            for source in one.sources
            if source.kind == "kafka"
        }

    def check(self) -> None:
        """Raise `SpoutError` if a file or topic cannot be read."""
        super().check()
        for topic in self.topics.values():
            topic.check()

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of tuples and of conditions."""
        super().declare_output_fields(declarer)
        declarer.declare_stream(PLAN, "conditions")

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator."""
        topics = {name: topic.coordinator(context) for name, topic in self.topics.items()}
        return _Coordinator(self.configuration, self.run, self.files, topics)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return the emitter."""
        topics = {name: topic.emitter(context) for name, topic in self.topics.items()}
        return _Emitter({FILES: super().emitter(context), **topics})


class _Coordinator(SpoutCoordinator):
    """Plans a transaction when tuples may be read, or held ones can go on; one at a time while anything is held."""

    def __init__(
        self, configuration: Configuration, run: NetworkRun, files: FileParts, topics: Mapping[str, SpoutCoordinator]
    ) -> None:
        self._configuration, self._run, self._files, self._topics = configuration, run, files, topics
        self._idle: Any = None
        """Conditions and committed txid when the source was asked last, if there was nothing to do."""

    def initialize_transaction(self, txid: int, prev_metadata: Any) -> Any:
        run, conditions = self._run, self._run.conditions
        self._idle = None
        if not run.is_open or (run.committed_txid < txid - 1 and not run.is_free):
            return NOT_READY
        before = prev_metadata or {"lines": None, "topics": {}}
        going, most = run.going(), run.options.max_batch_rows
        rows = max(0, most - sum(min(number, most) for number in going.values()))
        planned: dict[str, Any] = {}
        if rows and self._files.parts:
            lines = self._files.plan(txid, before["lines"], rows, self._limits(rows, going))
            planned |= {} if lines is None else {FILES: lines}
        for name, topic in self._started().items() if rows else ():
            found = topic.initialize_transaction(txid, before["topics"].get(name)) if topic.is_ready() else NOT_READY
            planned |= {} if found is NOT_READY else {name: found}
        if not planned and not going:
            self._idle = conditions, run.committed_txid
            return NOT_READY
        read, lines = list(planned), planned.pop(FILES, before["lines"])
        places = {"lines": lines, "topics": {**before["topics"], **planned}, "read": read}
        return {"txid": txid, "conditions": conditions.to_json(), **places}

    def _started(self) -> dict[str, SpoutCoordinator]:
        """Return the topics whose tuples may be read: of started operators that have room for them."""
        conditions, run = self._run.conditions, self._run
        operators = {name: name.partition(" ")[0] for name in self._topics}
        waits = {key[0] for key in run.held} & set(conditions.intervals)
        return {
            name: topic
            for name, topic in self._topics.items()
            if operators[name] in conditions.started and operators[name] not in waits
        }

    def _limits(self, rows: int, going: Mapping[tuple[str, int], int]) -> dict[Part, Room]:
        """Return the room for each part of a started operator, which parts of one receiving replica share."""
        conditions, found, rooms = self._run.conditions, dict[Part, Room](), dict[tuple[str, int], Room]()
        for part in self._files.parts:
            operator = self._configuration.operator(part.operator)
            if part.operator not in conditions.started:
                continue
            live, room = conditions.live(operator), conditions.room(part.operator)
            receiver = (part.operator, part.replica if part.replica in live or not live else live[0])
            held = going.get(receiver, 0) + going.get((part.operator, UNROUTED), 0)
            left = rows if room is None else max(0, min(rows, room - held))
            found[part] = rooms.setdefault(receiver, Room(left))
        return found

    def committed(self, metadata: Any) -> None:
        self._run.committed_txid = metadata["txid"]
        for name, position in metadata["topics"].items():
            self._topics[name].committed(position)

    def latest(self) -> Any:
        return {name: topic.latest() for name, topic in self._topics.items()}

    def reached(self, metadata: Any, mark: Any) -> bool:
        """Return whether the script is over, and nothing moves: the run then ends, unless it stays."""
        run, last = self._run, 0 if metadata is None else metadata["txid"]
        positions = {} if metadata is None else metadata["topics"]
        return (
            run.script_over
            and not run.news
            and run.committed_txid == last
            and self._idle == (run.conditions, last)
            and all(topic.reached(positions.get(name), mark[name]) for name, topic in self._started().items())
        )

    def close(self) -> None:
        for topic in self._topics.values():
            topic.close()


class _Emitter(Emitter):
    def __init__(self, sources: Mapping[str, Emitter]) -> None:
        self._sources = sources

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        collector.emit(json.dumps(metadata["conditions"], sort_keys=True), stream=PLAN)
        for name in metadata["read"]:
            position = metadata["lines"] if name == FILES else metadata["topics"][name]
            self._sources[name].emit_batch(attempt, position, collector)

    def cleanup_before(self, txid: int) -> None:
        for source in self._sources.values():
            source.cleanup_before(txid)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()
