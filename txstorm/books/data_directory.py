"""The data directory of a topology: its format, its content, and checks before it is used."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from txstorm.api.names import near
from txstorm.clients.files import PRIVATE, make_directories, read_whole, sync_file, write_durably
from txstorm.errors import DataDirectoryError
from txstorm.ledger.location import LEDGER_FILE, PLACE_FILE
from txstorm.ledger.open import ledger_is_known, local_directory

FORMAT = "txstorm-data"
FIRST, VERSION = 1, 2
"""Version 2: a table was dropped, to which a txstorm that only knows version 1 would continue to write."""
FORMAT_FILE = "format.json"
_UNFIT = re.compile(r"[\x00-\x1f\x7f\\]|%[0-9A-Fa-f]{2}")
"""Parts of a path that delta-rs decodes, so that it would write to another directory or fail."""
TABLE_FOLDERS = ("state", "changes", "sinks", "dead_letters")


def default_directory(topology: str) -> Path:
    """Return the default data directory of a topology, ``./txstorm-data/<topology id>``."""
    return Path.cwd() / "txstorm-data" / topology


def check_directory(data_dir: Path) -> None:
    """Raise `DataDirectoryError` unless `data_dir` is absent, empty, or a data directory of a known format."""
    if unfit := _UNFIT.search(str(data_dir.absolute())):
        raise DataDirectoryError(
            f"data directory {str(data_dir)!r}: Delta tables cannot be stored below a path that contains "
            f"{unfit.group()!r}; choose another --data-dir"
        )
    path = data_dir / FORMAT_FILE
    try:
        if not path.exists():
            _check_empty(data_dir)
        if not path.exists():  # looked at again: a first run may just have written it
            return
        text = read_whole(path).decode(errors="replace")
    except OSError as error:
        raise DataDirectoryError(
            f"data directory {data_dir}: expected a directory that this user can read, got {error.strerror}; check its "
            "path and permissions, or choose another --data-dir"
        ) from error
    name, version = _format(path, text)
    if name != FORMAT or version > VERSION:
        raise DataDirectoryError(
            f"{path}: format {name!r} version {version}; this txstorm reads {FORMAT!r} up to {VERSION}: update txstorm"
        )


def _format(path: Path, text: str) -> tuple[str, int]:
    """Parse the format's name and version from `text`, the content of `path`."""
    try:
        document = json.loads(text)
        name, version = document["format"], document["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        name, version = error, None
    if not isinstance(name, str) or type(version) is not int or version < 1:
        raise DataDirectoryError(
            f"{path} is damaged: expected {{'format': {FORMAT!r}, 'version': {FIRST}}}, got {text[:80]!r}; "
            "restore it from a copy"
        )
    return name, version


def _check_empty(data_dir: Path) -> None:
    if not data_dir.exists():
        return
    if not data_dir.is_dir():
        raise DataDirectoryError(f"data directory {data_dir} is a file; choose another --data-dir")
    # Left by a first run that was killed before it wrote its format file.
    ours = {LEDGER_FILE, f"{LEDGER_FILE}.lock", f"{LEDGER_FILE}-wal", f"{LEDGER_FILE}-shm"}
    ours |= {PLACE_FILE, "intents", "spill"}
    foreign = sorted(set(os.listdir(data_dir)) - ours - set(TABLE_FOLDERS))
    begun = (".", LEDGER_FILE, f"{FORMAT_FILE}.", f"{PLACE_FILE}.")
    foreign = [name for name in foreign if name != FORMAT_FILE and not name.startswith(begun)]
    if foreign:
        msg = f"data directory {data_dir} holds something else ({', '.join(foreign[:3])}); choose another --data-dir"
        raise DataDirectoryError(msg)


def write_format(data_dir: Path, version: int = FIRST, *, first: bool = True) -> None:
    """Mark `data_dir` as a data directory of at least this version of the format.

    With `first`, the file is always rewritten, since an earlier first start may have failed to sync it.
    """
    path = data_dir / FORMAT_FILE
    known = _format(path, path.read_text(errors="replace"))[1] if path.exists() else 0
    if first or known < version:
        write_durably(path, json.dumps({"format": FORMAT, "version": max(known, version)}).encode() + b"\n")


def ledger_exists(data_dir: Path) -> bool:
    """Return whether `data_dir` contains a ledger, or records where its ledger is."""
    return ledger_is_known(data_dir)


def has_tables(data_dir: Path) -> bool:
    """Return whether `data_dir` contains tables."""
    return any((data_dir / folder).is_dir() and any((data_dir / folder).iterdir()) for folder in TABLE_FOLDERS)


def was_run(data_dir: Path) -> bool:
    """Return whether a topology has run in `data_dir`: it has tables, or the format file (written after the ledger)."""
    return has_tables(data_dir) or (data_dir / FORMAT_FILE).exists()


def check_readable(data_dir: str | Path) -> Path:
    """Return `data_dir` as a path; raise `DataDirectoryError` unless it contains a topology's data."""
    directory = local_directory(data_dir)
    check_directory(directory)
    if not ledger_exists(directory) and not has_tables(directory):
        what = "is empty" if directory.exists() else "does not exist"
        msg = f"data directory {directory} {what}; expected one that a run has made, such as txstorm-data/<topology>"
        raise DataDirectoryError(msg)
    return directory


def make_directory(path: Path) -> None:
    """Create `path` durably, accessible to this user only; if it exists, make its name durable.

    Raises:
        DataDirectoryError: it cannot be created.
    """
    try:
        make_directories(path, PRIVATE)
        sync_file(path.parent)  # a process that created it may have been killed before it did that
    except OSError as error:
        raise DataDirectoryError(
            f"{path}: expected to create this directory, got {error.strerror}; remove what is at this path, or correct "
            "its permissions"
        ) from error


def topology_in(data_dir: str | Path) -> Path:
    """Return `data_dir` as a path; raise `DataDirectoryError`, with similar names, unless a topology has run there."""
    directory = local_directory(data_dir)
    if not directory.exists():
        beside = [path.name for path in topology_directories(directory.parent)] if directory.parent.is_dir() else []
        raise DataDirectoryError(
            f"data directory {data_dir} does not exist{near(directory.name, beside)}; expected one that a run has "
            "made, such as txstorm-data/<topology>; txstorm list shows them"
        )
    if not ledger_exists(check_readable(directory)):
        raise DataDirectoryError(
            f"data directory {data_dir} has no ledger; restore it from a copy, or rebuild it from the tables: "
            f"txstorm recover {data_dir}"
        )
    return directory


def topology_directories(root: Path) -> Iterator[Path]:
    """Yield the data directories of topologies directly below `root`, sorted by name."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and (path / FORMAT_FILE).exists():
            yield path
