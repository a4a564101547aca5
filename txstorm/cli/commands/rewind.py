"""``txstorm rewind``: take back what an earlier release, or bad input, has made of the last transactions."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import DataDir, Json, Ledger


def rewind(
    data_dir: DataDir,
    to_txid: Annotated[int, typer.Option(metavar="N", min=0, help="The last transaction that stays.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A map or outlet that stays as it is; may be repeated.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    ledger: Ledger = None,
    json: Json = False,
) -> None:
    """Take back everything after transaction N in all tables of a topology, which must not run.

    The next run plans transaction N + 1 anew, from where N ended in the source. What was taken back stays in the
    history, under its timeline. Maps and outlets are in other systems and cannot be taken back: each has to be named
    with --keep, and what is processed again is put there again. After a crash the next start carries the rewind out.

    Example: txstorm rewind txstorm-data/word-count --to-txid 17
    """
    from txstorm.cli.output import print_json, stdout
    from txstorm.operations.rewind import rewind as take_back

    directory = at_ledger(data_dir, ledger)
    if not yes:
        _ask(data_dir, to_txid)
    found = take_back(directory, to_txid, keep or ())
    if json:
        print_json(found)
        return
    first, last = found["taken_back"]
    kept = f"; kept as they are: {', '.join(found['kept'])}" if found["kept"] else ""
    sentence = f"{found['topology']}: txids {first}-{last} are taken back; the next start goes on with {first}{kept}"
    stdout().print(sentence, soft_wrap=True)


def _ask(data_dir: str, to_txid: int) -> None:
    from txstorm.errors import InputError

    if not sys.stdin.isatty() or not typer.confirm(f"Take back everything after txid {to_txid} in {data_dir}?"):
        raise InputError("nothing is taken back; give --yes where nobody can answer")
