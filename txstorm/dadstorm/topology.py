"""Topology of an operator network: its operators as bolts and committers, on any engine, exactly once.

A tuple travels as a list of fields, in the column ``fields``; beside it go the values by which receivers hash it, in
``f1``, ``f2`` and so on. Tuples of files and topics have the column ``to`` instead, whose key group is that of their
replica.

It is one module, as bolts, sources and groupings must agree on these columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BasicBolt, BatchBolt, Committer
from txstorm.api.composite import CompositeSpout
from txstorm.api.context import TaskContext
from txstorm.api.names import name_fault
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import TransactionalSpout
from txstorm.api.state import KeyedState, SinkTable
from txstorm.books.books import Books
from txstorm.dadstorm.configuration import EXACTLY_ONCE, Configuration, Operator, load
from txstorm.dadstorm.operators import failure, load_code, output_path, writes_lines
from txstorm.dadstorm.routing import tasks
from txstorm.dadstorm.source import Block, FilesSpout, TopicSpout
from txstorm.dadstorm.source.columns import fields_of, holding, tuples_of, values_at
from txstorm.errors import FailedException, FencedError, InputError
from txstorm.ledger.paths import NETWORK
from txstorm.runtime.companion import Companion, CompanionSite
from txstorm.sinks.text_files import LinesSink
from txstorm.topology.builder import TransactionalTopologyBuilder
from txstorm.topology.declarers import BoltDeclarer
from txstorm.topology.graph import Topology

FIELDS = "fields"
TO = "to"
SPOUT, FILES = "input_ops", "files"
"""Ids that no operator can have, or that are names within the spout."""
ALLOWED = ("Start", "Status", "Wait")


def seen_state(operator: Operator) -> KeyedState:
    """Return the state of UNIQ: the values seen."""
    return KeyedState(f"{operator.id}_seen", {"value": str}, {"seen": bool})


def count_state(operator: Operator) -> KeyedState:
    """Return the state of COUNT: one row, the operator and its number of tuples."""
    return KeyedState(f"{operator.id}_count", {"operator": str}, {"n": int})


def emitted_sink(operator: Operator) -> SinkTable:
    """Return the table of the tuples that an operator has emitted."""
    columns = {"replica": int, "url": str, "id": str, FIELDS: pa.list_(pa.string())}
    return SinkTable(f"{operator.id}_emitted", columns)


def lines_sink(operator: Operator, configuration: Configuration) -> LinesSink:
    """Return the committer of an OutputOperator's file; its tuples have one field, the list of fields."""
    return LinesSink(output_path(operator, configuration), _line, f"{operator.id}_out")


def _line(values: tuple[Any, ...]) -> str:
    return ", ".join(values[0])


def kept(operator: Operator, configuration: Configuration) -> bool:
    """Return whether the tuples that an operator emits are kept in its table: no operator reads it, or all are."""
    return configuration.logging == "full" or not configuration.consumers(operator.id)


def build_topology(
    configuration: Configuration,
    id: str | None = None,
    *,
    allow: Sequence[str] = (),
    max_batch_rows: int = 1000,
    settings: Mapping[str, Any] | None = None,
) -> Topology:
    """Return the topology of a configuration: exactly once, whatever its semantics, on any engine.

    Args:
        configuration: the configuration.
        id: the topology's id; None: the name of the file.
        allow: names of further modules that may be libraries of CUSTOM operators.
        max_batch_rows: the maximum number of lines of files in a transaction, and of records of each topic.
        settings: settings of the core.

    Raises:
        InputError: a command of the script needs replicas, or code is missing.
        TopologyError: the topology has faults.
    """
    if refused := [str(one) for one in configuration.commands if one.name not in ALLOWED]:
        raise InputError(
            f"{configuration.name}: {', '.join(refused)}: a topology has {', '.join(ALLOWED)} only, as its operators "
            "have no replicas that could fail; run it with --replicas"
        )
    for operator in configuration.operators:
        load_code(operator, configuration, allow)
    made = _Network(configuration, tuple(allow), max_batch_rows).build(id or topology_id(configuration), settings or {})
    warnings = (*made.warnings, *_warnings(configuration))
    return replace(made, companion=partial(_SameNetwork, configuration), warnings=warnings)


def network(path: str, allow: tuple[str, ...] = (), id: str | None = None) -> Topology:
    """Return the topology of the configuration in a file: the target of replays, audits and rewinds."""
    return build_topology(load(path), id, allow=allow)


def _warnings(configuration: Configuration) -> Iterator[str]:
    if configuration.semantics != EXACTLY_ONCE:
        yield f"{configuration.name}: a topology is exactly-once, and not {configuration.semantics}"
    started = {one.operator for one in configuration.commands if one.name == "Start"}
    if started and (idle := [one.id for one in configuration.operators if one.id not in started]):
        yield f"{configuration.name}: a topology runs all operators, also {', '.join(idle)}, which no Start names"


class _SameNetwork(Companion):
    """Companion that refuses a data directory of another configuration; only commands may differ."""

    def __init__(self, configuration: Configuration, topology: Topology) -> None:
        from txstorm.dadstorm.master.companion import network_json

        self._recorded = network_json(configuration, "topology")

    @override
    def check(self, books: Books, data_dir: Path) -> None:
        from txstorm.dadstorm.master.companion import check_same

        check_same(books.front_end(NETWORK), self._recorded, data_dir)

    @override
    def open(self, site: CompanionSite) -> None:
        books = site.session.books
        if books.front_end(NETWORK) != self._recorded and not books.put_if([], {NETWORK: self._recorded}):
            raise FencedError("another coordinator has written to the ledger")


def topology_id(configuration: Configuration) -> str:
    """Return the name of a configuration's topology: that of its file."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(configuration.name).stem)[:64]
    return name if name_fault("topology", name) is None else "dadstorm"


class _Network:
    """Builder of the topology of one configuration."""

    def __init__(self, configuration: Configuration, allow: tuple[str, ...], rows: int) -> None:
        self.configuration = configuration
        self.allow = allow
        self.spouts: dict[str, TransactionalSpout] = {}
        self.topics: dict[tuple[str, str], str] = {}
        reading = {kind: [one for one in configuration.operators if _reads(one, kind)] for kind in ("file", "kafka")}
        self.tasks = max([one.replicas for some in reading.values() for one in some], default=1)
        if reading["file"]:
            streams = {one.id: _grouped(one) for one in reading["file"]}
            self.spouts[FILES] = FilesSpout(configuration, rows, _Streams(streams, self._replicas()))
        for operator in reading["kafka"]:
            for url in dict.fromkeys(one.text for one in operator.sources if one.kind == "kafka"):
                name = self.topics[operator.id, url] = f"topic{len(self.topics) + 1}"
                shape = _Streams({operator.id: _grouped(operator)}, self._replicas(), "default")
                self.spouts[name] = TopicSpout(url, operator.id, operator.replicas, rows, shape)

    def _replicas(self) -> dict[str, int]:
        return {one.id: one.replicas for one in self.configuration.operators}

    def build(self, id: str, settings: Mapping[str, Any]) -> Topology:
        """Return the topology."""
        only_files = list(self.spouts) == [FILES]
        spout = self.spouts[FILES] if only_files else CompositeSpout(self.spouts)
        builder = TransactionalTopologyBuilder(id, SPOUT, spout, self.tasks).set_settings(settings)
        taken = {one.id for one in self.configuration.operators}
        for operator in self.configuration.operators:
            declared = builder.set_bolt(operator.id, self._bolt(operator), self._parallelism(operator))
            self._read(operator, declared, "" if only_files else f"{FILES}-")
        for operator in self.configuration.operators:
            if kept(operator, self.configuration):
                sink = _Emitted(operator)
                builder.set_bolt(_free(f"{operator.id}-emitted", taken), sink).global_grouping(operator.id)
            if writes_lines(operator, self.configuration):
                lines = lines_sink(operator, self.configuration)
                builder.set_bolt(_free(f"{operator.id}-out", taken), lines).global_grouping(operator.id)
        return builder.build_topology()

    def _parallelism(self, operator: Operator) -> int:
        return 1 if operator.type == "COUNT" else operator.replicas

    def _bolt(self, operator: Operator) -> BasicBolt | BatchBolt:
        reading = map(self.configuration.operator, self.configuration.consumers(operator.id))
        sent = tuple(dict.fromkeys(number for one in reading if (number := _hashed(one))))
        if operator.type == "UNIQ":
            return _Unique(operator, sent)
        if operator.type == "COUNT":
            return _Count(operator, sent)
        return _Stateless(operator, sent, self.configuration, self.allow)

    def _read(self, operator: Operator, declared: BoltDeclarer, prefix: str) -> None:
        """Subscribe to the sources of an operator, in their order."""
        streams: list[str | None] = []
        for source in operator.sources:
            if source.kind == "operator":
                self._route(operator, declared, source.text)
                continue
            stream = self.topics[operator.id, source.text] if source.kind == "kafka" else f"{prefix}{operator.id}"
            if stream not in streams:
                streams.append(stream)
                self._route_parts(operator, declared, stream)

    def _route_parts(self, operator: Operator, declared: BoltDeclarer, stream: str) -> None:
        if self._parallelism(operator) == 1:
            declared.global_grouping(SPOUT, stream)
        elif not _grouped(operator) and operator.replicas == self.tasks and not stream.startswith("topic"):
            declared.local_or_shuffle_grouping(SPOUT, stream)  # each task has the parts of its replica
        else:
            number = _grouped(operator)
            declared.fields_grouping(SPOUT, [_column(number) if number else TO], stream=stream)

    def _route(self, operator: Operator, declared: BoltDeclarer, source: str) -> None:
        if self._parallelism(operator) == 1 or (operator.routing == "primary" and not _grouped(operator)):
            declared.global_grouping(source)
        elif number := _hashed(operator):
            declared.fields_grouping(source, [_column(number)])
        else:
            declared.shuffle_grouping(source)


def _reads(operator: Operator, kind: str) -> bool:
    return any(source.kind == kind for source in operator.sources)


def _grouped(operator: Operator) -> int:
    """Return the field by which the state of an operator is divided among its tasks; 0: none."""
    return int(operator.params[0]) if operator.type == "UNIQ" else 0


def _hashed(operator: Operator) -> int:
    """Return the field by which other operators group their tuples for an operator; 0: none."""
    if operator.routing != "hashing" or operator.type in ("UNIQ", "COUNT"):
        return _grouped(operator)
    return operator.routing_field or 1


def _column(number: int) -> str:
    return f"f{number}"


def _free(name: str, taken: set[str]) -> str:
    """Return a name that no component has yet."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


@cache
def key_of(task: int, parallelism: int) -> str:
    """Return a text that is sent to this task by a grouping by fields."""
    for start in range(0, 1 << 30, 256):
        texts = [str(number) for number in range(start, start + 256)]
        for text, found in zip(texts, tasks(texts, parallelism), strict=True):
            if found == task:
                return text
    raise AssertionError(parallelism)


def _with_values(tuples: pa.ListArray, numbers: Sequence[int]) -> pa.RecordBatch:
    """Return tuples with the values of these fields; where there is none, one that is sent to the first task."""
    values = [pc.fill_null(values_at(tuples, number), key_of(0, 1 << 10)) for number in numbers]
    return pa.RecordBatch.from_arrays([tuples, *values], [FIELDS, *map(_column, numbers)])


class _Streams:
    """Shape in which the tuples of sources go to the operators that read them: one stream for each.

    Args:
        hashed: operator → the field of UNIQ by which its tuples are grouped; 0: by replicas.
        replicas: operator → number of its replicas.
        stream: the stream; None: named by the operator.
    """

    def __init__(self, hashed: Mapping[str, int], replicas: Mapping[str, int], stream: str | None = None) -> None:
        self._hashed, self._replicas, self._stream = dict(hashed), dict(replicas), stream

    def declare(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare a stream for each operator."""
        for operator, number in self._hashed.items():
            columns = [FIELDS, TO, *([_column(number)] if number else [])]
            declarer.declare_stream(self._stream or operator, columns)

    def emit(self, block: Block, collector: Any) -> None:
        """Emit the tuples of one replica."""
        number = self._hashed[block.operator]
        batch = _with_values(block.tuples(), [number] if number else [])
        key = pa.scalar(key_of(block.replica, self._replicas[block.operator]), pa.string())
        batch = batch.add_column(1, TO, pa.repeat(key, batch.num_rows))
        collector.emit_batch(batch, stream=self._stream or block.operator)


class _Stateless(BasicBolt):
    """FILTER, DUP or CUSTOM."""

    def __init__(
        self, operator: Operator, sent: tuple[int, ...], configuration: Configuration, allow: tuple[str, ...]
    ) -> None:
        self.operator, self.sent, self.allow = operator, sent, allow
        self.configuration = configuration

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the columns."""
        declarer.declare(FIELDS, *map(_column, self.sent))

    def execute_batch(self, batch: pa.RecordBatch, collector: Collector) -> None:
        """Emit what the operator makes of the tuples."""
        tuples = batch.column(FIELDS)
        if self.operator.type == "FILTER":
            number, condition, wanted = self.operator.params
            found = values_at(tuples, int(number))
            _report_misfits(self.operator, found.null_count, int(number), collector)
            tuples = tuples.filter(holding(found, condition, wanted))
        elif self.operator.type == "CUSTOM":
            tuples = self._called(tuples)
        collector.emit_batch(_with_values(tuples, self.sent))

    def _called(self, tuples: pa.ListArray) -> pa.ListArray:
        work = load_code(self.operator, self.configuration, self.allow)
        made: list[Any] = []
        for fields in fields_of(tuples):
            try:
                made += work(fields)
            except FailedException:
                raise
            except Exception as error:
                raise InputError(failure(self.operator, fields, error)) from error
        return tuples_of(made)


def _report_misfits(operator: Operator, misfits: int, number: int, collector: Collector) -> None:
    if misfits:
        has = "1 tuple has" if misfits == 1 else f"{misfits} tuples have"
        collector.report_error(InputError(f"operator {operator.id}: {has} no field {number}; dropped"))


class _Stateful(AssembledCommitter):
    """Base class of UNIQ and COUNT."""

    def __init__(self, operator: Operator, sent: tuple[int, ...]) -> None:
        self.operator, self.sent = operator, sent

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the columns."""
        declarer.declare(FIELDS, *map(_column, self.sent))

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector = context, collector
        self._batches: list[pa.ListArray] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Take tuples."""
        self._batches.append(batch.column(FIELDS))


class _Unique(_Stateful):
    """UNIQ: passes the tuples whose value none before had."""

    def __init__(self, operator: Operator, sent: tuple[int, ...]) -> None:
        super().__init__(operator, sent)
        self.state = seen_state(operator)
        self.internal_states = (self.state.name,)  # a value goes to one task, though its column has another name

    def finish_batch(self) -> None:
        """Emit the tuples with new values, and remember these."""
        if not self._batches:
            return
        tuples = pa.concat_arrays(self._batches)
        number = int(self.operator.params[0])
        found = values_at(tuples, number)
        _report_misfits(self.operator, found.null_count, number, self._collector)
        table = pa.table({"value": found, "row": np.arange(len(found))}).filter(found.is_valid())
        firsts = table.group_by("value").aggregate([("row", "min")])
        values = firsts.column("value").to_pylist()
        handle = self._context.state(self.state.name)
        known = handle.get_many(values)
        new = {
            row: one for one, row in zip(values, firsts.column("row_min").to_pylist(), strict=True) if one not in known
        }
        rows = sorted(new)
        handle.put_many(dict.fromkeys((new[row] for row in rows), True))
        self._collector.emit_batch(_with_values(tuples.take(pa.array(rows, pa.int64())), self.sent))


class _Count(_Stateful):
    """COUNT: emits for each tuple the number of tuples so far."""

    def __init__(self, operator: Operator, sent: tuple[int, ...]) -> None:
        super().__init__(operator, sent)
        self.state = count_state(operator)

    def finish_batch(self) -> None:
        """Count the tuples."""
        count = sum(map(len, self._batches))
        if count:
            n = self._context.state(self.state.name).update(self.operator.id, lambda before: (before or 0) + count)
            texts = pa.array(np.arange(n - count + 1, n + 1)).cast(pa.string())
            tuples = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), texts)
            self._collector.emit_batch(_with_values(tuples, self.sent))


class _Emitted(BatchBolt, Committer):
    """Committer of the tuples that an operator emits, with their ids."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.table = emitted_sink(operator)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._txid = context, attempt.txid
        self._arrived: list[tuple[int, pa.ListArray]] = []

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Take tuples of one replica."""
        source = self._context.source
        self._arrived.append((source[2] if source else 0, batch.column(FIELDS)))

    def finish_batch(self) -> None:
        """Append the rows."""
        numbers: dict[int, int] = {}
        for replica, tuples in self._arrived:
            first, count = numbers.get(replica, 0) + 1, len(tuples)
            numbers[replica] = first + count - 1
            ids = pc.binary_join_element_wise(
                f"{self.operator.id}-{replica}-{self._txid}",
                pa.array(np.arange(first, first + count)).cast(pa.string()),
                ".",
            )
            url = pa.repeat(pa.scalar(self.operator.addresses[replica], pa.string()), count)
            columns = [pa.repeat(pa.scalar(replica, pa.int64()), count), url, ids, tuples]
            batch = pa.RecordBatch.from_arrays(columns, list(self.table.columns))
            self._context.sink(self.table.name).append_batch(batch)
