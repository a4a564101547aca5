"""``txstorm replay``: one committed transaction again, or a journal through the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import Json, Ledger

if TYPE_CHECKING:
    from txstorm.replay.compare import Verdict
    from txstorm.topology.graph import Topology

REPLAY_EPILOG = """[bold]Examples[/bold]

txstorm replay txstorm-data/word-count --txid 7 --topology jobs.word_count

txstorm replay txstorm-data/word-count --txid 7 --topology jobs.word_count --pdb

txstorm replay txstorm-data/word-count --txid 7 --topology jobs.word_count --break counts.finish_batch

txstorm replay txstorm-data/word-count --txid 7 --topology "jobs.word_count:topology('books/*.txt')" --json

txstorm replay --journal journal.jsonl

Exit codes: 0 the result is the one committed, 1 it is not, 2 bad input. Many txids at once: jobs/replay.py
"""


def replay(
    data_dir: Annotated[
        str | None, typer.Argument(metavar="[DATA_DIR]", show_default=False, help="Where the topology ran.")
    ] = None,
    txid: Annotated[int | None, typer.Option(metavar="N", help="The committed transaction to run again.")] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            show_default="as recorded, once you confirm it at a terminal",
            help="The code; written as for txstorm run.",
        ),
    ] = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Debug what user code raises, at the frame that did.")] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option(
            "--break", metavar="BOLT[.METHOD]", help="Debug from the start of a bolt's methods; may be repeated."
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Run the events of a journal through the coordinator instead."),
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
) -> int:
    """Run a committed transaction again, and say whether the result is the one committed.

    It runs in this process, from the extents that were recorded and against the state of the transaction before it, and
    changes nothing. Works beside a live run.
    """
    if journal is not None:
        if data_dir is not None or txid is not None:
            raise typer.BadParameter("give --journal FILE, or DATA_DIR and --txid N")
        return _journal(journal, as_json=json)
    if data_dir is None or txid is None:
        raise typer.BadParameter("expected DATA_DIR and --txid N, or --journal FILE")
    from txstorm.cli.commands.replaying import code_of

    data_dir = at_ledger(data_dir, ledger)
    options = {"--ledger": [ledger] if ledger else [], "--break": breaks or []}
    words = [word for name, values in options.items() for value in values for word in (name, value)]
    flags = [name for name, given in {"--pdb": pdb, "--json": json}.items() if given]
    command = ["txstorm", "replay", data_dir, "--txid", str(txid), *words, *flags]
    code = code_of(data_dir, topology, command).topology
    verdict = _debugged(code, data_dir, txid, breaks or []) if pdb or breaks else _plainly(code, data_dir, txid)
    return _conclude(code, verdict, as_json=json)


def _plainly(code: Topology, data_dir: str, txid: int) -> Verdict:
    from txstorm.replay.single import replay_txid

    return replay_txid(code, data_dir, txid)


def _debugged(code: Topology, data_dir: str, txid: int, breaks: list[str]) -> Verdict:
    from txstorm.cli.debugger import Debugger
    from txstorm.replay.single import replay_txid

    debugger = Debugger(code, breaks)
    return debugger.run(lambda: replay_txid(code, data_dir, txid, caught=debugger.caught))


def _conclude(code: Topology, verdict: Verdict, *, as_json: bool) -> int:
    from txstorm.cli.commands.replaying import verdict_text
    from txstorm.cli.output import print_json, stdout

    if as_json:
        print_json({"topology": code.id, **verdict.to_json()})
    else:
        for text in verdict_text(verdict):
            stdout().print(text, soft_wrap=isinstance(text, str))
    return 0 if verdict.equal else 1


def _journal(file: str, *, as_json: bool) -> int:
    from txstorm.cli.commands.replaying import replay_journal
    from txstorm.cli.output import print_json, print_text

    replayed = replay_journal(file)
    difference = replayed.difference
    if as_json:
        about = None if difference is None else {"line": difference.line, "message": str(difference)}
        print_json({"journal": file, "steps": replayed.steps, "equal": difference is None, "difference": about})
    elif difference is None:
        print_text(f"{file}: {replayed.steps:,} steps, every command is the one recorded")
    else:
        print_text(f"{file}: the coordinator decides otherwise after {replayed.steps:,} steps\n{difference}")
    return 0 if difference is None else 1
