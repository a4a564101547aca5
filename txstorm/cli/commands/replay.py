"""Command ``txstorm replay``: replay a committed transaction, or a journal of the coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from txstorm.cli.options import Code, Json, Ledger, at_ledger

if TYPE_CHECKING:
    from txstorm.cli.debugger import WindowStop
    from txstorm.replay.compare import ReplayVerdict
    from txstorm.topology.graph import Topology

REPLAY_EPILOG = """[bold]Examples[/bold]

txstorm replay txstorm-data/word-count --txid 7 --topology jobs.word_count

txstorm replay txstorm-data/word-count --txid 7 --topology jobs.word_count --pdb

txstorm replay txstorm-data/word-count --txid 7 --topology jobs.word_count --break counts.finish_batch

txstorm replay txstorm-data/word-count --txid 7 --topology "jobs.word_count:topology('books/*.txt')" --json

txstorm replay --journal journal.jsonl

Exit codes: 0 the result equals the committed one, 1 it differs, 2 bad input. Many txids: jobs/replay.py
"""


def replay(
    data_dir: Annotated[
        str | None, typer.Argument(metavar="[DATA_DIR]", show_default=False, help="The data directory of the topology.")
    ] = None,
    txid: Annotated[int | None, typer.Option(metavar="N", help="The committed transaction to replay.")] = None,
    topology: Code = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Start the debugger where user code raises.")] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option(
            "--break",
            metavar="BOLT[.METHOD]",
            help="Stop in the debugger at the start of a bolt's methods; may be repeated.",
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(metavar="COMPONENT:END", help="Instead of --txid: the transaction that fired this window."),
    ] = None,
    key: Annotated[list[str] | None, typer.Option(metavar="K", help="With --window: of this key.")] = None,
    journal: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Instead: replay a journal through the coordinator."),
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
) -> int:
    """Replay a committed transaction, and compare the result with the committed one.

    It runs in this process, on the recorded extents of the source and the state as of the transaction before. Nothing
    is changed. Works beside a live run. With --window and --pdb it stops before the window is evaluated.
    """
    if journal is not None:
        if any(one is not None for one in (data_dir, txid, window)):
            raise typer.BadParameter("give --journal FILE, or DATA_DIR and --txid N")
        return _journal(journal, as_json=json)
    if data_dir is None or (txid is None) is (window is None):
        raise typer.BadParameter("expected DATA_DIR and --txid N (or --window), or --journal FILE")
    data_dir = at_ledger(data_dir, ledger)
    fired = fired_windows(data_dir, window, key)
    txid = fired[0].txid if txid is None else txid
    given = {"--window": window, "--key": key, "--ledger": ledger, "--break": breaks, "--pdb": pdb, "--json": json}
    words = _words({"--txid": str(txid) if window is None else None, **given})
    from txstorm.cli.replays import code_of

    code = code_of(data_dir, topology, ["txstorm", "replay", data_dir, *words]).topology
    stops: list[str | WindowStop] = [*(breaks or []), *(fired if pdb else [])]
    return _conclude(code, _replayed(code, data_dir, txid, stops, debug=pdb or bool(breaks)), as_json=json)


def _words(options: Mapping[str, str | list[str] | bool | None]) -> list[str]:
    """Return the given options as words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value:
            words += [word for one in ([value] if isinstance(value, str) else value) for word in (name, one)]
    return words


def fired_windows(data_dir: str, window: str | None, key: list[str] | None) -> list[WindowStop]:
    """Return the window of ``COMPONENT:END`` with the txid that fired it, if one is given.

    Raises:
        InputError: it has not fired.
    """
    from txstorm.books.data_directory import check_readable
    from txstorm.cli.debugger import WindowStop
    from txstorm.results.windowed_components import parsed_time, txid_that_fired

    if window is None:
        if key is not None:
            raise typer.BadParameter("--key needs --window COMPONENT:END")
        return []
    component, colon, end = window.partition(":")
    if not colon:
        raise typer.BadParameter(f"--window {window!r}: expected COMPONENT:END")
    moment = parsed_time(end, "--window")
    return [WindowStop(component, moment, key, txid_that_fired(check_readable(data_dir), component, moment))]


def _replayed(
    code: Topology, data_dir: str, txid: int, breaks: list[str | WindowStop], *, debug: bool
) -> ReplayVerdict:
    from txstorm.cli.debugger import Debugger
    from txstorm.replay.audit import replay_txid

    if not debug:
        return replay_txid(code, data_dir, txid)
    debugger = Debugger(code, breaks)
    return debugger.run(lambda: replay_txid(code, data_dir, txid, caught=debugger.caught))


def _conclude(code: Topology, verdict: ReplayVerdict, *, as_json: bool) -> int:
    from txstorm.cli.output import print_json, stdout
    from txstorm.cli.replays import verdict_text

    if as_json:
        print_json({"topology": code.id, **verdict.to_json()})
    else:
        for text in verdict_text(verdict):
            stdout().print(text, soft_wrap=isinstance(text, str))
    return 0 if verdict.equal else 1


def _journal(file: str, *, as_json: bool) -> int:
    from txstorm.cli.output import print_json, print_text
    from txstorm.cli.replays import replay_journal

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
