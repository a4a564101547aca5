"""Life-cycle commands: list, status, inspect, deactivate, activate, rebalance, kill, repair; ledger copy, recover.

They work from any process through the ledger of the data directory; all but the last three beside a live run, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from txstorm.api.names import counted
from txstorm.cli.options import DataDir, Grid, Json, Ledger, at_ledger, show

EXIT_CODES = """Exit codes: 0 done, 2 bad input, or the topology is not running but must be, 3 the run did not answer,
or another command is under way.
"""
DEFAULT_ROOT = "txstorm-data"
DEFAULT_WAIT = 30.0


def list_(
    root: Annotated[
        str, typer.Argument(metavar="[ROOT]", help="The directory that holds the data directories.")
    ] = DEFAULT_ROOT,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """List the topologies below ROOT, with mode, last committed txid and process of each.

    Example: txstorm list
    """
    from txstorm.operations.status import list_topologies

    found = list_topologies(root, ledger)
    rows = []
    for one in found:
        process = f"pid {one['pid']} on {one['host']}" if one["running"] and one.get("pid") else ""
        committed = str(one.get("committed_txid", ""))
        rows.append((one["topology"] or "?", one["mode"], committed, process, one["data_dir"]))
    titles = ("topology", "mode", "committed", "process", "data directory")
    show({"topologies": found}, Grid(titles, rows, ("committed",)), as_json=json)


def status(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Show the status of a topology, running or not: mode, committed txid, transactions in flight, blocks and errors.

    Modes of a live run: starting, active, inactive, rebalancing, killing, stopping; of an ended one: stopped, killed,
    failed, or dead if it ended without recording why. A live run records its status about twice a second.

    Example: txstorm status txstorm-data/word-count
    """
    from txstorm.operations.status import read_status

    found = read_status(at_ledger(data_dir, ledger))
    show(found, Grid(None, _status_rows(found)), as_json=json)


def inspect(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Show the content of the ledger: currtx, epoch, owner, metadata, attempts in flight, decided groups.

    A decided group or rewind that is not complete is rolled forward by the next start; if a table blocks that, the
    cause is shown. Works beside a live run or without one.

    Example: txstorm inspect txstorm-data/word-count --json
    """
    from txstorm.operations.status import read_inspection

    found = read_inspection(at_ledger(data_dir, ledger))
    show(found, Grid(None, [*_status_rows(found), *_inspected_rows(found)]), as_json=json)


def deactivate(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Make a topology inactive: it starts no new transactions; those in flight finish. Restarts do not change that.

    The run continues, keeps its lease and answers commands, but does not read its source until txstorm activate. If
    the topology is not running, its next start is inactive.

    Example: txstorm deactivate txstorm-data/word-count
    """
    from txstorm.operations import lifecycle as asking

    found = asking.deactivate(at_ledger(data_dir, ledger))
    if not found["running"]:
        live = "it is not running; its next start will be inactive"
    elif found["in_flight"]:
        live = f"{counted(found['in_flight'], 'transaction')} in flight will still commit"
    else:
        live = "nothing is in flight"
    show(found, f"{found['topology']}: inactive after txid {found['committed_txid']}; {live}", as_json=json)


def activate(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Let a topology start transactions again, after txstorm deactivate.

    Example: txstorm activate txstorm-data/word-count
    """
    from txstorm.operations import lifecycle as asking

    found = asking.activate(at_ledger(data_dir, ledger))
    live = "" if found["running"] else "; it is not running; its next start will be active"
    show(found, f"{found['topology']}: active, continues after txid {found['committed_txid']}{live}", as_json=json)


def rebalance(
    data_dir: DataDir,
    executors: Annotated[
        list[str],
        typer.Option(
            "-e", "--executors", metavar="COMPONENT=N", help="New number of tasks of a component; may be repeated."
        ),
    ],
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Change the numbers of tasks of components of a running topology, from the next new transaction on.

    Transactions in flight commit first, with the old numbers. State is stored by key and needs no migration. The new
    numbers survive restarts, until the code of the topology changes the number of that component.

    Example: txstorm rebalance txstorm-data/word-count -e split=4 -e counts=2
    """
    from txstorm.operations import lifecycle as asking

    found = asking.rebalance(at_ledger(data_dir, ledger), numbers_of(executors))
    tasks = ", ".join(f"{name}={number}" for name, number in found["parallelism"].items())
    first = f"; {counted(found['in_flight'], 'transaction')} in flight will commit first" if found["in_flight"] else ""
    show(found, f"{found['topology']}: from txid {found['from_txid']} on {tasks}{first}", as_json=json)


def accept_clock(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Have a run believe its machine's clock, after a jump forward of more than an hour, or a very long stop.

    A topology with a ttl or processing time plans nothing until then, at most for the setting clock_patience. If it is
    not running, start it with --accept-clock.

    Example: txstorm accept-clock txstorm-data/word-count
    """
    from txstorm.operations import lifecycle as asking

    found = asking.accept_clock(at_ledger(data_dir, ledger))
    doubt = f" ({found['doubt']})" if found["doubt"] else ", which was not in doubt"
    show(found, f"{found['topology']}: goes on with the clock at {found['clock']}{doubt}", as_json=json)


def kill(
    data_dir: DataDir,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, max=86400, help="Time for transactions in flight to commit."),
    ] = DEFAULT_WAIT,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """End a running topology: it starts no transactions, commits those in flight within --wait seconds, and stops.

    Nothing is deleted: the next start continues, and processes again whatever was not committed in time. The killed
    run exits with code 0 and reports which process killed it.

    Example: txstorm kill txstorm-data/word-count --wait 5
    """
    from txstorm.operations import lifecycle as asking

    found = asking.kill(at_ledger(data_dir, ledger), wait)
    if found["ended"]:
        sentence = f"killed; committed txid {found['committed_txid']}"
    else:
        in_flight = counted(found["in_flight"], "transaction")
        sentence = f"stopping; up to {found['wait_seconds']:g} s for {in_flight} in flight to commit"
    show(found, f"{found['topology']}: {sentence}", as_json=json)


def repair(
    data_dir: DataDir,
    abandon: Annotated[int, typer.Option(metavar="TXID", min=1, help="A transaction of the group.")],
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Roll back a decided group that cannot be published, because a table is missing or cannot be written.

    First try to mend the cause and start the topology again, which rolls the group forward. If that is impossible,
    --abandon drops the whole group of TXID; the next start processes its transactions again. The topology must not be
    running, and no table may hold anything of the group; txstorm inspect shows both.

    Example: txstorm repair txstorm-data/word-count --abandon 17
    """
    from txstorm.operations.repair import abandon as abandon_group

    found = abandon_group(at_ledger(data_dir, ledger), abandon)
    first, last = found["abandoned"]
    missed = "".join(f"\nnot reached: {table}: {cause}" for table, cause in found["unreached"].items())
    sentence = f"txids {first}-{last} are abandoned; the next start processes them again{missed}"
    show(found, f"{found['topology']}: {sentence}", as_json=json)


def numbers_of(pairs: Sequence[str]) -> dict[str, int]:
    """Parse ``COMPONENT=N`` pairs; return component → number.

    Raises:
        InputError: the form is wrong, N is not a whole number, or a component is given twice.
    """
    from txstorm.errors import InputError

    found: dict[str, int] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        number = text.strip()
        if not equals or not name.strip() or not (number.isascii() and number.removeprefix("-").isdecimal()):
            raise InputError(f"-e {pair!r}: expected COMPONENT=N with a whole number, such as split=4")
        if name.strip() in found:
            raise InputError(f"-e {pair!r}: component {name.strip()!r} is given twice; give it once")
        found[name.strip()] = int(number)
    return found


def _status_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("topology", str(found["topology"])),
        ("mode", found["mode"] if found["active"] or found["mode"] == "inactive" else f"{found['mode']}, inactive"),
        ("held by", found["holder"] or "no process"),
        ("committed txid", str(found["committed_txid"])),
        ("in flight", _in_flight(found["in_flight"])),
        *(("at work", one["text"]) for one in found["working"]),
    ]
    if found["parallelism"]:
        tasks = ", ".join(f"{name}={number}" for name, number in found["parallelism"].items())
        rows.append(("tasks", tasks))
    if found["logs"]:
        table, seconds = min(found["logs"].items(), key=lambda one: one[1])
        shortest = f", of {table} the shortest" if found["logs"].keys() - {table} else ""
        rows.append(("logs last", f"{seconds:,g} s at the present rate{shortest}"))
    if found["told_at"]:
        rows.append(("reported at", found["told_at"]))
    if seed := found["hash_seed"]:
        rows.append(("hash seed", f"{seed['seed']} (Python {seed['python']})"))
    clock = found["wall_clock"] if found["running"] else None
    named = {
        "BLOCKED": found["blocked"],
        "clock": clock,
        "source": "; ".join(found["source"] or ()),
        "last failure": found["last_failure"],
        "ended with": found["error"],
    }
    return rows + [(name, str(value)) for name, value in named.items() if value]


def _in_flight(active: Sequence[Sequence[Any]]) -> str:
    from collections import Counter

    if not active:
        return "nothing"
    phases = ", ".join(f"{count} {phase}" for phase, count in Counter(one[2] for one in active).items())
    return f"txids {active[0][0]}-{active[-1][0]}: {phases}"


def _inspected_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    from json import dumps

    rows = [
        ("incarnation", str(found["incarnation"])),
        ("epoch", str(found["epoch"])),
        ("currtx", str(found["currtx"])),
        *((f"table {table}", f"at txid {txid}") for table, txid in found["tables"].items()),
        *((f"attempt {txid}", f"{phase}, id {attempt}") for txid, attempt, phase in found["in_flight"]),
        *((f"metadata {txid}", dumps(one["document"], ensure_ascii=False)) for txid, one in found["metadata"].items()),
        *((f"failures {txid}", f"{one['count']}, the last: {one['cause']}") for txid, one in found["failures"].items()),
    ]
    for group in found["decided"]:
        for table in group["tables"]:
            held = {True: "holds it", False: "does not hold it", None: "cannot be read"}[table["published"]]
            cause = f": {table['cause']}" if table["cause"] else ""
            rows.append((f"decided {group['first']}-{group['last']}", f"{table['table']} {held}{cause}"))
    if rewind := found["rewind"]:
        states = {True: "is restored", False: "is not restored yet", None: "cannot be read"}
        name = f"rewind to {rewind['txid']}"
        rows += [(name, f"{one['table']} {states[one['restored']]}") for one in rewind["tables"]]
    return rows


NAMES = "sqlite:PATH, zookeeper:HOSTS/CHROOT, delta:URI"
LEDGER_EPILOG = """[bold]Examples[/bold]

txstorm ledger copy txstorm-data/word-count zookeeper:zk1:2181,zk2:2181/word-count

txstorm ledger copy txstorm-data/word-count delta:s3://bucket/word-count-ledger
"""

ledger_app = typer.Typer(help="Work with the ledger of a stopped topology.", no_args_is_help=True)


@ledger_app.command("copy", epilog=LEDGER_EPILOG)
def copy(
    source: Annotated[
        str, typer.Argument(metavar="FROM", show_default=False, help=f"A data directory, or its ledger: {NAMES}.")
    ],
    target: Annotated[str, typer.Argument(metavar="TO", show_default=False, help=f"The new ledger: {NAMES}.")],
    json: Json = False,
) -> None:
    """Move a stopped topology to another ledger; its next start continues with the new one.

    Refused while the topology runs. The copy is read back and compared; then the old ledger is marked as moved, so that
    it cannot be used by mistake. If FROM is a data directory, the new ledger is recorded there.

    Example: txstorm ledger copy txstorm-data/word-count delta:/mnt/ledgers/word-count
    """
    from txstorm.operations.move_ledger import copy_ledger

    found = copy_ledger(source, target)
    start = "" if found["data_dir"] else f"; start the topology with --ledger {found['target']}"
    show(found, f"{found['topology']}: {found['entries']} entries are now in {found['target']}{start}", as_json=json)


def recover(
    data_dir: DataDir,
    ledger: Ledger = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written; write nothing.")] = False,
    json: Json = False,
) -> None:
    """Rebuild the lost ledger of a topology from its tables.

    The next start continues after the last transaction that any table holds; transactions planned or processed, but in
    no table, are planned again. Refused if the ledger exists, or if tables contradict each other. Lost for good are the
    inactive mode, the numbers of tasks set by txstorm rebalance, savepoints, and counts of failures.

    Example: txstorm recover txstorm-data/word-count --dry-run
    """
    from json import dumps

    from txstorm.operations.rebuild_ledger import recover as rebuild

    found = rebuild(data_dir, ledger, dry_run=dry_run)
    rows = [
        ("topology", found["topology"]),
        ("ledger", f"{found['ledger']} {'is written' if found['written'] else 'would be written'}"),
        ("committed txid", str(found["committed_txid"])),
        ("epoch", str(found["epoch"])),
        *((f"table {table}", f"at txid {txid}") for table, txid in found["tables"].items()),
        *((f"metadata {txid}", dumps(one["document"], ensure_ascii=False)) for txid, one in found["metadata"].items()),
        ("history rows", str(found["history"])),
    ]
    if found["rolled_forward"]:
        first, last = found["rolled_forward"]
        rows.append((f"decided {first}-{last}", "the next start publishes it in the tables that lack it"))
    rows += [("lost savepoint", one) for one in found["lost_savepoints"]]
    if found["unknown_txids"]:
        rows.append(("unknown txids", f"{found['unknown_txids']}: they changed no table"))
    show(found, Grid(None, rows), as_json=json)
