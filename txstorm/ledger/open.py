"""Opening the ledger of a data directory, of any kind."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from txstorm.clients.files import PRIVATE, make_directories
from txstorm.errors import DataDirectoryError, InputError, TxstormError
from txstorm.ledger import paths as names
from txstorm.ledger.credentials import SecretRefused, check_named, over_tls
from txstorm.ledger.location import (
    DELTA,
    LEDGER_FILE,
    MEMORY,
    SQLITE,
    ZOOKEEPER,
    LedgerSpec,
    default_ledger,
    parse_ledger,
    recorded_ledger,
    recorded_settings,
)
from txstorm.ledger.memory import MemoryLedger
from txstorm.ledger.port import Ledger
from txstorm.ledger.sqlite import BUSY, SqliteLedger
from txstorm.ledger.values import decode_value
from txstorm.masks import masked_url

if TYPE_CHECKING:
    from txstorm.topology.settings import Settings

# At least two letters, since one letter and a colon is a drive. A `Path` has merged the slashes into one.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)

_memory: dict[Path, MemoryLedger] = {}
_memory_lock = threading.Lock()


@contextmanager
def ledger_in_memory(data_dir: Path, ledger: MemoryLedger) -> Iterator[None]:
    """Within it, `ledger` is the ledger in memory of `data_dir`, an absolute path."""
    with _memory_lock:
        _memory[data_dir] = ledger
    try:
        yield
    finally:
        with _memory_lock:
            _memory.pop(data_dir, None)


def open_ledger(
    data_dir: str | Path,
    *,
    create: bool,
    read_only: bool = False,
    busy: float = BUSY,
    ledger: LedgerSpec | None = None,
    settings: Settings | None = None,
) -> Ledger:
    """Open the ledger of the data directory `data_dir`.

    Args:
        data_dir: the directory that contains the tables and, by default, the ledger.
        create: whether to create a missing directory or ledger; otherwise that is an error.
        read_only: for readers beside a run.
        busy: timeout for SQLite; see `SqliteLedger`.
        ledger: the result of `chosen_ledger`; by default the recorded ledger, or else ``ledger.db`` in the directory.
        settings: settings of the topology; by default those that the directory has recorded.

    Raises:
        InputError: `data_dir` is not on a local file system.
        DataDirectoryError: the ledger is missing, damaged, newer, or was moved elsewhere.
    """
    directory = local_directory(data_dir)
    chosen = ledger or recorded_ledger(directory) or default_ledger(directory)
    if create:
        make_durable_directory(directory)
    if chosen.kind == ZOOKEEPER:  # the only kind that needs settings for its connection
        settings = settings or over_tls(recorded_settings(directory), chosen)
    opened = open_spec(chosen, directory, create=create, read_only=read_only, busy=busy, settings=settings)
    try:
        check_in_use(opened, chosen)
    except BaseException:
        opened.close()
        raise
    return opened


def check_in_use(ledger: Ledger, named: LedgerSpec) -> None:
    """Raise `DataDirectoryError` if the content of `ledger` was moved; while the lease is held, it stays in use."""
    if (target := moved_to(ledger)) is not None:
        msg = f"ledger {named} was moved to {target}; expected the one in use: give --ledger {shlex.quote(target)}"
        raise DataDirectoryError(msg)


def open_spec(
    ledger: LedgerSpec,
    directory: Path | None,
    *,
    create: bool,
    read_only: bool = False,
    busy: float = BUSY,
    settings: Settings | None = None,
) -> Ledger:
    """Open `ledger`, even if its content has been moved; `directory`: the data directory that it belongs to, if known.

    Raises:
        SecretRefused: a secret would be sent to a host that only `directory` names.
    """
    check_named(ledger, directory, settings)
    if ledger.kind == SQLITE:
        path = Path(ledger.place)
        if directory is not None and path.parent != directory.absolute():
            _check_same_disk(ledger, directory)
            if create:
                make_durable_directory(path.parent)
        return SqliteLedger(path, create=create, read_only=read_only, busy=busy)
    if ledger.kind == DELTA:
        from txstorm.ledger.delta.ledger import DeltaLedger

        return DeltaLedger(ledger.place, create=create, read_only=read_only)
    if ledger.kind == MEMORY:
        return _in_memory(directory, create=create)
    from txstorm.ledger.zookeeper.open import open_zookeeper

    return open_zookeeper(ledger.hosts, ledger.chroot, settings, create=create, read_only=read_only)


def chosen_ledger(data_dir: Path, given: str | None) -> LedgerSpec:
    """Choose the ledger of `data_dir`: the recorded one, otherwise the `given` one, otherwise the default.

    Raises:
        InputError: the recorded ledger differs from the `given` one and was not moved there; or `given` is malformed.
    """
    found = recorded_ledger(data_dir)
    if given is None:
        return found or default_ledger(data_dir)
    wanted = parse_ledger(given)
    if found is None or found == wanted or _moved(found, data_dir, wanted):
        return wanted
    raise InputError(
        f"data directory {data_dir} uses the ledger {found}, not {wanted}; leave out --ledger, or move the ledger: "
        f"txstorm ledger copy {data_dir} {wanted}"
    )


def ledger_is_there(ledger: LedgerSpec, data_dir: Path, settings: Settings | None = None) -> bool:
    """Return whether `ledger` exists, regardless of its content; raise an error if that cannot be determined."""
    check_named(ledger, data_dir, settings)
    if ledger.kind == SQLITE:
        return Path(ledger.place).exists()
    if ledger.kind == DELTA:
        from txstorm.ledger.delta.ledger import DeltaLedger

        return DeltaLedger.is_there(ledger.place)
    if ledger.kind == MEMORY:
        return data_dir.absolute() in _memory
    from txstorm.ledger.zookeeper.open import zookeeper_is_there

    return zookeeper_is_there(ledger.hosts, ledger.chroot, settings)


def ledger_is_known(data_dir: Path) -> bool:
    """Return whether `data_dir` contains a ledger or records its location, without contacting a ledger elsewhere."""
    found = recorded_ledger(data_dir)
    return found is not None and (found.kind != MEMORY or data_dir.absolute() in _memory)


def moved_to(ledger: Ledger) -> str | None:
    """Return the name of the ledger to which `txstorm ledger copy` moved this one's content; None if not moved."""
    entry = ledger.get(names.MOVED)
    return None if entry is None else str(decode_value(None, entry.value, names.MOVED)["to"])


def _moved(found: LedgerSpec, data_dir: Path, wanted: LedgerSpec) -> bool:
    try:
        opened = open_spec(found, data_dir, create=False, read_only=True)
    except SecretRefused:
        raise
    except TxstormError:
        return False
    try:
        return moved_to(opened) == str(wanted)
    finally:
        opened.close()


def _in_memory(directory: Path | None, *, create: bool) -> MemoryLedger:
    key = Path() if directory is None else directory.absolute()
    with _memory_lock:
        if key not in _memory:
            if not create:
                raise DataDirectoryError(
                    f"data directory {key}: its ledger was in the memory of a process that has ended; expected it in "
                    f"this one; rebuild it from the tables: txstorm recover {key} --ledger sqlite:{key / LEDGER_FILE}"
                )
            _memory[key] = MemoryLedger()
        return _memory[key].beside()


def _check_same_disk(ledger: LedgerSpec, directory: Path) -> None:
    devices = {_existing(path).stat().st_dev for path in (Path(ledger.place).parent, directory.absolute())}
    if len(devices) > 1:
        raise InputError(
            f"ledger {ledger}: expected it on the file system of the tables in {directory}, got another one; SQLite's "
            "file and the tables must survive together: put it there, or take a zookeeper or delta ledger"
        )


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def local_directory(data_dir: str | Path) -> Path:
    """Return `data_dir` as a path; accept ``file://`` and raise `InputError` for other schemes and NUL characters."""
    text = str(data_dir)
    if "\0" in text:
        msg = f"data directory {text!r}: expected a path, got one with a NUL character; choose another --data-dir"
        raise InputError(msg)
    if (file := _FILE.fullmatch(text)) is not None:
        return Path(unquote(file[1]))
    if (scheme := _SCHEME.match(text)) is None:
        return Path(text)
    shown = masked_url(text)
    raise InputError(
        f"data directory {shown!r}: expected a path, got scheme {scheme[1]!r}; tables are written to a directory that "
        "the driver and all workers reach under one path: on a local disk, or on one that is mounted (on Databricks "
        "/Volumes/… or /dbfs/…) with --ledger zookeeper:… or delta:…; an object store can hold the ledger only"
    )


def make_durable_directory(directory: Path) -> None:
    """Create `directory` and its parents durably, accessible to this user only."""
    try:
        make_directories(directory, PRIVATE)
    except OSError as error:
        msg = f"data directory {directory}: expected to make it, got {error.strerror}; choose another --data-dir"
        raise DataDirectoryError(msg) from error
