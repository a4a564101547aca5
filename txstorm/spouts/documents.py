"""Spout documents of batches without tuples: the metadata to record, and the start of the next batch.

The forms of documents are those of `txstorm.spouts.executors`.
"""

from __future__ import annotations

from typing import Any


def parts_without(document: Any, task: int, parallelism: int) -> dict[str, Any] | None:
    """The parts of emitter `task` when it emits nothing of the batch of `document`, the next one beginning after it.

    Empty for spouts that are planned in the driver. None when only emitting tells how far the batch reaches.
    """
    if "sources" in document:
        return _of_sources(document["sources"], task, parallelism)
    if "parts" not in document:
        return {}
    parts = document["parts"]
    return None if parts is None else _mine(parts, task, parallelism)


def metadata_of(document: Any, parts: dict[str, Any], task: int, parallelism: int) -> dict[str, Any]:
    """The share of emitter `task` in the batch of `document`, as JSON values."""
    share = {"parts": parts} if "parts" in document else document
    return {**share, "task": task, "of": parallelism}


def _mine(parts: dict[str, Any], task: int, parallelism: int) -> dict[str, Any]:
    return {key: part for key, part in parts.items() if int(key) % parallelism == task}


def _of_sources(sources: dict[str, Any], task: int, parallelism: int) -> dict[str, Any] | None:
    """Of a composite spout: the parts of every source carry its name in front."""
    parts = {name: parts_without(document, task, parallelism) for name, document in sources.items()}
    known = {name: own for name, own in parts.items() if own is not None}
    if len(known) < len(parts):
        return None
    return {f"{name}/{key}": part for name, own in known.items() for key, part in own.items()}
