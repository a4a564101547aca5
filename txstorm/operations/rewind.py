"""`txstorm rewind`: roll all tables of a topology back to an earlier transaction (R9, rewind); `txstorm migrate`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from txstorm import faults
from txstorm.books.books import Books, opened_books
from txstorm.books.data_directory import topology_in
from txstorm.books.records import Identity
from txstorm.books.rewind import Rewind, RewoundTable
from txstorm.errors import DataDirectoryError, InputError
from txstorm.lanes import THREADS, Lanes
from txstorm.operations.kept_history import check_in_history, history_row, txid_at_clock
from txstorm.operations.rewind_target import rewind_target
from txstorm.recovery.key_texts import old_texts
from txstorm.recovery.rewind import carry_out, finish_rewind, plan_table
from txstorm.recovery.take_over import check, take_over
from txstorm.results.views import read_directory_history
from txstorm.stateful.target import STATES_FILE
from txstorm.storage.tables.directory import Directory, outside_refs, table_refs
from txstorm.storage.tables.identity import TopologyIdentity, table_ref
from txstorm.storage.tables.intent import CHANGES, CHECKPOINT, STAGED, STATE, is_outside
from txstorm.topology.graph import Topology

MENTIONED = 20
"""Greatest number of keys that an error lists."""


def rewind(
    data_dir: str | Path,
    to_txid: int | None = None,
    keep: Sequence[str] = (),
    *,
    to_time: datetime | None = None,
    to_clock: Mapping[str, int] | None = None,
    component: str | None = None,
    topology: Topology | None = None,
) -> dict[str, Any]:
    """Roll back all tables of a topology to the end of a transaction; the topology must not be running.

    The next run plans txid ``to_txid + 1`` again, from where `to_txid` ended in the source. From then on, a transaction
    is identified by (timeline, txid); those rolled back remain in the history under their timeline. Maps, outlets and
    join stores are in external systems and cannot be rolled back: each must be named in `keep`, and keeps the output of
    later transactions, on top of which the replayed transactions write. After a crash, the next start, or the next
    rewind, completes the rewind.

    Args:
        data_dir: the data directory of the topology.
        to_txid: the last transaction to keep.
        keep: the maps, outlets and join stores to leave as they are.
        to_time: instead of `to_txid`: the last transaction is kept at which no input had reached this time (an aware
            datetime); see `txstorm.operations.rewind_target.rewind_target`.
        to_clock: instead of `to_txid`: the first transaction with this clock of the source is the last one to keep.
        component: with `to_time`: only the inputs of this windowed component or join count.
        topology: with `to_time`, and without windows and joins: the topology, whose topics are asked.

    Returns:
        ``topology``, ``txid``, ``timeline`` (the new timeline), ``taken_back`` (first and last txid rolled back),
        ``tables``, and ``kept`` (maps, outlets and join stores; also bolts with ``pre_commit``: their states go back,
        what the hooks did stays). With `to_time` also ``time``, and the positions as of the last transaction kept:
        ``inputs``, ``sources``.

    Raises:
        InputError: the last transaction to keep is not before the last committed one, a map or outlet is not named in
            `keep`, `to_time` is before the kept history or after all that was read, or no kept transaction has
            `to_clock`.
        StateError: a state as of `to_txid` is no longer retained.
        DataDirectoryError: the history does not contain `to_txid`, or the directory is damaged.
        HeldError: the topology is running.
    """
    if [to_txid, to_time, to_clock].count(None) != 2:
        raise InputError("rewind: expected one of to_txid=, to_time= and to_clock=")
    if to_clock is not None:
        to_txid = txid_at_clock(data_dir, to_clock)
    if to_time is not None:
        target = rewind_target(data_dir, to_time, component, None if topology is None else lambda: topology)
        return {**target.to_json(), **rewind(data_dir, target.txid, keep)}
    assert to_txid is not None
    return rewind_to(topology_in(data_dir), to_txid, keep, THREADS)


def rewind_to(directory: Path, txid: int, keep: Sequence[str], lanes: Lanes) -> dict[str, Any]:
    """Roll back the tables in `directory`, as `rewind` does; `lanes` run the work on several tables."""
    with opened_books(directory, lease="txstorm rewind", lanes=lanes) as books:
        finish_rewind(directory, books, lanes)
        identity = books.identity()
        if identity is None:
            raise DataDirectoryError(f"{directory}: its ledger has no identity; there is nothing to rewind")
        outside = _outside(directory, books)
        # A rewind publishes decided groups first, so that they count as committed.
        last = max([books.currtx() - 1, *(intent.last for intent in books.live_intents())])
        if not 0 <= txid < last:
            what = "is the last committed one: there is nothing to take back" if txid == last else "is not committed"
            raise InputError(f"{directory}: txid {txid} {what}; expected one from 0 to {last - 1}")
        check_in_history(directory, books, txid)
        _check_outside(directory, books, outside, keep)
        place = Directory(directory, books.check_leads)
        check(place, books, identity)
        take_over(place, books, identity)
        faults.point("rewind.before")
        row = _row(directory, identity, txid)
        last = books.currtx() - 1
        tables = _planned(place, books.epoch, identity, txid)
        decided = _carried_out(place, books, identity, txid, row, tables, lanes)
        return {
            "topology": identity.topology,
            "txid": txid,
            "timeline": decided.timeline,
            "taken_back": [txid + 1, last],
            "tables": [table.uri for table in decided.tables],
            "kept": sorted(outside),
        }


def _carried_out(
    place: Directory,
    books: Books,
    identity: Identity,
    txid: int,
    row: dict[str, Any] | None,
    tables: Sequence[RewoundTable],
    lanes: Lanes,
) -> Rewind:
    """Decide a rewind to `txid`, and carry it out."""
    owner = identity.topology, identity.incarnation, identity.timeline + 1
    decided = Rewind(*owner, books.epoch, txid, row, tuple(tables))
    books.decide_rewind(decided)
    faults.point("rewind.decided")
    carry_out(place, books, decided, lanes)
    return decided


def migrate(data_dir: str | Path) -> dict[str, Any]:
    """Rewrite the texts of keys in tables of an older txstorm, so that equal keys are one; it must not be running.

    It is a rewind to the last transaction, which undoes nothing: its timeline is a new one, and the kept history begins
    with it. After a crash, the next start, or the next migration, completes it.

    Returns:
        ``topology``, ``txid``, ``timeline``, ``migrated`` (the states that were rewritten), and ``unknown`` (states
        that may be those of stateful bolts, which a start with this version marks).

    Raises:
        InputError: keys of a state would become one; the message lists them, and nothing is changed.
        HeldError: the topology is running.
    """
    directory = topology_in(data_dir)
    with opened_books(directory, lease="txstorm migrate") as books:
        finish_rewind(directory, books)
        return _migrated(directory, books)


def _migrated(directory: Path, books: Books) -> dict[str, Any]:
    identity = books.identity()
    if identity is None:
        raise DataDirectoryError(f"{directory}: its ledger has no identity; there is nothing to migrate")
    _check_waiting(directory, books)
    place = Directory(directory, books.check_leads)
    check(place, books, identity)
    take_over(place, books, identity)
    owner = TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
    refs, txid = list(table_refs(directory)), books.currtx() - 1
    old, unknown = old_texts(place, owner, refs)
    made = {"topology": identity.topology, "txid": txid, "timeline": identity.timeline}
    if clashes := [f"state {one.name}: {' and '.join(texts)}" for one in old for texts in one.clashes]:
        few, more = clashes[:MENTIONED], len(clashes) - MENTIONED
        raise InputError(
            f"{directory}: equal keys, which an older txstorm has kept apart, would become one:\n  "
            + "\n  ".join([*few, *([f"and {more} more"] if more > 0 else [])])
            + "\nNothing was changed. The tables go on as they are; migrate once only one of each is left"
        )
    if old and txid > 0:
        by_name, now = {one.name: one for one in old}, THREADS.now() // 1000
        tables = [
            by_name[ref.name].planned(ref, txid, books.epoch, now)
            if ref.kind in (CHANGES, STATE) and ref.name in by_name
            else plan_table(place, owner, ref, txid, books.epoch, now)
            for ref in refs
        ]
        books.write_kept(max(txid, books.kept()))
        row = _row(directory, identity, txid)
        made["timeline"] = _carried_out(place, books, identity, txid, row, tables, THREADS).timeline
    return {**made, "migrated": sorted(one.name for one in old), "unknown": unknown}


def _outside(directory: Path, books: Books) -> set[str]:
    """Return the maps and outlets that are recorded in the ledger or have staged files, except dropped ones."""
    recorded = {uri for uri in books.tables() if is_outside(uri)}
    # An empty directory may be left by a start that was killed or fenced.
    staged = {one.uri for one in outside_refs(directory) if any((directory / one.uri).glob(f"{STAGED}/*"))}
    return (recorded | staged) - books.dropped().tables.keys()


def _check_outside(directory: Path, books: Books, outside: Collection[str], keep: Sequence[str]) -> None:
    names = {uri: uri.partition("/")[2] for uri in outside}
    if unknown := [name for name in keep if name not in names.values() and name not in names]:
        known = ", ".join(sorted(names.values())) or "none"
        raise InputError(f"{directory}: no map or outlet {unknown[0]!r} to keep; there are {known}")
    # Of a stateful bolt with hooks only, whose state is a table, there is nothing to take back.
    hooks = {one for one in names if table_ref(one).kind == CHECKPOINT and not (directory / one / STATES_FILE).exists()}
    asked = {uri: name for uri, name in names.items() if uri not in hooks}
    if missing := sorted(uri for uri, name in asked.items() if name not in keep and uri not in keep):
        raise InputError(
            f"{directory}: {', '.join(missing)} cannot be taken back, being in another system; with --keep "
            f"{' --keep '.join(names[uri] for uri in missing)} it stays as it is, and what is processed again is put "
            "there again"
        )
    _check_waiting(directory, books)


def _check_waiting(directory: Path, books: Books) -> None:
    waiting = [intent for intent in books.live_intents() if intent.waits_for_code]
    if waiting:
        raise InputError(
            f"{directory}: txids {waiting[0].first}-{waiting[-1].last} are decided and wait for a map or outlet; start "
            "the topology once, which puts them, and try again then"
        )


def _row(directory: Path, identity: Identity, txid: int) -> dict[str, Any] | None:
    """Return the history row of `txid` for the new timeline.

    None for txid 0, since no transaction remains, unless the directory began with a snapshot: then there is a row.
    """
    known = read_directory_history(directory)["txid"].to_pylist() if txid == 0 else [txid]
    if txid in known:
        own = {"timeline": identity.timeline + 1, "first": txid, "last": txid, "versions": {}}
        return {**history_row(directory, identity.timeline, txid), **own}
    if 1 not in known:
        raise InputError(f"{directory}: txid 0 is older than what is known of the topology here; choose a later one")
    return None


def _planned(place: Directory, epoch: int, identity: Identity, txid: int) -> list[RewoundTable]:
    """Plan the rewind of every table, including tables created by a start that was killed before recording them."""
    found, owner = [], TopologyIdentity(identity.topology, identity.incarnation, identity.timeline)
    for number, ref in enumerate(table_refs(place.path), start=1):
        found.append(plan_table(place, owner, ref, txid, epoch, THREADS.now() // 1000))
        faults.point(f"rewind.{number}.staged")
    return found
