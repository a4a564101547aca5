"""Status of topologies, running or not, for the commands `list`, `status` and `inspect`; read-only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstorm.books.books import Books, opened_books
from txstorm.books.data_directory import FORMAT_FILE, topology_directories, topology_in
from txstorm.books.records import clock_of
from txstorm.errors import InputError, TxstormError
from txstorm.ledger.credentials import named_ledger
from txstorm.ledger.location import recorded_ledger
from txstorm.ledger.open import local_directory

if TYPE_CHECKING:
    from txstorm.books.rewind import Rewind
    from txstorm.storage.tables.intent import Intent

ENDED = ("stopped", "failed", "killed")
LIVE_FACTS = (
    "engine",
    "pid",
    "host",
    "started_at",
    "told_at",
    "replays",
    "last_failure",
    "parallelism",
    "logs",
    "wall_clock",
    "low_water_marks",
    "source",
)
FRONT_ENDS = ("dadstorm", "hailstorm")
"""What a run reports under these names is that of the front end of its topology (`Companion.status`)."""


def list_topologies(root: str | Path, ledger: str | None = None) -> list[dict[str, Any]]:
    """Return the status of every topology below `root`, by directory; ``error`` says why one is unreadable.

    `ledger`: return only topologies that use this ledger; None: all.

    Raises:
        InputError: there is no such directory.
    """
    directory = local_directory(root)
    if not directory.is_dir():
        msg = f"{root}: expected a directory that contains data directories, such as ./txstorm-data, found none"
        raise InputError(msg)
    own = [directory] if (directory / FORMAT_FILE).exists() else []
    wanted = None if ledger is None else named_ledger(ledger)
    found = [*own, *topology_directories(directory)]
    return [_listed(one) for one in found if wanted is None or recorded_ledger(one.absolute()) == wanted]


def read_status(data_dir: str | Path) -> dict[str, Any]:
    """Read the status of the topology in `data_dir`.

    Returns:
        ``topology``, ``data_dir``, ``ledger``, ``running``, ``mode``, ``holder`` (description of the lease holder, or
        None), ``committed_txid``, ``clock`` (that of the last committed transaction: partition → offset, see
        `txstorm.Clock`; None if the source has none), ``active`` (False after `deactivate`), ``in_flight`` (txid,
        attempt id, phase),
        ``working`` (how far transactions are that take longer than five seconds, as `WorkProgress`), ``blocked`` (the
        reason why a decided transaction cannot be published, or None), ``error`` (the cause of the last run's end, or
        None), ``hash_seed`` (Python's hash seed in the last run: ``seed``, which is ``random`` or a
        number, a ``probe`` of it, and the version of ``python``; or None), and the facts that the run has last reported
        (`LIVE_FACTS`), among them ``source``: what holds of the source, such as files that wait to be completed;
        ``wall_clock``: what is wrong with the machine's clock, or None; ``low_water_marks``: component → the clock of
        the last transaction that it has finished. ``hailstorm``, if it is a Hailstorm topology: negotiator, processors
        and snapshots; None if the run ended without a report.

        ``mode`` of a live run is ``starting``, ``active``, ``inactive``, ``rebalancing``, ``killing`` or ``stopping``;
        otherwise it is ``stopped``, ``failed`` or ``killed``, as the last run reported, or ``dead`` if it ended without
        a report.

    Raises:
        DataDirectoryError: there is no topology, or it is damaged.
    """
    directory = topology_in(data_dir)
    with opened_books(directory, read_only=True) as books:
        return _status(directory, books)


def read_inspection(data_dir: str | Path) -> dict[str, Any]:
    """Read the status of the topology in `data_dir` and everything that its ledger records.

    Returns:
        The result of `read_status`, and ``incarnation``, ``timeline``, ``epoch``, ``currtx``, ``metadata`` (txid →
        document, stamp, digests), ``tables`` (table → last txid), ``failures`` (txid → count, last cause), ``decided``
        (the groups that are decided but not completed, each with its txids, attempts and tables, and whether it is
        published in each table), and ``rewind`` (a rewind that is decided but not carried out in all tables: its txid,
        timeline and epoch, and which tables are restored; or None).

    Raises:
        DataDirectoryError: there is no topology, or it is damaged.
    """
    directory = topology_in(data_dir)
    with opened_books(directory, read_only=True) as books:
        identity = books.identity()
        currtx = books.currtx()
        live = [intent for intent in books.intents() if intent.last >= currtx]
        rewind = books.rewind()
        return {
            **_status(directory, books),
            "incarnation": identity.incarnation if identity else None,
            "timeline": identity.timeline if identity else None,
            "epoch": books.stored_epoch(),
            "currtx": currtx,
            "metadata": {str(txid): meta.to_json() for txid, meta in books.metas().items()},
            "tables": books.tables(),
            "failures": {str(txid): one for txid, one in books.failures().items()},
            "decided": [_decided(directory, intent) for intent in live],
            "rewind": None if rewind is None else _pending(directory, rewind),
        }


def _decided(directory: Path, intent: Intent) -> dict[str, Any]:
    from txstorm.recovery.take_over import publications  # loads the table code, which takes longer than a status

    return {
        "first": intent.first,
        "last": intent.last,
        "epoch": intent.epoch,
        "attempts": {str(one.txid): one.attempt_id for one in intent.txids},
        "tables": [
            {
                "table": one.uri,
                "rows": sum(staged.rows for staged in table.files),
                "published": one.published,
                "cause": one.cause,
            }
            for one, table in zip(publications(directory, intent), intent.tables, strict=True)
        ],
    }


def _pending(directory: Path, rewind: Rewind) -> dict[str, Any]:
    from txstorm.recovery.rewind import is_restored

    tables = [{"table": one.uri, "restored": is_restored(directory, rewind, one)} for one in rewind.tables]
    return {"txid": rewind.txid, "timeline": rewind.timeline, "epoch": rewind.epoch, "tables": tables}


def _status(directory: Path, books: Books) -> dict[str, Any]:
    # Read the holder first: a run that ends meanwhile has reported its end before its status is read.
    holder = books.ledger.holder()
    told, identity = books.status() or {}, books.identity()
    running, committed = holder is not None, books.committed()
    # The reported status may be half a second old.
    in_flight = [one for one in told.get("in_flight", ()) if one[0] > committed] if running else []
    return {
        "topology": identity.topology if identity else None,
        "data_dir": str(directory),
        "ledger": str(recorded_ledger(directory) or ""),
        "running": running,
        "mode": _mode(told, holder),
        "holder": holder,
        "active": books.active(),
        "committed_txid": committed,
        "clock": _clock(books, committed),
        "in_flight": in_flight,
        "working": [one for one in told.get("working", ()) if running and one["last"] > committed],
        "blocked": told.get("blocked") if running or books.live_intents() else None,
        "error": None if running else told.get("error"),
        "hash_seed": (books.origin() or {}).get("hash_seed"),
        **{name: told.get(name) for name in LIVE_FACTS},
        **{name: told[name] if _mode(told, holder) != "dead" else None for name in FRONT_ENDS if name in told},
    }


def _clock(books: Books, committed: int) -> dict[str, int] | None:
    meta = books.metas().get(committed)
    found = None if meta is None else clock_of(meta.document)
    return None if found is None else dict(found)


def _mode(told: Mapping[str, Any], holder: str | None) -> str:
    mode = told.get("mode")
    if holder is None:
        return mode if mode in ENDED else "dead"
    if mode is None or f"pid {told['pid']} on {told['host']}" not in holder:
        return "starting"  # the status is that of the previous run
    return "stopping" if mode in ENDED else str(mode)


def _listed(directory: Path) -> dict[str, Any]:
    try:
        return read_status(directory)
    except TxstormError as error:  # for instance, because a remote ledger does not respond
        return {
            "topology": None,
            "data_dir": str(directory),
            "running": False,
            "mode": "unreadable",
            "error": str(error),
        }
