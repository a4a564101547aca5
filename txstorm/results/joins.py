"""Interval joins of a data directory as of a txid: positions and what holds them back, pending and buffered rows.

Everything is read from the tables of the join, without its code and beside a live run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from txstorm.api.context import SourceFacts
from txstorm.api.names import near
from txstorm.errors import InputError
from txstorm.joins.deduplicator_committer import ACTIVE, AT, EPOCH
from txstorm.joins.interval.join_records import COMPONENT, JoinRecord, TaskRecord, unit_of_task
from txstorm.joins.rules.matching import LOWEST
from txstorm.joins.side_rows import TIME
from txstorm.results.read import list_states
from txstorm.results.views import StateView, committed_document, committed_txid, read_directory_history, stamps_in
from txstorm.results.windows import PANES, PROGRESS, SESSIONS, TUPLES, time_text
from txstorm.spouts.facts import facts_of
from txstorm.windows.records import ComponentRecord
from txstorm.windows.rules.event_time import END, Facts, WatermarkRule

LEFT, RIGHT, MATCHED, PASSING = "-left", "-right", "-matched", "-passing"
ACTIVITY, IDS = "-activity", "-ids"
RETAIN = "retain"
"""What the record of a `StoreFeed` says of itself: for how long its rows are kept."""


def joins_in(data_dir: Path) -> list[str]:
    """Return the ids of the interval joins that have tables in a data directory."""
    states = set(list_states(data_dir))
    names = (name.removesuffix(MATCHED) for name in states if name.endswith(MATCHED))
    return sorted(name for name in names if {name + LEFT, name + RIGHT, name + PROGRESS} <= states)


def check_join(data_dir: Path, component: str) -> bool:
    """Return whether a component is an interval join; False: a part of a join over a store, else `InputError`."""
    joins, parts = joins_in(data_dir), store_parts_in(data_dir)
    if component not in (*joins, *parts):
        known = sorted([*joins, *parts, *deduplicators_in(data_dir)])
        there = f"there are {', '.join(known)}" if known else "no component of it is a join"
        raise InputError(f"{data_dir}: no join {component!r}{near(component, known)}; {there}")
    return component in joins


def store_parts_in(data_dir: Path) -> list[str]:
    """Return the ids of the `StoreFeed`s and `DataDelaySync`s that have tables in a data directory."""
    states = set(list_states(data_dir))
    names = (name.removesuffix(PROGRESS) for name in states if name.endswith(PROGRESS))
    return sorted(
        name
        for name in names
        if name + MATCHED not in states
        and not states & {name + TUPLES, name + PANES, name + SESSIONS}
        and (name + LEFT in states or RETAIN in (_component_record(data_dir, name, None).about or {}))
    )


def deduplicators_in(data_dir: Path) -> list[str]:
    """Return the ids of the `Deduplicator`s that have tables in a data directory."""
    states = set(list_states(data_dir))
    names = (name.removesuffix(ACTIVITY) for name in states if name.endswith(ACTIVITY))
    return sorted(name for name in names if name + IDS in states)


def deduplicator(data_dir: Path, component: str, txid: int | None = None) -> dict[str, Any]:
    """Return whether a `Deduplicator` is active as of a transaction, as JSON values.

    ``last_duplicate`` is the time of the last duplicate or, before the first, of the start; ``off_since`` the time of
    the tuple that has switched it off. One with `keep` is always active and has neither.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """
    rows = StateView(data_dir, component + ACTIVITY, txid).to_pylist()
    last = [row for row in rows if row[EPOCH] == max(one[EPOCH] for one in rows)]
    active = all(row[ACTIVE] for row in last)
    at = max((row[AT] for row in last if row[ACTIVE] is active), default=None)
    return {
        "component": component,
        "txid": committed_txid(data_dir) if txid is None else txid,
        "active": active,
        "last_duplicate": at.isoformat() if at is not None and active else None,
        "off_since": at.isoformat() if at is not None and not active else None,
        "known": StateView(data_dir, component + IDS, txid).to_arrow().num_rows,
    }


def store_part(data_dir: Path, component: str, txid: int | None = None) -> dict[str, Any]:
    """Return how far a `StoreFeed` or a `DataDelaySync` has come as of a transaction, as JSON values.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """
    record = _component_record(data_dir, component, txid)
    holds = component + LEFT in list_states(data_dir)
    newest = {partition: one.time for (_, partition), one in sorted(record.progress.newest.items())}
    shown: dict[str, Any] = {
        "component": component,
        "txid": committed_txid(data_dir) if txid is None else txid,
        "consumed_time" if holds else "position": time_text(record.progress.watermark),
        "partitions": {partition: time_text(time) for partition, time in newest.items()},
        "slowest_partition": min(newest, key=lambda one: newest[one], default=None),
    }
    if holds:
        held = StateView(data_dir, component + LEFT, txid).to_arrow()
        return {**shown, "pending": held.num_rows, "oldest_pending": time_text(pc.min(held[TIME]).as_py())}
    return {**shown, "retain": _seconds((record.about or {}).get(RETAIN))}


def _component_record(data_dir: Path, component: str, txid: int | None) -> ComponentRecord:
    rows = StateView(data_dir, component + PROGRESS, txid).to_pylist()
    return ComponentRecord.read(next((row["record"] for row in rows if row["unit"] == COMPONENT), None))


class ComponentJoin:
    """An interval join as of a transaction.

    `txid`: None for the last committed one.

    Raises:
        InputError: there is no such join.
        StateError: `txid` is not committed, or no longer kept.
    """

    def __init__(self, data_dir: Path, component: str, txid: int | None = None) -> None:
        if not check_join(data_dir, component):
            raise InputError(f"{component}: a part of a join over a store, expected an interval join")
        self.component = component
        self.txid = committed_txid(data_dir) if txid is None else txid
        self.data_dir = data_dir
        rows = StateView(data_dir, component + PROGRESS, self.txid).to_pylist()
        texts = {row["unit"]: row["record"] for row in rows}
        self.record = JoinRecord.read(texts.get(COMPONENT))
        tasks = range(self.record.tasks or 0)
        self.tasks = [TaskRecord.read(texts.get(unit_of_task(task))) for task in tasks]

    @property
    def about(self) -> Mapping[str, Any]:
        """Inputs, bounds and type of the join; empty before its first transaction."""
        return self.record.about or {}

    @property
    def bound(self) -> int | None:
        """The time before which right rows have expired, in microseconds; None if none have."""
        return None if self.record.bound == LOWEST else self.record.bound

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values: times in ISO 8601, durations in seconds."""
        names = ("pending", "buffered", "stragglers", "late", "released", "joined", "unmatched_left", "unmatched_right")
        counts = {name: sum(getattr(one, name) for one in self.tasks) for name in names}
        return {
            "component": self.component,
            "txid": self.txid,
            "how": self.about.get("how"),
            "before": _seconds(self.about.get("before")),
            "after": _seconds(self.about.get("after")),
            "position": time_text(self.record.right.watermark),
            "bound": time_text(self.bound),
            "left": self.side("left"),
            "right": self.side("right"),
            **counts,
            "oldest_pending": time_text(self.record.oldest_pending),
        }

    def side(self, name: str) -> dict[str, Any]:
        """Return a side, ``left`` or ``right``: its position, newest times, and the partition that holds it back."""
        progress = self.record.left if name == "left" else self.record.right
        about, stamp = self.about.get(name, {}), stamps_in(self.data_dir)(self.txid)
        known: dict[str, tuple[int | None, int | None]] = {
            partition: (one.time, one.stamp) for (_, partition), one in progress.newest.items()
        }
        announced, facts = about.get("partitions"), self._facts(about.get("sources", ()))
        for partition in facts.partitions if announced is None else announced:
            # A side without the partition field is one partition, whatever its source has.
            if announced is not None or known.keys() != {""}:
                known.setdefault(partition, (None, progress.first_stamp))
        held = None
        if progress.watermark != END and not facts.ended and stamp is not None:
            rule = WatermarkRule(1, idle=about.get("idle"))
            active = rule.active_partitions(0, progress, stamp, Facts({0: frozenset(known)}))
            slowest = min(active, key=lambda one: (known[one][0] is not None, known[one][0] or 0, one), default=None)
            if slowest is not None:
                newest, since = known[slowest]
                silent = None if since is None else max(0, stamp - since)
                held = {"partition": slowest, "newest": time_text(newest), "silent": _seconds(silent)}
        return {
            "input": about.get("input"),
            "position": time_text(progress.watermark),
            "lag": _seconds(about.get("lag")),
            "idle": _seconds(about.get("idle")),
            "grace": _seconds(about.get("grace")),
            "partitions": {one: time_text(time) for one, (time, _) in sorted(known.items())},
            "held_back_by": held,
        }

    def _facts(self, sources: Sequence[str]) -> SourceFacts:
        """Return the partitions of the sources of a side in this transaction, and whether all of them had ended."""
        txid, document = committed_document(self.data_dir)
        if txid != self.txid:
            history = read_directory_history(self.data_dir)
            rows = history.filter(pc.equal(history["txid"], self.txid)).to_pylist()
            document = json.loads(rows[-1]["extents"]) if rows else None
        facts = facts_of(document, sources, 0).sources
        found = [facts[one] for one in sources]
        partitions = tuple(partition for one in found for partition in one.partitions)
        return SourceFacts(partitions, ended=bool(found) and all(one.ended for one in found))


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / 1_000_000


def holding_text(held: Mapping[str, Any]) -> str:
    """Return a sentence that names the partition that holds a side back, and for how long it has had no data."""
    partition = f"partition {held['partition']!r}" if held["partition"] else "its only partition"
    newest = "has had no data" if held["newest"] is None else f"is at {held['newest']}"
    silent = "" if held["silent"] is None else f", for {held['silent']:,.1f} s without data"
    return f"held back by {partition}, which {newest}{silent}"
