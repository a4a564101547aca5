"""Records of a windowed component in its state `<component>-progress`, as JSON: one of the component, one per unit.

A unit is a task or a key. With windows per key, a task that has had late tuples has a record of their number, too. Only
task 0 writes the component's record; every task reads it as it was after the previous transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txstorm.api.state import KeyedState, KeyTexts
from txstorm.errors import StateError
from txstorm.windows.plan import WindowPlan
from txstorm.windows.rules.backlog import Backlog
from txstorm.windows.rules.event_time import Newest, Progress
from txstorm.windows.rules.firing import FiringState, OpenSession, Place

COMPONENT = "component"
"""Key of the component's record; those of units are in brackets."""


def progress_state(plan: WindowPlan, fixed: Mapping[str, str]) -> KeyedState:
    """Declare the state of the records of a component; `fixed`: what must be the same at every start."""
    tasks = None if plan.owner_fields is not None else plan.parallelism
    texts = None if plan.key is None else KeyTexts("unit")
    return KeyedState(f"{plan.id}-progress", {"unit": str}, {"record": str}, tasks=tasks, fixed=fixed, key_texts=texts)


@dataclass(frozen=True)
class ComponentRecord:
    """Record of a component after a transaction.

    Attributes:
        tasks: number of tasks in the previous transaction; None before the first.
        declared: what must be the same at every start; see `WindowPlan.declared`.
        about: what else helps to understand the record; see `WindowPlan.about`.
        progress: its progress in event time; in processing time, the watermark is the last stamp.
        early_stamp: stamp of the previous early evaluation.
        early_txid: its txid.
        backlog: the ends that have not fired; None in records without it.
        ahead: input → number of tuples so far that were too far ahead of the stamp.
    """

    tasks: int | None = None
    declared: Any = None
    progress: Progress = field(default_factory=Progress)
    early_stamp: int | None = None
    early_txid: int = 0
    about: Any = None
    backlog: Backlog | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return the record as JSON."""
        progress = self.progress
        newest = sorted([*place, one.time, one.stamp] for place, one in progress.newest.items())
        return _json(
            {
                "watermark": progress.watermark,
                "advanced": progress.advanced,
                "first_stamp": progress.first_stamp,
                "newest": newest,
                "early": [self.early_stamp, self.early_txid],
                "tasks": self.tasks,
                "declared": self.declared,
                "about": self.about,
                **({} if self.backlog is None else {"backlog": self.backlog.stored()}),
                **({"ahead": dict(self.ahead)} if self.ahead else {}),
            }
        )

    @classmethod
    def read(cls, text: str | None) -> ComponentRecord:
        """Return the record with this text; a new one if there is none."""
        if text is None:
            return cls()
        stored = json.loads(text)
        newest = {(number, part): Newest(time, stamp) for number, part, time, stamp in stored["newest"]}
        progress = Progress(stored["watermark"], stored["advanced"], stored["first_stamp"], newest)
        early_stamp, early_txid = stored["early"]
        backlog = Backlog.of(stored["backlog"]) if "backlog" in stored else None
        ahead, about = stored.get("ahead", {}), stored["about"]
        return cls(stored["tasks"], stored["declared"], progress, early_stamp, early_txid, about, backlog, ahead)

    @property
    def ends(self) -> Backlog:
        """The ends that have not fired; of a record of before, or without a time slide, those after the watermark."""
        return Backlog(self.progress.watermark, None if self.tasks else ()) if self.backlog is None else self.backlog

    def check(self, component: str, declared: Any) -> None:
        """Raise `StateError` if the component was started with another form, key, time or policy."""
        if self.declared is None or self.declared == declared:
            return
        names = [name for name in {**self.declared, **declared} if self.declared.get(name) != declared.get(name)]
        was = {name: self.declared.get(name) for name in names}
        now = {name: declared.get(name) for name in names}
        raise StateError(
            f"{component}: its windows were started with {_json(was)}, the code has {_json(now)}; buffered tuples "
            "belong to the former: go back to it, or give the component another id, which starts without them"
        )


class StoredInputs:
    """Inputs of a component by the numbers that they have in stored tuples and records.

    A start may have its inputs in another order or with other fields, or have others. Inputs therefore keep their
    numbers, and new ones get the next.

    Args:
        plan: the plan of the component.
        about: what the record of the previous transaction says, which names the inputs so far.

    Attributes:
        all: component, stream and fields of the input of each number.
        numbers: the numbers of the plan's inputs.
    """

    def __init__(self, plan: WindowPlan, about: Any) -> None:
        known = [(component, stream, tuple(fields)) for component, stream, fields in (about or {}).get("inputs", ())]
        own = [(one.component, one.stream, one.fields) for one in plan.inputs]
        self._about = plan.about()
        self.all = (*known, *(one for one in own if one not in known))
        self.numbers = tuple(map(self.all.index, own))

    def read(self, record: ComponentRecord) -> ComponentRecord:
        """Return a stored record with the newest times of the plan's inputs, by their index."""
        index = {self.all[number][:2]: at for at, number in enumerate(self.numbers)}
        newest = {
            (index[self.all[number][:2]], part): one
            for (number, part), one in record.progress.newest.items()
            if self.all[number][:2] in index
        }
        return replace(record, progress=replace(record.progress, newest=newest))

    def text(self, record: ComponentRecord) -> str:
        """Return a record as it is stored: with the numbers of inputs, and what they stand for."""
        newest = {(self.numbers[at], part): one for (at, part), one in record.progress.newest.items()}
        inputs = [[component, stream, list(fields)] for component, stream, fields in self.all]
        about = {**self._about, "inputs": inputs, "read": list(self.numbers)}
        return replace(record, progress=replace(record.progress, newest=newest), about=about).text()


@dataclass(frozen=True)
class UnitRecord:
    """Record of a unit after a transaction.

    Attributes:
        state: what later windows have to know of earlier ones.
        stamp: stamp of the last transaction that had tuples of it.
        due: the next time at which a key has to be looked at; None if only new tuples can make it fire.
        late: input → number of late tuples; of tasks only.
    """

    state: FiringState = field(default_factory=FiringState)
    stamp: int = 0
    due: int | None = None
    late: tuple[tuple[int, int], ...] = ()

    def text(self) -> str:
        """Return the record as JSON."""
        state = self.state
        return _json(
            {
                "low": state.low,
                "high": state.high,
                "covered": state.covered,
                "counts": [state.kept, state.counted],
                "newest": state.newest,
                "last_end": state.last_end,
                "open": state.open,
                "stamp": self.stamp,
                "due": self.due,
                "late": self.late,
                **({"expired": state.expired} if state.expired else {}),
            }
        )

    @classmethod
    def read(cls, text: str) -> UnitRecord:
        """Return the record with this text."""
        stored = json.loads(text)
        low, high, covered = (Place(*stored[name]) for name in ("low", "high", "covered"))
        kept, counted = stored["counts"]
        open_ = tuple(OpenSession(*one) for one in stored["open"])
        expired = tuple(stored.get("expired", ()))
        state = FiringState(low, high, covered, kept, counted, stored["newest"], stored["last_end"], open_, expired)
        late = tuple((number, count) for number, count in stored["late"])
        return cls(state, stored["stamp"], stored["due"], late)

    def with_late(self, numbers: dict[int, int]) -> UnitRecord:
        """Return the record with further late tuples counted."""
        before = dict(self.late)
        inputs = sorted({*before, *numbers})
        return replace(self, late=tuple((one, before.get(one, 0) + numbers.get(one, 0)) for one in inputs))


def unit_of_task(task: int) -> str:
    """Return the name of the unit of a task."""
    return f"[{task}]"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
