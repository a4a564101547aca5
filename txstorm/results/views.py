"""Views of results: states, sinks and history of a data directory, readable beside a live run and without Java."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.books.books import Books, opened_books
from txstorm.books.data_directory import ledger_exists
from txstorm.books.origin import CodeOrigin
from txstorm.books.records import Identity, clock_of
from txstorm.clocks import Clock
from txstorm.errors import InputError, LedgerCorrupt, MissingDependency, TableCorrupt
from txstorm.results.freshness import check_not_ahead, check_not_behind
from txstorm.results.read import (
    Stamps,
    check_appended,
    check_txid,
    list_sinks,
    list_states,
    read_changes,
    read_letters,
    read_sink,
    read_state,
    rows_json,
    txid_of,
)
from txstorm.storage.rows.dead_letters import TABLE_SCHEMA
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.declared import LETTERS_REF
from txstorm.storage.tables.history import HISTORY, history_table, read_history, recorded_stamp
from txstorm.storage.tables.identity import TopologyIdentity

SHOWN = 20
Answer = TypeVar("Answer")


class TableView:
    """Base class of the views of states and sinks: returns the rows in several forms.

    Every call reads the current content of the directory.

    Args:
        data_dir: the data directory of a topology.
        name: the table.
        txid: the transaction to read as of; None: the last one at the time of each call.
    """

    def __init__(self, data_dir: str | Path, name: str, txid: int | None = None) -> None:
        self.data_dir = Path(data_dir)
        self.name = name
        self._txid = txid

    def to_arrow(self) -> pa.Table:
        """Read the rows as a `pyarrow.Table`."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Read the rows as a `pandas.DataFrame`; raise `MissingDependency` if pandas is not installed."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingDependency("pandas", "pandas") from None
        return self.to_arrow().to_pandas()

    def to_spark(self, spark: Any) -> Any:
        """Read the rows as a DataFrame of the session `spark`; they pass through the driver."""
        return spark.createDataFrame(self.to_arrow())

    def to_pylist(self) -> list[dict[str, Any]]:
        """Read the rows as a list of dictionaries."""
        return list(self.to_arrow().to_pylist())

    def __repr__(self) -> str:
        return f"<{self} in {self.data_dir}>"

    def _repr_html_(self) -> str:
        return table_html(self.to_arrow(), str(self))


class StateView(TableView):
    """View of a keyed state: key and value columns, one row per key, sorted by key.

    Raises:
        StateError: (by the reading methods) there is no such state, or the txid is not committed or no longer kept.
    """

    @property
    def txid(self) -> int:
        """The txid as of which rows are read: the given one or, by default, the last committed one."""
        return committed_txid(self.data_dir) if self._txid is None else self._txid

    def as_of(self, txid: int) -> StateView:
        """Return a view of the state right after transaction `txid`."""
        return StateView(self.data_dir, self.name, txid)

    def to_arrow(self) -> pa.Table:
        """Read the rows as a `pyarrow.Table`, sorted by key."""
        committed = checked_txid(self.data_dir, *_names(self.name))
        return read_state(self.data_dir, self.name, self._txid, committed, stamps_in(self.data_dir))

    def to_json(self) -> str:
        """Format as one line ``{"state": …, "txid": …, "rows": […]}``; equal states give equal bytes."""
        return rows_json(self.to_arrow())

    def changes(self, from_txid: int, to_txid: int) -> pa.Table:
        """Read the changed rows of transactions `from_txid` to `to_txid`, both included.

        Columns besides keys and values: ``_txid``, ``_prev`` (the previous values), ``_op`` (``u`` put, ``d`` removed),
        and, if keys have a time to live, ``_stamp``, the time of the write.

        Raises:
            StateError: there is no such state, `to_txid` is not committed, or the range is empty.
        """
        committed = checked_txid(self.data_dir, *_names(self.name))
        return read_changes(self.data_dir, self.name, from_txid, to_txid, committed)

    def __str__(self) -> str:
        when = "the last committed txid" if self._txid is None else f"txid {self._txid}"
        return f"state {self.name} as of {when}"

    def _repr_html_(self) -> str:
        rows = self.to_arrow()
        return table_html(rows, f"state {self.name} as of txid {txid_of(rows)}")


class _AppendedView(TableView):
    """View of a table to which rows are only appended: up to a transaction, or all published ones."""

    def _last(self, uri: str) -> int | None:
        committed = checked_txid(self.data_dir, uri)
        if self._txid is not None:
            check_txid(str(self), self._txid, committed)
            check_appended(str(self), self.data_dir, uri, self._txid)
        return self._txid

    @property
    def _when(self) -> str:
        return "" if self._txid is None else f" as of txid {self._txid}"


class SinkView(_AppendedView):
    """View of a sink: its rows with their ``_txid``, in commit order."""

    def as_of(self, txid: int) -> SinkView:
        """Return a view of the rows up to transaction `txid`."""
        return SinkView(self.data_dir, self.name, txid)

    def to_arrow(self) -> pa.Table:
        """Read the rows as a `pyarrow.Table`; raise `StateError` if the sink is missing or the txid uncommitted."""
        return read_sink(self.data_dir, self.name, last=self._last(f"sinks/{self.name}"))

    def __str__(self) -> str:
        return f"sink {self.name}{self._when}"


class DeadLettersView(_AppendedView):
    """View of the dead letters: records that were left out of their transactions, with ``_txid``, in commit order.

    Columns: ``component`` and ``task`` that could not handle the record; its origin: ``source``, ``source_task`` and
    ``stream``; ``what``: ``tuple``, ``record``, or ``metadata`` of a batch that was not emitted; ``record``: the record
    as JSON; ``kind``, ``type``, ``message`` and ``frame`` of the error; ``attempt`` and ``stamp`` of the transaction.
    """

    def __init__(self, data_dir: str | Path, txid: int | None = None) -> None:
        super().__init__(data_dir, "dead_letters", txid)

    def as_of(self, txid: int) -> DeadLettersView:
        """Return a view of the records left out by transactions up to `txid`."""
        return DeadLettersView(self.data_dir, txid)

    def to_arrow(self) -> pa.Table:
        """Read the rows as a `pyarrow.Table`; empty if no record was ever left out."""
        rows = read_letters(self.data_dir, self._last(LETTERS_REF.uri))
        return pa.schema([*TABLE_SCHEMA, TXID]).empty_table() if rows is None else rows

    def __str__(self) -> str:
        return f"dead letters{self._when}"


def committed_txid(data_dir: str | Path) -> int:
    """Return the last committed txid of the topology in `data_dir`; 0 before the first one, or without a ledger."""
    return _ask(Path(data_dir), Books.committed, 0)


def committed_document(data_dir: str | Path) -> tuple[int, Any]:
    """Return the last committed txid and its spout document, which holds the positions; None before the first one."""

    def read(books: Books) -> tuple[int, Any]:
        while True:
            txid = books.committed()
            meta = books.metas().get(txid)
            # Beside a live run, the next commit may have deleted the metadata in between.
            if meta is not None or txid == books.committed():
                return txid, None if meta is None else meta.document

    return _ask(Path(data_dir), read, (0, None))


def kept_txid(data_dir: str | Path) -> int:
    """Return the first txid of the retained history of the topology in `data_dir`; 0 if nothing was removed."""
    return _ask(Path(data_dir), Books.kept, 0)


def checked_txid(data_dir: str | Path, *names: str) -> int:
    """Check that the ledger matches the tables `names` (all if none is given); return the last committed txid.

    Raises:
        TableCorrupt: a table is missing, damaged, or inconsistent with the ledger.
        DataDirectoryError: a table is foreign or of another incarnation.
    """
    directory = Path(data_dir)
    standing = _ask(directory, _Standing.read, None)
    if standing is None:
        return 0
    if standing.owner is not None:
        _check_newest(directory, standing, check_not_behind(directory, standing.owner, standing.tables, names or None))
    return standing.committed


def _check_newest(directory: Path, standing: _Standing | None, newest: tuple[int, int]) -> None:
    """Raise `TableCorrupt` if the `newest` timeline and txid of tables are ahead of the ledger."""
    if standing is not None and newest > standing.newest:
        # Beside a live run, tables may be ahead of the ledger as read earlier, but not of the ledger as read now.
        then = _ask(directory, _Standing.read, standing)
        check_not_ahead(directory, newest, then.newest)


class _Standing(NamedTuple):
    """Position of the tables according to the ledger; `newest`: the newest timeline and txid that any may have."""

    committed: int
    owner: TopologyIdentity | None
    tables: dict[str, int]
    newest: tuple[int, int]

    @classmethod
    def read(cls, books: Books) -> _Standing:
        tables, identity = books.tables(), books.identity()
        owner = (
            None if identity is None else TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
        )
        rewind = books.rewind()
        last = max([books.currtx() - 1, *books.kept_intents()])
        timeline = max(owner.timeline if owner else 0, rewind.timeline if rewind else 0)
        return cls(books.committed(), owner, tables, (timeline, last))


def _names(state: str) -> tuple[str, str]:
    return f"changes/{state}", f"state/{state}"


def stamps_in(data_dir: str | Path) -> Stamps:
    """Return a function that looks up the stamps of the transactions in `data_dir`."""
    return lambda txid: _stamp(Path(data_dir), txid)


def identity_of(data_dir: str | Path) -> Identity | None:
    """Return the identity of a data directory; None if its ledger has none."""
    return _ask(Path(data_dir), Books.identity, None)


def origin_recorded(data_dir: str | Path) -> CodeOrigin | None:
    """Return the origin of the topology's code as recorded by its last run; None if not recorded."""
    found = _ask(Path(data_dir), Books.origin, None)
    return None if found is None else CodeOrigin.from_json(found)


def tables_of(data_dir: str | Path) -> tuple[list[str], list[str]]:
    """Return the names of the states and of the sinks in `data_dir`."""
    directory = Path(data_dir)
    return list_states(directory), list_sinks(directory)


def read_clock(data_dir: str | Path, txid: int | None = None) -> Clock | None:
    """Return the source's clock as of the committed transaction `txid`, by default the last one.

    None if the source has no clocks, or the transaction was committed before txstorm recorded them.

    Raises:
        InputError: the history does not have `txid`.
    """
    if txid is None:
        return clock_of(committed_document(data_dir)[1])
    rows = read_directory_history(data_dir)
    found = rows.filter(pc.field("txid") == txid)["extents"].to_pylist()
    if not found:
        raise InputError(f"{data_dir}: txid {txid} is not in the history; txstorm history shows those that are")
    return clock_of(json.loads(found[-1] or "null"))


def read_directory_history(data_dir: str | Path) -> pa.Table:
    """Read the history: one row per committed txid, sorted by timeline and txid.

    Columns: ``timeline``, ``txid``, ``attempt``, ``stamp`` (its processing time), ``first`` and ``last`` of its group,
    ``digest`` of its input, ``extents`` and ``versions`` (table → version) as JSON, and ``tuples`` (null if it was
    rolled forward after a crash).

    Raises:
        DataDirectoryError: the ledger or the history table is damaged, incomplete, or of a newer format.
    """
    directory = Path(data_dir)
    standing = _ask(directory, _Standing.read, None)
    # Read the ledger first: rows that move to the table in between are then read twice, but never missed.
    kept = history_table(_kept_rows(directory))
    moved = read_history(directory)
    known = set(zip(moved["timeline"].to_pylist(), moved["txid"].to_pylist(), strict=True))
    _check_newest(directory, standing, max(known, default=(0, 0)))
    keys = zip(kept["timeline"].to_pylist(), kept["txid"].to_pylist(), strict=True)
    new = kept.filter(pa.array([key not in known for key in keys], pa.bool_()))
    rows = pa.concat_tables([moved, new])
    if standing is not None and standing.committed and standing.committed not in rows["txid"].to_pylist():
        raise TableCorrupt(
            f"table {directory / HISTORY}: the ledger has committed txid {standing.committed}, expected it there, got "
            f"{rows.num_rows} others; they are not from the same moment: restore both from the same copy"
        )
    return rows.sort_by([("timeline", "ascending"), ("txid", "ascending")])


def _kept_rows(directory: Path) -> list[dict[str, Any]]:
    nothing: dict[int, list[dict[str, Any]]] = {}
    try:
        groups = _ask(directory, Books.history, nothing)
    except LedgerCorrupt:
        # A run that ends moves its rows and then deletes the files of long ones, perhaps after our scan of the ledger.
        groups = _ask(directory, Books.history, nothing)
    return [row for rows in groups.values() for row in rows]


def _stamp(directory: Path, txid: int) -> int | None:
    kept = {(row["timeline"], row["txid"]): int(row["stamp"]) for row in _kept_rows(directory)}
    newest = max((at for at in kept if at[1] == txid), default=None)
    return recorded_stamp(directory, txid) if newest is None else kept[newest]


def _ask(directory: Path, question: Callable[[Books], Answer], otherwise: Answer) -> Answer:
    if not ledger_exists(directory):
        return otherwise
    with opened_books(directory, read_only=True) as books:
        return question(books)


def table_html(rows: pa.Table, caption: str) -> str:
    """Format the first rows of a table as HTML, for display in a notebook."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows.column_names)
    body = "".join(_row_html(list(row.values())) for row in rows.slice(0, SHOWN).to_pylist())
    more = f", {SHOWN} shown" if rows.num_rows > SHOWN else ""
    title = f"{caption}: {rows.num_rows:,} rows{more}"
    return f"<table><caption>{html.escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row_html(values: Sequence[Any]) -> str:
    return "<tr>" + "".join(f"<td>{html.escape(str(value))}</td>" for value in values) + "</tr>"
