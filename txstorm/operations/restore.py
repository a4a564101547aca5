"""`txstorm savepoint restore`: create a data directory with the content of a savepoint."""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from txstorm.api.names import name_fault
from txstorm.books.books import opened_books
from txstorm.books.data_directory import make_directory, topology_in, write_format
from txstorm.books.records import Identity, Meta
from txstorm.books.savepoint import Savepoint
from txstorm.clients.files import sync_names
from txstorm.errors import DataDirectoryError, InputError
from txstorm.lanes import THREADS
from txstorm.ledger import paths as names
from txstorm.ledger.open import local_directory, open_ledger
from txstorm.ledger.port import Put, in_commits
from txstorm.ledger.values import encode_value
from txstorm.operations.kept_history import history_row
from txstorm.operations.savepoints import find_savepoint
from txstorm.recovery.clone import clone_tables
from txstorm.storage.tables.history import append_history
from txstorm.storage.tables.identity import TopologyIdentity

log = logging.getLogger(__name__)


def restore_savepoint(
    data_dir: str | Path,
    name: str,
    new_dir: str | Path,
    topology: str | None = None,
    clock: Callable[[], float] = THREADS.seconds,
) -> dict[str, Any]:
    """Create the data directory `new_dir` with the tables of the savepoint `name` of `data_dir`.

    A run of a topology with the id `topology` (by default, the id in the savepoint) in `new_dir` continues with the
    next txid, and reads the source from where the savepoint's transaction ended. The original may be running, since the
    two are independent. Maps and outlets are in external systems and are not restored. If this call crashes, `new_dir`
    does not exist.

    Returns:
        ``topology``, ``data_dir`` (the new directory), ``savepoint``, ``txid``, ``tables``, and ``outside`` (maps and
        outlets of the original, which are empty at the start of a run in `new_dir`).

    Raises:
        InputError: there is no such savepoint, `new_dir` exists and is not empty, or the id is invalid.
        TableCorrupt: a version or file that the savepoint needs is damaged.
    """
    target, directory = local_directory(new_dir), topology_in(data_dir)
    with opened_books(directory, read_only=True) as books:
        found = find_savepoint(directory, books, name)
        owner = TopologyIdentity(topology or found.topology, uuid.uuid4().hex)
        if fault := name_fault("topology", owner.topology):
            raise InputError(fault)
        made = _beside(target)
        try:
            tables = clone_tables(directory, found, made, owner, int(clock() * 1000))
            append_history(made, [_row(directory, found)])
            _write_ledger(made, owner, found, tables)
            _put_in_place(made, target)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    log.info("savepoint %s is restored in %s", name, target)
    return {
        "topology": owner.topology,
        "data_dir": str(target),
        "savepoint": name,
        "txid": found.txid,
        "tables": sorted(tables),
        "outside": list(found.outside),
    }


def _beside(target: Path) -> Path:
    """Create a temporary directory next to `target`; raise `InputError` if `target` exists and is not empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        msg = f"{target}: expected a new directory to restore into, found something there; choose another one"
        raise InputError(msg)
    made = target.absolute().with_name(f".{target.name}.{uuid.uuid4().hex}.restoring")
    make_directory(made)
    return made


def _row(directory: Path, savepoint: Savepoint) -> dict[str, Any]:
    """Return the history row for the savepoint's txid, built from the savepoint alone if the original has expired."""
    known = {"attempt": 0, "digest": "", "tuples": None}
    try:
        row = history_row(directory, savepoint.timeline, savepoint.txid)
        known = {name: row[name] for name in known}
    except DataDirectoryError:
        log.warning("txid %s is no longer in the history of %s", savepoint.txid, directory)
    own = {"first": savepoint.txid, "last": savepoint.txid, "extents": savepoint.document, "versions": {}}
    return {**known, **own, "txid": savepoint.txid, "timeline": 0, "stamp": savepoint.stamp}


def _write_ledger(made: Path, owner: TopologyIdentity, savepoint: Savepoint, tables: Mapping[str, int]) -> None:
    make_directory(made / "intents")
    values = {
        names.EPOCH: 0,
        names.CURRTX: savepoint.txid + 1,
        names.TABLES: dict(tables),
        names.meta_path(savepoint.txid): Meta(savepoint.document, savepoint.stamp).to_json(),
        names.IDENTITY: asdict(Identity(owner.topology, owner.incarnation)),
    }
    ledger = open_ledger(made, create=True)
    try:
        for ops in in_commits([[Put(path, encode_value(made / "intents", one, path))] for path, one in values.items()]):
            ledger.commit(ops)
    finally:
        ledger.close()
    write_format(made)


def _put_in_place(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError as error:
        msg = f"{target}: expected a new directory to restore into, got {error.strerror}; choose another one"
        raise InputError(msg) from error
    sync_names(target.absolute().parent, [target])
