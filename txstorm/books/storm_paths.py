"""Storm's entries ``user/<partition>/<txid>``: the metadata of each partition of a spout, for tools that read them.

txstorm itself reads a txid's spout document, which holds the same metadata; the entries are written and removed with
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from txstorm.ledger import paths as names
from txstorm.ledger.port import Delete, Ledger, Op, Put


class PartitionEntries:
    """Operations on the partition entries; only spouts with Storm's partition interfaces have any.

    Thread-safe: one thread plans transactions while another completes them.

    Args:
        ledger: read once, when its entries are first needed.
        put: function that returns the operation to store a value at a path.
    """

    def __init__(self, ledger: Ledger, put: Callable[[str, Any], Put]) -> None:
        self._ledger = ledger
        self._put = put
        self._lock = threading.Lock()

    @cached_property
    def _kept(self) -> dict[int, set[str]]:
        """The partitions that have an entry, keyed by txid."""
        kept: dict[int, set[str]] = {}
        for partition in self._ledger.children(names.USER):
            for txid in self._ledger.children(f"{names.USER}/{partition}"):
                kept.setdefault(int(txid), set()).add(partition)
        return kept

    def put_ops(self, txid: int, document: Any) -> list[Op]:
        """Build the partition operations to commit together with `document`, the spout document of `txid`."""
        metas = _partition_metas(document)
        with self._lock:
            removed = self._kept.get(txid, set()) - set(metas)
            self._kept[txid] = set(metas)
        return [
            *(self._put(names.user_path(partition, txid), meta) for partition, meta in metas.items()),
            *(Delete(names.user_path(partition, txid)) for partition in sorted(removed)),
        ]

    def remove_ops(self, txids: Iterable[int]) -> list[list[Op]]:
        """Build the partition operations to commit with the removal of the documents of `txids`, one list per txid."""
        with self._lock:
            removed = {txid: self._kept.pop(txid, set()) for txid in txids}
        return [
            [Delete(names.user_path(partition, txid)) for partition in sorted(partitions)]
            for txid, partitions in removed.items()
            if partitions
        ]

    def cleanup_ops(self, before: int) -> list[list[Op]]:
        """Build the operations that remove the entries of every txid lower than `before`, one list per txid."""
        with self._lock:
            old = sorted(txid for txid in self._kept if txid < before)
        return self.remove_ops(old)


def _partition_metas(document: Any) -> dict[str, Any]:
    """Return the metadata of each partition that emitted tuples; empty before the tasks have reported."""
    parts = document.get("parts") if isinstance(document, dict) else None
    return {partition: part["batch"] for partition, part in (parts or {}).items() if "batch" in part}
