"""Command ``txstorm replay``: replay a committed transaction, or a journal of the coordinator.

Also for batch replays: finding the code of a topology, and showing a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from txstorm.books.data_directory import check_readable
from txstorm.books.origin import CodeOrigin
from txstorm.cli.commands.ledgers import at_ledger
from txstorm.cli.options import Json, Ledger
from txstorm.cli.output import confirmed, shell_command
from txstorm.cli.tables import PlainTable
from txstorm.cli.target import Target, held, load, parse
from txstorm.cli.tracebacks import without_internals
from txstorm.coordinator import journal
from txstorm.errors import InputError
from txstorm.replay.compare import ReplayVerdict, RowDifference, TableVerdict
from txstorm.results.views import origin_recorded
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
    topology: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:ATTRIBUTE",
            show_default="as recorded, once you confirm it at a terminal",
            help="The code, in the form of txstorm run.",
        ),
    ] = None,
    pdb: Annotated[bool, typer.Option("--pdb", help="Start the debugger where user code raises.")] = False,
    breaks: Annotated[
        list[str] | None,
        typer.Option(
            "--break",
            metavar="BOLT[.METHOD]",
            help="Stop in the debugger at the start of a bolt's methods; may be repeated.",
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Instead: replay a journal through the coordinator."),
    ] = None,
    ledger: Ledger = None,
    json: Json = False,
) -> int:
    """Replay a committed transaction, and compare the result with the committed one.

    It runs in this process, on the recorded extents of the source and the state as of the transaction before. Nothing
    is changed. Works beside a live run.
    """
    if journal is not None:
        if data_dir is not None or txid is not None:
            raise typer.BadParameter("give --journal FILE, or DATA_DIR and --txid N")
        return _journal(journal, as_json=json)
    if data_dir is None or txid is None:
        raise typer.BadParameter("expected DATA_DIR and --txid N, or --journal FILE")
    data_dir = at_ledger(data_dir, ledger)
    options = {"--ledger": [ledger] if ledger else [], "--break": breaks or []}
    words = [word for name, values in options.items() for value in values for word in (name, value)]
    flags = [name for name, is_set in {"--pdb": pdb, "--json": json}.items() if is_set]
    command = ["txstorm", "replay", data_dir, "--txid", str(txid), *words, *flags]
    code = code_of(data_dir, topology, command).topology
    verdict = _debugged(code, data_dir, txid, breaks or []) if pdb or breaks else _plainly(code, data_dir, txid)
    return _conclude(code, verdict, as_json=json)


def _plainly(code: Topology, data_dir: str, txid: int) -> ReplayVerdict:
    from txstorm.replay.single import replay_txid

    return replay_txid(code, data_dir, txid)


def _debugged(code: Topology, data_dir: str, txid: int, breaks: list[str]) -> ReplayVerdict:
    from txstorm.cli.debugger import Debugger
    from txstorm.replay.single import replay_txid

    debugger = Debugger(code, breaks)
    return debugger.run(lambda: replay_txid(code, data_dir, txid, caught=debugger.caught))


def _conclude(code: Topology, verdict: ReplayVerdict, *, as_json: bool) -> int:
    from txstorm.cli.output import print_json, stdout

    if as_json:
        print_json({"topology": code.id, **verdict.to_json()})
    else:
        for text in verdict_text(verdict):
            stdout().print(text, soft_wrap=isinstance(text, str))
    return 0 if verdict.equal else 1


def _journal(file: str, *, as_json: bool) -> int:
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


SHOWN = 20
OPTION = "--topology MODULE:ATTRIBUTE"


@dataclass(frozen=True)
class Code:
    """A topology, and the target that names its code."""

    topology: Topology
    target: str


def code_of(data_dir: str | Path, option: str | None, command: Sequence[str]) -> Code:
    """The code of the topology of `data_dir`: the one named by `option`, else the recorded one after confirmation.

    Importing a module runs it, and the recorded name could be chosen by anyone who can write to the data directory. So
    it is imported only after confirmation at a terminal, and a recorded call is never made.

    Args:
        data_dir: the data directory of the topology.
        option: the value of ``--topology``, or None.
        command: the words of the command without that option, for the message of a refusal.

    Raises:
        InputError: nothing usable is recorded (for example from a notebook), the user did not confirm, or the code
            cannot be loaded.
    """
    directory = check_readable(data_dir)
    if option is not None:
        return Code(load(option), option)
    origin = origin_recorded(directory)
    if origin is None:
        raise InputError(f"{directory} does not say where the code of its topology is; name it with {OPTION}")
    if origin.target is None:
        msg = (
            f"{directory}: the topology was run from {_printable(origin.place)} and is not an attribute of a module, "
            f"so its code cannot be found again; put it into a module and name it with {OPTION}"
        )
        raise InputError(msg)
    try:
        target = parse(origin.target)
    except InputError as error:
        msg = f"{directory}: the recorded name of its code cannot be used; name the code with {OPTION} ({error})"
        raise InputError(msg) from None
    return Code(_confirmed(directory, origin, target, command), target.text)


def _confirmed(directory: Path, origin: CodeOrigin, target: Target, command: Sequence[str]) -> Topology:
    """The recorded topology, imported after confirmation at a terminal; otherwise raises `InputError`."""
    ran = f"recorded that its code is {target.text}, run in {_printable(origin.directory)}"
    exact = shell_command([*command, "--topology", target.text])
    refused = InputError(
        f"{directory}: its last run {ran}; a name that stands in a data directory is not run unless you name it, too. "
        f"If that is the code to run: {exact}"
    )
    question = (
        f"{directory}: the last run {ran}. Importing it runs that module, as found from here.\n"
        f"Import and run {target.text}?"
    )
    if target.called or not confirmed(question):
        raise refused
    try:
        found = held(target)
    except InputError as error:
        error.add_note(
            f"The last run recorded {target.text} and ran in {_printable(origin.directory)}: run this command there, "
            f"put that directory on PYTHONPATH, or name the code with {OPTION}."
        )
        raise
    if found is None:
        raise refused
    return found


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)


def replay_journal(file: str) -> journal.Replayed:
    """Replay a journal through the coordinator; raises `InputError` if it cannot be read or is not a journal."""
    try:
        with open(file, encoding="utf-8") as lines:
            return journal.replay(lines)
    except OSError as error:
        raise InputError(f"journal {file}: expected a file that can be read, got {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"journal {file}: expected JSON lines, got bytes that are not UTF-8 ({error})") from error
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def verdict_text(verdict: ReplayVerdict) -> Iterator[str | Text | Table]:
    """The verdict in readable form: one line, and the differences."""
    txid, attempt = verdict.attempt
    about = f"txid {txid} (attempt {attempt}), {verdict.tuples:,} tuples"
    if verdict.equal:
        rows = ", ".join(f"{one.table} {one.committed:,}" for one in verdict.tables if one.committed)
        yield f"{about}: the result is the one committed (rows: {rows or 'none'})"
        return
    yield f"{about}: the result is not the one committed"
    if verdict.failure is not None:
        yield f"  {verdict.failure}"
        yield Text(without_internals(verdict.failure.traceback).rstrip(), "dim")
    elif verdict.digest != verdict.committed_digest:
        yield f"  input: committed digest {verdict.committed_digest}, replayed {verdict.digest}"
    yield from (f"  note: {note}" for note in verdict.notes)
    for one in verdict.tables:
        if not one.equal:
            yield from _table_text(one)


def _table_text(one: TableVerdict) -> Iterator[str | Table]:
    if one.reordered:
        yield f"{one.table}: the same {one.committed:,} rows in another order"
        return
    yield f"{one.table}: {one.different:,} rows differ ({one.committed:,} committed, {one.replayed:,} replayed)"
    grid = PlainTable(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("key", "committed", "replayed") if one.table.startswith("changes/") else ("committed", "replayed"):
        grid.add_column(title, overflow="fold")
    for difference in one.differences[:SHOWN]:
        grid.add_row(*_cells(difference))
    yield grid
    if one.different > SHOWN:
        yield f"… and {one.different - SHOWN:,} more; --json shows {len(one.differences):,}"


def _cells(one: RowDifference) -> list[str]:
    keys = [] if one.key is None else [_shown(one.key)]
    return [*keys, *map(_shown, one.changed())]


def _shown(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items()) or "—"
