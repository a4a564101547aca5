"""Counterpart of Storm's `RotatingTransactionalState`: JSON values keyed by txid, for spouts that keep a history."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from txstorm.errors import LedgerCorrupt, OrderError
from txstorm.ledger.port import Delete, Ledger, Put
from txstorm.ledger.values import decode_value, encode_value


class RotatingState:
    """Ordered map txid → JSON value below `path` of a ledger, which is read once, at construction; not thread-safe.

    Values are returned as JSON decodes them (tuples as lists), also the first time, so that a replay sees the same as
    the first attempt; every call returns a new copy. With `strict`, new txids must come without gaps, from 1;
    `OrderError` otherwise. Raises `LedgerCorrupt` if an entry below `path` was not written by this class.
    """

    def __init__(self, ledger: Ledger, path: str, strict: bool = False) -> None:
        self._ledger, self._path, self._strict = ledger, path, strict
        # As text: callers may change the values they get.
        self._texts: dict[int, str] = {}
        for name, entry in ledger.scan(path).items():
            if not re.fullmatch("0|[1-9][0-9]*", name):
                raise LedgerCorrupt(f"ledger path {path}/{name}: expected a txid as the last name; choose another path")
            self._texts[int(name)] = json.dumps(decode_value(None, entry.value, f"{path}/{name}"))

    def __contains__(self, txid: object) -> bool:
        return txid in self._texts

    def txids(self) -> list[int]:
        """Return the txids that have a value, in ascending order."""
        return sorted(self._texts)

    def get(self, txid: int) -> Any:
        """Return the value of `txid`, or None; ``txid in state`` distinguishes a stored None."""
        return json.loads(self._texts[txid]) if txid in self._texts else None

    def last(self) -> Any:
        """Return the value of the highest txid; None if there is none."""
        return self.get(max(self._texts, default=0))

    def previous(self, txid: int) -> Any:
        """Return the value of the highest txid below `txid`; None if there is none."""
        return self.get(max((known for known in self._texts if known < txid), default=0))

    def get_state(self, txid: int, init: Callable[[int, Any], Any]) -> Any:
        """Return the value of `txid`; if absent, store ``init(txid, previous value)``, or None below a later txid."""
        if txid not in self._texts:
            last = max(self._texts, default=0)
            if self._strict and txid != last + 1:
                follows = f"expected txid {last + 1}, which follows {last or 'nothing'}, got {txid}"
                raise OrderError(f"{self._path}/{txid}: {follows}; txids are planned in order, without gaps")
            self.override(txid, init(txid, self.previous(txid)) if not self._texts or txid > last else None)
        return self.get(txid)

    def get_state_or_create(self, txid: int, init: Callable[[int, Any], Any]) -> Any:
        """Return the value of `txid` if already stored; otherwise store it, like `get_state`, and return None."""
        known, value = txid in self._texts, self.get_state(txid, init)
        return value if known else None

    def override(self, txid: int, value: Any) -> None:
        """Store `value` for `txid`, in any order; raise `MetadataError` unless it is JSON of at most 256 KiB."""
        data = encode_value(None, value, path := f"{self._path}/{txid}")
        self._ledger.commit([Put(path, data)])
        self._texts[txid] = json.dumps(decode_value(None, data, path))

    def remove(self, *txids: int) -> None:
        """Remove the values of `txids`; absent ones are ignored."""
        self._ledger.commit([Delete(f"{self._path}/{txid}") for txid in txids if txid in self._texts])
        self._texts = {known: text for known, text in self._texts.items() if known not in txids}

    def cleanup_before(self, txid: int) -> None:
        """Remove the values of all txids lower than `txid`."""
        self.remove(*(known for known in self._texts if known < txid))
