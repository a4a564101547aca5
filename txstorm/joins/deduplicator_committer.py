"""Committer that takes the place of a `Deduplicator`: known ids, the last duplicate, and what passes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.assembly import AssembledCommitter
from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.names import DEFAULT_STREAM
from txstorm.api.output import Collector, OutputFieldsDeclarer
from txstorm.api.state import CollectionHandle, CollectionState, KeyTexts, form_of_keys
from txstorm.api.tuples import Tuple
from txstorm.errors import InputError
from txstorm.keys import EQUAL, WRITTEN, equal_id, hash_rows, id_text, id_texts
from txstorm.user_code import InDriver
from txstorm.windows.rules.event_time import instant

log = logging.getLogger(__name__)

ID, PASSED, TXID = "id", "passed", "txid"
"""Columns of the known ids: the id as text, the stamp and the txid with which it became known."""
TASK, AT, EPOCH, ACTIVE = "task", "at", "epoch", "active"
"""Columns of the activity: per task, the stamp of its last duplicate (or of the start, or of the end of activity)."""
MOST_RECENT = 100_000
"""Maximum number of recent ids that are loaded at a start: they are stored with the plan of a transaction."""


@dataclass(frozen=True)
class DeduplicatorPlan:
    """Plan of a `Deduplicator`: its component, id fields, one of `quiet` and `keep` in microseconds, and its inputs.

    Attributes:
        inputs: (component, stream) → its fields.
    """

    component: str
    id: tuple[str, ...]
    quiet: int | None
    keep: int | None
    inputs: Mapping[tuple[str, str], tuple[str, ...]]

    @property
    def default_fields(self) -> tuple[str, ...] | None:
        """The fields of all inputs, if they are the same, and no input is a default stream; otherwise None."""
        fields = set(self.inputs.values())
        named = all(stream != DEFAULT_STREAM for _, stream in self.inputs)
        return next(iter(fields)) if named and len(fields) == 1 else None


class IdCommitter(AssembledCommitter):
    """Committer that drops tuples with known ids.

    The known ids are a state; one bound evicts them when they have been known for long enough, or all of them at the
    end of activity. Tasks agree on the last duplicate, as of the transaction before, through a second state, which has
    one row per task.
    """

    by_clock: ClassVar[bool] = True

    def __init__(self, plan: DeduplicatorPlan) -> None:
        self.plan = plan
        self.ids = CollectionState(
            f"{plan.component}-ids",
            {ID: str},
            {TXID: int},
            order={PASSED: datetime},
            fixed={"id": ", ".join(plan.id)},
            key_texts=KeyTexts(ID, len(plan.id)),
        )
        # Also with `keep`, which leaves it as it is: the same tables allow a change between the two.
        activity = {EPOCH: int, ACTIVE: bool}
        self.activity = CollectionState(f"{plan.component}-activity", {TASK: int}, activity, order={AT: datetime})
        self.internal_states = {self.ids.name, self.activity.name}

    def retention(self, state: str) -> str | None:
        """Describe for how long the rows of a state stay."""
        if state != self.ids.name:
            return "one row per task" if state == self.activity.name else None
        if self.plan.keep is None:
            return "evicted when there were no duplicates for a while"
        return f"evicted {timedelta(microseconds=self.plan.keep)} after the id has passed"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams of the inputs and, if all have the same fields, the default stream for all tuples."""
        for (_, stream), fields in self.plan.inputs.items():
            if stream not in declarer.streams:
                declarer.declare_stream(stream, fields)
        if self.plan.default_fields is not None:
            declarer.declare(self.plan.default_fields)

    def prepare(self, context: TaskContext, collector: Collector, attempt: TransactionAttempt) -> None:
        """Set up for one batch."""
        self._context, self._collector, self._txid = context, collector, attempt.txid
        self._shares: list[_Share] = []
        self._form = form_of_keys(context.collection(self.ids.name))
        read_as_default = self.plan.default_fields is not None and context.is_read(DEFAULT_STREAM)
        self._also = (DEFAULT_STREAM,) if read_as_default else ()

    def execute_batch(self, batch: Any) -> None:
        """Take a record batch."""
        assert self._context.source is not None
        component, stream, _ = self._context.source
        batch = batch.select(self.plan.inputs[component, stream])
        ids = id_texts([batch.column(name) for name in self.plan.id], self._form)
        self._shares.append(_Share((stream, *self._also), ids, batch))

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - Storm's word
        """Take a tuple whose values have no common Arrow type with those of the others."""
        text = id_text([tuple[name] for name in self.plan.id], self._form)
        streams = (tuple.source_stream, *self._also)
        self._shares.append(_Share(streams, pa.array([text], pa.string()), tuple.values))

    def finish_batch(self) -> None:
        """Pass on the tuples whose ids are not known."""
        stamp = self._context.stamp
        known = self._context.collection(self.ids.name)
        ids = (self._context.pinned or {}).get("ids") or []
        recent = pa.array(
            [equal_id(one, len(self.plan.id)) for one in ids] if self._form == EQUAL else ids, pa.string()
        )
        if self.plan.keep is not None:
            oldest = instant(stamp - self.plan.keep + 1)
            known.evict_before(oldest)
            self._deduplicate(known, recent, oldest)
            return
        active, begins, ends, ended = self._activity(stamp)
        if ended is not None:
            known.evict_before(ended)
        dropped = self._deduplicate(known, recent, ended) if active else self._pass_all()
        if begins or ends or dropped:
            self._record(stamp, active=active)
        if ends or (begins and not self._context.task):
            what = "drops known ids" if active else "passes all tuples until the next start"
            log.info("%s, txid %d: %s", self._context.component, self._txid, what)

    # -- activity ------------------------------------------------------------------------------------------------------

    def _activity(self, stamp: int) -> tuple[bool, bool, bool, datetime | None]:
        """Return whether ids are looked up, whether this transaction begins or ends that, and when they were forgotten.

        Only a tuple ends it, in the task that gets it; the others see that in the next transaction.
        """
        assert self.plan.quiet is not None
        rows = self._context.collection(self.activity.name).scan_table()
        ended = pc.max(rows.filter(pc.invert(rows.column(ACTIVE))).column(AT)).as_py()
        rows = rows.filter(pc.equal(rows.column(EPOCH), self._context.epoch))
        if not rows.num_rows:
            return True, True, False, ended
        if not pc.all(rows.column(ACTIVE)).as_py():
            return False, False, False, ended
        last = pc.max(rows.column(AT).cast(pa.int64())).as_py()
        over = bool(self._shares) and stamp >= last + self.plan.quiet
        return not over, False, over, ended

    def _record(self, stamp: int, *, active: bool) -> None:
        activity, task = self._context.collection(self.activity.name), self._context.task
        activity.append(task, instant(stamp), self._context.epoch, active)
        activity.evict_before(instant(stamp), task)

    # -- duplicates ----------------------------------------------------------------------------------------------------

    def _deduplicate(self, known: CollectionHandle, recent: pa.Array, oldest: datetime | None) -> int:
        """Pass on the first tuple of each id that is not known; return the number of the others."""
        recent = recent.unique()
        if self._context.task == 0 and len(recent):
            self._append(known, recent.filter(pc.invert(_is_known(known, recent, oldest))))
        if not self._shares:
            return 0
        given = (
            pa.chunked_array([share.ids for share in self._shares], pa.string()).combine_chunks().dictionary_encode()
        )
        distinct = given.dictionary
        old = pc.or_(_is_known(known, distinct, oldest), pc.is_in(distinct, value_set=recent))
        self._append(known, distinct.filter(pc.invert(old)))
        passing = _first_of_new(given, old)
        dropped = len(passing) - int(passing.sum())
        begin = 0
        for share in self._shares:
            end = begin + len(share.ids)
            share.emit(self._collector, passing[begin:end])
            begin = end
        if dropped:
            log.info("%s[%d], txid %d: duplicates dropped: %d", self._context.component, self._context.task, self._txid,
                     dropped)  # fmt: skip
        return dropped

    def _append(self, known: CollectionHandle, ids: pa.Array) -> None:
        if len(ids):
            passed = pa.repeat(pa.scalar(instant(self._context.stamp), pa.timestamp("us", "UTC")), len(ids))
            known.append_batch(pa.table({ID: ids, PASSED: passed, TXID: pa.repeat(self._txid, len(ids))}))

    def _pass_all(self) -> int:
        for share in self._shares:
            share.emit(self._collector, np.ones(len(share.ids), np.bool_))
        return 0


class RecallingCommitter(IdCommitter):
    """Committer that also loads the ids of recent results at each start.

    They are loaded when the first transaction of a start is planned and are part of its plan, so that each replay of it
    knows the same.

    Args:
        plan: the plan.
        recent: the user's function that returns the ids.
    """

    def __init__(self, plan: DeduplicatorPlan, recent: InDriver) -> None:
        super().__init__(plan)
        self._recent = recent
        self._loaded: tuple[int, list[str]] | None = None

    def pin(self, context: TaskContext, previous: Any) -> Any:
        """Return the epoch and, for its first transaction, the recent ids."""
        if previous is not None and previous["epoch"] == context.epoch:
            return {"epoch": context.epoch}
        if self._loaded is None or self._loaded[0] != context.epoch:
            self._loaded = context.epoch, self._ids(context.component)
        return {"epoch": context.epoch, "ids": self._loaded[1]}

    def _ids(self, component: str) -> list[str]:
        width = len(self.plan.id)
        answer = self._recent.value()
        if isinstance(answer, str | bytes):
            raise InputError(f"{component}: recent() returned {answer[:40]!r}, expected a list of ids")
        given = list(islice(answer, MOST_RECENT + 1))
        if len(given) > MOST_RECENT:
            msg = f"{component}: recent() returned more than {MOST_RECENT:,} ids; return those of the last results only"
            raise InputError(msg)
        texts = dict.fromkeys(id_text(_parts(component, one, width), WRITTEN) for one in given)
        return [text for text in texts if text is not None]


@dataclass(frozen=True)
class _Share:
    """Tuples in the order of delivery, with their ids: a record batch, or the values of one tuple.

    Attributes:
        streams: the streams to which those that pass are emitted.
    """

    streams: tuple[str, ...]
    ids: pa.Array
    values: pa.RecordBatch | tuple[Any, ...]

    def emit(self, collector: Collector, passing: npt.NDArray[np.bool_]) -> None:
        """Emit those of the tuples that pass."""
        if not passing.any():
            return
        values = self.values
        if isinstance(values, pa.RecordBatch) and not passing.all():
            values = values.filter(pa.array(passing))
        for stream in self.streams:
            if isinstance(values, pa.RecordBatch):
                collector.emit_batch(values, stream=stream)
            else:
                collector.emit(*values, stream=stream)


def _is_known(known: CollectionHandle, ids: pa.Array, oldest: datetime | None) -> pa.BooleanArray:
    """Return which of different ids the state has."""
    if not len(ids):
        return pa.array([], pa.bool_())
    # The index is sorted by hash: keys in that order are found several times as fast.
    turn = np.argsort(hash_rows([ids], len(ids)))
    found = known.scan_table(pa.table({ID: ids.take(pa.array(turn))}), oldest).column(ID)
    return pc.is_in(ids, value_set=found.combine_chunks())


def _first_of_new(given: pa.DictionaryArray, old: pa.BooleanArray) -> npt.NDArray[np.bool_]:
    """Return which rows are the first of a new id, or have none."""
    codes = pc.fill_null(given.indices, -1).to_numpy(zero_copy_only=False)
    passing: npt.NDArray[np.bool_] = codes < 0
    distinct, first = np.unique(codes, return_index=True)
    first, distinct = first[distinct >= 0], distinct[distinct >= 0]
    passing[first[~old.to_numpy(zero_copy_only=False)[distinct]]] = True
    return passing


def _parts(component: str, given: Any, width: int) -> Sequence[Any]:
    """Return the parts of an id that the user's function has returned."""
    if width == 1:
        return [given]
    if not isinstance(given, tuple | list) or len(given) != width:
        raise InputError(f"{component}: recent() returned {given!r}, expected ids of {width} values, each a tuple")
    return given
