"""The committer in which a stateful bolt runs: calls its methods in Storm's order, within one transaction."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Protocol, cast

from txstorm.api.assembly import Site
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.bolt import BatchBolt, Committer
from txstorm.api.context import TaskContext
from txstorm.api.external import ManagedState, MapState, Outlet, State
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import KeyedState, SinkTable
from txstorm.api.tuples import Tuple
from txstorm.errors import FailedException
from txstorm.stateful.bolt import AnchoringCollector, StatefulBolt, overrides
from txstorm.stateful.providers import DELTA, configured_provider
from txstorm.stateful.table_state import ScannedHandle, TableKeyValueState, state_table
from txstorm.topology.graph import found_tables
from txstorm.topology.settings import Settings


class BoltTurn(Protocol):
    """Handle of one task for the state and the hooks of its bolt in one txid."""

    def begin(self, bolt: StatefulBolt) -> State | None:
        """Register the object that gets the hooks; return its state, None if that is a table of the topology."""

    def prepare(self) -> None:
        """Prepare the state durably, at the end of P5."""


class StatefulCommitter(BatchBolt, Committer):
    """Committer that runs a `StatefulBolt`, in `finish_batch`.

    Attributes:
        bolt: the user's bolt.
        table: the table of its state; None if a provider outside of the topology keeps it.
        managed: the state and hooks outside of the tables; None if there are none.
        tables: the tables that the bolt itself declares.
        current: the tuple at hand, for messages.
        caught: receives (position, error) for each tuple that cannot be handled; None: the first error is raised.
    """

    def __init__(self, bolt: StatefulBolt, table: KeyedState | None, managed: ManagedState | None, site: Site) -> None:
        self.bolt = bolt
        self.table = table
        self.managed = managed
        kinds: tuple[Any, ...] = (KeyedState, SinkTable, MapState, Outlet)
        self.tables = [one for kind in kinds for one in found_tables(bolt, kind)]
        self.external = managed is not None and managed.provider is not None  # type: ignore[misc]  # per object
        self.current: Tuple | None = None
        self.caught: list[tuple[int, BaseException]] | None = None
        self._site = site
        self._hint = _one_field(site)
        self._shared = bool(bolt.shared)

    @classmethod
    def of(cls, bolt: StatefulBolt, site: Site) -> StatefulCommitter:
        """Wrap `bolt` as the settings say; raise `InputError` for an unknown provider or a wrong configuration."""
        settings, name = site.settings, site.id
        conf = json.loads(settings.state_provider_config or "{}")
        provider, conf = configured_provider(settings.state_provider, conf)
        table = managed = None
        if settings.state_provider == DELTA:
            kinds = {"key_type": bolt.key_type, "value_type": bolt.value_type}
            table = state_table(name, shared=bolt.shared, tasks=site.parallelism, **kinds)
        hooked = overrides(bolt, "pre_commit")
        if provider is not None or hooked or overrides(bolt, "pre_rollback"):
            managed = ManagedState(name, bolt, provider, conf, hooked, bool(bolt.shared), settings.state_may_be_lost)
        return cls(bolt, table, managed, site)

    def under(self, settings: Settings) -> StatefulCommitter:
        """Return the committer of the same bolt under other settings."""
        return self.of(self.bolt, replace(self._site, settings=settings))

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need: not the settings, which may hold a password."""
        return {**self.__dict__, "_site": None}

    @property
    def class_name(self) -> str:
        """The name of the user's class."""
        return type(self.bolt).__name__

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the user's bolt."""
        self.bolt.declare_output_fields(declarer)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Keep what the turn of the transaction needs; the state cannot be read before it."""
        self._context, self._attempt = context, attempt
        self._collector = AnchoringCollector(collector)
        self._tuples: list[Tuple] = []
        self.execute = self._tuples.append  # type: ignore[assignment, method-assign]  # saves a call

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Keep a tuple until the turn of the transaction."""
        self._tuples.append(tuple)

    def finish_batch(self) -> None:
        """Call all methods of the bolt up to `pre_prepare`, then prepare the state."""
        bolt, txid, context = self.bolt, self._attempt.txid, self._context
        turn = self._turn()
        outside = None if turn is None else turn.begin(bolt)
        table = self._table_state() if self.table is not None else None
        bolt.prepare(context, self._collector)
        bolt.init_state(outside if table is None else table)
        if table is not None and self._hint is not None:
            table.prefetch(one[self._hint] for one in self._tuples)
        self._execute_all()
        if self._collector.failed is not None:
            msg = f"{context.component}[{context.task}] failed {self._collector.failed!r}"
            raise FailedException(msg)
        bolt.pre_prepare(txid)
        if table is not None:
            table.flush()
        if turn is not None:
            turn.prepare()

    def _execute_all(self) -> None:
        execute = self.bolt.execute
        if self.caught is None:
            for one in self._tuples:
                self.current = one
                execute(one)
        else:
            for place, one in enumerate(self._tuples):
                try:
                    execute(one)
                except Exception as error:  # noqa: BLE001 - user code; the first error is raised below
                    self.caught.append((place, error))
            if self.caught:
                raise self.caught[0][1]
        self.current = None

    def _turn(self) -> BoltTurn | None:
        """Return the handle for state and hooks outside of the tables; None if there are none, as in a replay."""
        find = getattr(self._context.resources, "managed", None)
        if self.managed is None or find is None:
            return None
        return cast("BoltTurn | None", find(self._context.component, self._context.task))

    def _table_state(self) -> TableKeyValueState:
        assert self.table is not None
        context, txid = self._context, self._attempt.txid
        return TableKeyValueState(
            f"state {self.table.name!r} ({context.component}[{context.task}], txid {txid})",
            cast("ScannedHandle", context.state(self.table.name)),
            task=None if self._shared else context.task,
            typed=(self.bolt.key_type is not None, self.bolt.value_type is not None),
            previous=txid - 1,
        )


def _one_field(site: Site) -> str | None:
    """Return the field by which all inputs are grouped; None if there is no such single field."""
    found = {one.grouped_by if one.grouping == "fields" else () for one in site.inputs}
    (fields, *more) = found or {()}
    return fields[0] if len(fields) == 1 and not more else None
