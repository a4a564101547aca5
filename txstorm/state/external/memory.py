"""In-memory map backend for tests; its rows are lost when the process ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from threading import Lock

from txstorm.api.external import MapMark, MapRow


class MemoryBackend:
    """In-memory `txstorm.api.external.MarkedMapBackend`; successive runs in one process can share it.

    Attributes:
        rows: key → row, for tests to inspect.
        calls: number of calls by method name.
    """

    def __init__(self) -> None:
        self.rows: dict[str, MapRow] = {}
        self.calls = {"multi_get": 0, "multi_put": 0, "put_marked": 0}
        self._mark: MapMark | None = None
        self._removed: set[str] = set()
        self._lock = Lock()

    def multi_get(self, keys: Sequence[str]) -> list[MapRow | None]:
        """Implement the method of `txstorm.api.external.MapBackend`."""
        self.calls["multi_get"] += 1
        with self._lock:
            return deepcopy([self.rows.get(key) for key in keys])

    def multi_put(self, rows: Mapping[str, MapRow | None]) -> None:
        """Implement the method of `txstorm.api.external.MapBackend`."""
        self.calls["multi_put"] += 1
        with self._lock:
            self._put(rows)

    def mark(self) -> MapMark | None:
        """Implement the method of `txstorm.api.external.MarkedMapBackend`."""
        return self._mark

    def put_marked(self, rows: Mapping[str, MapRow | None], expected: MapMark | None, mark: MapMark) -> bool:
        """Implement the method of `txstorm.api.external.MarkedMapBackend`."""
        self.calls["put_marked"] += 1
        with self._lock:
            if self._mark != expected:
                return False
            self._put(rows)
            self._mark = mark
            return True

    def _put(self, rows: Mapping[str, MapRow | None]) -> None:
        newest = max((row.txid for row in rows.values() if row), default=0)
        for key in [key for key in self._removed if self.rows[key].txid < newest]:
            del self.rows[key]
            self._removed.remove(key)
        for key, row in rows.items():
            self._removed.discard(key)
            if row is None:
                self.rows.pop(key, None)
                continue
            self.rows[key] = deepcopy(row)
            if row.value is None:
                self._removed.add(key)
