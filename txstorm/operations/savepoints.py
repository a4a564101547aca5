"""Named savepoints: create, list and delete them, even during a run; `txstorm.operations.restore` restores them.

Snapshots at clocks of the source are savepoints with numbers. A run takes them, or if there is none, this module does.
It is one module, since both are recorded in the same way, and compete for names.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from txstorm.api.names import name_fault, near
from txstorm.books.books import Books, opened_books
from txstorm.books.data_directory import make_directory, topology_in
from txstorm.books.records import clock_of
from txstorm.books.requests import CANCEL, WANT
from txstorm.books.savepoint import ChosenClock, ClockSnapshot, SavedTable, Savepoint
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.clients.files import write_durably
from txstorm.clocks import Clock
from txstorm.display import time_of
from txstorm.errors import InputError, NotRunningError, TxstormError
from txstorm.lanes import THREADS, Lanes
from txstorm.ledger.paths import NUMBER, WANTED, savepoint_path
from txstorm.ledger.port import ABSENT, Check, Delete, Op
from txstorm.operations.kept_history import check_in_history, history_row
from txstorm.operations.lifecycle import Waiting, ask
from txstorm.results.read import check_txid, has_letters, left_out, list_sinks, list_states, state_parts
from txstorm.results.views import checked_txid
from txstorm.storage.tables.as_of import too_old, version_as_of, why_not
from txstorm.storage.tables.declared import LETTERS_REF
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES, LETTERS, SINK, STATE, is_outside
from txstorm.storage.tables.table import DeltaTableState

log = logging.getLogger(__name__)
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
    directory = topology_in(data_dir)
    with opened_books(directory) as books:
        return make_savepoint(directory, books, name, txid, clock)


def make_savepoint(
    directory: Path,
    books: Books,
    name: str,
    txid: int | None,
    clock: Callable[[], float],
    number: int | None = None,
    beside: Sequence[Op] = (),
) -> Savepoint:
    """Create a savepoint, as `create_savepoint` does, from the tables in `directory`; see `record_savepoint`."""
    check_name(directory, books, name)
    made = record_savepoint(directory, books, _made(directory, books, name, txid, clock, number), beside)
    try:  # a version may have been removed meanwhile
        assert books.savepoints()[made.name] == made
        check_in_history(directory, books, made.txid)
        for uri, table in made.tables.items():
            DeltaHandle.open(directory / uri, table.version)
    except TxstormError as error:
        books.put_if([Delete(savepoint_path(made.name))], {})
        msg = f"savepoint {made.name!r}: txid {made.txid} was removed while it was made: {error}; ask for a later txid"
        raise InputError(msg) from error
    return made


def check_name(directory: Path, books: Books, name: str) -> None:
    """Raise `InputError` if `name` is no name for a savepoint, or that of one."""
    if fault := name_fault("savepoint", name):
        raise InputError(fault)
    known = books.savepoints().get(name)
    if known is not None:
        msg = f"{directory}: there is a savepoint {name!r} already, of txid {known.txid}; choose another name"
        raise InputError(f"{msg}, or delete it: txstorm savepoint delete {directory} {name}")


def record_savepoint(directory: Path, books: Books, made: Savepoint, beside: Sequence[Op] = ()) -> Savepoint:
    """Record a savepoint in the ledger, in one commit with the operations `beside`, and return it.

    What it needs must not be removed meanwhile. Raises `InputError` if there is a savepoint of that name.
    """
    path = savepoint_path(made.name)
    numbered = {} if made.number is None else {NUMBER: max(made.number, books.snapshots()[0])}
    if not books.put_if([Check(path, ABSENT), *beside], {path: made.to_json(), **numbered}):
        raise InputError(f"{directory}: another process has just made a savepoint {made.name!r}; choose another name")
    if not made.automatic:
        _note(directory, made)
    log.info("savepoint %s of txid %s is made", made.name, made.txid)
    return made


def list_savepoints(data_dir: str | Path) -> list[Savepoint]:
    """Return the savepoints of the topology in `data_dir`, sorted by name."""
    with opened_books(topology_in(data_dir), read_only=True) as books:
        return list(books.savepoints().values())


def delete_savepoint(data_dir: str | Path, name: str) -> Savepoint:
    """Delete the savepoint `name`, so that its files may be removed; raise `InputError` if it does not exist."""
    directory = topology_in(data_dir)
    with opened_books(directory) as books:
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


LOOK = 0.1
"""Seconds between two looks at a snapshot that a run is taking."""


def list_snapshots(data_dir: str | Path) -> list[ClockSnapshot]:
    """Return the snapshots at clocks of the source, the newest first."""
    found = [one.snapshot for one in list_savepoints(data_dir)]
    return sorted((one for one in found if one is not None), key=lambda one: -one.number)


def want_snapshot(
    data_dir: str | Path,
    clock: Mapping[str, int] | None = None,
    name: str | None = None,
    wait: float | None = None,
    lanes: Lanes = THREADS,
) -> dict[str, Any]:
    """Ask for a snapshot at `clock`, which no transaction passes before it is complete; None: at the present clock.

    A run then takes it; see `list_snapshots`. With no run, a snapshot of the last committed transaction is made at
    once, and a later clock is recorded for the next run.

    Args:
        data_dir: the data directory.
        clock: the clock of the last planned transaction, or one that it has not reached.
        name: name of the savepoint; None: ``snapshot-NUMBER``.
        wait: seconds after which a run gives it up; None: the setting ``snapshot_wait``.
        lanes: give the clocks, and let time pass.

    Returns:
        ``topology``, ``running``, ``number``, ``clock`` and ``name``; ``txid`` and ``stamp`` if it is complete.

    Raises:
        InputError: the clock names other partitions, is behind the present one or beyond the end of the source, another
            one is wanted, the name is taken, or the source has no clocks.
        BusyError, HeldError: as for `txstorm.operations.lifecycle.deactivate`.
    """
    wanted, wait = None if clock is None else Clock(clock), None if wait is None else checked_wait(wait)
    arguments = {"clock": None if wanted is None else dict(wanted), "name": name, "wait": wait}
    try:
        return ask(data_dir, WANT, arguments, Waiting(lanes=lanes))
    except NotRunningError:
        pass
    directory = topology_in(data_dir)
    with opened_books(directory, lease="txstorm snapshot") as books:  # excludes a run that starts at this moment
        number, before = books.snapshots()
        metas, committed = books.metas(), books.currtx() - 1
        present, planned = (
            clock_of(metas[txid].document) if txid in metas else None for txid in (committed, max(metas, default=0))
        )
        asked = present if present is not None and wanted in (None, present) else check_chosen(wanted, before, planned)
        called = name or f"snapshot-{number + 1}"
        check_name(directory, books, called)
        chosen = ChosenClock(number + 1, asked, called, lanes.now(), wait)
        identity = books.identity()
        if asked == present:
            made = make_savepoint(directory, books, called, committed, lanes.seconds, chosen.number)
            taken = made.snapshot
            assert taken is not None
            found = taken.to_json()
        else:
            books.put_if([], {WANTED: chosen.to_json()})
            found = {"number": chosen.number, "clock": dict(asked), "name": called}
        return {"topology": "" if identity is None else identity.topology, "running": False, **found}


def taken_snapshot(
    data_dir: str | Path,
    clock: Mapping[str, int] | None = None,
    name: str | None = None,
    wait: float | None = None,
    lanes: Lanes = THREADS,
) -> dict[str, Any]:
    """Ask for a snapshot as `want_snapshot` does and, if a run takes it, wait until it is complete.

    Raises:
        InputError, BusyError, HeldError: those of `want_snapshot`.
        TxstormError: the run has given it up, or ended before; if it ended, the next one goes on with a wanted clock.
    """
    found = want_snapshot(data_dir, clock, name, wait, lanes)
    while found["running"] and "txid" not in found:
        with opened_books(topology_in(data_dir)) as books:
            (_, wanted), now = books.snapshots(), books.ledger.holder()
        is_wanted = wanted is not None and wanted.number == found["number"]
        for one in list_snapshots(data_dir):
            if one.number == found["number"]:
                return {**found, **one.to_json()}
        what = f"snapshot {found['name']} at {Clock(found['clock'])}"
        if now is None:
            raise TxstormError(f"{what}: the run has ended" + (", and the next one goes on with it" * is_wanted))
        if clock is not None and not is_wanted:
            raise TxstormError(f"{what}: the run has given it up; its log, and txstorm status, say why")
        lanes.sleep(LOOK)
    return found


def cancel_snapshot(data_dir: str | Path, lanes: Lanes = THREADS) -> dict[str, Any]:
    """Give up the clock that is wanted, if one is.

    Returns:
        ``topology``, ``running``, and ``clock``: the one that was wanted; None if none was.

    Raises:
        BusyError, HeldError: as for `txstorm.operations.lifecycle.deactivate`.
    """
    try:
        return ask(data_dir, CANCEL, {}, Waiting(lanes=lanes))
    except NotRunningError:
        pass
    with opened_books(topology_in(data_dir), lease="txstorm snapshot") as books:
        identity, (_, wanted) = books.identity(), books.snapshots()
        books.put_if([Delete(WANTED)], {})
        clock = None if wanted is None else dict(wanted.clock)
        return {"topology": "" if identity is None else identity.topology, "running": False, "clock": clock}


def checked_wait(wait: float) -> float:
    """Return the seconds that a run waits for a clock; raise `InputError` if they are no number of 0 or more."""
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < math.inf:
        raise InputError(f"wait: expected a number of seconds, got {wait!r}")
    return float(wait)


def check_chosen(clock: Clock | None, wanted: ChosenClock | None, planned: Clock | None) -> Clock:
    """Return the clock at which a snapshot can be made: `clock` or, for None, that of the last planned transaction.

    `wanted` is the one that is wanted already, `planned` the clock of the last planned transaction.

    Raises:
        InputError: it cannot be made.
    """
    if clock is None:
        if planned is None:
            raise InputError("snapshot: there is no clock yet: nothing is planned, or the source has no clocks")
        return planned
    if not clock:
        raise InputError("clock {}: it names no partitions; give each one of the source, with the last offset to count")
    if wanted is not None and clock != wanted.clock:
        raise InputError(
            f"clock {clock}: {wanted.clock} is wanted already, as {wanted.name!r}; wait for that snapshot, or cancel it"
        )
    if wanted is not None:
        return clock
    if planned is not None and (other := sorted(clock.keys() ^ planned.keys())):
        msg = f"clock {clock}: {', '.join(other)}: the source has the partitions {', '.join(planned)}; give each one"
        raise InputError(msg)
    if planned is not None and not clock >= planned:
        raise InputError(
            f"clock {clock}: it is behind {planned}, that of the last planned transaction; ask for that or a later one"
        )
    return clock


def find_savepoint(directory: Path, books: Books, name: str) -> Savepoint:
    """Look up the savepoint `name`; raise `InputError`, which suggests similar names, if it does not exist."""
    known = books.savepoints()
    if name not in known:
        msg = f"{directory}: no savepoint {name!r}{near(name, list(known))}; it has {', '.join(known) or 'none'}"
        raise InputError(msg)
    return known[name]


def _made(
    directory: Path, books: Books, name: str, txid: int | None, clock: Callable[[], float], number: int | None
) -> Savepoint:
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
        outside=outside_tables(books),
        number=number,
    )


def outside_tables(books: Books) -> tuple[str, ...]:
    """Return the maps and outlets, which no savepoint contains."""
    return tuple(uri for uri in books.tables() if is_outside(uri))


def open_tables(tables: Mapping[TableRef, DeltaTableState], txid: int) -> dict[str, SavedTable]:
    """Return the table versions of a savepoint as of `txid`, as `_tables` does, from the `tables` that a run has open.

    Call it between two groups. Nothing is read but the newest entries of the logs.
    """
    found: dict[str, SavedTable] = {}
    for ref, table in tables.items():
        if ref.kind == STATE:
            changes = tables.get(TableRef(CHANGES, ref.name))
            if why_not(table if changes is None else changes, txid) is not None:
                continue
            version, as_of = version_as_of(table, txid, stays=True)
            if changes is not None:
                if as_of < changes.floor():
                    raise too_old(ref.name, txid, changes.floor())
                found[changes.ref.uri] = SavedTable(changes.version)
            found[ref.uri] = SavedTable(version, as_of)
        elif ref.kind == LETTERS or (ref.kind == SINK and why_not(table, txid) is None):
            found[ref.uri] = SavedTable(table.version)
    return found


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
