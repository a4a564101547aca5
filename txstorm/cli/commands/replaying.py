"""What replays share: finding the code, reading a journal, and telling what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from txstorm.books.origin import Origin
from txstorm.cli.output import confirmed, shell_command
from txstorm.cli.tables import PlainTable
from txstorm.cli.target import Target, held, load, parse
from txstorm.cli.tracebacks import without_internals
from txstorm.coordinator import journal
from txstorm.errors import InputError
from txstorm.replay.compare import RowDifference, TableVerdict, Verdict
from txstorm.results.views import check_readable, origin_recorded
from txstorm.storage.rows.schema import OP, PREV, REMOVED
from txstorm.topology.graph import Topology

SHOWN = 20
OPTION = "--topology MODULE:ATTRIBUTE"


@dataclass(frozen=True)
class Code:
    """A topology, and the name under which its code was found."""

    topology: Topology
    target: str


def code_of(data_dir: str | Path, given: str | None, command: Sequence[str]) -> Code:
    """The code of the topology that ran in `data_dir`: the one that is `given`, else the recorded one if confirmed.

    Importing a module runs it, and whoever wrote the data directory chose the name that stands there. So the recorded
    name is imported only after a yes at a terminal, and nothing recorded is ever called.

    Args:
        data_dir: where the topology ran.
        given: the option ``--topology``.
        command: the words of the command without that option, for the message of a refusal.

    Raises:
        InputError: nothing usable is recorded, as of a notebook; it was not confirmed; or it cannot be loaded.
    """
    directory = check_readable(data_dir)
    if given is not None:
        return Code(load(given), given)
    origin = origin_recorded(directory)
    if origin is None:
        raise InputError(f"{directory} does not say where the code of its topology is; name it with {OPTION}")
    if origin.target is None:
        msg = (
            f"{directory}: the topology was run from {_printable(origin.place)} and is no attribute of a module, so "
            f"its code cannot be found again; put it into a module and name it with {OPTION}"
        )
        raise InputError(msg)
    try:
        target = parse(origin.target)
    except InputError as error:
        msg = f"{directory}: the recorded name of its code cannot be used; name the code with {OPTION} ({error})"
        raise InputError(msg) from None
    return Code(_confirmed(directory, origin, target, command), target.text)


def _confirmed(directory: Path, origin: Origin, target: Target, command: Sequence[str]) -> Topology:
    """The recorded topology, imported after a yes at a terminal; `InputError` with the command to use otherwise."""
    ran = f"recorded that its code is {target.text}, run in {_printable(origin.directory)}"
    exact = shell_command([*command, "--topology", target.text])
    refused = InputError(
        f"{directory}: its last run {ran}; a name that stands in a data directory is not run unless you name it, too. "
        f"If that is the code to run: {exact}"
    )
    question = (
        f"{directory}: the last run {ran}. To import it runs that module, as found from here.\n"
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
    """Run a journal through the coordinator; raises `InputError` when it cannot be read, or is no journal."""
    try:
        with open(file, encoding="utf-8") as lines:
            return journal.replay(lines)
    except OSError as error:
        raise InputError(f"journal {file}: expected a file that can be read, got {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"journal {file}: expected JSON lines, got bytes that are no UTF-8 ({error})") from error
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def verdict_text(verdict: Verdict) -> Iterator[str | Text | Table]:
    """A verdict for people: one line, and what differs."""
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
    """Only the values that differ, where both sides have a row."""
    committed, replayed = dict(one.committed or {}), dict(one.replayed or {})
    if committed and replayed:
        same = {name for name, value in committed.items() if name in replayed and replayed[name] == value}
        committed = {name: value for name, value in committed.items() if name not in same}
        replayed = {name: value for name, value in replayed.items() if name not in same}
    plain = [_without_bookkeeping(side) for side in (committed, replayed)]
    if plain[0] != plain[1]:
        committed, replayed = plain
    keys = [] if one.key is None else [_shown(one.key)]
    return [*keys, _shown(committed), _shown(replayed)]


def _without_bookkeeping(row: dict[str, Any]) -> dict[str, Any]:
    """The user's columns, where those tell the difference."""
    if row.get(OP.name) == REMOVED:
        return {OP.name: "removed"}
    return {name: value for name, value in row.items() if name not in (OP.name, PREV)}


def _shown(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items()) or "—"
