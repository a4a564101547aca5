"""Opening the ledger of a data directory."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from txstorm.errors import DataDirectoryError, InputError
from txstorm.ledger.durable import sync_file
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.ledger.sqlite_file import BUSY

LEDGER_FILE = "ledger.db"
# Two letters at least: one letter and a colon is a drive.
# A `Path` has folded the slashes into one.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)


def open_ledger(data_dir: str | Path, *, create: bool, read_only: bool = False, busy: float = BUSY) -> SqliteLedger:
    """The SQLite ledger ``ledger.db`` of the data directory `data_dir`; `create` makes both where missing.

    Raises:
        InputError: `data_dir` is not on a local file system: the ledger stands beside the tables, and SQLite's
            locks and syncs hold on local disks only.
        DataDirectoryError: as `SqliteLedger`.
    """
    directory = local_directory(data_dir)
    if create:
        _make(directory)
    return SqliteLedger(directory / LEDGER_FILE, create=create, read_only=read_only, busy=busy)


def local_directory(data_dir: str | Path) -> Path:
    """`data_dir` as a path; ``file://`` is accepted; another scheme and what is no path raise `InputError`."""
    text = str(data_dir)
    if "\0" in text:
        msg = f"data directory {text!r}: expected a path, got one that holds a NUL; choose another --data-dir"
        raise InputError(msg)
    if (file := _FILE.fullmatch(text)) is not None:
        return Path(unquote(file[1]))
    if (scheme := _SCHEME.match(text)) is None:
        return Path(text)
    msg = (
        f"data directory {text!r}: expected a directory on a local disk, got scheme {scheme[1]!r}; "
        "the SQLite ledger works only beside tables on the same local file system"
    )
    raise InputError(msg)


def _make(directory: Path) -> None:
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"data directory {directory}: expected to make it, got {error.strerror}; choose another --data-dir"
        raise DataDirectoryError(msg) from error
    for path in missing:
        sync_file(path.parent)
