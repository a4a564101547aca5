"""Tables declared by a topology's components: their schemas and properties, and checks against the existing tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.names import field_fault, name_fault
from txstorm.api.state import CHANGES as CHANGES_LAYOUT
from txstorm.api.state import MERGE, SPARK, CollectionState, KeyedState, SinkTable
from txstorm.clients.delta.handle import stored_schema
from txstorm.clients.delta.spark_delta import PROPERTIES
from txstorm.errors import StateError
from txstorm.storage.rows.schema import (
    changes_schema,
    check_schema,
    key_columns,
    sink_schema,
    state_schema,
    value_columns,
)
from txstorm.storage.rows.ttl import TTL, check_ttl, ttl_of, ttl_property
from txstorm.storage.tables.identity import (
    FIXED,
    FORMAT,
    KEY_TEXTS,
    KEYS,
    LAYOUT,
    TASKS,
    VALUES,
    TableRef,
    bounded_log,
    lag_properties,
    log_properties,
)
from txstorm.storage.tables.intent import CHANGES, LETTERS, SINK, STATE
from txstorm.storage.tables.table import DeltaTableState
from txstorm.typed import restored

LETTERS_REF = TableRef(LETTERS, "")
SHOWN_ROWS = 1000
"""Number of rows of a table of before from which facts are derived that it does not record."""


@dataclass(frozen=True)
class DeclaredTable:
    """A state or sink with the component that declares it, or the dead-letter table.

    Attributes:
        component: the component that writes to the table.
        table: the declaration itself, with the columns.
        letters: whether it is the dead-letter table.
    """

    component: str
    table: KeyedState | SinkTable
    letters: bool = False

    @property
    def label(self) -> str:
        """The table's name as used in messages, such as ``state 'counts'``."""
        if self.letters:
            return "table of dead letters"
        return f"{'state' if isinstance(self.table, KeyedState) else 'sink'} {self.table.name!r}"

    @property
    def refs(self) -> tuple[TableRef, ...]:
        """The Delta tables that store this state or sink (a state of the layout ``changes`` has two)."""
        if self.letters:
            return (LETTERS_REF,)
        kinds = [SINK]
        if isinstance(self.table, KeyedState):
            kinds = [STATE] if self.merged else [CHANGES, STATE]
        return tuple(TableRef(kind, self.table.name) for kind in kinds)

    @property
    def merged(self) -> bool:
        """Whether this is a state with the layout ``merge``."""
        return isinstance(self.table, KeyedState) and self.table.layout == MERGE

    def schema(self, ref: TableRef) -> pa.Schema:
        """Return the schema of `ref`, one of this declaration's Delta tables."""
        if isinstance(self.table, SinkTable):
            return sink_schema(self.table)
        return changes_schema(self.table) if ref.kind == CHANGES else state_schema(self.table)

    def about(self, ref: TableRef) -> dict[str, str]:
        """Return the table properties that describe the columns of `ref` to readers without the topology's code."""
        if isinstance(self.table, SinkTable):
            return {VALUES: json.dumps(list(self.table.columns))}
        columns = {KEYS: json.dumps(key_columns(self.table)), VALUES: json.dumps(value_columns(self.table))}
        tasks = {} if self.table.tasks is None else {TASKS: str(self.table.tasks)}
        fixed = {} if self.table.fixed is None else {FIXED: json.dumps(self.table.fixed)}
        form = {} if self.table.key_texts is None else {FORMAT: str(self.table.key_texts.form), **self._texts()}
        layout = {LAYOUT: MERGE} if self.merged else {}
        return {**columns, **ttl_property(self.table), **tasks, **fixed, **form, **layout}

    def _texts(self) -> dict[str, str]:
        texts = self.table.key_texts if isinstance(self.table, KeyedState) else None
        return {} if texts is None else {KEY_TEXTS: json.dumps([texts.column, texts.parts])}

    def stored(self, found: DeltaTableState) -> KeyedState:
        """Return the declaration of a state, with the form of the texts of keys in its table `found`."""
        assert isinstance(self.table, KeyedState)
        texts = self.table.key_texts
        if texts is None:
            return self.table
        return replace(self.table, key_texts=replace(texts, form=int(found.handle.properties[FORMAT])))

    def promised(
        self, ref: TableRef, log_retention: float, max_lag: float | None = None, most: int | None = None
    ) -> dict[str, str]:
        """Return the table properties on which other readers and writers rely; they are also added to existing tables.

        Args:
            ref: the table.
            log_retention: number of seconds for which entries are kept in the log.
            max_lag: number of seconds by which a state table may lag behind its changes; None: no bound.
            most: number of entries in the log; None: no bound.
        """
        logged = log_properties(log_retention) if most is None else bounded_log(most, log_retention)
        lag = lag_properties(0 if self.merged else max_lag) if ref.kind == STATE else {}
        writer = PROPERTIES if self.table.writer == SPARK else {}
        return {**logged, **lag, **writer, **self._texts()}

    def check_fit(self, found: Sequence[DeltaTableState], *, recorded: bool = True) -> None:
        """Raise `StateError` unless the existing tables `found` match the declaration or can still be altered to.

        The layout is fixed when the tables are created; columns and types are fixed by the first commit
        (`TransactionalTable.is_untouched`). `recorded`: whether the ledger records the tables.
        """
        for table in found:
            if table.until() is not None:
                raise dropped(self.label, table.until())
            if isinstance(self.table, KeyedState):
                self._check_layout(table)
        if not all(table.is_untouched(recorded=recorded) for table in found):
            for table in found:
                self.checked(table)

    def check_start(self, found: DeltaTableState) -> None:
        """Raise `StateError` if the component that the existing table `found` belongs to is not what it was.

        A check before all others: its message names the component, and not one of its tables.
        """
        if isinstance(self.table, KeyedState) and not found.is_untouched():
            self._check_fixed(found)
            self._check_tasks(found)

    def check_unrecorded(self, found: Sequence[DeltaTableState], committed: int) -> None:
        """Raise `StateError` if tables that the ledger does not record hold some, but not all, txids to `committed`."""
        for table in found if not self.letters else ():
            written = not all(other.is_untouched(recorded=False) for other in found)
            if table.ref == self.refs[0] and written and table.last_txid() < committed:
                raise StateError(
                    f"{self.label}: the table {table.ref.uri} is at txid {table.last_txid()}, and the ledger does not "
                    f"record it: a run without it, of an older txstorm, has committed up to txid {committed}; give it "
                    "a new name, or backfill into a new data directory (jobs/replay.py --into)"
                )

    def differs(self, found: DeltaTableState) -> bool:
        """Whether columns, key, layout or time to live of the existing table `found` differ from the declaration."""
        try:
            self.checked(found)
        except StateError:
            return True
        return False

    def checked(self, found: DeltaTableState) -> DeltaTableState:
        """Return the table `found` unchanged; raise `StateError` unless layout, columns, key and TTL are as declared.

        Raises `TableRefused` if it has a Delta feature that txstorm does not implement.
        """
        found.check_writable()
        if isinstance(self.table, KeyedState):
            self._check_fixed(found)
            self._check_layout(found)
            self._check_ttl(found)
            self._check_tasks(found)
        check_schema(self.label, self.schema(found.ref), found.handle.schema)
        if isinstance(self.table, KeyedState):
            keys = json.loads(found.handle.properties.get(KEYS, "null"))
            if keys != key_columns(self.table):
                raise StateError(
                    f"{self.label}: declared with the key {key_columns(self.table)}, the table has {keys}; "
                    "give the state a new name, or backfill into a new data directory (jobs/replay.py --into)"
                )
        return found

    def _check_ttl(self, found: DeltaTableState) -> None:
        declared = ttl_property(self.table) if isinstance(self.table, KeyedState) else {}
        if found.handle.properties.get(TTL) != declared.get(TTL):
            raise StateError(
                f"{self.label}: declared with the ttl {getattr(self.table, 'ttl', None)}, the table has "
                f"{ttl_of(found.handle.properties)}; what was there at a txid must not change later: give the state a "
                "new name, or backfill into a new data directory (jobs/replay.py --into)"
            )

    def _check_fixed(self, found: DeltaTableState) -> None:
        declared = (self.table.fixed if isinstance(self.table, KeyedState) else None) or {}
        recorded = json.loads(found.handle.properties.get(FIXED, "null"))
        # What a table of before does not record is what is declared now, which this start records.
        was = {**declared, **(self._derived(found) if recorded is None else recorded)}
        if was == declared:
            return
        names = [name for name in {**was, **declared} if was.get(name) != declared.get(name)]
        before, now = (
            ", ".join(f"{name}: {facts.get(name, 'not fixed')}" for name in names) for facts in (was, declared)
        )
        raise StateError(
            f"component {self.component!r}: what it has stored was written with {before}; the code has {now}; go back "
            "to the former, or give the component another id, which starts without what is stored"
        )

    def _derived(self, found: DeltaTableState) -> Mapping[str, str]:
        """Return what some rows of a table show of the facts that it does not record."""
        derive = self.table.derive if isinstance(self.table, KeyedState) else None
        files = found.handle.files() if derive is not None else ()
        if derive is None or not files:
            return {}
        batches = pq.ParquetFile(found.path / files[-1].path).iter_batches(SHOWN_ROWS)
        return derive(restored(pa.Table.from_batches([next(batches)]), found.handle.schema))

    def lacks(self, found: DeltaTableState) -> dict[str, str]:
        """Return the property with the fixed facts, if the existing table `found` does not record all of them."""
        facts, recorded = self.about(found.ref).get(FIXED), found.handle.properties.get(FIXED)
        lacking = facts is not None and (recorded is None or json.loads(facts).keys() > json.loads(recorded).keys())
        return {FIXED: facts} if facts is not None and lacking else {}

    def _check_tasks(self, found: DeltaTableState) -> None:
        declared = self.table.tasks if isinstance(self.table, KeyedState) else None
        fixed = found.handle.properties.get(TASKS)
        if fixed != (None if declared is None else str(declared)):
            raise StateError(
                f"component {self.component!r}, {self.label}: its keys belong to tasks, of which the table has "
                f"{fixed or 'any number'}, now declared are {declared or 'any number'}: keep the parallelism, or share "
                "the state under a new name"
            )

    def _check_layout(self, found: DeltaTableState) -> None:
        actual = found.handle.properties.get(LAYOUT, CHANGES_LAYOUT)
        if isinstance(self.table, KeyedState) and self.table.layout != actual:
            raise StateError(
                f"{self.label}: declared with the layout {self.table.layout!r}, the table {found.ref.uri} has "
                f"{actual!r}, which is fixed when the table is made; give the state a new name, or backfill into a new "
                "data directory (jobs/replay.py --into)"
            )

    def check(self) -> None:
        """Raise `StateError` if the declared name, a column or the time to live is invalid for a Delta table."""
        columns = self.table.columns if isinstance(self.table, SinkTable) else [*self.table.key, *self.table.value]
        if isinstance(self.table, CollectionState):
            columns = [*columns, *self.table.order]
        fault = name_fault(self.label.partition(" ")[0], self.table.name)
        faults = [fault, *(field_fault(self.label, column) for column in columns)]
        lowered = [str(column).lower() for column in columns]
        if len(set(lowered)) < len(lowered):
            faults.append(
                f"{self.label}: {list(columns)} are equal or differ only in case, which tables do not support"
            )
        if any(faults):
            raise StateError("; ".join(filter(None, faults)))
        if isinstance(self.table, KeyedState):
            check_ttl(self.table)
        for ref in self.refs:
            stored_schema(self.label, self.schema(ref))


def dropped(label: str, until: int | None) -> StateError:
    """Return the error for a table that is declared again although it was dropped after txid `until`."""
    return StateError(
        f"{label}: was dropped after txid {until}, and lacks what was committed since; give it a new name, or backfill "
        "into a new data directory (jobs/replay.py --into)"
    )


def all_declared(
    states: Mapping[str, Sequence[KeyedState]], sinks: Mapping[str, Sequence[SinkTable]]
) -> list[DeclaredTable]:
    """Return the states, then the sinks, each in component order; `declarations` has checked them."""
    tables = (pair for some in (states, sinks) for pair in some.items())
    return [DeclaredTable(component, table) for component, declared in tables for table in declared]


def declarations(
    states: Mapping[str, Sequence[KeyedState]],
    sinks: Mapping[str, Sequence[SinkTable]],
    letters: pa.Schema | None = None,
) -> list[DeclaredTable]:
    """Check and return all declared tables: the states, then the sinks, each in component order, then dead letters.

    `letters`: the columns of the dead-letter table; None if there is none.

    Raises:
        StateError: a name or type is invalid, or two components declare the same state or sink.
    """
    declared = all_declared(states, sinks)
    seen: dict[tuple[str, str], DeclaredTable] = {}
    for table in declared:
        table.check()
        key = table.refs[0].kind, table.table.name.lower()
        if key in seen:
            raise StateError(
                f"{table.label} is declared by {seen[key].component!r} and by {table.component!r} (as "
                f"{seen[key].table.name!r}); a table has one writer: give one of them another name"
            )
        seen[key] = table
    if letters is not None:
        columns = {field.name: field.type for field in letters}
        declared.append(DeclaredTable("dead-letters", SinkTable("dead-letters", columns), letters=True))
    return declared
