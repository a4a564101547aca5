"""Storm's `RotatingTransactionalState`: values by txid, mirrored in the ledger, old ones cleaned away."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from txstorm.api.attempt import FIRST_TXID
from txstorm.errors import LedgerCorrupt, OrderError
from txstorm.ledger.port import Check, Delete, Ledger, Op, Put
from txstorm.ledger.values import decode_value, encode_value

Init = Callable[[int, Any], Any]


class RotatingState:
    """An ordered map txid → JSON value under `path`, read from the ledger once, at construction.

    Values come back as JSON returns them (tuples as lists), also the first time, so a replay sees what the first
    emission saw; every call gives a fresh copy. One writer at a time, and one thread.

    Two ways to write: the methods with Storm's names write at once. `put_ops`, `remove_ops` and `cleanup_ops`
    change nothing and return ledger operations for a commit of the caller's, who then calls `committed`.

    Args:
        ledger: where the entries are.
        path: under which path, one entry per txid.
        strict: whether txids must come without gaps, from 1 (Storm's coordinator metadata).
        blob_dir: for values over 256 KiB, see `encode_value`.
        guards: checked by every write of this object's own, such as the epoch.

    Raises:
        LedgerCorrupt: an entry under `path` is none of ours.
    """

    def __init__(
        self, ledger: Ledger, path: str, strict: bool, blob_dir: Path | None = None, guards: Sequence[Check] = ()
    ) -> None:
        self._ledger = ledger
        self._path = path
        self._strict = strict
        self._blob_dir = blob_dir
        self._guards = tuple(guards)
        # JSON text rather than objects: whoever gets a value may change it.
        self._texts = {self._txid(name): self._text(name, entry.value) for name, entry in ledger.scan(path).items()}

    def __contains__(self, txid: object) -> bool:
        return txid in self._texts

    def txids(self) -> list[int]:
        """The txids that have a value, ascending."""
        return sorted(self._texts)

    def get(self, txid: int) -> Any:
        """The value of `txid`; None if there is none (or it is None: use ``txid in state`` to know)."""
        return json.loads(self._texts[txid]) if txid in self._texts else None

    def last(self) -> Any:
        """The value of the highest txid, or None."""
        return self.get(max(self._texts, default=0))

    def previous(self, txid: int) -> Any:
        """The value of the highest txid below `txid`, or None."""
        return self.get(_before(self.txids(), txid))

    def get_state(self, txid: int, init: Init) -> Any:
        """The value of `txid`, made by ``init(txid, previous value)`` and stored if there is none yet.

        Where a later txid has a value already and this one has none, it is given None for good, without `init`.

        Raises:
            OrderError: the state is strict and `txid` is not the next one.
            MetadataError: the value is not JSON.
        """
        if txid not in self._texts:
            self._check_order(txid, self.txids())
            later = bool(self._texts) and max(self._texts) > txid
            self.override(txid, None if later else init(txid, self.previous(txid)))
        return self.get(txid)

    def get_state_or_create(self, txid: int, init: Init) -> Any:
        """The stored value of `txid`; None if it has just been made as `get_state` does."""
        if txid in self._texts:
            return self.get(txid)
        self.get_state(txid, init)
        return None

    def override(self, txid: int, value: Any) -> None:
        """Store `value` for `txid`, whatever is there and in whatever order."""
        self._write([self._put(txid, value)])

    def remove(self, txid: int) -> None:
        """Remove `txid`; removing what is absent is no error."""
        self._write(self.remove_ops([txid]))

    def cleanup_before(self, txid: int) -> None:
        """Remove every txid lower than `txid`."""
        self._write(self.cleanup_ops(txid))

    def put_ops(self, values: Mapping[int, Any]) -> list[Op]:
        """The operations that store `values`: of txids that are there, and of new ones in order.

        Raises:
            OrderError: the state is strict and a new txid is not the next one.
            MetadataError: a value is not JSON.
        """
        known = self.txids()
        for txid in sorted(set(values) - set(known)):
            self._check_order(txid, known)
            known.append(txid)
        return [self._put(txid, values[txid]) for txid in sorted(values)]

    def remove_ops(self, txids: Iterable[int]) -> list[Op]:
        """The operations that remove those of `txids` that are there."""
        return [Delete(self._entry(txid)) for txid in sorted(set(txids) & set(self._texts))]

    def cleanup_ops(self, txid: int) -> list[Op]:
        """The operations that remove every txid lower than `txid`."""
        return self.remove_ops(known for known in self._texts if known < txid)

    def committed(self, ops: Iterable[Op]) -> None:
        """Follow a commit of the caller's that went through; operations on other paths are passed over."""
        for op in ops:
            parent, _, name = op.path.rpartition("/")
            if parent == self._path and isinstance(op, Put):
                self._texts[self._txid(name)] = self._text(name, op.value)
            elif parent == self._path and isinstance(op, Delete):
                self._texts.pop(self._txid(name), None)

    def _write(self, ops: list[Op]) -> None:
        # The ledger first: after a failed commit this object still shows what is stored.
        if ops:
            self._ledger.commit([*self._guards, *ops])
            self.committed(ops)

    def _put(self, txid: int, value: Any) -> Put:
        return Put(self._entry(txid), encode_value(self._blob_dir, value, self._entry(txid)))

    def _entry(self, txid: int) -> str:
        return f"{self._path}/{txid}"

    def _text(self, name: str, data: bytes) -> str:
        return json.dumps(decode_value(self._blob_dir, data, f"{self._path}/{name}"))

    def _txid(self, name: str) -> int:
        if name.isascii() and name.isdecimal() and name == str(int(name)):
            return int(name)
        msg = f"ledger path {self._path}/{name}: expected a txid as the last name; is this another topology's ledger?"
        raise LedgerCorrupt(msg)

    def _check_order(self, txid: int, known: list[int]) -> None:
        """Storm's three rules: nothing later, the one before is there, the first one is 1."""
        expected = known[-1] + 1 if known else FIRST_TXID
        if self._strict and txid != expected:
            msg = (
                f"{self._entry(txid)}: expected txid {expected}, which follows "
                f"{known[-1] if known else 'nothing'}, got {txid}; txids are planned in order, without gaps"
            )
            raise OrderError(msg)


def _before(txids: list[int], txid: int) -> int:
    """The highest of the ascending `txids` below `txid`, or 0, which no transaction has."""
    index = bisect_left(txids, txid)
    return txids[index - 1] if index else 0
