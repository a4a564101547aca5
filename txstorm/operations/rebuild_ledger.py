"""`txstorm recover`: rebuild a lost ledger from the tables."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txstorm.books.data_directory import check_directory, make_directory
from txstorm.books.records import Dropped, Identity, Meta
from txstorm.errors import DataDirectoryError, InputError
from txstorm.ledger import paths as names
from txstorm.ledger.credentials import named_ledger
from txstorm.ledger.location import LedgerSpec, record_ledger, recorded_ledger
from txstorm.ledger.open import chosen_ledger, ledger_is_there, local_directory, open_ledger
from txstorm.ledger.port import Put, in_commits
from txstorm.ledger.values import encode_value
from txstorm.operations.savepoints import forget_notes, noted_savepoints
from txstorm.recovery.lost_ledger import Found, find_tables, unfinished_group
from txstorm.storage.tables.directory import outside_refs
from txstorm.storage.tables.intent import UNKNOWN, Intent, TxidRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rebuilt:
    """Content of a ledger, as rebuilt from the tables.

    Attributes:
        identity: the topology's identity.
        epoch: the last epoch recorded in the tables.
        currtx: the next txid to commit; the txids of `intent` are committed by the next start.
        metadata: metadata of the last transaction recorded in any table; reading continues from there.
        tables: table → its last txid.
        intent: a decided group that is not yet published in all its tables; None if there is none.
        history: last txid of a group → its rows that are missing from the history table.
        unknown: txids among those rows that no table records, since they changed no table.
        dropped: tables marked as dropped; for maps, outlets and sources, this is not recorded anywhere.
    """

    identity: Identity
    epoch: int
    currtx: int
    metadata: Mapping[int, Meta]
    tables: Mapping[str, int]
    intent: Intent | None
    history: Mapping[int, list[dict[str, Any]]]
    unknown: list[int]
    dropped: Dropped

    def values(self) -> dict[str, Any]:
        """Return the ledger's values by path; the identity, which marks a ledger as complete, comes last."""
        intent = {} if self.intent is None else {names.intent_path(self.intent.last): self.intent.to_json()}
        return {
            names.EPOCH: self.epoch,
            names.CURRTX: self.currtx,
            names.TABLES: dict(self.tables),
            **({names.DROPPED: self.dropped.to_json()} if any(self.dropped) else {}),
            **{names.meta_path(txid): one.to_json() for txid, one in self.metadata.items()},
            **intent,
            **{names.history_path(last): rows for last, rows in self.history.items()},
            names.IDENTITY: asdict(self.identity),
        }


def recover(data_dir: str | Path, ledger: str | None = None, *, dry_run: bool = False) -> dict[str, Any]:
    """Rebuild the lost ledger of `data_dir` from its tables; with `dry_run`, only report what would be written.

    The next start continues after the last transaction that any table contains. Transactions that were planned or
    processed, and decided groups that no table contains yet, are planned again: none of their output was visible.
    Facts that only the ledger recorded are lost: whether the topology was inactive, the parallelism set by `rebalance`,
    failures, and savepoints.

    Returns:
        ``topology``, ``ledger``, ``written``, ``epoch``, ``currtx``, ``committed_txid``, ``metadata``, ``tables``,
        ``rolled_forward`` (first and last txid of a group that the next start publishes in the remaining tables),
        ``dropped`` (table → last txid), ``history`` (number of rows), ``unknown_txids``, ``lost_savepoints``
        (descriptions), ``values`` (path → value).

    Raises:
        InputError: the ledger is not lost.
        DataDirectoryError: there are no tables, or they do not belong together.
        TableCorrupt: a table is damaged or missing, or tables disagree.
    """
    directory = local_directory(data_dir)
    check_directory(directory)
    chosen = _target(directory, ledger)
    rebuilt = rebuild(directory)
    report = _report(directory, chosen, rebuilt, written=not dry_run)
    if not dry_run:
        _write(directory, chosen, rebuilt)
        forget_notes(directory)
        log.warning("the ledger %s is rebuilt; the topology continues after txid %s", chosen, rebuilt.currtx - 1)
    return report


def _target(directory: Path, ledger: str | None) -> LedgerSpec:
    """Choose the ledger to write; raise `InputError` if it, or the recorded ledger, exists and is complete."""
    recorded = recorded_ledger(directory)
    wanted = chosen_ledger(directory, None) if ledger is None else named_ledger(ledger)
    for one in {one for one in (recorded, wanted) if one is not None}:
        if ledger_is_there(one, directory) and _is_whole(one, directory):
            raise InputError(
                f"data directory {directory}: its ledger {one} exists; expected it to be lost: start the topology, "
                "or, where the ledger is damaged, move it away first"
            )
    return wanted


def _is_whole(ledger: LedgerSpec, directory: Path) -> bool:
    """Whether the ledger is complete, that is, has an identity, which is written last."""
    opened = open_ledger(directory, create=False, read_only=True, ledger=ledger)
    try:
        return opened.get(names.IDENTITY) is not None
    finally:
        opened.close()


def rebuild(directory: Path) -> Rebuilt:
    """Derive the content of the ledger from the tables in `directory`; raises the errors of `recover`."""
    found = find_tables(directory)
    intent = unfinished_group(directory, found)
    committed = found.last if intent is None else intent.first - 1
    history, unknown = _history(found, committed)
    known = {one.txid: one for group in found.groups.values() for one in group[0].records}
    tables = {uri: table.last_txid() for uri, table in found.tables.items()}
    for one in () if intent is None else intent.tables:
        if one.uri in tables:
            tables[one.uri] = one.previous
    # Only its commit mark records the last txid of a map or outlet.
    tables |= dict.fromkeys((ref.uri for ref in outside_refs(directory)), UNKNOWN)
    return Rebuilt(
        Identity(found.topology, found.incarnation, found.timeline),
        found.epoch,
        committed + 1,
        _metadata(found, known),
        tables,
        intent,
        history,
        unknown,
        Dropped(found.dropped),
    )


def _metadata(found: Found, known: Mapping[int, TxidRecord]) -> dict[int, Meta]:
    if found.last == 0 and not found.history:  # a directory that began with a snapshot has a row of txid 0
        return {}
    if found.last in known:
        return {found.last: Meta(known[found.last].extents, known[found.last].stamp)}
    row = found.history[-1]
    return {found.last: Meta(json.loads(row["extents"]), row["stamp"])}


def _history(found: Found, committed: int) -> tuple[dict[int, list[dict[str, Any]]], list[int]]:
    """Return the rows missing from the history table, and the txids among them that no table records."""
    stamp = int(found.history[-1]["stamp"]) if found.history else 0
    rows: dict[int, list[dict[str, Any]]] = {}
    unknown: list[int] = []
    at = found.recorded
    for last, published in found.groups.items():
        if not found.recorded < last <= committed:
            continue
        records = published[0].records
        for txid in range(at + 1, records[0].txid):
            unknown.append(txid)
            rows[txid] = [_row(found.timeline, TxidRecord(txid, 0, "", None, stamp), txid, txid, {})]
        versions = {one.uri: one.version for one in published}
        rows[last] = [_row(found.timeline, one, records[0].txid, last, versions) for one in records]
        at, stamp = last, records[-1].stamp
    return rows, unknown


def _row(timeline: int, one: TxidRecord, first: int, last: int, versions: Mapping[str, int]) -> dict[str, Any]:
    return {
        "txid": one.txid,
        "attempt": one.attempt_id,
        "stamp": one.stamp,
        "first": first,
        "last": last,
        "digest": one.digest,
        "extents": one.extents,
        "tuples": None,
        "versions": dict(versions),
        "timeline": timeline,
    }


def _write(directory: Path, chosen: LedgerSpec, rebuilt: Rebuilt) -> None:
    make_directory(directory / "intents")
    ledger = open_ledger(directory, create=True, ledger=chosen)
    try:
        ledger.acquire("txstorm recover")
        if ledger.get(names.IDENTITY) is not None:
            msg = f"ledger {chosen}: expected it to be empty, got one written by another process meanwhile; look again"
            raise DataDirectoryError(msg)
        blobs = directory / "intents"
        # Use the next epoch: a coordinator that was paused when the ledger was lost must not delete these files.
        epoch = rebuilt.epoch + 1
        puts = [[Put(path, encode_value(blobs, one, path, epoch=epoch))] for path, one in rebuilt.values().items()]
        for ops in in_commits(puts):
            ledger.commit(ops)
        record_ledger(directory, chosen)
    finally:
        ledger.close()


def _report(directory: Path, chosen: LedgerSpec, rebuilt: Rebuilt, *, written: bool) -> dict[str, Any]:
    intent = rebuilt.intent
    return {
        "topology": rebuilt.identity.topology,
        "ledger": str(chosen),
        "written": written,
        "epoch": rebuilt.epoch,
        "currtx": rebuilt.currtx,
        "committed_txid": rebuilt.currtx - 1,
        "metadata": {str(txid): one.to_json() for txid, one in rebuilt.metadata.items()},
        "tables": dict(rebuilt.tables),
        "dropped": dict(rebuilt.dropped.tables),
        "rolled_forward": None if intent is None else [intent.first, intent.last],
        "history": sum(map(len, rebuilt.history.values())),
        "unknown_txids": rebuilt.unknown,
        "lost_savepoints": noted_savepoints(directory),
        "values": rebuilt.values(),
    }
