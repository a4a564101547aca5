"""Stateful windowed bolts: windows and a managed state in one bolt, with message ids that drop repeated tuples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from txstorm.api.assembly import Assembly, Site
from txstorm.api.context import TaskContext
from txstorm.api.output import Collector
from txstorm.api.state import KeyedState
from txstorm.api.tuples import Tuple
from txstorm.errors import InputError
from txstorm.misfits import shown
from txstorm.stateful.bolt import HOOK_NAMES, AnchoringCollector, StatefulHooks
from txstorm.stateful.committer import StatePart
from txstorm.windows.bolt import WindowedBolt
from txstorm.windows.buffer import TupleBuffer
from txstorm.windows.committer import WindowCommitter
from txstorm.windows.intake import Chunk
from txstorm.windows.plan import WindowPlan
from txstorm.windows.units import Fired
from txstorm.windows.window import TupleWindow

IDS = {"newest": int, "evaluated": int, "expired": int, "dropped": int}
UNSTATED = (
    "does not state how its windows survive a crash; call with_persistence, or with_message_id_field if the source "
    "repeats tuples"
)
NONE = -(2**63)
"""The id before all ids."""
SourceTask = tuple[str, int]
"""Source of message ids: component and stream, and the task."""


class StatefulWindowedBolt(StatefulHooks, WindowedBolt):
    """A windowed bolt with a managed state; Storm's ``BaseStatefulWindowedBolt``.

    In each transaction a new object is called: `prepare`, `init_state`, `execute` for each window that fires,
    `cleanup`, `pre_prepare`; then as for `txstorm.StatefulBolt`. It states how its windows survive a crash:
    `with_persistence`, or `with_message_id_field` if the source repeats tuples. In a topology tuples are kept in state
    either way.
    """

    storm_names: ClassVar[Mapping[str, str]] = HOOK_NAMES
    _persistent = False
    _id_field: str | None = None

    def prepare(self, context: TaskContext, collector: Collector) -> None:
        """Set up for one transaction; called first."""

    def execute(self, window: TupleWindow) -> None:
        """Evaluate one window; the state may be read and written."""
        super().execute(window)

    def with_persistence(self) -> Self:
        """Keep the tuples of windows in state."""
        self._persistent = True
        return super().with_persistence()

    def with_message_id_field(self, name: str) -> Self:
        """Drop repeated tuples: `name` is an int field that increases for each source task and stream."""
        if not isinstance(name, str) or not name:
            raise InputError(f"with_message_id_field: expected the name of a field, got {name!r}")
        self._id_field = name
        return self

    @property
    def survives(self) -> bool:
        """Whether it states how its windows survive a crash."""
        return self._persistent or self._id_field is not None

    @property
    def message_id_field(self) -> str | None:
        """The field of message ids; None if there is none."""
        return self._id_field

    def assemble(self, site: Site) -> Assembly:
        """Return the committer that buffers tuples and calls this bolt."""
        made = super().assemble(site)
        part, faults = StatePart.of(self, site)
        if not self.survives:
            faults.append(f"{type(self).__name__} {UNSTATED}")
        for one in site.inputs:
            faults += one.missing("with_message_id_field", [self._id_field])
        assert isinstance(made.committer, WindowCommitter)
        committer = StatefulWindowCommitter(made.committer, part, site)
        return Assembly(committer, (*made.faults, *faults), made.warnings)

    withPersistence = with_persistence  # noqa: N815 - Storm's names
    withMessageIdField = with_message_id_field  # noqa: N815


BaseStatefulWindowedBolt = StatefulWindowedBolt
"""Storm's name."""


class StatefulWindowCommitter(WindowCommitter):
    """Committer that runs a `StatefulWindowedBolt`.

    Attributes:
        part: the state of the bolt.
        table, managed: those of the part.
        ids: the state with the message ids seen; None without a message id field.
    """

    stateful = True

    def __init__(self, windows: WindowCommitter, part: StatePart, site: Site) -> None:
        super().__init__(windows.plan, windows.bolt, windows.tables)
        self.part = part
        self.table = part.table
        self.managed = part.managed
        self.external = part.external  # type: ignore[misc]  # per object
        field = self.bolt.message_id_field
        key = {"task": int, "source": str, "source_task": int}
        sources = tuple(dict.fromkeys(one.component for one in site.inputs))
        ids = KeyedState(f"{site.id}-ids", key, IDS, tasks=site.parallelism, tasks_of=sources)
        self.ids = None if field is None else ids
        if field is not None:
            self.checks += (partial(_ids, windows.plan, field),)
        more = (one.name for one in (self.table, self.ids) if one is not None)
        self.internal_states = {*self.internal_states, *more}

    def retention(self, state: str) -> str | None:
        """Describe for how long a state is kept; None: as it is declared."""
        is_ids = self.ids is not None and state == self.ids.name
        return "one row per task and source task" if is_ids else super().retention(state)

    @property
    def class_name(self) -> str:
        """The name of the user's class."""
        return type(self.bolt).__name__

    def finish_batch(self) -> None:
        """Drop repeated tuples, fire the windows, and save the state with the transaction."""
        self._state = self.part.begin(self.bolt, self._context, self._attempt.txid)
        self._ready = False
        self._seen: dict[SourceTask, dict[str, int]] = {}
        if self.ids is not None:
            self._chunks = [self._fresh(chunk) for chunk in self._chunks]
        super().finish_batch()
        if not self._ready:
            self._open()
            self.bolt.cleanup()
        self.bolt.pre_prepare(self._attempt.txid)
        if self.ids is not None:
            task = self._context.task
            rows = {(task, *source): seen for source, seen in self._seen.items()}
            self._context.state(self.ids.name).put_many(rows)
        self.part.save()

    def _call(self, buffer: TupleBuffer, fired: Sequence[Fired]) -> None:
        self._ready = True
        super()._call(buffer, fired)

    def _open(self) -> None:
        self.bolt.prepare(self._context, AnchoringCollector(self._collector))
        self.bolt.init_state(self._state)

    def _evaluate(self, window: TupleWindow) -> None:
        super()._evaluate(window)
        if self.ids is not None:
            self._note(window.get(), "evaluated")
            self._note(window.get_expired(), "expired")

    # -- message ids -----------------------------------------------------------------------------------------------

    def _fresh(self, chunk: Chunk) -> Chunk:
        """Return the tuples of a chunk whose ids are above all earlier ones of their source task and stream."""
        one = self.plan.inputs[chunk.number]
        seen = self._of((f"{one.component}/{one.stream}", chunk.task))
        ids = _ids(self.plan, self.bolt.message_id_field, chunk)
        newest = np.maximum.accumulate(np.array([seen["newest"], *ids], np.int64))
        fresh = np.array(ids, np.int64) > newest[:-1]
        seen["newest"] = int(newest[-1])
        seen["dropped"] += int(np.count_nonzero(~fresh))
        return chunk if fresh.all() else _taken(chunk, np.flatnonzero(fresh))

    def _note(self, tuples: Sequence[Tuple], what: str) -> None:
        for one in tuples:
            seen = self._of((f"{one.source_component}/{one.source_stream}", one.source_task))
            seen[what] = max(seen[what], int(one[self.bolt.message_id_field]))

    def _of(self, source: SourceTask) -> dict[str, int]:
        """Return what is known of the ids of a source, as it will be saved."""
        if source not in self._seen:
            assert self.ids is not None
            known = self._context.state(self.ids.name).get((self._context.task, *source))
            self._seen[source] = dict(known or {"newest": NONE, "evaluated": NONE, "expired": NONE, "dropped": 0})
        return self._seen[source]


def _ids(plan: WindowPlan, field: str, chunk: Chunk) -> list[int]:
    """Return the message ids of tuples; raise `InputError` for one that is no int of 64 bits."""
    place = plan.inputs[chunk.number].fields.index(field)
    ids = [row[place] for row in chunk.rows()]
    for given in ids:
        if isinstance(given, bool) or not isinstance(given, int) or not NONE < given < -NONE:
            msg = f"{plan.id}: the message id {field!r} of a tuple is {shown(given)}, expected an int of 64 bits"
            raise InputError(msg)
    return ids


def _taken(chunk: Chunk, rows: np.ndarray[Any, np.dtype[np.int64]]) -> Chunk:
    """Return the chunk with only some of its tuples."""
    values = chunk.values
    kept = [values[row] for row in rows] if isinstance(values, list) else values.take(pa.array(rows))
    return replace(
        chunk,
        values=kept,
        times=None if chunk.times is None else chunk.times[rows],
        units=None if chunk.units is None else chunk.units.take(pa.array(rows)),
        gaps=None if chunk.gaps is None else chunk.gaps[rows],
        fires=None if chunk.fires is None else [chunk.fires[row] for row in rows],
    )
