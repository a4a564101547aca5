"""One consistent cut over all tables of a topology, beside a live run and without Java."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pyarrow as pa

from txstorm.books.data_directory import topology_in
from txstorm.results.read import check_txid, has_letters, json_value, left_out
from txstorm.results.views import DeadLettersView, SinkView, StateView, TableView, checked_txid, tables_of


class TopologySnapshot:
    """All states, sinks and dead letters of a topology right after one transaction; created by `snapshot`.

    It does not change while the topology runs: every table is always read as of the same transaction.

    Attributes:
        data_dir: the data directory.
        txid: the transaction.
        states, sinks: names of the tables that are complete at that transaction.
        left_out: table → the reason why it is omitted: it begins later, or was dropped before.
    """

    def __init__(self, data_dir: Path, txid: int) -> None:
        self.data_dir = data_dir
        self.txid = txid
        self.left_out = left_out(data_dir, txid)
        states, sinks = tables_of(data_dir)
        self.states = tuple(name for name in states if f"state/{name}" not in self.left_out)
        self.sinks = tuple(name for name in sinks if f"sinks/{name}" not in self.left_out)

    def state(self, name: str) -> StateView:
        """Return a view of the state `name`; reading it raises `StateError` if the txid is no longer retained."""
        return StateView(self.data_dir, name, self.txid)

    def sink(self, name: str) -> SinkView:
        """Return a view of the rows of the sink `name` up to this transaction."""
        return SinkView(self.data_dir, name, self.txid)

    def dead_letters(self) -> DeadLettersView:
        """Return a view of the dead letters, the records left out of transactions up to this one."""
        return DeadLettersView(self.data_dir, self.txid)

    def tables(self) -> dict[str, TableView]:
        """Return the views by table directory: ``state/<name>``, ``sinks/<name>``, ``dead_letters`` if it exists."""
        states = {f"state/{name}": self.state(name) for name in self.states}
        sinks = {f"sinks/{name}": self.sink(name) for name in self.sinks}
        letters = {"dead_letters": self.dead_letters()} if has_letters(self.data_dir) else {}
        return {**states, **sinks, **letters}

    def to_arrow(self) -> dict[str, pa.Table]:
        """Read the rows of every table, keyed by its directory."""
        return {name: table.to_arrow() for name, table in self.tables().items()}

    def to_json(self) -> str:
        """Format as one line ``{"txid": …, "tables": {"state/<name>": [row, …], …}}``; equal cuts give equal bytes.

        If tables are omitted, ``left_out`` gives the reasons: ``{"sinks/<name>": …}``.
        """
        rows = {name: [json_value(row) for row in table.to_pylist()] for name, table in self.to_arrow().items()}
        others = {"left_out": self.left_out} if self.left_out else {}
        return json.dumps({"txid": self.txid, "tables": rows, **others}, ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        tables = len(self.states) + len(self.sinks)
        return f"<snapshot of {self.data_dir} as of txid {self.txid}: {tables} tables>"

    def _repr_html_(self) -> str:
        caption = f"<p>{html.escape(str(self.data_dir))} as of txid {self.txid}</p>"
        others = "".join(f"<p>{html.escape(f'{name}: {why}')}</p>" for name, why in self.left_out.items())
        return caption + "".join(table._repr_html_() for table in self.tables().values()) + others


def snapshot(data_dir: str | Path, txid: int | None = None) -> TopologySnapshot:
    """Return the tables of the topology in `data_dir` right after `txid`, the last committed one by default.

    May be called while the topology runs, from any process.

    Raises:
        DataDirectoryError: there is no topology in `data_dir`.
        StateError: `txid` is not committed.
    """
    directory = topology_in(data_dir)
    committed = checked_txid(directory)
    wanted = committed if txid is None else txid
    check_txid(f"snapshot of {directory}", wanted, committed)
    return TopologySnapshot(directory, wanted)
