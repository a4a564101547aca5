"""Helpers of ``replay`` and ``replay-batch``: code of a recorded topology, replay of journals, verdicts as text.

Separate from the modules of those commands, which every command imports, because it imports all that a replay needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from txstorm.books.data_directory import check_readable
from txstorm.books.origin import CodeOrigin
from txstorm.cli.output import confirmed, grid, shell_command
from txstorm.cli.target import PIPELINE, Target, held, load, parse
from txstorm.cli.tracebacks import without_internals
from txstorm.coordinator import journal
from txstorm.errors import InputError
from txstorm.replay.compare import ReplayVerdict, TableVerdict
from txstorm.results.views import origin_recorded
from txstorm.topology.graph import Topology

SHOWN = 20
OPTION = "--topology MODULE:ATTRIBUTE"


@dataclass(frozen=True)
class Code:
    """A topology, and the target that names its code."""

    topology: Topology
    target: str


def code_of(data_dir: str | Path, option: str | None, command: Sequence[str]) -> Code:
    """Load the code of the topology in `data_dir`: as named by `option`, or the recorded one after confirmation.

    Importing a module runs it, and the recorded name could be chosen by anyone who can write to the data directory. So
    it is imported only after confirmation at a terminal, and a recorded factory call is never executed. `command`: the
    words of the command without that option, for the message of a refusal.

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
        raise InputError(
            f"{directory}: the topology was run from {_printable(origin.place)} and is not an attribute of a module, "
            f"so its code cannot be found again; put it into a module and name it with {OPTION}"
        )
    if origin.target.endswith(PIPELINE):
        named = shell_command([*command, "--topology", origin.target])
        raise InputError(
            f"{directory}: its last run recorded that its code is the pipeline {_printable(origin.target)}; a file "
            f"that only a data directory names is not read unless you name it yourself: {_printable(named)}"
        )
    try:
        target = parse(origin.target)
    except InputError as error:
        msg = f"{directory}: the recorded name of its code cannot be used; name the code with {OPTION} ({error})"
        raise InputError(msg) from None
    return Code(_confirmed(directory, origin, target, command), target.text)


def _confirmed(directory: Path, origin: CodeOrigin, target: Target, command: Sequence[str]) -> Topology:
    """Import the recorded topology after confirmation at a terminal; raise `InputError` without confirmation."""
    ran = f"recorded that its code is {target.text}, run in {_printable(origin.directory)}"
    exact = shell_command([*command, "--topology", target.text])
    refused = InputError(
        f"{directory}: its last run {ran}; code that only a data directory names is not run unless you name it "
        f"yourself. If that is the code to run: {exact}"
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
    """Replay a journal through the coordinator; raise `InputError` if it cannot be read or is not a journal."""
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
    """Render the verdict for a reader: a line with the result, then the differences."""
    txid, attempt = verdict.attempt
    about = f"txid {txid} (attempt {attempt}), {verdict.tuples:,} tuples"
    if verdict.equal and verdict.not_compared:
        yield f"{about}: not compared: {verdict.not_compared}"
        return
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
    titles = ("key", "committed", "replayed") if one.table.startswith("changes/") else ("committed", "replayed")
    rows = ([*([] if row.key is None else [row.key]), *row.changed()] for row in one.differences[:SHOWN])
    yield grid(titles, [list(map(_shown, row)) for row in rows])
    if one.different > SHOWN:
        yield f"… and {one.different - SHOWN:,} more; --json shows {len(one.differences):,}"


def _shown(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in row.items()) or "—"
