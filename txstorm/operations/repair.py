"""`repair --abandon N`: drop a decided group that cannot be published (R13, blocked decisions)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from txstorm.books.books import Books, opened_books
from txstorm.books.data_directory import topology_in
from txstorm.errors import InputError
from txstorm.recovery.take_over import publications, raise_reachable
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import Intent, is_outside

log = logging.getLogger(__name__)


def abandon(data_dir: str | Path, txid: int) -> dict[str, Any]:
    """Drop the decided group of `txid` and all later decided groups, provided that no table contains any of their rows.

    The topology must not be running. The transactions become undecided: the next start processes them again, with the
    same metadata (an opaque spout plans them again). Every table that can be reached gets a new epoch first, so that a
    stale coordinator is fenced and cannot publish the groups afterwards.

    Returns:
        ``topology``, ``abandoned`` (first and last txid), ``epoch``, ``currtx``, and ``unreached`` (table → cause).

    Raises:
        InputError: `txid` is not decided, is already committed, or is published in a table, which the message names.
        HeldError: the topology is running.
    """
    directory = topology_in(data_dir)
    with opened_books(directory, lease="txstorm repair") as books:
        group = _group_of(directory, books, txid)
        dropped = [intent for intent in books.live_intents() if intent.first >= group.first]
        epoch = books.raise_epoch()
        owner = TopologyIdentity(group.topology, group.incarnation, group.timeline)
        unreached = raise_reachable(directory, books.tables(), owner, epoch)
        # Checked after the epoch is raised: a group that is not published now can no longer be published.
        for intent in dropped:
            _check_unpublished(directory, intent)
        books.abandon(dropped)
        txids = [group.first, dropped[-1].last]
        log.warning("txids %s-%s are abandoned", *txids)
        facts = {"epoch": epoch, "currtx": books.currtx(), "unreached": unreached}
        return {"topology": group.topology, "abandoned": txids, **facts}


def _group_of(data_dir: Path, books: Books, txid: int) -> Intent:
    live = books.live_intents()
    for intent in live:
        if intent.first <= txid <= intent.last:
            return intent
    currtx = books.currtx()
    decided = ", ".join(f"{one.first}-{one.last}" for one in live) or "none"
    what = "is committed" if txid < currtx else "is not decided, and will be processed again by the next start anyway"
    msg = f"{data_dir}: txid {txid} {what}; decided and not completed are: {decided}; see: txstorm inspect {data_dir}"
    raise InputError(msg)


def _check_unpublished(data_dir: Path, intent: Intent) -> None:
    """Check that no table contains the group; raise `InputError` if one does, or if that cannot be determined.

    Tables are checked in order: after a table that was read and lacks the group, unreadable tables are ignored.
    """
    unpublished = False  # maps and outlets are published after all tables
    for one in publications(data_dir, intent):
        if one.published:
            raise InputError(
                f"{data_dir}: txids {intent.first}-{intent.last} are published in table {one.uri} and cannot be "
                "abandoned: fix what blocks the other tables and start the topology, which rolls them forward; only a "
                f"rewind to before txid {intent.first} undoes them"
            )
        if one.published is None and not (unpublished and is_outside(one.uri)):
            raise InputError(
                f"{data_dir}: whether {one.uri} holds txids {intent.first}-{intent.last} is unknown: {one.cause}; "
                "they cannot be abandoned before it can be read"
            )
        unpublished = unpublished or not one.cause
