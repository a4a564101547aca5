"""Commands ``txstorm savepoint``, ``txstorm rewind`` and ``txstorm migrate``.

A savepoint names the content of all tables as of a transaction, so that it can be restored in a new data directory.
A rewind undoes the last transactions of a topology in place, for example after a faulty release or bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstorm.cli.options import DataDir, Grid, Json, Ledger, Txid, at_ledger, show

if TYPE_CHECKING:
    from txstorm.books.savepoint import Savepoint
    from txstorm.topology.graph import Topology


savepoint_app = typer.Typer(
    help="Name the content of all tables as of a transaction, and restore it elsewhere.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The savepoint.")]


@savepoint_app.command("create")
def create(data_dir: DataDir, name: Name, txid: Txid = None, ledger: Ledger = None, json: Json = False) -> None:
    """Create a savepoint, beside a live run or without one. The files it needs are kept until it is deleted.

    Example: txstorm savepoint create txstorm-data/word-count before-upgrade
    """
    from txstorm.operations.savepoints import create_savepoint

    made = create_savepoint(at_ledger(data_dir, ledger), name, txid)
    show(_document(made), f"{made.topology}: savepoint {name} of txid {made.txid}", as_json=json)


@savepoint_app.command("list")
def list_(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """List the savepoints of a topology.

    Example: txstorm savepoint list txstorm-data/word-count
    """
    from txstorm.operations.savepoints import list_savepoints

    found = [_document(one) for one in list_savepoints(at_ledger(data_dir, ledger))]
    rows = [(one["name"], str(one["txid"]), one["created"], str(len(one["tables"]))) for one in found]
    table = Grid(("name", "txid", "created", "tables"), rows, ("txid", "tables"))
    show({"savepoints": found}, table, as_json=json)


@savepoint_app.command("restore")
def restore(
    data_dir: DataDir,
    name: Name,
    new_dir: Annotated[str, typer.Argument(metavar="NEW_DIR", show_default=False, help="A new data directory.")],
    topology: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Id of the restored topology.", show_default="that of the savepoint"),
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Create a new data directory with the content of a savepoint. The original is not changed, and may be running.

    A run of topology ID in NEW_DIR continues with the next txid, and reads its source from where the transaction of
    the savepoint ended. Maps and outlets are in other systems and are not restored.

    Example: txstorm savepoint restore txstorm-data/word-count before-upgrade txstorm-data/trial --topology trial
    """
    from txstorm.operations.restore import restore_savepoint

    found = restore_savepoint(at_ledger(data_dir, ledger), name, new_dir, topology)
    left = f"; not restored: {', '.join(found['outside'])}" if found["outside"] else ""
    sentence = f"{found['topology']}: restored in {found['data_dir']}, continues after txid {found['txid']}{left}"
    show(found, sentence, as_json=json)


@savepoint_app.command("delete")
def delete(data_dir: DataDir, name: Name, ledger: Ledger = None, json: Json = False) -> None:
    """Delete a savepoint; directories restored from it stay.

    Example: txstorm savepoint delete txstorm-data/word-count before-upgrade
    """
    from txstorm.operations.savepoints import delete_savepoint

    found = delete_savepoint(at_ledger(data_dir, ledger), name)
    show(_document(found), f"{found.topology}: savepoint {name} of txid {found.txid} is deleted", as_json=json)


def _document(one: Savepoint) -> dict[str, Any]:
    from datetime import UTC, datetime

    from txstorm.results.read import json_value

    created = json_value(datetime.fromtimestamp(one.created / 1_000_000, UTC))
    return {
        "name": one.name,
        "topology": one.topology,
        "timeline": one.timeline,
        "txid": one.txid,
        "created": created,
        "tables": {uri: table.version for uri, table in one.tables.items()},
        "outside": list(one.outside),
    }


ToTime = Annotated[
    str | None,
    typer.Option(
        metavar="T",
        help="Instead: a time with a zone, or milliseconds since 1970, that no input has reached.",
        show_default=False,
    ),
]
ToClock = Annotated[
    str | None,
    typer.Option(metavar="JSON", help="Instead: a clock of the source, see history --json.", show_default=False),
]
Code = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:ATTRIBUTE",
        show_default="as recorded, once you confirm it at a terminal",
        help="With --to-time: the code, if its topics have to be asked.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="A map, outlet or join store to leave as it is; may be repeated.", show_default=False
    ),
]
Component = Annotated[
    str | None, typer.Option(metavar="C", help="With --to-time: only the inputs of this component.", show_default="all")
]


def rewind(
    data_dir: DataDir,
    to_txid: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="The last transaction to keep.", show_default=False)
    ] = None,
    to_time: ToTime = None,
    to_clock: ToClock = None,
    component: Component = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --to-time: only report the transaction.")] = False,
    topology: Code = None,
    keep: Keep = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Undo all transactions after N in all tables of a topology, which must not be running.

    The next run plans transaction N + 1 again, from where N ended in the source. Undone transactions stay in the
    history, under their timeline. Maps, outlets and join stores are in other systems and cannot be rewound: each has
    to be named with --keep, and will receive reprocessed transactions again. After a crash the next start completes
    the rewind.

    With --to-time, N is the last transaction at which no partition of an input of a window or join had received
    anything of time T or later; without windows and joins, the times of records in the Kafka topics decide. The
    positions as of N are shown. --dry-run shows them, and works beside a live run.

    With --to-clock, N is the first transaction with that clock: partition → the last offset counted.

    Example: txstorm rewind txstorm-data/word-count --to-txid 17

    Example: txstorm rewind txstorm-data/clicks --to-time 2026-01-31T12:00:00+00:00 --dry-run
    """
    from txstorm.operations.rewind import rewind as rewind_topology

    directory = at_ledger(data_dir, ledger)
    if to_clock is not None and to_txid is None and to_time is None:
        from txstorm.clocks import Clock
        from txstorm.operations.kept_history import txid_at_clock

        to_txid = txid_at_clock(directory, Clock.parse(to_clock))
    elif to_clock is not None:
        raise typer.BadParameter("expected one of --to-txid, --to-time and --to-clock")
    found = _target((data_dir, directory), to_txid, to_time, component, topology, dry_run=dry_run)
    if to_time is not None and not json:
        show({}, *_positions(found), as_json=False)
    if not dry_run:
        if not yes:
            _ask(data_dir, found["txid"])
        found = {**found, **rewind_topology(directory, found["txid"], keep or ())}
    if json or dry_run:
        show(found, as_json=json)
        return
    first, last = found["taken_back"]
    kept = f"; left as they are: {', '.join(found['kept'])}" if found["kept"] else ""
    sentence = f"{found['topology']}: txids {first}-{last} are undone; the next start continues with {first}{kept}"
    show(found, sentence, as_json=False)


def migrate(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Rewrite keys that an older txstorm has stored as they were written, 1.5 beside 1.50, so that equal ones are one.

    Tables of an older txstorm go on without it, and keep such keys apart. The topology must not be running. If keys of
    a state would become one, they are listed, and nothing is changed. Afterwards the kept history begins with the last
    transaction. After a crash the next start completes the migration.

    Example: txstorm migrate txstorm-data/clicks
    """
    from txstorm.operations.rewind import migrate as migrate_keys

    found = migrate_keys(at_ledger(data_dir, ledger))
    states = ", ".join(found["migrated"])
    done = f"keys of {states} are rewritten as of txid {found['txid']}" if states else "no keys of an older txstorm"
    unknown = ", ".join(found["unknown"])
    rest = f"; start it once and migrate again, if a stateful bolt has made {unknown}" if unknown else ""
    show(found, f"{found['topology']}: {done}{rest}", as_json=json)


def _target(
    where: tuple[str, str],
    to_txid: int | None,
    to_time: str | None,
    component: str | None,
    topology: str | None,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    """Return the transaction to which a rewind goes and, of one to a time, the positions as of it.

    `where`: the data directory, as given and as used.
    """
    from txstorm.operations.rewind_target import rewind_target
    from txstorm.results.windowed_components import parsed_time

    if (to_txid is None) is (to_time is None):
        raise typer.BadParameter("expected --to-txid N, --to-time T or --to-clock JSON")
    if to_time is None:
        if component is not None or topology is not None or dry_run:
            raise typer.BadParameter("--component, --topology and --dry-run belong to --to-time")
        return {"txid": to_txid}
    given, directory = where

    def code() -> Topology:
        from txstorm.cli.replays import code_of

        return code_of(directory, topology, ["txstorm", "rewind", given, "--to-time", to_time]).topology

    found = rewind_target(directory, parsed_time(to_time, "--to-time"), component, code).to_json()
    return {**found, "dry_run": True} if dry_run else found


def _positions(found: Mapping[str, Any]) -> Iterator[str | Grid]:
    what = "no partition read so far" if not found["inputs"] and not found["sources"] else "the positions as of it"
    sentence = f"{found['topology']}: txid {found['txid']} is the last one before {found['time']}; {what}"
    yield f"{sentence}{'' if what.startswith('no') else ':'}"
    if found["inputs"]:
        rows = []
        for one in found["inputs"]:
            name = one["source"] if one["stream"] == "default" else f"{one['source']}/{one['stream']}"
            rows.append((one["component"], name, one["partition"] or "", one["position"]))
        yield Grid(("component", "input", "partition", "position"), rows)
    if found["sources"]:
        offsets = [(one["partition"], str(one["offset"]), str(one["at_time"])) for one in found["sources"]]
        titles = ("partition", "offset", "first of the time")
        yield Grid(titles, offsets, titles[1:])


def _ask(data_dir: str, to_txid: int) -> None:
    from txstorm.errors import InputError

    if not sys.stdin.isatty() or not typer.confirm(f"Undo everything after txid {to_txid} in {data_dir}?"):
        raise InputError("nothing was undone; add --yes to rewind without confirmation")
