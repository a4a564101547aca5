"""Positions in event time: how far the inputs of windows and joins had been read, by partition, as of a txid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from txstorm.api.names import DEFAULT_STREAM
from txstorm.results.read import list_states
from txstorm.results.views import StateView
from txstorm.results.windows import PROGRESS
from txstorm.storage.tables.identity import TableRef
from txstorm.storage.tables.intent import CHANGES
from txstorm.storage.tables.table import DeltaTableState, open_table
from txstorm.windows.records import COMPONENT

SIDES = ("left", "right")


@dataclass(frozen=True)
class InputPosition:
    """The newest time that a component has received from one partition of an input.

    Attributes:
        component: the windowed component or join.
        source, stream: the input; the source is empty if the component has only one and does not record it.
        partition: empty if the input has no partition field.
        time: UTC microseconds since 1970.
    """

    component: str
    source: str
    stream: str
    partition: str
    time: int

    def __str__(self) -> str:
        stream = "" if self.stream == DEFAULT_STREAM else f"/{self.stream}"
        part = f", partition {self.partition}" if self.partition else ""
        name = f"input {self.source}{stream}" if self.source else "the input"
        return f"{name} of {self.component}{part}"


def timed_components(data_dir: Path) -> list[str]:
    """Return the ids of the components that record their progress, except dropped ones; not all have event time."""
    names = (one for one in list_states(data_dir) if one.endswith(PROGRESS))
    return sorted(one.removesuffix(PROGRESS) for one in names if _changes(data_dir, one).until() is None)


def input_positions(data_dir: Path, component: str, txid: int | None = None) -> list[InputPosition]:
    """Read the positions of a component as of `txid` (None: the last committed); empty before it was added.

    Raises:
        StateError: `txid` is not committed, or no longer kept.
    """
    name = component + PROGRESS
    if txid is not None and txid < _changes(data_dir, name).since():
        return []
    rows = StateView(data_dir, name, txid).to_arrow()
    if "unit" not in rows.column_names or "record" not in rows.column_names:
        return []  # a state of the user's that happens to have such a name
    texts = rows.filter(pc.equal(rows.column("unit"), COMPONENT)).column("record").to_pylist()
    return [one for text in texts for one in _positions(component, json.loads(text))]


def _changes(data_dir: Path, name: str) -> DeltaTableState:
    return open_table(data_dir, TableRef(CHANGES, name))


def _positions(component: str, record: Mapping[str, Any]) -> Iterator[InputPosition]:
    """Yield the positions in the record of a component: of windows by number of the input, of joins by side."""
    about = record.get("about") or {}
    inputs = about.get("inputs")
    for number, part, time, _ in record.get("newest", ()):
        source, stream, *_ = inputs[number] if inputs else ("", DEFAULT_STREAM)
        yield InputPosition(component, source, stream, part, time)
    for side in SIDES:
        for part, time, _ in record.get(side, {}).get("partitions", ()):
            source, stream = about[side]["input"]
            yield InputPosition(component, source, stream, part, time)
