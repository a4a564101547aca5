"""Checks of the results and errors of a spout's user code; errors name the call.

Also defines a spout's notices about its source, which are logged at once and kept until the next progress report.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from txstorm.api.context import SourceFacts
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector
from txstorm.errors import MetadataError, TopologyFailed, TxstormError


@contextmanager
def calling(spout: str, call: str) -> Iterator[None]:
    """Convert exceptions of user code in the driver to errors that end the topology and name the call."""
    try:
        yield
    except TxstormError:
        raise
    except (Exception, SystemExit) as error:
        raise TopologyFailed(f"spout {spout!r}: {call} raised {type(error).__name__}: {error}") from error


def storable(value: Any, what: str) -> Any:
    """Return `value` as it would be read back from storage (tuples become lists), so that replays see the same value.

    Raises:
        MetadataError: JSON cannot represent `value`; `what` names the spout, partition and txid.
    """
    try:
        stored = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{what}: metadata {value!r} cannot be stored ({error}); return values that JSON can represent"
        raise MetadataError(msg) from None
    if stored != value and _has_other_keys(value):
        msg = f"{what}: metadata {value!r} has a key that is not a string and would be read back as one; use strings"
        raise MetadataError(msg)
    return stored


def _has_other_keys(value: Any) -> bool:
    """Return whether `value` contains a mapping with a key that is not a string."""
    if isinstance(value, Mapping):
        return any(not isinstance(key, str) or _has_other_keys(inner) for key, inner in value.items())
    return isinstance(value, list | tuple) and any(map(_has_other_keys, value))


def partition_count(count: Any, what: str) -> int:
    """Return `count` if it is a valid number of partitions; raise `MetadataError`, naming `what`, if not."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise MetadataError(f"{what}: num_partitions() gave {count!r}; return an int >= 0")
    return count


def checked_facts(facts: Any, spout: str) -> SourceFacts:
    """Return `facts`, the result of a coordinator's `facts`; raise `MetadataError` if it has another type."""
    named = isinstance(facts, SourceFacts) and isinstance(facts.partitions, tuple | list)
    if named and all(isinstance(name, str) for name in facts.partitions):
        return SourceFacts(tuple(facts.partitions), bool(facts.caught_up), bool(facts.ended))
    msg = f"spout {spout!r}: facts() returned {facts!r}; return SourceFacts(partitions, …), with partitions as text"
    raise MetadataError(msg)


class WatchedCollector:
    """Collector that forwards everything and records whether anything was emitted."""

    def __init__(self, inner: Collector) -> None:
        self._inner = inner
        self.emitted = False
        self.report_error = self.reportError = inner.report_error
        self.digest = inner.digest
        self.refuse = inner.refuse
        self.refuse_all = lambda refusals: refusals.give(inner)
        self.partition = inner.partition
        self.origin = inner.origin

    def emit(self, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """See `Collector`."""
        self.emitted = True
        self._inner.emit(*values, stream=stream)

    def emit_direct(self, task: int, *values: Any, stream: str = DEFAULT_STREAM) -> None:
        """See `Collector`."""
        self.emitted = True
        self._inner.emit_direct(task, *values, stream=stream)

    emitDirect = emit_direct  # noqa: N815 - Storm's name

    def emit_batch(self, batch: Any, stream: str = DEFAULT_STREAM) -> None:
        """See `Collector`."""
        self.emitted = self.emitted or len(batch) > 0
        self._inner.emit_batch(batch, stream=stream)


class Notices:
    """Notices of one spout about its source; call from the driver thread only.

    Args:
        component: the spout's id, with which every notice begins.
        log: logger to which each notice goes as a warning.
    """

    def __init__(self, component: str, log: logging.Logger) -> None:
        self._component = component
        self._log = log
        self._kept: list[str] = []

    def say(self, what: str) -> None:
        """Log the notice and keep it until the next `take`."""
        notice = f"spout {self._component!r}: {what}"
        self._log.warning("%s", notice)
        self._kept.append(notice)

    def take(self) -> list[str]:
        """Return the notices since the last call."""
        kept, self._kept = self._kept, []
        return kept
