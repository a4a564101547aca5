"""Named savepoints: create, list and delete them, even during a run; `txstorm.operations.restore` restores them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from txstorm.api.names import name_fault, near
from txstorm.books.books import Books
from txstorm.books.data_directory import make_directory, topology_in
from txstorm.books.savepoint import SavedTable, Savepoint
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.files import write_durably
from txstorm.display import time_of
from txstorm.errors import InputError, TxstormError
from txstorm.lanes import THREADS
from txstorm.ledger.open import open_ledger
from txstorm.ledger.paths import savepoint_path
from txstorm.ledger.port import ABSENT, Check, Delete
from txstorm.operations.kept_history import check_in_history, history_row
from txstorm.results.read import check_txid, has_letters, left_out, list_sinks, list_states, state_parts
from txstorm.results.views import checked_txid
from txstorm.storage.tables.declared import LETTERS_REF
from txstorm.storage.tables.identity import TableRef, table_ref
from txstorm.storage.tables.intent import CHANGES, OUTSIDE, SINK, STATE

log = logging.getLogger("txstorm.savepoint")
NOTES = "savepoints"
"""Name of the directory with notes on the savepoints, which are kept outside the ledger in case it is lost."""


def create_savepoint(
    data_dir: str | Path, name: str, txid: int | None = None, clock: Callable[[], float] = THREADS.seconds
) -> Savepoint:
    """Create a savepoint of all tables as of transaction `txid` (None: the last committed one).

    May be called from any process while the topology is running. The versions and files that the savepoint needs are
    retained until it is deleted.

    Raises:
        InputError: a savepoint of that name exists, the name is invalid, or `txid` is 0 or no longer retained.
        StateError: `txid` is not committed, or a state as of it can no longer be read.
        DataDirectoryError: there is no topology in `data_dir`.
    """
    if fault := name_fault("savepoint", name):
        raise InputError(fault)
    with opened_books(data_dir) as (directory, books):
        known = books.savepoints().get(name)
        if known is not None:
            msg = f"{directory}: there is a savepoint {name!r} already, of txid {known.txid}; choose another name"
            raise InputError(f"{msg}, or delete it: txstorm savepoint delete {data_dir} {name}")
        made = _made(directory, books, name, txid, clock)
        if not books.put_if([Check(savepoint_path(name), ABSENT)], {savepoint_path(name): made.to_json()}):
            raise InputError(f"{directory}: another process has just made a savepoint {name!r}; choose another name")
        _check_kept(directory, books, made)
        _note(directory, made)
        log.info("savepoint %s of txid %s is made", name, made.txid)
        return made


def list_savepoints(data_dir: str | Path) -> list[Savepoint]:
    """Return the savepoints of the topology in `data_dir`, sorted by name."""
    with opened_books(data_dir, read_only=True) as (_, books):
        return list(books.savepoints().values())


def delete_savepoint(data_dir: str | Path, name: str) -> Savepoint:
    """Delete the savepoint `name`, so that its files may be removed; raise `InputError` if it does not exist."""
    with opened_books(data_dir) as (directory, books):
        found = find_savepoint(directory, books, name)
        (directory / NOTES / f"{name}.json").unlink(missing_ok=True)
        books.put_if([Delete(savepoint_path(name))], {})
        return found


def noted_savepoints(directory: Path) -> list[str]:
    """Describe the savepoints of a lost ledger, one phrase for each, from the notes in the data directory."""
    found = []
    for note in sorted((directory / NOTES).glob("*.json")):
        try:
            one = json.loads(note.read_text(encoding="utf-8"))
            found.append(f"{note.stem} (after txid {int(one['txid'])}, made {time_of(int(one['created']))})")
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            found.append(f"{note.stem} (its note cannot be read)")
    return found


def forget_notes(directory: Path) -> None:
    """Delete all notes on savepoints; call when no ledger contains the savepoints any longer."""
    for note in (directory / NOTES).glob("*.json"):
        note.unlink(missing_ok=True)


def _note(directory: Path, made: Savepoint) -> None:
    """Write a note on the savepoint outside the ledger; a failure (such as a full disk) is only logged."""
    note = directory / NOTES / f"{made.name}.json"
    try:
        make_directory(note.parent)
        write_durably(note, json.dumps({"v": 1, "txid": made.txid, "created": made.created}).encode())
    except OSError as error:
        log.warning("savepoint %s is made, but it could not be noted beside the ledger: %s", made.name, error)


def find_savepoint(directory: Path, books: Books, name: str) -> Savepoint:
    """Look up the savepoint `name`; raise `InputError`, which suggests similar names, if it does not exist."""
    known = books.savepoints()
    if name not in known:
        msg = f"{directory}: no savepoint {name!r}{near(name, list(known))}; it has {', '.join(known) or 'none'}"
        raise InputError(msg)
    return known[name]


@contextmanager
def opened_books(data_dir: str | Path, *, read_only: bool = False) -> Iterator[tuple[Path, Books]]:
    """Context manager that opens a data directory and its books without acquiring the lease, even during a run."""
    directory = topology_in(data_dir)
    ledger = open_ledger(directory, create=False, read_only=read_only)
    try:
        yield directory, Books(ledger, directory / "intents")
    finally:
        ledger.close()


def _made(directory: Path, books: Books, name: str, txid: int | None, clock: Callable[[], float]) -> Savepoint:
    identity = books.identity()
    assert identity is not None
    committed = checked_txid(directory)
    wanted = committed if txid is None else txid
    check_txid(f"savepoint {name!r}", wanted, committed)
    check_in_history(directory, books, wanted)
    if wanted < 1:
        raise InputError(f"savepoint {name!r}: nothing is committed before txid 1; start in a new directory instead")
    row = history_row(directory, identity.timeline, wanted)
    return Savepoint(
        name=name,
        topology=identity.topology,
        incarnation=identity.incarnation,
        timeline=identity.timeline,
        txid=wanted,
        document=row["extents"],
        stamp=row["stamp"],
        created=int(clock() * 1_000_000),
        tables=_tables(directory, wanted, committed),
        outside=tuple(uri for uri in books.tables() if table_ref(uri).kind in OUTSIDE),
    )


def _tables(directory: Path, txid: int, committed: int) -> dict[str, SavedTable]:
    """Return the table versions of a savepoint as of `txid`, except tables created later or dropped earlier."""
    found: dict[str, SavedTable] = {}
    others = left_out(directory, txid)
    for name in [name for name in list_states(directory) if TableRef(STATE, name).uri not in others]:
        parts = state_parts(directory, name, txid, committed, stays=True)
        found[TableRef(STATE, name).uri] = SavedTable(parts.base.version, parts.as_of)
        if parts.changes is not None:
            found[TableRef(CHANGES, name).uri] = SavedTable(parts.changes.version)
    sinks = [TableRef(SINK, name) for name in list_sinks(directory)]
    appended = [ref for ref in sinks if ref.uri not in others]
    for ref in [*appended, LETTERS_REF] if has_letters(directory) else appended:
        found[ref.uri] = SavedTable(DeltaHandle.open(directory / ref.uri, once=True).version)
    return found


def _check_kept(directory: Path, books: Books, made: Savepoint) -> None:
    """Check that no version was removed while the savepoint was created.

    If one was, delete the savepoint and raise `InputError`.
    """
    try:
        assert books.savepoints()[made.name] == made
        check_in_history(directory, books, made.txid)
        for uri, table in made.tables.items():
            DeltaHandle.open(directory / uri, table.version)
    except TxstormError as error:
        books.put_if([Delete(savepoint_path(made.name))], {})
        msg = f"savepoint {made.name!r}: txid {made.txid} was removed while it was made: {error}; ask for a later txid"
        raise InputError(msg) from error
