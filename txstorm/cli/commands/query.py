"""Commands that read tables: state, history, dead-letters, snapshot, changes, and views (for Spark SQL).

They need no Java, and also work beside a live run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.options import DataDir, Grid, Json, Ledger, Line, Txid, at_ledger, show

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_ROWS = 50
SHOWN_TXIDS = 20


def state(
    data_dir: DataDir,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The state.")],
    txid: Txid = None,
    clock: Annotated[
        str | None, typer.Option(metavar="JSON", help="As of this clock of the source.", show_default=False)
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Rows to show at most, without --json.")] = SHOWN_ROWS,
) -> None:
    """Show a state: one row per key, sorted by key. Works beside a live run.

    With --json: one line {"state": NAME, "txid": N, "rows": [{column: value, …}, …]}; equal states give equal bytes.
    With --clock, the first transaction with that clock counts, and "clock" is added.

    Example: txstorm state txstorm-data/word-count counts --txid 7
    """
    from txstorm.books.data_directory import check_readable
    from txstorm.cli.output import print_json_text
    from txstorm.clocks import Clock
    from txstorm.operations.kept_history import txid_at_clock
    from txstorm.results.read import rows_json, txid_of
    from txstorm.results.views import StateView

    directory = check_readable(at_ledger(data_dir, ledger))
    if clock is not None and txid is not None:
        raise typer.BadParameter("expected one of --txid and --clock")
    if clock is not None:
        txid = txid_at_clock(directory, Clock.parse(clock))
    rows = StateView(directory, name, txid).to_arrow()
    if json:
        more = "" if clock is None else f', "clock": {Clock.parse(clock)}'
        print_json_text(f"{rows_json(rows)[:-1]}{more}}}")
    else:
        show({}, *_table(f"state {name} as of txid {txid_of(rows)}", rows, limit), as_json=False)


def history(
    data_dir: DataDir,
    ledger: Ledger = None,
    json: Json = False,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Only the last N transactions.", show_default=f"{SHOWN_TXIDS}, and all with --json"
        ),
    ] = None,
) -> None:
    """Show every transaction: its time, number of tuples, commit group, and the version it created of each table.

    Example: txstorm history txstorm-data/word-count --limit 100
    """
    from txstorm.books.data_directory import topology_in
    from txstorm.results.views import committed_txid, identity_of, read_directory_history

    directory = topology_in(at_ledger(data_dir, ledger))
    rows = read_directory_history(directory).to_pylist()
    limit = limit if limit is not None or json else SHOWN_TXIDS
    shown = rows if limit is None else rows[max(0, len(rows) - limit) :]
    identity = identity_of(directory)
    topology, committed = identity.topology if identity else "", committed_txid(directory)
    more = f"; the last {len(shown)} shown, --limit shows more" if len(shown) < len(rows) else ""
    about = f"topology {topology}: committed txid {committed}, {len(rows):,} in the history{more}"
    found = {"topology": topology, "committed_txid": committed, "txids": [_document(row) for row in shown]}
    show(found, history_table(shown), Line(about, aside=True), as_json=json)


def dead_letters(
    data_dir: DataDir,
    ledger: Ledger = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Rows to show at most, without --json.")] = SHOWN_ROWS,
) -> None:
    """Show the dead letters: a summary by component and cause, then the records with their errors, also of a live run.

    Example: txstorm dead-letters txstorm-data/word-count --json
    """
    from txstorm.books.data_directory import check_readable
    from txstorm.results.views import DeadLettersView

    rows = DeadLettersView(check_readable(at_ledger(data_dir, ledger))).to_pylist()
    causes = _causes(rows)
    letters = [(str(row["_txid"]), f"{row['component']}[{row['task']}]", row["record"],
                f"{row['type']}: {row['message']}", row["frame"]) for row in rows[:limit]]  # fmt: skip
    parts: list[str | Grid | Line] = [Grid(("txid", "where", "record", "error", "at"), letters, ("txid",))]
    if causes:
        cells = []
        for one in causes:
            span = " to ".join(map(str, dict.fromkeys(one["txids"])))
            cells.append((f"{one['letters']:,}", one["component"], span, one["cause"], one["frame"]))
        parts[:0] = [Grid(("letters", "component", "txids", "cause", "at"), cells, ("letters",)), ""]
    more = f"; {limit} shown, --limit shows more, --json all" if limit < len(rows) else ""
    parts.append(Line(f"{len(rows):,} dead letters{more}", aside=True))
    document = {"causes": causes, "dead_letters": [_letter(row) for row in rows]} if json else {}
    show(document, *parts, as_json=json)


def _causes(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Group dead letters by component and cause, most frequent first; of errors that differ in values, the first."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        alike = _VALUE.sub("", row["message"].partition(", got ")[0])
        first = {"component": row["component"], "cause": f"{row['type']}: {row['message']}", "frame": row["frame"]}
        one = found.setdefault(
            (row["component"], row["type"], row["frame"], alike),
            {"letters": 0, **first, "txids": [row["_txid"], row["_txid"]]},
        )
        one["letters"] += 1
        one["txids"] = [min(one["txids"][0], row["_txid"]), max(one["txids"][1], row["_txid"])]
    return sorted(found.values(), key=lambda one: -one["letters"])


_VALUE = re.compile(r"\d+(\.\d+)?")
"""What differs between messages of one cause."""


def _letter(row: dict[str, Any]) -> dict[str, Any]:
    record = {"record": _parsed(row["record"]), "stamp": f"{row['stamp']:%Y-%m-%dT%H:%M:%S.%f}Z"}
    return {"txid": row["_txid"], **{name: value for name, value in row.items() if name != "_txid"}, **record}


def numbers(schema: pa.Schema) -> list[str]:
    """Return the names of the numeric columns of `schema`, which are right-aligned."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_decimal)
    return [column.name for column in schema if any(kind(column.type) for kind in kinds)]


def history_table(rows: Sequence[dict[str, Any]]) -> Grid:
    """Return the history as a text table, with a column for the timeline if there was a rewind."""
    rewound = any(row["timeline"] for row in rows)
    cells = [
        [
            *([str(row["timeline"])] if rewound else []),
            str(row["txid"]),
            f"{row['stamp']:%Y-%m-%d %H:%M:%S.%f}Z",
            "" if row["tuples"] is None else f"{row['tuples']:,}",
            f"{row['first']}–{row['last']}",
            " ".join(f"{table}@{version}" for table, version in _parsed(row["versions"]).items()),
            row["digest"][:12],
        ]
        for row in rows
    ]
    titles = (*(["timeline"] if rewound else []), "txid", "time", "tuples", "group", "versions", "digest")
    return Grid(titles, cells, ("timeline", "txid", "tuples", "group"))


def _document(row: dict[str, Any]) -> dict[str, Any]:
    from txstorm.books.records import clock_of

    parsed = {name: _parsed(row[name]) for name in ("extents", "versions")}
    clock = clock_of(parsed["extents"])
    more = {"clock": None if clock is None else dict(clock)}
    return {**row, "stamp": f"{row['stamp']:%Y-%m-%dT%H:%M:%S.%f}Z", **parsed, **more}


def _parsed(text: str | None) -> Any:
    from json import loads

    return {} if text is None else loads(text)


SHOWN_EACH = 10
Limit = Annotated[int, typer.Option(metavar="N", min=0, help="Rows to show at most, without --json.")]


def snapshot(
    data_dir: DataDir,
    txid: Txid = None,
    ledger: Ledger = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Rows of each table, without --json.")] = SHOWN_EACH,
) -> None:
    """Show all tables of a topology as of one transaction: states, sinks, dead letters. Works beside a live run.

    With --json: one line {"txid": N, "tables": {"state/NAME": [{column: value, …}, …], …}}. A table that was
    created after that transaction, or dropped before it, is left out; left_out says so.

    Example: txstorm snapshot txstorm-data/word-count --txid 7
    """
    from txstorm.cli.output import print_json_text
    from txstorm.results.snapshot import snapshot as cut

    found = cut(at_ledger(data_dir, ledger), txid)
    if json:
        print_json_text(found.to_json())
        return
    parts = [part for name, rows in found.to_arrow().items() for part in _table(name, rows, limit)]
    parts += [Line(f"{name} is left out: {why}", "", aside=True) for name, why in found.left_out.items()]
    show({}, *parts, Line(f"{data_dir} as of txid {found.txid}", aside=True), as_json=False)


def changes(
    data_dir: DataDir,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The state.")],
    from_txid: Annotated[int, typer.Argument(metavar="FROM", show_default=False, help="The first transaction.")],
    to_txid: Annotated[int, typer.Argument(metavar="TO", show_default=False, help="The last transaction, inclusive.")],
    ledger: Ledger = None,
    json: Json = False,
    limit: Limit = SHOWN_ROWS,
) -> None:
    """Show the rows of a state that transactions FROM to TO changed, with their new and previous values.

    With --json: one line {"state": NAME, "changes": [{column: value, …, "_txid", "_prev", "_op"}, …]}; _op is u for
    a put and d for a removal.

    Example: txstorm changes txstorm-data/word-count counts 5 7
    """
    from txstorm.books.data_directory import check_readable
    from txstorm.results.read import json_value
    from txstorm.results.views import StateView

    rows = StateView(check_readable(at_ledger(data_dir, ledger)), name).changes(from_txid, to_txid)
    found = {"state": name, "changes": [json_value(row) for row in rows.to_pylist()]} if json else {}
    show(found, *_table(f"changes/{name}, txids {from_txid} to {to_txid}", rows, limit), as_json=json)


def views(
    data_dir: DataDir,
    txid: Annotated[
        int | None,
        typer.Option(metavar="N", help="As of this transaction.", show_default="following the last committed"),
    ] = None,
    name_prefix: Annotated[str, typer.Option(metavar="PREFIX", help="Prefix of the names of the views.")] = "",
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Print the SQL that creates views of a topology's tables in a Spark session with Delta.

    One statement per line: state_NAME, changes_NAME, sink_NAME and dead_letters. With --json: one line {"views":
    {NAME: SELECT, …}}. A view of a state starts from the current version of its table; recreate it now and then, and
    after a rewind.

    Example: txstorm views txstorm-data/word-count --txid 7 > views.sql; spark-sql -i views.sql
    """
    from txstorm.cli.output import print_json, print_text
    from txstorm.results.spark_views import sql_views

    found = sql_views(at_ledger(data_dir, ledger), txid, name_prefix)
    if json:
        print_json({"views": {view.name: view.query for view in found}})
    elif found:
        print_text("\n".join(f"{view.statement};" for view in found))


def _table(title: str, rows: pa.Table, limit: int) -> tuple[Grid, Line]:
    """Return at most `limit` rows, and a line that says how many there are."""
    shown = rows.slice(0, limit)
    cells = [[str(value) for value in row.values()] for row in shown.to_pylist()]
    more = f"; {shown.num_rows} shown, --limit shows more, --json all" if shown.num_rows < rows.num_rows else ""
    about = Line(f"{title}: {rows.num_rows:,} rows{more}", aside=True)
    return Grid(rows.column_names, cells, numbers(rows.schema)), about
