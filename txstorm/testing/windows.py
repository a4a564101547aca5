"""Windowed bolts as the test driver shows them: watermarks and late tuples of committed transactions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from txstorm.errors import InputError
from txstorm.results.views import StateView
from txstorm.tagged import value_of
from txstorm.testing.emissions import Emission, Emissions
from txstorm.topology.graph import Topology
from txstorm.windows.aggregates.aggregate_committer import AggregateCommitter
from txstorm.windows.committer import WindowCommitter
from txstorm.windows.late import AGGREGATED, LATE, LATE_PARTIALS
from txstorm.windows.records import COMPONENT, ComponentRecord
from txstorm.windows.rules.event_time import END, instant

LateRow = tuple[int, tuple[str, str], datetime, datetime, tuple[Any, ...]]
"""(txid, (component, stream), timestamp, watermark, values)."""


def watermark(topology: Topology, directory: Path, component: str, committed: int) -> datetime | None:
    """Return the watermark of a windowed component; see `TopologyTestDriver.watermark`."""
    committer = _committer(topology, component)
    if not committed:
        return None
    rows = StateView(directory, committer.progress.name).to_pylist()
    texts = [row["record"] for row in rows if row["unit"] == COMPONENT]
    reached = ComponentRecord.read(texts[0]).progress.watermark if texts else None
    if reached is None:
        return None
    return datetime.max.replace(tzinfo=UTC) if reached == END else instant(reached)


def late_rows(topology: Topology, emissions: Emissions, component: str, committed: int) -> list[LateRow]:
    """Return the late tuples of a windowed component; see `TopologyTestDriver.late`."""
    _committer(topology, component)
    last, found = emissions.last_attempts(), []

    def noted(topic: str) -> Iterator[Emission]:
        current = (one for one in emissions.notes[topic] if one.attempt.txid <= committed)
        return (one for one in current if last[one.attempt.txid] == one.attempt.attempt_id)

    for one in noted(LATE):
        if one.component == component:
            source, stream, time, behind, text = one.values
            found.append((one.attempt.txid, (source, stream), instant(time), instant(behind), tuple(value_of(text))))
    parts: dict[tuple[Any, ...], list[tuple[int, int, int]]] = {}
    for one in noted(LATE_PARTIALS):
        if one.component == component:
            source, stream, key, first, end, behind = one.values
            parts.setdefault((one.attempt.txid, source, stream, key), []).append((first, end, behind))
    for one in noted(AGGREGATED):
        aggregate, source, stream, key, time, text = one.values
        late = parts.get((one.attempt.txid, source, stream, key), ()) if aggregate == component else ()
        behind = next((behind for first, end, behind in late if first <= time <= end), None)
        if behind is not None:
            found.append((one.attempt.txid, (source, stream), instant(time), instant(behind), tuple(value_of(text))))
    return sorted(found, key=lambda row: row[0])


def _committer(topology: Topology, component: str) -> WindowCommitter | AggregateCommitter:
    found = topology.component(component).object
    if not isinstance(found, WindowCommitter | AggregateCommitter):
        raise InputError(f"{component}: expected a windowed bolt, got {type(found).__name__}")
    return found
