"""Storm's ``user/<partition>/<txid>``: what each partition of a spout gave, for those who look for it there.

txstorm itself reads the document of a txid, which holds the same. The entries are written and removed with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete, Ledger, Op, Put


class PartitionEntries:
    """The entries of the spouts that are written against Storm's partition interfaces; others have none.

    Usable from several threads: one plans, another one completes.

    Args:
        ledger: asked for what is there when that is first needed, and then no more.
        put: makes the operation that stores a value at a path.
    """

    def __init__(self, ledger: Ledger, put: Callable[[str, Any], Put]) -> None:
        self._ledger = ledger
        self._put = put
        self._lock = threading.Lock()

    @cached_property
    def _kept(self) -> dict[int, set[str]]:
        """Txid → its partitions that have an entry."""
        kept: dict[int, set[str]] = {}
        for partition in self._ledger.children(names.USER):
            for txid in self._ledger.children(f"{names.USER}/{partition}"):
                kept.setdefault(int(txid), set()).add(partition)
        return kept

    def put_ops(self, txid: int, document: Any) -> list[Op]:
        """The operations that go with storing `document` for `txid`."""
        given = _given(document)
        with self._lock:
            gone = self._kept.get(txid, set()) - set(given)
            self._kept[txid] = set(given)
        return [
            *(self._put(names.user_path(partition, txid), meta) for partition, meta in given.items()),
            *(Delete(names.user_path(partition, txid)) for partition in sorted(gone)),
        ]

    def remove_ops(self, txids: Iterable[int]) -> list[list[Op]]:
        """The operations that go with removing the documents of `txids`, by txid."""
        with self._lock:
            gone = {txid: self._kept.pop(txid, set()) for txid in txids}
        return [[Delete(names.user_path(one, txid)) for one in sorted(gone[txid])] for txid in gone if gone[txid]]

    def cleanup_ops(self, before: int) -> list[list[Op]]:
        """The operations that remove every txid lower than `before`, by txid."""
        with self._lock:
            old = sorted(txid for txid in self._kept if txid < before)
        return self.remove_ops(old)


def _given(document: Any) -> dict[str, Any]:
    """Partition → what it returned, of those that emitted; empty before the tasks have reported."""
    parts = document.get("parts") if isinstance(document, dict) else None
    return {partition: part["batch"] for partition, part in (parts or {}).items() if "batch" in part}
