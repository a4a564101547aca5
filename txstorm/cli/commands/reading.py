"""``txstorm snapshot``, ``changes`` and ``views``: tables as of a transaction, what changed, and both in Spark SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.commands.query import SHOWN_ROWS, numbers
from txstorm.cli.options import DataDir, Json, Ledger

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_EACH = 10
Txid = Annotated[
    int | None, typer.Option(metavar="N", help="As of this transaction.", show_default="the last committed")
]
Limit = Annotated[int, typer.Option(metavar="N", min=0, help="Rows to show at most, without --json.")]


def snapshot(
    data_dir: DataDir,
    txid: Txid = None,
    ledger: Ledger = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="Rows of each table, without --json.")] = SHOWN_EACH,
) -> None:
    """Show all tables of a topology as of one transaction: states, sinks, dead letters. Works beside a live run.

    With --json: one line {"txid": N, "tables": {"state/NAME": [{column: value, …}, …], …}}. A table that begins after
    that transaction, or was dropped before it, is left out; left_out says so.

    Example: txstorm snapshot txstorm-data/word-count --txid 7
    """
    from txstorm.cli.output import print_json_text, stderr
    from txstorm.results.snapshot import snapshot as cut

    found = cut(at_ledger(data_dir, ledger), txid)
    if json:
        print_json_text(found.to_json())
        return
    for name, rows in found.to_arrow().items():
        _show(name, rows, limit)
    for name, why in found.left_out.items():
        stderr().print(f"{name} is left out: {why}")
    stderr().print(f"{data_dir} as of txid {found.txid}", style="dim")


def changes(
    data_dir: DataDir,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The state.")],
    from_txid: Annotated[int, typer.Argument(metavar="FROM", show_default=False, help="The first transaction.")],
    to_txid: Annotated[int, typer.Argument(metavar="TO", show_default=False, help="The last one, included.")],
    ledger: Ledger = None,
    json: Json = False,
    limit: Limit = SHOWN_ROWS,
) -> None:
    """Show which rows of a state the transactions FROM to TO changed: the new values, and the ones before.

    With --json: one line {"state": NAME, "changes": [{column: value, …, "_txid", "_prev", "_op"}, …]}; _op is u for
    rows that were put and d for those that were removed.

    Example: txstorm changes txstorm-data/word-count counts 5 7
    """
    from txstorm.cli.output import print_json
    from txstorm.results.read import json_value
    from txstorm.results.views import StateView, check_readable

    rows = StateView(check_readable(at_ledger(data_dir, ledger)), name).changes(from_txid, to_txid)
    if json:
        print_json({"state": name, "changes": [json_value(row) for row in rows.to_pylist()]})
    else:
        _show(f"changes/{name}, txids {from_txid} to {to_txid}", rows, limit)


def views(
    data_dir: DataDir,
    txid: Annotated[
        int | None,
        typer.Option(metavar="N", help="As of this transaction.", show_default="they follow what is committed"),
    ] = None,
    name_prefix: Annotated[str, typer.Option(metavar="PREFIX", help="What every view's name begins with.")] = "",
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Print the SQL that makes views of a topology's tables in a Spark session with Delta.

    One statement per line: state_NAME, changes_NAME, sink_NAME and dead_letters. With --json: one line {"views":
    {NAME: SELECT, …}}. A view of a state starts from the version of its table that is there now; make it again now and
    then, and after a rewind.

    Example: txstorm views txstorm-data/word-count --txid 7 > views.sql; spark-sql -i views.sql
    """
    from txstorm.cli.output import print_json, print_text
    from txstorm.results.topology_views import sql_views

    found = sql_views(at_ledger(data_dir, ledger), txid, name_prefix)
    if json:
        print_json({"views": {view.name: view.query for view in found}})
    elif found:
        print_text("\n".join(f"{view.statement};" for view in found))


def _show(title: str, rows: pa.Table, limit: int) -> None:
    from txstorm.cli.output import grid, stderr, stdout

    shown = rows.slice(0, limit)
    cells = [[str(value) for value in row.values()] for row in shown.to_pylist()]
    stdout().print(grid(rows.column_names, cells, right=numbers(rows.schema)))
    more = f"; {shown.num_rows} shown, --limit shows more, --json all" if shown.num_rows < rows.num_rows else ""
    stderr().print(f"{title}: {rows.num_rows:,} rows{more}", style="dim")
