"""The rows of one state in a local key store, with the txid they are as of: ``index/<name>/<number>``.

Nothing here is needed to recover: what is missing, damaged, of another table, ahead of its table or of a newer format
is made again from the tables. It is only believed when all of that has been ruled out.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from txstorm.api.state import KeyedState
from txstorm.clients.rocksdb import KeyStore, KeyStoreError, remove_store
from txstorm.errors import HeldError
from txstorm.state.index.ordered_rows import CollectionKey, Columns, Place, ScanRange
from txstorm.state.index.row_codec import FORMAT, RowCodec
from txstorm.storage.rows.forms import Key
from txstorm.storage.rows.schema import OP, REMOVED, UPDATED, changes_schema
from txstorm.storage.rows.semantics import Gone, Stored

log = logging.getLogger("txstorm.index")

_NOTE = b"\xff\xffnote"
"""Behind all keys: those begin with a key group, which is below 0x8000."""
_CHUNK = 1_000
"""Rows of one batch: writing one holds up every other thread of the process."""


@dataclass(frozen=True, slots=True)
class Belonging:
    """Whose rows a store holds; all of it must agree.

    Attributes:
        incarnation, timeline, state: the state's.
        schema: digest over its columns.
    """

    incarnation: str
    timeline: int
    state: str
    schema: str


def belonging(state: KeyedState, incarnation: str, timeline: int) -> Belonging:
    """Whose rows the index of `state` holds in a data directory of `incarnation`, on `timeline`."""
    columns = f"{list(state.key)} {changes_schema(state)}".encode()
    return Belonging(incarnation, timeline, state.name, blake2b(columns, digest_size=16).hexdigest())


class RowStore:
    """The rows of one state, on disk. One thread writes at a time, others may read meanwhile.

    Attributes:
        last: it holds all rows up to this txid, and maybe some later ones; None while it is being filled.
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
        """Its directory."""
        return self._store.path

    def get(self, keys: Sequence[Key]) -> list[Stored | None]:
        """The row of each of `keys`, None where there is none; raises `KeyStoreError`."""
        found = self._store.get(self._codec.keys(keys))
        rows = iter(self._codec.decode([row for row in found if row is not None]))
        return [None if row is None else next(rows) for row in found]

    def put(self, rows: Mapping[Key, Stored | Gone], rest: Callable[[float], object] = lambda worked: None) -> None:
        """Take over the newest rows of keys; raises `KeyStoreError`. Call `note` when all up to a txid are there.

        `rest` is called now and then, with the seconds of work since the last time.
        """
        items = iter(rows.items())
        began = time.monotonic()
        while chunk := list(islice(items, _CHUNK)):
            self._put([(key, row) for key, row in chunk if row[0] is not None])
            self._delete([key for key, row in chunk if row[0] is None])
            rest(time.monotonic() - began)
            began = time.monotonic()

    def put_table(self, table: pa.Table) -> None:
        """Take over the rows of a state table, or of later changes in txid order; raises `KeyStoreError`.

        Call `note` when all up to a txid are there.
        """
        for start in range(0, table.num_rows, _CHUNK):
            self._put_part(table.slice(start, _CHUNK))

    def scan(self, owners: Sequence[CollectionKey], span: ScanRange) -> list[list[tuple[Place, Stored]]]:
        """Places and rows of each of the collections `owners` in `span`, in its order; raises `KeyStoreError`."""
        found = self._scanned(owners, span)
        rows = iter(self._decoded([row for part in found for row in part]))
        return [list(islice(rows, len(part))) for part in found]

    def columns(self, owners: Sequence[CollectionKey], span: ScanRange) -> Columns:
        """The same column by column; raises `KeyStoreError`."""
        found = self._scanned(owners, span)
        of = np.repeat(np.arange(len(found)), [len(part) for part in found])
        return self._codec.columns(of, [row for part in found for row in part])

    def expire(self, upto: datetime, most: int) -> None:
        """Look at the next `most` rows and forget those with a stamp up to `upto`; raises `KeyStoreError`.

        The next call goes on where this one ends, and after the last row with the first.
        """
        found = self._store.scan(self._looked_at, _NOTE, most)
        self._looked_at = found[-1][0] + b"\0" if len(found) == most else b""
        if found:
            rows = zip(found, self._codec.decode([row for _, row in found]), strict=True)
            self._store.write([], [key for (key, _), (value, _, _) in rows if value[-1] <= upto])

    def note(self, last: int) -> None:
        """Remember that all rows up to txid `last` are there; raises `KeyStoreError`."""
        note = {"format": FORMAT, **asdict(self._owner), "last": last}
        self._store.write([(_NOTE, json.dumps(note).encode())])
        self.last = last
        self._unsynced = True

    def sync(self) -> None:
        """Make durable what was written; raises `KeyStoreError`."""
        if self._unsynced:
            self._store.sync()
            self._unsynced = False

    def close(self) -> None:
        """Make it durable and let go of it; raises `KeyStoreError`."""
        try:
            self.sync()
        finally:
            self._store.close()

    def remove(self) -> None:
        """Let go of it and of its files."""
        try:
            self._store.close()
        except KeyStoreError as error:
            log.warning("%s", error)
        remove_store(self.path)

    def _scanned(self, owners: Sequence[CollectionKey], span: ScanRange) -> list[list[tuple[bytes, bytes]]]:
        scan, ranges = self._store.scan, self._codec.ranges(owners, span)
        return [
            scan(first, last + b"\0", span.most, backwards=span.backwards) if first <= last else []
            for first, last in ranges
        ]

    def _decoded(self, found: Sequence[tuple[bytes, bytes]]) -> list[tuple[Place, Stored]]:
        if not found:
            return []
        keys, rows = zip(*found, strict=True)
        return list(zip(self._codec.places(keys), self._codec.decode(rows), strict=True))

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
    """The stores of one state: a directory each, since one that a frozen process still has open is left to it."""

    def __init__(self, directory: Path, state: KeyedState, owner: Belonging) -> None:
        self._directory = directory
        self._state = state
        self._owner = owner

    def find(self, published: int) -> RowStore | None:
        """The store that is there, if it is one of this state and not ahead of txid `published`.

        What cannot be used is removed, with a line in the log.
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
        """A new, empty one; raises `KeyStoreError`."""
        numbers = [int(path.name) for path in self._paths()]
        path = self._directory / str(max(numbers, default=0) + 1)
        return RowStore(self._state, KeyStore.open(path), self._owner, None)

    def _paths(self) -> list[Path]:
        found = (path for path in self._directory.glob("*") if path.name.isdecimal())
        return sorted(found, key=lambda path: int(path.name), reverse=True)

    def _noted(self, store: KeyStore, published: int) -> tuple[int, str | None]:
        """The txid that it is as of, and what is wrong with it."""
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
    log.warning("index %s: %s; it is removed and made again from the tables", path, why)
    remove_store(path)
