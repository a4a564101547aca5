"""Row store: the rows of one state in a local key-value store, ``index/<name>/<number>``, with the txid they are as of.

Not needed for recovery: a store that is missing, damaged, ahead of its table, of another table or of another format is
rebuilt from the tables. A store is used only after all of these have been ruled out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.clients.rocksdb import KeyStore, KeyStoreError, remove_store
from txstorm.errors import HeldError
from txstorm.lanes import THREADS
from txstorm.state.index.row_codec import FORMAT, RowCodec
from txstorm.storage.rows.forms import Key
from txstorm.storage.rows.schema import OP, REMOVED, UPDATED, changes_schema
from txstorm.storage.rows.update_rules import Gone, Stored

log = logging.getLogger(__name__)

_NOTE = b"\xff\xffnote"
"""Key of the metadata, which sorts after all row keys: these begin with a key group, which is below 0x8000."""
_CHUNK = 1_000
"""Number of rows per write batch; small, since writing a batch blocks every other thread of the process."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """Identity of the state whose rows a store contains; a store is used only if every field matches.

    Attributes:
        incarnation, timeline: the incarnation of the data directory, and its timeline.
        state: the state's name.
        schema: digest of the state's columns.
    """

    incarnation: str
    timeline: int
    state: str
    schema: str


def belonging(state: KeyedState, incarnation: str, timeline: int) -> Belonging:
    """Create the identity of the index of `state` in the data directory with `incarnation`, on `timeline`."""
    columns = f"{list(state.key)} {changes_schema(state)}".encode()
    return Belonging(incarnation, timeline, state.name, blake2b(columns, digest_size=16).hexdigest())


class RowStore:
    """Rows of one state on disk. One thread may write at a time, while others read.

    Attributes:
        last: the txid up to which it contains all rows (it may contain some later rows); None while it is being filled.
    """

    def __init__(self, state: KeyedState, store: KeyStore, owner: Belonging, last: int | None) -> None:
        self.last = last
        self._codec = RowCodec(state)
        self._store = store
        self._owner = owner
        self._unsynced = False
        self._looked_at = b""

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return self._store.path

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """Read the row of each of `keys`, None for a key without a row; raise `KeyStoreError` on failure."""
        found = self._store.get(self._codec.keys(keys))
        rows = iter(self._codec.decode([row for row in found if row is not None]))
        return [None if row is None else next(rows) for row in found]

    def put(self, rows: Mapping[Key, Stored | Gone], rest: Callable[[float], object] = lambda worked: None) -> None:
        """Write the latest row of each key; raise `KeyStoreError` on failure.

        Call `note` once all rows of a txid are written. `rest` is called at intervals, with the seconds of work since
        its last call, and can throttle the writing by blocking.
        """
        items = iter(rows.items())
        began = THREADS.monotonic()
        while chunk := list(islice(items, _CHUNK)):
            self._put([(key, row) for key, row in chunk if row[0] is not None])
            self._delete([key for key, row in chunk if row[0] is None])
            rest(THREADS.monotonic() - began)
            began = THREADS.monotonic()

    def put_table(self, table: pa.Table) -> None:
        """Write rows of a state table, or later change rows in txid order; raise `KeyStoreError` on failure.

        Call `note` once all rows up to a txid are written.
        """
        for start in range(0, table.num_rows, _CHUNK):
            self._put_part(table.slice(start, _CHUNK))

    def expire(self, upto: datetime, most: int) -> None:
        """Check the next `most` rows and delete those with a stamp up to `upto`; raise `KeyStoreError` on failure.

        Each call continues where the previous call ended, and starts over after the last row.
        """
        found = self._store.scan(self._looked_at, _NOTE, most)
        self._looked_at = found[-1][0] + b"\0" if len(found) == most else b""
        if found:
            rows = zip(found, self._codec.decode([row for _, row in found]), strict=True)
            self._store.write([], [key for (key, _), (value, _, _) in rows if value[-1] <= upto])

    def note(self, last: int) -> None:
        """Record that all rows up to txid `last` are written; raise `KeyStoreError` on failure."""
        note = {"format": FORMAT, **asdict(self._owner), "last": last}
        self._store.write([(_NOTE, json.dumps(note).encode())])
        self.last = last
        self._unsynced = True

    def sync(self) -> None:
        """Make all writes durable; raise `KeyStoreError` on failure."""
        if self._unsynced:
            self._store.sync()
            self._unsynced = False

    def close(self) -> None:
        """Make all writes durable and close the store; raise `KeyStoreError` on failure."""
        try:
            self.sync()
        finally:
            self._store.close()

    def remove(self) -> None:
        """Close the store and delete its files."""
        try:
            self._store.close()
        except KeyStoreError as error:
            log.warning("%s", error)
        remove_store(self.path)

    def _put(self, rows: Sequence[tuple[Key, Stored]]) -> None:
        if not rows:
            return
        keys, values = zip(*rows, strict=True)
        encoded = self._codec.rows(*zip(*values, strict=True))
        self._store.write(zip(self._codec.keys(keys), encoded, strict=True))

    def _delete(self, keys: Sequence[Key]) -> None:
        if keys:
            self._store.write([], self._codec.keys(keys))

    def _put_part(self, table: pa.Table) -> None:
        keys, rows = self._codec.of_table(table)
        ops = table[OP.name].to_pylist() if OP.name in table.column_names else [UPDATED] * table.num_rows
        if REMOVED not in ops:
            self._store.write(zip(keys, rows, strict=True))
            return
        newest = {key: (row, op) for key, row, op in zip(keys, rows, ops, strict=True)}
        puts = ((key, row) for key, (row, op) in newest.items() if op != REMOVED)
        self._store.write(puts, (key for key, (_, op) in newest.items() if op == REMOVED))


class RowStores:
    """Row stores of one state, one directory each; a store that another process still has open is not touched."""

    def __init__(self, directory: Path, state: KeyedState, owner: Belonging) -> None:
        self._directory = directory
        self._state = state
        self._owner = owner

    def find(self, published: int) -> RowStore | None:
        """Open the existing store if it belongs to this state and is not ahead of txid `published`; otherwise None.

        An unusable store is removed, with a warning in the log.
        """
        found = None
        for path in self._paths():
            try:
                store = KeyStore.open(path)
            except HeldError as error:
                log.warning("%s", error)
                continue
            except KeyStoreError as error:
                _useless(path, str(error))
                continue
            last, fault = self._noted(store, published) if found is None else (0, "there is a newer one")
            if fault is None:
                found = RowStore(self._state, store, self._owner, last)
            else:
                store.close()
                _useless(path, fault)
        return found

    def make(self) -> RowStore:
        """Create an empty store; raise `KeyStoreError` on failure."""
        numbers = [int(path.name) for path in self._paths()]
        path = self._directory / str(max(numbers, default=0) + 1)
        return RowStore(self._state, KeyStore.open(path), self._owner, None)

    def _paths(self) -> list[Path]:
        found = (path for path in self._directory.glob("*") if path.name.isdecimal())
        return sorted(found, key=lambda path: int(path.name), reverse=True)

    def _noted(self, store: KeyStore, published: int) -> tuple[int, str | None]:
        """Return the txid recorded in a store, and the fault that makes it unusable (None if usable)."""
        try:
            (note,) = store.get([_NOTE])
            found: dict[str, Any] = json.loads(note) if note else {}
            version, last = found.pop("format", None), found.pop("last", -1)
        except (KeyStoreError, ValueError, AttributeError) as error:
            return 0, str(error)
        if not note:
            return 0, "it was not finished"
        if version != FORMAT:
            return 0, f"it has format {version!r}, this txstorm reads {FORMAT}"
        if found != asdict(self._owner):
            return 0, f"expected it to be of {asdict(self._owner)}, found {found}"
        if not isinstance(last, int) or not 0 <= last <= published:
            return 0, f"it is as of txid {last}, the table as of {published}"
        return last, None


def _useless(path: Path, why: str) -> None:
    log.warning("index %s: %s; it is removed, and rebuilt from the tables", path, why)
    remove_store(path)
