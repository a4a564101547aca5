"""When rows of a state of the layout ``merge`` are over though nobody writes: then a group touches the table for that.

The table is to have no key that is gone, at any version. A group's last stamp says which are; the staged rows of the
group and the table as it is say what publishing makes of them (`txstorm.storage.tables.merge_layout`).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from txstorm.storage.rows.schema import STAMP
from txstorm.storage.rows.ttl import over_at, ttl_of
from txstorm.storage.tables.table import DeltaTableState


class Expiring:
    """The rows of one table, whose keys have a time to live, by the oldest of each of its files.

    A file is read for that once, when the first group after it is staged.
    """

    def __init__(self, table: DeltaTableState) -> None:
        self._table = table
        self._oldest: dict[str, datetime] = {}

    def is_due(self, stamp: int) -> bool:
        """Whether a row is over at `stamp`, UTC microseconds.

        Asked before a group that ends with it is staged, and after the one before that is published.

        Raises:
            TableCorrupt: a file is missing or damaged.
        """
        handle = self._table.handle
        ttl = ttl_of(handle.properties)
        assert ttl is not None
        paths = (file.path for file in handle.files())
        self._oldest = {path: self._oldest.get(path) or self._read(path) for path in paths}
        return any(oldest <= over_at(stamp, ttl) for oldest in self._oldest.values())

    def _read(self, path: str) -> datetime:
        stamps: Any = self._table.handle.read([STAMP.name], paths=[path])[STAMP.name]
        oldest: datetime = pc.min(stamps).as_py()
        return oldest
