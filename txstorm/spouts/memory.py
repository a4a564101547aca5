"""Spouts over lists in the driver's memory: Storm's ``MemoryTransactionalSpout`` and its opaque counterpart.

Metadata of a txid: ``{partition: [index, amount]}``. Only the rows of a batch are shipped to the workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import counted
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.spout import NOT_READY, Emitter, SpoutCoordinator, TransactionalSpout
from txstorm.clocks import Clock
from txstorm.errors import EmitError, SettingError, SpoutError

Row = tuple[Any, ...]
Rows = Sequence[Any]
Take = int | Callable[[int], int]


class MemoryTransactionalSpout(TransactionalSpout):
    """Spout over lists in memory; emits at most `take` tuples of each partition per transaction.

    Example::

        spout = MemoryTransactionalSpout({0: ["cat", "dog"], 1: ["cat"]}, ["word"], take=3)

    It is always ready: once everything is read it continues with empty transactions, as Storm's does. The lists stay
    in the process that created the spout; tuples and partitions may be added there while the topology runs.

    Args:
        partitions: partition number → tuples, or a list of lists; tuples of one field may be given as bare values.
        fields: the names of the fields.
        take: maximum number of tuples of one partition in one transaction; an int, or a function of the txid.

    Raises:
        EmitError: a tuple does not have as many values as there are fields.
        SettingError: `take`, a partition number or `fields` is invalid.
    """

    live = False

    def __init__(
        self, partitions: Mapping[int, Rows] | Sequence[Rows], fields: Sequence[str] | str, take: Take = 100
    ) -> None:
        self._columns = (fields,) if isinstance(fields, str) else tuple(fields)
        self._data: _Data | None = _Data(_checked_take(take))
        named = partitions if isinstance(partitions, Mapping) else dict(enumerate(partitions))
        for partition, rows in named.items():
            self.add(partition, *rows)

    def add(self, partition: int, *tuples: Any) -> None:
        """Append `tuples` to `partition`, which may be new; safe while the topology runs.

        A new partition is read from the next transaction planned.
        """
        if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
            raise SettingError(f"memory spout: partition {partition!r} is not an int >= 0")
        rows = self._rows(tuples)
        with self._source.lock:
            self._source.partitions.setdefault(partition, []).extend(rows)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the fields given to the constructor."""
        declarer.declare(self._columns)

    def coordinator(self, context: TaskContext) -> SpoutCoordinator:
        """Return the coordinator, which works in the driver on the lists themselves."""
        return _MemoryCoordinator(self._source, context.component)

    def emitter(self, context: TaskContext) -> Emitter:
        """Return an emitter of the rows shipped as the payload."""
        return _MemoryEmitter(context)

    def _rows(self, tuples: Iterable[Any]) -> list[Row]:
        return [_row(values, self._columns) for values in tuples]

    @property
    def _source(self) -> _Data:
        if self._data is None:
            msg = "memory spout: its data stays in the process that created it; this is a copy sent to a worker"
            raise SpoutError(msg)
        return self._data

    def __getstate__(self) -> dict[str, Any]:
        # Workers get the rows of each batch as its payload; the whole source must not be shipped with every task.
        return {**self.__dict__, "_data": None}


class OpaqueMemoryTransactionalSpout(MemoryTransactionalSpout):
    """Opaque memory spout: after a failure an undecided batch is planned again, and may then differ.

    Partitions can be disabled, `take` changed and contents replaced at any time, with effect from the next batch
    planned.
    """

    opaque: bool = True

    def set_disabled(self, partition: int, disabled: bool = True) -> None:
        """Disable or enable `partition`; disabled, it emits nothing and keeps its position (Storm inverts the flag)."""
        with self._source.lock:
            change = self._source.disabled.add if disabled else self._source.disabled.discard
            change(partition)

    def set_take(self, take: Take) -> None:
        """Change the maximum number of tuples of a partition in one transaction."""
        self._source.take = _checked_take(take)

    def replace(self, partition: int, tuples: Iterable[Any]) -> None:
        """Replace the content of `partition`; positions are kept, so committed tuples should stay at the front."""
        rows = self._rows(tuples)
        with self._source.lock:
            self._source.partitions[partition] = rows


@dataclass
class _Data:
    take: Take
    partitions: dict[int, list[Row]] = field(default_factory=dict)
    disabled: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def amount(self, txid: int) -> int:
        return self.take(txid) if callable(self.take) else self.take


class _MemoryCoordinator(SpoutCoordinator):
    def __init__(self, data: _Data, component: str) -> None:
        self._data = data
        self._component = component

    def initialize_transaction(self, txid: int, prev_metadata: Any, upto: Clock | None = None) -> Any:
        ends = _ends(prev_metadata)
        amount = self._data.amount(txid)
        with self._data.lock:
            sizes = {partition: len(rows) for partition, rows in sorted(self._data.partitions.items())}
            disabled = set(self._data.disabled)
        for partition, end in ends.items():
            self._require(partition, end, sizes.get(partition, 0))
        if upto is not None and prev_metadata is not None:
            sizes = {p: size for p, size in sizes.items() if p in ends or str(p) in upto}
        bounds = {p: size if upto is None else min(size, upto.get(str(p), -1) + 1) for p, size in sizes.items()}
        taken = {p: 0 if p in disabled else min(amount, bounds[p] - ends.get(p, 0)) for p in sizes}
        if upto is not None and not any(count > 0 for count in taken.values()):
            return NOT_READY
        return {str(p): [ends.get(p, 0), max(0, count)] for p, count in taken.items()}

    def payload(self, metadata: Any) -> Any:
        with self._data.lock:
            return {partition: self._slice(int(partition), *extent) for partition, extent in metadata.items()}

    def clock(self, metadata: Any) -> dict[str, int]:
        with self._data.lock:
            ends = dict.fromkeys(self._data.partitions, 0) if metadata is None else _ends(metadata)
        return {str(partition): end - 1 for partition, end in ends.items()}

    def at_clock(self, clock: Mapping[str, int]) -> Any:
        if strange := [name for name in clock if not name.isdecimal()]:
            raise SpoutError(f"memory spout {self._component!r}: partitions are numbers, the clock has {strange[0]!r}")
        return {name: [offset + 1, 0] for name, offset in clock.items()}

    def latest(self) -> Any:
        with self._data.lock:
            return {partition: len(rows) for partition, rows in self._data.partitions.items()}

    def reached(self, metadata: Any, mark: Any) -> bool:
        ends = _ends(metadata)
        # A caller that waits for all available data must not wait for a disabled partition.
        return all(ends.get(p, 0) >= size for p, size in mark.items() if p not in self._data.disabled)

    def _slice(self, partition: int, index: int, amount: int) -> list[Row]:
        rows = self._data.partitions.get(partition, [])
        self._require(partition, index + amount, len(rows))
        return rows[index : index + amount]

    def _require(self, partition: int, end: int, size: int) -> None:
        if end > size:
            raise SpoutError(
                f"memory spout {self._component!r}: partition {partition} was read up to tuple {end} but holds only "
                f"{size} now; give it the data it had before, or start in a new data directory"
            )


class _MemoryEmitter(Emitter):
    def __init__(self, context: TaskContext) -> None:
        self._context = context

    def emit_batch(self, attempt: TransactionAttempt, metadata: Any, collector: Collector) -> None:
        task, tasks = self._context.task, self._context.parallelism
        payload = {int(partition): rows for partition, rows in self._context.payload.items()}
        for partition, rows in sorted(payload.items()):
            if partition % tasks == task:
                collector.partition(partition)
                collector.origin(partial(_place, partition, metadata[str(partition)][0]))
                for row in rows:
                    collector.emit(*row)


def _place(partition: int, first: int, row: int) -> dict[str, int]:
    return {"partition": partition, "index": first + row}


def _ends(metadata: Any) -> dict[int, int]:
    return {int(partition): index + amount for partition, (index, amount) in (metadata or {}).items()}


def _row(value: Any, fields: tuple[str, ...]) -> Row:
    row = tuple(value) if isinstance(value, list | tuple) else (value,)
    if len(row) != len(fields):
        number = counted(len(row), "value")
        raise EmitError(f"memory spout: {value!r} has {number}, the fields are {list(fields)}; give one for each")
    return row


def _checked_take(take: Take) -> Take:
    if callable(take) or (isinstance(take, int) and not isinstance(take, bool) and take > 0):
        return take
    raise SettingError(f"memory spout: take is {take!r}; give an int > 0 or a function of the txid")
