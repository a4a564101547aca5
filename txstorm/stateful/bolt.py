"""Stateful bolts: the base class for users, and the collector that takes Storm's anchors and acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from txstorm.api.assembly import AssembledBolt, Assembly, Site
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector
from txstorm.api.tuples import Tuple


class StatefulHooks:
    """Methods and attributes of bolts with a managed state.

    Attributes:
        shared: whether all tasks share one state instead of having one each; requires that all inputs are grouped by
            fields. Only then the parallelism may change later.
        key_type, value_type: types of keys and values, such as str and int, as for `txstorm.KeyedState`; None: any
            plain value, stored as text. They apply to the provider ``delta``.
    """

    shared: ClassVar[bool] = False
    key_type: ClassVar[Any] = None
    value_type: ClassVar[Any] = None

    def init_state(self, state: Any) -> None:
        """Receive the `txstorm.stateful.KeyValueState`, with the content after the previous transaction."""

    def pre_prepare(self, txid: int) -> None:
        """Act before the state is prepared, at the end of the transaction; the state may still be written."""

    def pre_commit(self, txid: int) -> None:
        """Act once `txid` is decided, before its state is committed; called at least once for every decided txid.

        After a crash it is called on a new object, right after `prepare`. What it raises ends the run, after the
        transaction has been published.
        """

    def pre_rollback(self) -> None:
        """Act before the state is rolled back, as the attempt is discarded."""


HOOK_NAMES: Mapping[str, str] = {
    "declareOutputFields": "declare_output_fields",
    "initState": "init_state",
    "prePrepare": "pre_prepare",
    "preCommit": "pre_commit",
    "preRollback": "pre_rollback",
}
"""Storm's name → method of stateful bolts."""


class StatefulBolt(StatefulHooks, AssembledBolt):
    """A bolt with a key-value state that the framework saves with every transaction; Storm's ``BaseStatefulBolt``.

    It is a committer. Order of calls in each transaction, on a new object: `prepare`, `init_state`, `execute` for each
    tuple, `pre_prepare`, then the state is prepared; once the transaction is decided, `pre_commit`, then the state is
    committed. If the attempt is discarded instead: `pre_rollback`, then the state is rolled back.
    """

    storm_names: ClassVar[Mapping[str, str]] = HOOK_NAMES

    def prepare(self, context: TaskContext, collector: Collector) -> None:
        """Set up for one transaction; called first."""

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Process one tuple; the state may be read and written."""
        raise TypeError(f"{type(self).__name__} does not override execute")

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that runs this bolt."""
        from txstorm.stateful.committer import StatefulCommitter, StatePart

        part, faults = StatePart.of(self, site)
        if type(self).execute is StatefulBolt.execute:
            faults.append(f"{type(self).__name__} does not override execute; write it")
        return Assembly(StatefulCommitter(self, part, site), tuple(faults))


BaseStatefulBolt = StatefulBolt
"""Storm's name."""


def overrides(bolt: StatefulHooks, method: str) -> bool:
    """Return whether the class of `bolt` overrides `method` of `StatefulHooks`."""
    return getattr(type(bolt), method) is not getattr(StatefulHooks, method)


class AnchoringCollector:
    """Collector of a stateful bolt: accepts Storm's anchors, and `ack` and `fail`.

    Anchors, a tuple or list of tuples as first argument of an emit, are dropped: a transaction is replayed as a whole.

    Attributes:
        failed: the first tuple given to `fail`, which fails the transaction; None if there is none.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._emit = collector.emit
        self.failed: Tuple | None = None
        self.note, self.report_error, self.reportError = collector.note, collector.report_error, collector.report_error
        self.digest, self.partition, self.refuse = collector.digest, collector.partition, collector.refuse
        self.origin = collector.origin

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple."""
        if values:
            kind = type(values[0])
            if kind is Tuple:  # the usual anchor
                values = values[1:]
            elif kind is list:
                values = _unanchored(values)
        if stream is DEFAULT_STREAM:
            self._emit(*values)
        else:
            self._emit(*values, stream=stream)

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to the task with index `task` of each direct subscriber."""
        self._collector.emit_direct(task, *_unanchored(values), stream=stream)

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        """Emit the rows of a record batch or table."""
        self._collector.emit_batch(batch, stream=stream)

    def ack(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Do nothing: all tuples of a transaction are acknowledged when it commits."""

    def fail(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Fail the transaction, which is then replayed."""
        self.failed = self.failed or tuple

    emitDirect = emit_direct  # noqa: N815 - Storm's names
    emitBatch = emit_batch  # noqa: N815


def _unanchored(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of an emit without the anchors in front of them."""
    first = values[0] if values else None
    if isinstance(first, Tuple) or (type(first) is list and first and all(isinstance(one, Tuple) for one in first)):
        return values[1:]
    return values
