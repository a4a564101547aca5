"""Task context: identity, settings and transaction of a task, and a committer's access to its tables."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.state import CollectionHandle, SinkHandle, StateHandle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CommitResources(Protocol):
    """A committer's access to its tables, for one txid and task."""

    def state(self, component: str, task: int, name: str) -> StateHandle:
        """Return the handle of the state `name` declared by `component`."""

    def collection(self, component: str, task: int, name: str, tasks: int = 1) -> CollectionHandle:
        """Return the handle of the collection state `name` declared by `component`, which has `tasks` tasks."""

    def sink(self, component: str, task: int, name: str) -> SinkHandle:
        """Return the handle of the sink `name` declared by `component`."""


@dataclass
class TaskContext:
    """A task's view of itself and its transaction; passed to `prepare` of bolts and to `emitter` of spouts.

    Attributes:
        topology: the topology's id.
        component: the component's id.
        task: index of this task within its component, from 0.
        parallelism: number of tasks of the component.
        settings: the topology's settings, overridden by the component's own configuration.
        attempt: the current attempt; for spouts None while no batch is being emitted.
        stamp: processing time of this txid in UTC microseconds since 1970, the same on every replay of a recorded
            plan. Use it instead of the clock, which would differ between attempts.
        source: (component, stream, task) that emitted the current record batch; set during `execute_batch`.
        payload: for emitters, the return value of `SpoutCoordinator.payload` for this txid.
        resources: the committer's tables; None outside the commit phase.
    """

    topology: str
    component: str
    task: int
    parallelism: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    attempt: TransactionAttempt | None = None
    stamp: int = 0
    source: tuple[str, str, int] | None = None
    payload: Any = None
    resources: CommitResources | None = field(default=None, repr=False)

    @property
    def now(self) -> datetime:
        """The processing time of this txid, as a timezone-aware datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.stamp)

    def random(self) -> random.Random:
        """Return a random generator seeded with topology, component, task and txid: replays draw the same numbers."""
        txid = getattr(self.attempt, "txid", self.attempt) or 0  # an attempt of another type is itself the seed
        return random.Random(f"{self.topology}/{self.component}/{self.task}/{txid}")  # noqa: S311 - not for secrets

    def state(self, name: str) -> StateHandle:
        """Return the handle of this committer's `KeyedState` named `name`; usable in `finish_batch` only."""
        return self._resources("state", name).state(self.component, self.task, name)

    def collection(self, name: str) -> CollectionHandle:
        """Return the handle of this committer's `CollectionState` named `name`; usable in `finish_batch` only."""
        resources = self._resources("state", name)
        return resources.collection(self.component, self.task, name, self.parallelism)

    def sink(self, name: str) -> SinkHandle:
        """Return the handle of this committer's `SinkTable` or `Outlet` named `name`; usable in `finish_batch` only."""
        return self._resources("sink", name).sink(self.component, self.task, name)

    def _resources(self, kind: str, name: str) -> CommitResources:
        from txstorm.errors import StateError

        if self.resources is None:
            msg = (
                f"{self.component}: {kind} {name!r} asked for in the processing phase; only committers have tables, "
                "and only in finish_batch: mark the bolt with Committer or use set_committer_bolt"
            )
            raise StateError(msg)
        return self.resources
