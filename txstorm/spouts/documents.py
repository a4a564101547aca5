"""Spout documents for batches whose tuples are not emitted: metadata to record, and where the next batch starts.

The formats of documents are described in `txstorm.spouts.executors`.
"""

from __future__ import annotations

from typing import Any


def parts_without(document: Any, task: int, parallelism: int) -> dict[str, Any] | None:
    """Return the parts of emitter `task` as if it had emitted its share of the batch of `document`, without emitting.

    Return an empty dict for spouts planned in the driver; None if the end of the batch is known only after emitting it.
    """
    if "sources" in document:
        return _of_sources(document["sources"], task, parallelism)
    if "parts" not in document:
        return {}
    parts = document["parts"]
    return None if parts is None else _mine(parts, task, parallelism)


def metadata_of(document: Any, parts: dict[str, Any], task: int, parallelism: int) -> dict[str, Any]:
    """Return the share of emitter `task` in the batch of `document`, as JSON values."""
    share = {"parts": parts} if "parts" in document else document
    return {**share, "task": task, "of": parallelism}


def _mine(parts: dict[str, Any], task: int, parallelism: int) -> dict[str, Any]:
    return {key: part for key, part in parts.items() if int(key) % parallelism == task}


def _of_sources(sources: dict[str, Any], task: int, parallelism: int) -> dict[str, Any] | None:
    """`parts_without` for a composite spout: the keys are prefixed with the name of their source."""
    parts = {name: parts_without(document, task, parallelism) for name, document in sources.items()}
    known = {name: own for name, own in parts.items() if own is not None}
    if len(known) < len(parts):
        return None
    return {f"{name}/{key}": part for name, own in known.items() for key, part in own.items()}
