"""The life of topologies: ``txstorm list``, ``status``, ``inspect``, ``activate``, ``kill`` and the others.

They work from any process on the machine of the run, through the ledger of the data directory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import DataDir, Json, Ledger

EXIT_CODES = """Exit codes: 0 done, 2 bad input, or nobody runs the topology where somebody must, 3 the run did not
answer, or another command is under way.
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
    """List the topologies below ROOT: what runs, in which mode, and the last committed txid of each.

    Example: txstorm list
    """
    from txstorm.cli.output import grid, print_json, stdout
    from txstorm.operations.status import list_topologies

    found = list_topologies(root, ledger)
    if json:
        print_json({"topologies": found})
        return
    rows = [
        (one["topology"] or "?", one["mode"], str(one.get("committed_txid", "")), _shown_holder(one), one["data_dir"])
        for one in found
    ]
    stdout().print(grid(("topology", "mode", "committed", "process", "data directory"), rows, right=("committed",)))


def status(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Show how a topology is, live or not: its mode, what is committed and in flight, what blocks or ended it.

    Modes of a live run: starting, active, inactive, rebalancing, killing, stopping; of one that has ended: stopped,
    killed, failed, and dead when it ended without a word. A live run tells its status about twice a second.

    Example: txstorm status txstorm-data/word-count
    """
    from txstorm.cli.output import print_json, stdout
    from txstorm.operations.status import read_status

    found = read_status(at_ledger(data_dir, ledger))
    if json:
        print_json(found)
        return
    stdout().print(_facts(_status_rows(found)))


def inspect(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Show what the coordinator remembers: currtx, epoch, owner, metadata, attempts in flight, decided groups.

    A decided group, or rewind, that is not completed is rolled forward by the next start; where a table blocks that,
    the cause is shown. Works beside a live run and without one.

    Example: txstorm inspect txstorm-data/word-count --json
    """
    from txstorm.cli.output import print_json, stdout
    from txstorm.operations.status import read_inspection

    found = read_inspection(at_ledger(data_dir, ledger))
    if json:
        print_json(found)
        return
    stdout().print(_facts([*_status_rows(found), *_inspected_rows(found)]))


def deactivate(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Let a topology start no new transactions; those in flight finish. It stays so, also when started again.

    The run goes on, keeps its lease and answers; the source is not read any further until: txstorm activate. Where
    nobody runs the topology, its next start is inactive.

    Example: txstorm deactivate txstorm-data/word-count
    """
    from txstorm.operations import lifecycle as asking

    found = asking.deactivate(at_ledger(data_dir, ledger))
    live = (
        f"; {_count(found['in_flight'])} in flight still commit"
        if found["running"]
        else "; nobody runs it now, its next start will be inactive"
    )
    _told(found, f"{found['topology']}: inactive after txid {found['committed_txid']}{live}", as_json=json)


def activate(data_dir: DataDir, ledger: Ledger = None, json: Json = False) -> None:
    """Let a topology start transactions again, after: txstorm deactivate.

    Example: txstorm activate txstorm-data/word-count
    """
    from txstorm.operations import lifecycle as asking

    found = asking.activate(at_ledger(data_dir, ledger))
    live = "" if found["running"] else "; nobody runs it now, its next start will be active"
    _told(found, f"{found['topology']}: active, goes on after txid {found['committed_txid']}{live}", as_json=json)


def rebalance(
    data_dir: DataDir,
    executors: Annotated[
        list[str],
        typer.Option("-e", "--executors", metavar="COMPONENT=N", help="A number of tasks; may be repeated."),
    ],
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Give components of a running topology other numbers of tasks, from the next new transaction on.

    What is in flight commits first, with the old numbers. State goes along: it is kept by key. The numbers hold when
    the topology is started again, until its code gives such a component another number.

    Example: txstorm rebalance txstorm-data/word-count -e split=4 -e counts=2
    """
    from txstorm.operations import lifecycle as asking

    found = asking.rebalance(at_ledger(data_dir, ledger), numbers_of(executors))
    tasks = ", ".join(f"{name}={number}" for name, number in found["parallelism"].items())
    first = f"from txid {found['from_txid']} on {tasks}; {_count(found['in_flight'])} in flight commit before it"
    _told(found, f"{found['topology']}: {first}", as_json=json)


def kill(
    data_dir: DataDir,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, max=86400, help="How long what is in flight may take to commit."),
    ] = DEFAULT_WAIT,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """End a running topology: it starts nothing new, commits what is in flight within --wait seconds, and stops.

    Nothing is deleted: started again, the topology continues. What is not committed by then is processed again. The
    killed command ends with exit code 0 and says who killed it.

    Example: txstorm kill txstorm-data/word-count --wait 5
    """
    from txstorm.operations import lifecycle as asking

    found = asking.kill(at_ledger(data_dir, ledger), wait)
    if found["ended"]:
        sentence = f"killed; committed txid {found['committed_txid']}"
    else:
        sentence = f"is stopping; {_count(found['in_flight'])} in flight have {found['wait_seconds']:g} s to commit"
    _told(found, f"{found['topology']}: {sentence}", as_json=json)


def repair(
    data_dir: DataDir,
    abandon: Annotated[int, typer.Option(metavar="TXID", min=1, help="A transaction that cannot be published.")],
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Take back a decision that cannot be published, because a table is gone or refuses to be written.

    First try to mend the cause and start the topology again, which rolls the decision forward. Where that cannot be,
    --abandon drops the whole group of TXID; its transactions are processed anew by the next start. The topology must
    not run, and no table may hold anything of the group; txstorm inspect shows both.

    Example: txstorm repair txstorm-data/word-count --abandon 17
    """
    from txstorm.operations.repair import abandon as take_back

    found = take_back(at_ledger(data_dir, ledger), abandon)
    first, last = found["abandoned"]
    missed = "".join(f"\nnot reached: {table}: {cause}" for table, cause in found["unreached"].items())
    sentence = f"txids {first}-{last} are abandoned; the next start processes them again{missed}"
    _told(found, f"{found['topology']}: {sentence}", as_json=json)


def numbers_of(pairs: Sequence[str]) -> dict[str, int]:
    """Component → number, from ``COMPONENT=N``.

    Raises:
        InputError: another form, no whole number, or one component twice.
    """
    from txstorm.errors import InputError

    found: dict[str, int] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        number = text.strip()
        if not equals or not name.strip() or not (number.isascii() and number.removeprefix("-").isdecimal()):
            msg = f"-e {pair!r}: expected COMPONENT=N with a whole number, such as split=4"
            raise InputError(msg)
        if name.strip() in found:
            msg = f"-e {pair!r}: component {name.strip()!r} is given twice; give it once"
            raise InputError(msg)
        found[name.strip()] = int(number)
    return found


def _told(document: Mapping[str, Any], sentence: str, *, as_json: bool) -> None:
    from txstorm.cli.output import print_json, stdout

    if as_json:
        print_json(document)
    else:
        stdout().print(sentence, soft_wrap=True)


def _facts(rows: Sequence[tuple[str, str]]) -> Any:
    from txstorm.cli.output import grid

    return grid(None, rows)


def _count(number: int) -> str:
    return f"{number:,} transaction{'' if number == 1 else 's'}"


def _shown_holder(found: Mapping[str, Any]) -> str:
    return f"pid {found['pid']} on {found['host']}" if found["running"] and found.get("pid") else ""


def _status_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("topology", str(found["topology"])),
        ("mode", found["mode"] if found["active"] or found["mode"] == "inactive" else f"{found['mode']}, inactive"),
        ("held by", found["holder"] or "nobody"),
        ("committed txid", str(found["committed_txid"])),
        ("in flight", _in_flight(found["in_flight"])),
    ]
    if found["parallelism"]:
        tasks = ", ".join(f"{name}={number}" for name, number in found["parallelism"].items())
        rows.append(("tasks", tasks))
    if found["told_at"]:
        rows.append(("told at", found["told_at"]))
    if seed := found["hash_seed"]:
        rows.append(("hash seed", f"{seed['seed']} (Python {seed['python']})"))
    named = {"BLOCKED": found["blocked"], "last failure": found["last_failure"], "ended with": found["error"]}
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
            held = {True: "holds it", False: "does not hold it", None: "cannot be asked"}[table["published"]]
            cause = f": {table['cause']}" if table["cause"] else ""
            rows.append((f"decided {group['first']}-{group['last']}", f"{table['table']} {held}{cause}"))
    if rewind := found["rewind"]:
        states = {True: "is restored", False: "is not restored yet", None: "cannot be asked"}
        name = f"rewind to {rewind['txid']}"
        rows += [(name, f"{one['table']} {states[one['restored']]}") for one in rewind["tables"]]
    return rows
