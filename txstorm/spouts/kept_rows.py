"""Rows that spouts keep in states of the topology: written with a transaction, read when a run opens.

What a transaction writes follows from its spout document alone, so a replay writes the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from txstorm.api.composite import kept_states
from txstorm.api.context import CommitResources


class KeptRows:
    """Rows that the sources of a spout keep.

    Args:
        id: the spout's id.
        spout: the spout.
    """

    def __init__(self, id: str, spout: object) -> None:
        self._id = id
        self._states = kept_states(spout)

    def write(self, document: Any, resources: CommitResources) -> None:
        """Write the rows of the txid of `document`, at the end of its commit phase; touch no state without rows.

        Raises:
            StateError: the attempt was given up meanwhile, or a row does not fit.
        """
        for name, (state, kept) in self._states.items():
            for metadata in _metadata(name, document):
                rows = kept.rows(metadata)
                if rows:
                    _put(resources.state(self._id, 0, state.name), rows)


def _metadata(source: str, document: Any) -> Iterator[Any]:
    """Yield the metadata of `source`, empty for a spout of one source, unless it emits nothing in `document`."""
    own = document["sources"].get(source) if source else document
    if own is not None and not own.get("skipped") and own.get("meta") is not None:
        yield own["meta"]


def _put(handle: Any, rows: Mapping[Any, Any]) -> None:
    handle.active = True
    handle.put_many({key: value for key, value in rows.items() if value is not None})
    if gone := [key for key, value in rows.items() if value is None]:
        handle.remove_many(gone)
    handle.active = False
