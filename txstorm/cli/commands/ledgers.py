"""Commands ``txstorm ledger copy`` and ``txstorm recover``, and the check of the option ``--ledger`` elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from txstorm.cli.options import DataDir, Grid, Json, Ledger, show

NAMES = "sqlite:PATH, zookeeper:HOSTS/CHROOT, delta:URI"
LEDGER_EPILOG = """[bold]Examples[/bold]

txstorm ledger copy txstorm-data/word-count zookeeper:zk1:2181,zk2:2181/word-count

txstorm ledger copy txstorm-data/word-count delta:s3://bucket/word-count-ledger
"""

ledger_app = typer.Typer(help="Work with the ledger of a stopped topology.", no_args_is_help=True)


def at_ledger(data_dir: str, ledger: str | None) -> str:
    """Return `data_dir`; raise `InputError` if `ledger` is given but the topology uses a different ledger."""
    if ledger is not None:
        from txstorm.operations.ledger_choice import check_ledger

        check_ledger(data_dir, ledger)
    return data_dir


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
