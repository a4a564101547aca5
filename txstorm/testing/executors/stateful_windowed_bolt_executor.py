"""Executor of a stateful windowed bolt without a topology, with Storm's rules for tuples that come again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.external import State
from txstorm.api.names import DEFAULT_STREAM, counted
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.api.tuples import Origin, Tuple
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.task.collector import OutputCollector
from txstorm.errors import InputError, StateError
from txstorm.misfits import shown
from txstorm.stateful.bolt import AnchoringCollector
from txstorm.stateful.memory import MemoryStateProvider
from txstorm.stateful.windowed import UNSTATED, StatefulWindowedBolt
from txstorm.windows.rules.event_time import END, late, microseconds
from txstorm.windows.rules.firing import ARRIVAL_BITS, PASSED, FiringState, Moment, Place, Rows, Window, end_at, fire
from txstorm.windows.window import TupleWindow, WindowReader, parts_of

Source = tuple[int, str]
"""Source task and stream."""
Ids = tuple[int | None, int | None]
"""The highest expired and evaluated id; None: no id."""
_NO_IDS: Ids = (None, None)


class SavedIds(dict[Source, Ids]):
    """Ids that an executor leaves, by source task and stream, and the end of the last window of a time slide."""

    last_end: int | None = None


class StatefulWindowedBoltExecutor:
    """Executor of one task of a stateful windowed bolt; its state is in memory.

    After `init_state` with saved ids, a tuple whose id is at most the expired one is discarded; one whose id is at most
    the evaluated one belongs to later windows, but neither fires nor counts towards the slide; others wait until every
    saved source has passed its evaluated id, and are then processed in order.

    Attributes:
        evaluated: the ids of the tuples of each evaluated window.
        discarded: the discarded tuples, as (task, stream, id).
        saved: (task, stream) → highest expired and evaluated id, None for no id; with the end of the last window, which
            a mapping of ids alone tells only as far as tuples were evaluated or expired for the first time.
        state: the state.

    Args:
        bolt: the bolt, with windows per task other than sessions, and a message id field.
        fields: names of the fields of its input tuples.
        saved: as an earlier executor left it; None: nothing.
        state: its state; None: a new one in memory.

    Raises:
        InputError: the bolt is of another kind, or `saved` has another form.
    """

    def __init__(
        self,
        bolt: StatefulWindowedBolt,
        fields: Sequence[str],
        saved: Mapping[Source, Ids | None] | None = None,
        state: State | None = None,
    ) -> None:
        if not isinstance(bolt, StatefulWindowedBolt):
            raise InputError(f"stateful windowed bolt executor: {type(bolt).__name__} is no StatefulWindowedBolt")
        form, field = bolt.options.form, bolt.message_id_field
        if form is None or form.is_session or bolt.options.key is not None:
            raise InputError("stateful windowed bolt executor: expected windows per task, by duration or count")
        for fault in form.faults():
            raise InputError(f"stateful windowed bolt executor: {fault}")
        if field is not None and field not in fields:
            msg = f"stateful windowed bolt executor: the message id field {field!r} is none of {tuple(fields)}"
            raise InputError(msg)
        if not bolt.survives:
            raise InputError(f"stateful windowed bolt executor: {type(bolt).__name__} {UNSTATED}")
        self.evaluated: list[list[Any]] = []
        self.discarded: list[tuple[int, str, Any]] = []
        self.saved = SavedIds({source: _checked(source, ids) for source, ids in (saved or {}).items()})
        self.saved.last_end = getattr(saved, "last_end", None)
        self.state = MemoryStateProvider().new_state("bolt-0") if state is None else state
        self._bolt, self._form, self._id_field, self._fields = bolt, form, field, tuple(fields)
        self._recovering = {source for source, (_, evaluated) in self.saved.items() if evaluated is not None}
        self._waiting: list[Tuple] = []
        self._ready = False
        self._rows: list[tuple[Place, Tuple]] = []
        self._state = FiringState()
        self._watermark: int | None = None
        self._newest: dict[str, int] = {}
        self._number = 0
        declared = OutputFieldsDeclarer()
        bolt.declare_output_fields(declared)
        self._output = OutputCollector("bolt", declared.streams)
        bolt.prepare(TaskContext("test", "bolt", 0, 1), AnchoringCollector(self._output))

    def init_state(self) -> None:
        """Give the bolt its state; called once, before tuples."""
        self._bolt.init_state(self.state)
        self._ready = True

    def emitted(self) -> list[tuple[Any, ...]]:
        """Return the values emitted since the last call, on all streams."""
        return [tuple(row) for one in self._output.take() for row in rows_of_batch(one.batch)]

    def execute(self, *values: Any, task: int = 0, stream: str = DEFAULT_STREAM) -> None:
        """Pass a tuple of a source task and stream to the bolt.

        Raises:
            StateError: the bolt has not got its state.
        """
        if not self._ready:
            raise StateError(f"stateful windowed bolt executor: execute of {values!r} before init_state; call it first")
        if len(values) != len(self._fields):
            number = counted(len(values), "value")
            msg = f"stateful windowed bolt executor: {values!r} has {number}, expected one for each of {self._fields}"
            raise InputError(msg)
        one = Tuple(values, Origin(TransactionAttempt(0, 0), "source", stream, task, self._fields))
        if self._recovering:
            self._recover(one, (task, stream))
        else:
            self._process(one)

    def _recover(self, one: Tuple, source: Source) -> None:
        """Handle a tuple while a saved source has not passed its evaluated id."""
        expired, evaluated = self.saved.get(source, _NO_IDS) if source in self._recovering else _NO_IDS
        id = self._id(one)
        if expired is not None and id <= expired:
            self.discarded.append((*source, id))
            self._fired(one, expired=True)
        elif evaluated is not None and id <= evaluated:
            self._fired(one, expired=False)
            self._add(one)
            self._pass_over()
        else:
            self._waiting.append(one)
            self._recovering.discard(source)
            if not self._recovering:
                if self._rows and self.saved.last_end is not None and self._form.step is not None:
                    self._pass_over(self.saved.last_end)
                waiting, self._waiting = self._waiting, []
                for later in waiting:
                    self._process(later)

    def _pass_over(self, least: int = -END) -> None:
        """Treat all tuples so far as evaluated: they have been counted, and ends up to now, or `least`, have fired."""
        last, _ = self._rows[-1]
        reached = self._reached()
        self._watermark = reached if reached is None or not self._timed else max(reached, least)
        newest = last.time
        covered = Place(newest, last.arrival + 1) if self._form.step is None else self._covered(newest)
        kept = len(self._between(self._state.low, covered))
        self._state = replace(self._state, high=covered, covered=covered, kept=kept, newest=newest, last_end=None)

    def _fired(self, one: Tuple, *, expired: bool) -> None:
        """Note the end that must have fired for a tuple to have been evaluated, or to have expired."""
        step, span = self._form.step, self._form.span if expired else 0
        if self._timed and step is not None and span is not None:
            self._note_end(-(-(self._form.held(self._time(one)) + span) // step) * step)

    def _note_end(self, end: int) -> None:
        known = self.saved.last_end
        self.saved.last_end = end if known is None else max(known, end)

    def _covered(self, newest: int) -> Place:
        """Return the place up to which a time slide has fired."""
        assert self._form.step is not None
        reached = newest if self._watermark is None else self._watermark
        return end_at(reached // self._form.step * self._form.step)

    def _process(self, one: Tuple) -> None:
        """Add a tuple, and evaluate the windows that it completes."""
        passed = self._watermark
        if not self._add(one):
            return
        self._watermark = self._reached()
        moment = Moment(self._number, passed, self._watermark, stamped=not self._timed)
        limit = moment.limit(self._form)
        if limit is None:
            return
        fresh = self._between(self._state.covered, limit)
        windows, self._state = fire(self._form, self._state, moment, self._arrays(fresh), self._oldest)
        for window in windows:
            self._evaluate(window)
        self._rows = self._between(self._state.low, Place(END, 0))

    @property
    def _timed(self) -> bool:
        return self._bolt.options.time.is_event_time

    def _add(self, one: Tuple) -> bool:
        """Add a tuple in the order of time; return False if it is late."""
        self._number += 1
        time = self._time(one)
        if self._timed:
            self._newest[one.source_stream] = max(time, self._newest.get(one.source_stream, time))
            if self._watermark is not None and late(np.array([time], np.int64), self._watermark, self._form)[0]:
                return False
        held = self._form.held(time)
        passed = PASSED if self._timed and self._form.step is not None and held == self._watermark else 0
        row = Place(held, self._number << ARRIVAL_BITS | passed), one
        self._rows.insert(bisect_left(self._rows, row[0], key=lambda known: known[0]), row)
        return True

    def _time(self, one: Tuple) -> int:
        source = self._bolt.options.time
        if not self._timed:
            return self._number  # processing time: the order of arrival
        value = one[str(source.field)] if source.extractor is None else source.extractor(one)
        time = microseconds(value, source.unit)
        if isinstance(time, str):
            raise InputError(f"stateful windowed bolt executor: the timestamp of {shown(one.values)}: {time}")
        return time

    def _reached(self) -> int | None:
        if not self._timed:
            return self._number
        reached = min(self._newest.values()) - self._bolt.options.rule.lag
        return reached if self._watermark is None else max(self._watermark, reached)

    def _between(self, low: Place, high: Place) -> list[tuple[Place, Tuple]]:
        return [row for row in self._rows if low <= row[0] < high]

    def _oldest(self, low: Place, number: int) -> Rows:
        return self._arrays(self._between(low, Place(END, 0))[:number])

    def _arrays(self, rows: Sequence[tuple[Place, Tuple]]) -> Rows:
        trigger = self._form.trigger
        fires = None if trigger is None else np.array([bool(trigger(one)) for _, one in rows], bool)
        times, arrivals = (np.array([place[part] for place, _ in rows], np.int64) for part in (0, 1))
        return Rows(times, arrivals, fires)

    def _evaluate(self, window: Window) -> None:
        reader = cast("WindowReader", _Reader(self))
        made = TupleWindow(reader, "task", window, keyed=False, evictor=self._bolt.options.evictor)
        self._bolt.execute(made)
        if self._form.step is not None:
            self._note_end(window.end)
        if self._id_field is None:
            return
        content = made.get()
        self.evaluated.append([self._id(one) for one in content])
        for place, tuples in ((1, content), (0, made.get_expired())):
            for one in tuples:
                source = one.source_task, one.source_stream
                ids = list(self.saved.get(source, _NO_IDS))
                known = ids[place]
                ids[place] = self._id(one) if known is None else max(known, self._id(one))
                self.saved[source] = ids[0], ids[1]

    def _id(self, one: Tuple) -> int:
        given = one[cast("str", self._id_field)]
        if isinstance(given, bool) or not isinstance(given, int):
            msg = f"stateful windowed bolt executor: the message id of {one!r} is {given!r}, expected an int"
            raise InputError(msg)
        if not -(2**63) < given < 2**63:
            raise InputError(f"stateful windowed bolt executor: the message id {shown(given)} has more than 64 bits")
        return given


class _Reader:
    """Reads the tuples of one window from the executor's memory."""

    def __init__(self, executor: StatefulWindowedBoltExecutor) -> None:
        self._rows = list(executor._rows)  # noqa: SLF001 - a part of the executor

    def read(self, unit: str, part: str, window: Window) -> tuple[_Reader, Place, Place]:
        """Return where the tuples of a part of a window are."""
        return self, *parts_of(window)[part]

    def too_many(self, unit: str, part: str, window: Window) -> None:
        """Return None: all tuples are in memory."""

    def tuples(self, low: Place, high: Place) -> list[Tuple]:
        """Return the tuples between two places."""
        return [one for place, one in self._rows if low <= place < high]


def _checked(source: Any, ids: Any) -> Ids:
    match source, ids:
        case (int(), str()), None:
            return _NO_IDS
        case (int(), str()), (int() | None as expired, int() | None as evaluated):
            return expired, evaluated
    raise InputError(
        f"stateful windowed bolt executor: saved has {source!r}: {ids!r}, expected (task, stream): (expired, evaluated)"
    )
