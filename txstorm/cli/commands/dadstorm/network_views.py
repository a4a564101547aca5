"""Commands ``txstorm dadstorm command``, ``status``, ``output`` and ``log``: beside a run by replicas, or after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from txstorm.cli.options import DataDir, Grid, Json, Ledger, at_ledger, show

SHOWN = ("operator", "replica", "state", "received", "processed", "emitted", "pending", "held", "pid", "url")


def command(
    data_dir: DataDir,
    line: Annotated[str, typer.Argument(metavar="LINE", show_default=False, help='A command, such as "Freeze OP2 1".')],
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Carry out one command in a live run by replicas: Start, Status, Crash, Freeze, Unfreeze, Interval or Wait.

    With --json: {"command"}, and of Status {"replicas": …}. One that cannot be done is refused: exit code 2.

    Example: txstorm dadstorm command txstorm-data/reach "Freeze OP2 1"
    """
    from txstorm.dadstorm.master.companion import COMMAND
    from txstorm.operations.lifecycle import ask

    found = ask(at_ledger(data_dir, ledger), COMMAND, {"line": line})
    tables = [replica_table(found["replicas"])] if "replicas" in found else []
    show(found, found["command"], *tables, as_json=json)


def status(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Show every replica of a run: its state, how many tuples it received, processed and emitted, and what is held.

    States: not started, starting, working, frozen, crashed, silent. With --json: {"replicas": [one per replica]}.

    Example: txstorm dadstorm status txstorm-data/reach
    """
    from txstorm.errors import InputError
    from txstorm.operations.status import read_status

    found = read_status(at_ledger(data_dir, ledger))
    shown = found.get("dadstorm")
    if not shown:
        raise InputError(f"{data_dir}: no run by replicas has reported a status; see: txstorm status {data_dir}")
    live = "running" if found["running"] else f"not running ({found['mode']}); this is how it was last"
    place = f"{shown['position']} of {shown['commands']} commands of the script carried out"
    sentence = f"{found['topology']}: {live}; committed txid {found['committed_txid']}; {place}"
    show({"replicas": shown["replicas"]}, sentence, replica_table(shown["replicas"]), as_json=json)


def output(
    data_dir: DataDir,
    operator: Annotated[str, typer.Argument(metavar="OP", show_default=False, help="The operator.")],
    txid: Annotated[int | None, typer.Option(metavar="N", min=0, help="As of this transaction.")] = None,
    json: Json = False,
) -> None:
    """Show the tuples that an operator has emitted: of operators that none reads, under LoggingLevel full of all.

    With --json: {"operator", "txid", "tuples": [{"id", "replica", "fields"}]}.

    Example: txstorm dadstorm output txstorm-data/reach OP4
    """
    from pathlib import Path

    from txstorm.cli.output import print_json, print_text
    from txstorm.results.read import list_sinks
    from txstorm.results.views import SinkView, committed_txid

    directory = at_ledger(data_dir, None)
    name = f"{operator}_emitted"
    last = committed_txid(directory) if txid is None else txid
    if name not in list_sinks(Path(directory)):
        raise _not_kept(directory, operator)
    view = SinkView(directory, name)
    rows = (view if txid is None else view.as_of(txid)).to_pylist()
    tuples = [{"id": one["id"], "replica": one["replica"], "fields": one["fields"]} for one in rows]
    if json:
        print_json({"operator": operator, "txid": last, "tuples": tuples})
        return
    for one in tuples:
        print_text(", ".join(one["fields"]))


def log(
    data_dir: DataDir,
    event: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="EVENT", help="Only events of this kind; may be repeated.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON lines as they are.")] = False,
) -> None:
    """Show the log of a run by replicas: each command with its moment, and what happened to replicas and tuples.

    Events: command, refused, status, tuple, crash, resend, lost, held, end.

    Example: txstorm dadstorm log txstorm-data/reach --event command --event crash
    """
    from pathlib import Path

    from txstorm.cli.output import print_json, print_text
    from txstorm.dadstorm.master.companion import CONDITIONS
    from txstorm.dadstorm.master.run_log import read_log
    from txstorm.errors import InputError

    found = _recorded(data_dir, CONDITIONS)
    if found is None or not Path(found["log"]).exists():
        where = f"{found['log']}, which is not there" if found else "none"
        raise InputError(f"{data_dir}: its log is {where}; a run by replicas writes one")
    for one in read_log(Path(found["log"])):
        if not event or one["event"] in event:
            if json:
                print_json(one)
            else:
                print_text(f"{one['at']} {one['event']}: {one['text']}")


def _recorded(data_dir: str, path: str) -> Any:
    from txstorm.books.books import opened_books
    from txstorm.books.data_directory import topology_in

    with opened_books(topology_in(data_dir), read_only=True) as books:
        return books.front_end(path)


def _not_kept(data_dir: str, operator: str) -> Exception:
    from txstorm.api.names import near
    from txstorm.dadstorm.master.companion import NETWORK
    from txstorm.errors import InputError

    network = _recorded(data_dir, NETWORK)
    ids = [one["id"] for one in network["operators"]] if network else []
    if network is None:
        why = f"{data_dir} has no table of what {operator} has emitted"
    elif operator not in ids:
        why = f"no operator {operator!r}{near(operator, ids)}; there are {', '.join(ids)}"
    else:
        why = (
            f"the tuples of {operator} are not kept, as other operators read it and LoggingLevel is light; "
            "`LoggingLevel full` in the configuration of a new data directory keeps them"
        )
    return InputError(why)


def replica_table(replicas: Sequence[Mapping[str, Any]]) -> Grid:
    """Return a table of replicas: state, and numbers of tuples."""
    rows = [tuple("" if one[name] is None else str(one[name]) for name in SHOWN) for one in replicas]
    return Grid(SHOWN, rows, ("replica", "received", "processed", "emitted", "pending", "held", "pid"))
