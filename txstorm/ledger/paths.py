"""Where things are in a ledger. Changing a path is a migration."""

from __future__ import annotations

CURRTX = "coordinator/currtx"
"""The next txid to commit (Storm's path)."""

META = "coordinator/meta"
"""Spout metadata per txid (Storm's path)."""

USER = "user"
"""What each partition of a spout gave, per txid (Storm's path), in a ledger that is at Storm's paths."""

INTENTS = "intents"
"""One entry per decided group, by its last txid: its presence is the commit point."""

EPOCH = "epoch"
"""The epoch of the coordinator that leads; its version guards decisions."""

IDENTITY = "identity"
"""Incarnation, timeline, topology id and the graph's fingerprint."""

ORIGIN = "origin"
"""Where the code of the topology is, as its last run knew it."""

TABLES = "tables"
"""Per table: where it stands."""

DROPPED = "dropped"
"""Tables and sources that an operator has dropped by name."""

HISTORY = "history"
"""Per txid: what it read and which versions it made, until moved to the history table."""

FAILURES = "failures"
"""Per txid: how often it failed, and the last cause."""

STATUS = "status"
"""What the run last said about itself, for readers beside it."""

REQUEST = "control/request"
"""What another process asks of the run."""

ANSWERS = "control/answers"
"""Answers, by the id of their request, until they are read."""

MODE = "control/mode"
"""Whether new transactions may be started; absent while they may."""

MOVED = "moved"
"""Where all that stands here was copied to: from then on nobody works with this ledger."""

REWIND = "rewind"
"""Below it: a rewind that is decided and not carried out everywhere yet."""

SAVEPOINTS = "savepoints"
"""Named savepoints: where every table is at one txid, and what comes next in the source."""

KEPT = "control/kept"
"""The first transaction of the kept history; written before anything older is removed."""

PARALLELISM = "control/parallelism"
"""What `rebalance` chose, and the numbers of the code it chose over."""


def meta_path(txid: int) -> str:
    """Where the metadata of `txid` are."""
    return f"{META}/{txid}"


def user_path(partition: str, txid: int) -> str:
    """Where stands what `partition` gave for `txid`."""
    return f"{USER}/{partition}/{txid}"


def intent_path(txid: int) -> str:
    """Where the intent is whose group ends with `txid`."""
    return f"{INTENTS}/{txid}"


def table_path(table: str) -> str:
    """Where the record of `table` is."""
    return f"{TABLES}/{table}"


def history_path(txid: int) -> str:
    """Where the history row of `txid` is."""
    return f"{HISTORY}/{txid}"


def answer_path(request: str) -> str:
    """Where the answer to the request with this id is."""
    return f"{ANSWERS}/{request}"


def savepoint_path(name: str) -> str:
    """Where the savepoint `name` is."""
    return f"{SAVEPOINTS}/{name}"


def failure_path(txid: int) -> str:
    """Where the failure count of `txid` is."""
    return f"{FAILURES}/{txid}"
