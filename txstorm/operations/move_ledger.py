"""`txstorm ledger copy`: move a stopped topology to another ledger."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txstorm.books.data_directory import topology_in
from txstorm.errors import DataDirectoryError, InputError, LedgerCorrupt
from txstorm.ledger import paths as names
from txstorm.ledger.credentials import named_ledger
from txstorm.ledger.location import FORMS, LedgerSpec, default_ledger, record_ledger, recorded_ledger
from txstorm.ledger.open import local_directory, moved_to, open_spec
from txstorm.ledger.port import ABSENT, Delete, Entry, Ledger, Put, in_commits
from txstorm.ledger.values import decode_value, encode_value

log = logging.getLogger(__name__)
COPYING = "copying"
"""Path of the marker in a target ledger while the copy is incomplete."""


@dataclass(frozen=True)
class Named:
    """A ledger named by the operator, and its data directory if the operator gave that instead of an address."""

    ledger: LedgerSpec
    data_dir: Path | None = None


def copy_ledger(source: str, target: str) -> dict[str, Any]:
    """Move all entries of the ledger `source` to `target`, from which the next start continues.

    Both are ledger addresses or data directories; a target directory stands for the SQLite file in it. The topology
    must not be running. The copy is read back and compared; only then is the old ledger marked as moved, so that no
    process uses it any more, and the new ledger recorded in the data directory, if one was given. After an
    interruption, the same command starts the copy from the beginning.

    Returns:
        ``topology``, ``source``, ``target``, ``entries`` (number), ``currtx``, and ``data_dir`` (None if unknown).

    Raises:
        InputError: both are the same ledger, or `target` is not empty.
        HeldError: the topology is running.
        DataDirectoryError: there is no ledger at `source`, or it was moved elsewhere.
        LedgerCorrupt: the copy, read back, differs from the original.
    """
    old, new = _source(source), _target(target)
    directory = old.data_dir or new.data_dir
    if old.ledger == new.ledger:
        raise InputError(f"ledger copy: {old.ledger} is both source and target; expected two ledgers")
    with _leased(old.ledger, directory, create=False) as left, _leased(new.ledger, directory, create=True) as right:
        report = _moved(left, right, old, new)
    if directory is not None:
        record_ledger(directory, new.ledger)
    return {**report, "data_dir": None if directory is None else str(directory)}


def _source(text: str) -> Named:
    if _is_name(text):
        return Named(named_ledger(text))
    directory = topology_in(text)
    return Named(recorded_ledger(directory) or default_ledger(directory), directory)


def _target(text: str) -> Named:
    if _is_name(text):
        return Named(named_ledger(text))
    directory = local_directory(text)
    return Named(default_ledger(directory), directory)


def _is_name(text: str) -> bool:
    """Whether `text` is a ledger address rather than a path; a path that contains a colon has to start with ``./``."""
    kind = text.partition(":")[0]
    return kind in FORMS or (":" in text and "/" not in kind and "\\" not in kind and not Path(text).exists())


@contextmanager
def _leased(ledger: LedgerSpec, directory: Path | None, *, create: bool) -> Iterator[Ledger]:
    opened = open_spec(ledger, directory, create=create)
    try:
        opened.acquire("txstorm ledger copy")
        yield opened
    finally:
        opened.close()


def _moved(left: Ledger, right: Ledger, old: Named, new: Named) -> dict[str, Any]:
    entries = {path: entry for path, entry in all_entries(left) if path != names.MOVED}
    if names.IDENTITY not in entries:
        msg = f"ledger {old.ledger}: expected that of a topology, got none; name the ledger to move, or its directory"
        raise DataDirectoryError(msg)
    if (elsewhere := moved_to(left)) not in (None, str(new.ledger)):
        msg = f"ledger {old.ledger} was moved to {elsewhere}; expected the one in use: copy from there"
        raise DataDirectoryError(msg)
    if elsewhere is None:
        _check_target(right, old, new)
        _fill(right, entries)
        _compare(right, new, entries)
        mark = encode_value(None, {"to": str(new.ledger)}, names.MOVED)
        left.commit([Put(names.MOVED, mark, ABSENT)])
        log.warning("ledger %s is moved to %s", old.ledger, new.ledger)
    return {
        "topology": _value(entries, names.IDENTITY)["topology"],
        "source": str(old.ledger),
        "target": str(new.ledger),
        "entries": len(entries),
        "currtx": _value(entries, names.CURRTX) if names.CURRTX in entries else 1,
    }


def _check_target(right: Ledger, old: Named, new: Named) -> None:
    """Check that the target is empty, an incomplete copy, or a ledger that was itself moved to the source."""
    if right.get(COPYING) is not None or moved_to(right) == str(old.ledger):
        return
    if right.children(""):
        raise InputError(
            f"ledger {new.ledger}: expected a new one, got one that is not empty; choose another location for the copy"
        )


def _fill(right: Ledger, entries: dict[str, Entry]) -> None:
    right.commit([Put(COPYING, b"")])
    right.commit([Delete(path) for path, _ in list(all_entries(right)) if path != COPYING])
    # The identity comes last: a ledger without it is incomplete.
    order = sorted(entries, key=lambda path: (path == names.IDENTITY, path))
    for ops in in_commits([Put(path, entries[path].value)] for path in order):
        right.commit(ops)
    right.commit([Delete(COPYING)])


def _compare(right: Ledger, new: Named, entries: dict[str, Entry]) -> None:
    found = {path: entry.value for path, entry in all_entries(right)}
    if found != {path: entry.value for path, entry in entries.items()}:
        wrong = sorted(path for path, _ in found.items() ^ {(path, one.value) for path, one in entries.items()})
        msg = f"ledger {new.ledger}: expected what was copied there, got another value at {wrong[:3]}; copy it again"
        raise LedgerCorrupt(msg)


def _value(entries: dict[str, Entry], path: str) -> Any:
    return decode_value(None, entries[path].value, path)


def all_entries(ledger: Ledger, above: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield all entries below the path `above`, recursively, each with its full path."""
    prefix = f"{above}/" if above else ""
    for name, entry in ledger.scan(above).items():
        yield prefix + name, entry
    for name in ledger.children(above):
        yield from all_entries(ledger, prefix + name)
