"""Paths of the entries in a ledger. Changing one requires a migration."""

from __future__ import annotations

CURRTX = "coordinator/currtx"
"""The next txid to commit (Storm's path)."""

META = "coordinator/meta"
"""Spout metadata per txid (Storm's path)."""

USER = "user"
"""Spout metadata per partition and txid (Storm's path), in a ledger at Storm's paths."""

INTENTS = "intents"
"""One entry per decided group, named after its last txid; writing it is the commit point."""

EPOCH = "epoch"
"""The epoch of the leading coordinator; every decision is guarded by the version of this entry."""

IDENTITY = "identity"
"""Identity of the topology: incarnation, timeline, topology id and the graph's fingerprint."""

ORIGIN = "origin"
"""Location of the topology's code, as its last run recorded it."""

TABLES = "tables"
"""Per table: the last txid published to it."""

DROPPED = "dropped"
"""Tables and sources that an operator has dropped by name."""

HISTORY = "history"
"""Per txid: its extents and the table versions that it created, until they are moved to the history table."""

FAILURES = "failures"
"""Per txid: the number of failures, and the last cause."""

STATUS = "status"
"""The last status that the run reported, for readers beside it."""

REQUEST = "control/request"
"""The open request of another process to the run."""

ANSWERS = "control/answers"
"""Answers to requests, keyed by request id, until they are read."""

MODE = "control/mode"
"""Whether new transactions may be started; absent as long as they may."""

MOVED = "moved"
"""The ledger that this one was copied to; from then on, this ledger is no longer used."""

REWIND = "rewind"
"""Parent of the rewind that is decided but not yet carried out completely."""

SAVEPOINTS = "savepoints"
"""Named savepoints: the version of every table at one txid, and the position in the source."""

SNAPSHOTS = "snapshots"
"""Parent of the two entries about snapshots at clocks."""

WANTED = "snapshots/wanted"
"""The clock that no transaction may pass until the snapshot at it is complete; absent if none is wanted."""

NUMBER = "snapshots/number"
"""The number of the last snapshot at a clock that was completed."""

KEPT = "control/kept"
"""The first transaction of the retained history; written before anything older is removed."""

PARALLELISM = "control/parallelism"
"""Per component: the parallelism chosen by `rebalance`, and that in the code, which it overrides."""


def meta_path(txid: int) -> str:
    """Return the path of the metadata of `txid`."""
    return f"{META}/{txid}"


def user_path(partition: str, txid: int) -> str:
    """Return the path of the metadata of a spout's `partition` for `txid`."""
    return f"{USER}/{partition}/{txid}"


def intent_path(txid: int) -> str:
    """Return the path of the intent whose group ends with `txid`."""
    return f"{INTENTS}/{txid}"


def table_path(table: str) -> str:
    """Return the path of the record of `table`."""
    return f"{TABLES}/{table}"


def history_path(txid: int) -> str:
    """Return the path of the history row of `txid`."""
    return f"{HISTORY}/{txid}"


def answer_path(request: str) -> str:
    """Return the path of the answer to the request with this id."""
    return f"{ANSWERS}/{request}"


def savepoint_path(name: str) -> str:
    """Return the path of the savepoint `name`."""
    return f"{SAVEPOINTS}/{name}"


def failure_path(txid: int) -> str:
    """Return the path of the record of the failures of `txid`."""
    return f"{FAILURES}/{txid}"


REGISTRY = "hailstorm"
"""Parent of nodes that are no entries: what runs of Hailstorm topologies show in ZooKeeper."""

NETWORK = "dadstorm/network"
"""The operator network of a run by replicas, as its first run recorded it."""

CONDITIONS = "dadstorm/conditions"
"""Conditions of its replicas, the position in its script, and its log."""
