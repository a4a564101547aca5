"""The committer in which a stateful bolt runs: calls its methods in Storm's order, within one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any, cast

from txstorm.api.assembly import AssembledCommitter, Site
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.external import ManagedState
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import KeyedState
from txstorm.api.tuples import Tuple
from txstorm.errors import FailedException, InputError
from txstorm.stateful.bolt import AnchoringCollector, StatefulBolt, StatefulHooks, overrides
from txstorm.stateful.providers import DELTA, configured_provider
from txstorm.stateful.table_state import ScannedHandle, TableKeyValueState, state_table
from txstorm.stateful.turns import TaskTurn
from txstorm.topology.settings import Settings


class StatePart:
    """The state of a stateful bolt in one topology, and its use in one transaction.

    Attributes:
        table: the table of the state; None if a provider outside of the topology keeps it.
        managed: the state and hooks outside of the tables; None if there are none.
    """

    def __init__(self, bolt: StatefulHooks, table: KeyedState | None, managed: ManagedState | None) -> None:
        self.table = table
        self.managed = managed
        self._task_owns = not bolt.shared
        self._kinds = (bolt.key_type, bolt.value_type)
        self._turn: TaskTurn | None = None
        self._rows: TableKeyValueState | None = None

    @classmethod
    def of(cls, bolt: StatefulHooks, site: Site) -> tuple[StatePart, list[str]]:
        """Return the part that the settings ask for, with the faults of bolt and settings."""
        faults = []
        spread = [one.component for one in site.inputs if one.grouping != "fields"]
        if bolt.shared and spread:
            faults.append(
                f"{type(bolt).__name__} has shared = True, so that several tasks write one state, but the input from "
                f"{spread[0]!r} is not grouped by fields; use fields_grouping for all inputs, or remove shared"
            )
        try:
            return cls._made(bolt, site), faults
        except InputError as error:
            return cls._made(bolt, replace(site, settings=Settings())), [*faults, str(error)]

    @classmethod
    def _made(cls, bolt: StatefulHooks, site: Site) -> StatePart:
        settings = site.settings
        conf = json.loads(settings.state_provider_config or "{}")
        provider, conf = configured_provider(settings.state_provider, conf)
        table = managed = None
        if settings.state_provider == DELTA:
            kinds = {"key_type": bolt.key_type, "value_type": bolt.value_type}
            table = state_table(site.id, shared=bolt.shared, tasks=site.parallelism, **kinds)
        hooked = overrides(bolt, "pre_commit")
        if provider is not None or hooked or overrides(bolt, "pre_rollback"):
            lost = settings.state_may_be_lost
            managed = ManagedState(site.id, bolt, provider, conf, hooked, bool(bolt.shared), lost)
        return cls(bolt, table, managed)

    @property
    def external(self) -> bool:
        """Whether the state is outside of the topology's tables."""
        return self.table is None

    def begin(self, bolt: StatefulHooks, context: TaskContext, txid: int) -> Any:
        """Begin the turn of a transaction with a new object; return the state as after the previous transaction."""
        # None in a replay, where no hooks are called
        self._turn = cast("TaskTurn | None", None if self.managed is None else context.managed())
        left_out = context.divert is not None  # another task may have to be undone
        outside = None if self._turn is None else self._turn.begin(bolt, repeatable=left_out)
        if self.table is None:
            return outside
        self._rows = TableKeyValueState(
            f"state {self.table.name!r} ({context.component}[{context.task}], txid {txid})",
            cast("ScannedHandle", context.state(self.table.name)),
            task=context.task if self._task_owns else None,
            kinds=self._kinds,
            previous=txid - 1,
        )
        return self._rows

    def prefetch(self, keys: Iterable[Any]) -> None:
        """Read the values of keys that are likely to be asked for, at once."""
        if self._rows is not None:
            self._rows.prefetch(keys)

    def save(self) -> None:
        """Save the state with the transaction: write it to its table, or prepare it."""
        if self._rows is not None:
            self._rows.flush()
        if self._turn is not None:
            self._turn.prepare()


class StatefulCommitter(AssembledCommitter):
    """Committer that runs a `StatefulBolt`, in `finish_batch`.

    Attributes:
        bolt: the user's bolt.
        part: its state.
        table, managed: those of the part.
        tables: the tables that the bolt itself declares.
        current: the tuple at hand, for messages.
        caught: receives (position, error) for each tuple that cannot be handled; None: the first error is raised.
    """

    stateful = True

    def __init__(self, bolt: StatefulBolt, part: StatePart, site: Site) -> None:
        self.bolt = bolt
        self.part = part
        self.table = part.table
        self.managed = part.managed
        self.internal_states = set() if part.table is None else {part.table.name}
        self.tables = site.tables
        self.external = part.external  # type: ignore[misc]  # per object
        self.current: Tuple | None = None
        self.caught: list[tuple[int, BaseException]] | None = None
        self._hint = _one_field(site)
        self._place = _one_place(site, self._hint)

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
        """Call all methods of the bolt up to `pre_prepare`, then save the state."""
        bolt, part, context = self.bolt, self.part, self._context
        state = part.begin(bolt, context, self._attempt.txid)
        bolt.prepare(context, self._collector)
        bolt.init_state(state)
        if self._hint is not None:
            if self._place is None:
                part.prefetch(one[self._hint] for one in self._tuples)
            else:
                part.prefetch(map(itemgetter(self._place), map(attrgetter("values"), self._tuples)))
        self._execute_all()
        if self._collector.failed is not None:
            raise FailedException(f"{context.component}[{context.task}] failed {self._collector.failed!r}")
        bolt.pre_prepare(self._attempt.txid)
        part.save()

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


def _one_field(site: Site) -> str | None:
    """Return the field by which all inputs are grouped; None if there is no such single field."""
    found = {one.grouped_by if one.grouping == "fields" else () for one in site.inputs}
    (fields, *more) = found or {()}
    return fields[0] if len(fields) == 1 and not more else None


def _one_place(site: Site, field: str | None) -> int | None:
    """Return the position of `field` in the tuples of all inputs; None if there is no such single position."""
    fields = [one.fields or () for one in site.inputs]
    places = {names.index(field) if field in names else None for names in fields}
    return places.pop() if len(places) == 1 else None
