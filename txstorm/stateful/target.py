"""Commit target of stateful bolts: their states outside of the tables, and their hooks, in P0, P5 and P7.

A state is prepared when its bolt has finished a transaction, which is then decided; it is committed when the intent is
published, or rolled back when the attempt is discarded. The staged rows only name the tasks. After a crash the ledger
says which of the two: a live intent is committed, anything else that is prepared is rolled back. It is one module, as
turns, states and hooks are rolled back together.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Never

import pyarrow as pa
import pyarrow.parquet as pq

from txstorm.api.context import TaskContext
from txstorm.api.external import ManagedState, State, StateContext
from txstorm.api.names import counted
from txstorm.clients.files import read_whole, write_durably
from txstorm.errors import (
    BlockedError,
    EmitError,
    InputError,
    StateError,
    TableCorrupt,
    TopologyFailed,
    TxstormError,
)
from txstorm.state.external.mark_rules import reached
from txstorm.state.external.targets import ExternalTarget
from txstorm.state.unpublished import written_twice
from txstorm.stateful.bolt import AnchoringCollector, StatefulBolt, StatefulHooks
from txstorm.stateful.providers import open_state
from txstorm.stateful.turns import TaskTurn
from txstorm.storage.rows.schema import TXID
from txstorm.storage.tables.identity import TableRef, TopologyIdentity
from txstorm.storage.tables.intent import CHECKPOINT, UNKNOWN, Intent, IntentTable
from txstorm.topology.graph import Component

log = logging.getLogger(__name__)
SCHEMA = pa.schema([pa.field("task", pa.int64(), nullable=False), TXID])
STATES_FILE, FORMAT, VERSION = "states.json", "txstorm-states", 1


class StatefulTarget(ExternalTarget[TaskTurn, list[TaskTurn]]):
    """The states and hooks of one stateful bolt as a commit target, with the turns of its unpublished txids."""

    accessor = "managed"
    holds = "the state of a stateful bolt"

    def __init__(self, data_dir: Path, owner: TopologyIdentity, component: Component, managed: ManagedState) -> None:
        super().__init__(TableRef(CHECKPOINT, managed.name), SCHEMA)
        self.place(component.id, data_dir)
        self.managed = managed
        self._owner = owner
        self._tasks = 1 if managed.shared else component.parallelism
        self._parallelism = component.parallelism
        self._settings = component.configuration
        self._states: dict[int, State] = {}
        self._marks: dict[int, int | None] = {}  # the last txid that each state has committed
        self._dirty: set[int] = set()  # tasks whose states could not be rolled back, since their store was away
        self._epoch = 0
        self._failure: BaseException | None = None

    @property
    def has_states(self) -> bool:
        """Whether a provider keeps the states, and not a table of the topology."""
        return self.managed.provider is not None

    @property
    def is_written_by_many(self) -> bool:
        """Whether several tasks write one state that a provider keeps."""
        return self.has_states and self.managed.shared and self._parallelism > 1

    @property
    def tasks(self) -> range:
        """The tasks of the bolt."""
        return range(self._parallelism)

    @property
    def keeps_rows(self) -> bool:
        """Whether it keeps what is published: hooks alone leave nothing behind, and may come and go."""
        return self.has_states

    def where(self, task: int) -> str:
        """Return the name of the state of a task, for messages."""
        return f"state {self._namespace(task)!r}"

    def state(self, task: int) -> State:
        """Return the open state of `task`."""
        return self._states[self._index(task)]

    def _index(self, task: int) -> int:
        return 0 if self.managed.shared else task

    def restored(self, task: int) -> State:
        """Return the open state of `task`; first roll back what an earlier attempt has left.

        Raises:
            BlockedError: that is still impossible.
        """
        self._clean(task)
        return self.state(task)

    def _clean(self, task: int) -> None:
        """Open the state of a task again and roll it back, if a discarded attempt has used it.

        The code of that attempt may still be running on an abandoned thread; it keeps the old object, which it cannot
        save any more.
        """
        index = self._index(task)
        if index in self._dirty:
            self._open_state(index)
            with reached(self.where(task), "be rolled back"):
                self._states[index].rollback()
            self._dirty.discard(index)

    def _new_handle(self, component: str, task: int, txid: int) -> TaskTurn:
        return TaskTurn(self, task, txid)

    def _together(self, txid: int, tasks: Mapping[tuple[str, int], TaskTurn]) -> list[TaskTurn]:
        turns = [one for one in tasks.values() if one.bolt is not None]
        claims = {(self.component, one.task): [(key,) for key in one.written or ()] for one in turns}
        if sum(map(len, claims.values())) > len(set().union(*claims.values())):
            raise StateError(written_twice(self.component, txid, ["key"], claims))
        there = {one.task for one in turns}
        return turns + [self._made_up(task, txid) for task in self.tasks if task not in there]

    def _made_up(self, task: int, txid: int) -> TaskTurn:
        """Return the prepared turn of a task whose whole input is left out: its hooks run all the same."""
        made = self._new_handle(self.component, task, txid)
        self._open.setdefault(txid, {})[self.component, task] = made
        made.active = True
        made.begin(self.bolt_for_hooks(task))
        made.hooked = made.bolt is None
        made.prepare()
        made.active = False
        return made

    def undo(self, component: str, task: int, txid: int) -> None:
        """Discard the turn of one task in `txid`, which has not ended; changes of others to a shared state stay."""
        with self._lock:
            turns = self._open.get(txid, {})
            found, others = turns.get((component, task)), [one for at, one in sorted(turns.items()) if at[1] != task]
        super().undo(component, task, txid)
        self.discard([found] if found is not None else [])
        if found is not None and found.bolt is not None and self.has_states and self.managed.shared:
            for one in others:
                if one.bolt is not None:
                    one.repeat()

    def drop_from(self, txid: int) -> None:
        """Discard `txid` and every later txid: call the hook, and roll the states back."""
        with self._lock:
            turns = [one for later, tasks in self._open.items() if later >= txid for one in tasks.values()]
            turns += [one for later, ended in self._ended.items() if later >= txid for one in ended]
        super().drop_from(txid)
        self.discard(turns)

    def _rows_of(self, ended: Mapping[int, list[TaskTurn]]) -> pa.Table | None:
        rows = sorted((txid, one.task) for txid, turns in ended.items() for one in turns)
        if not rows or not self.managed.decides:
            return None
        txids, tasks = zip(*rows, strict=True)
        return pa.table([pa.array(tasks, pa.int64()), pa.array(txids, TXID.type)], schema=SCHEMA)

    def lead(self, epoch: int, committed: int, recorded: int | None, live: Sequence[Intent]) -> None:
        """Open the states with this coordinator's epoch, and roll back what is prepared but not decided.

        Raises:
            FencedError: a newer coordinator has opened a state.
            InputError, StateError: a state cannot be used, or belongs to another topology.
            TableCorrupt: a state has more or less than the ledger says.
            BlockedError: a store cannot be reached.
        """
        uri = self.ref.uri
        mine = [intent for intent in live if any(table.uri == uri for table in intent.tables)]
        decided = {one.txid for intent in mine for one in intent.txids}
        if self.managed.decides:
            self.make_directory()
        if self.has_states:
            self._check_declared(fresh=recorded is None and not decided)
        began = self._timeline_began(committed) if self.has_states and self._owner.timeline else None
        self.last = committed
        self._epoch = epoch
        for task in range(self._tasks if self.has_states else 0):
            self._open_state(task)
            state = self._states[task]
            with reached(self.where(task), "be read"):
                prepared, last = state.prepared(), state.last_committed()
            expected = self._expected(state, last, recorded, began)
            self._check(task, last, committed, expected, decided)
            if prepared is None and not decided:
                with reached(self.where(task), "be rolled back"):
                    state.rollback()
            elif prepared is not None and prepared not in decided:
                self._roll_back(task)
            self._marks[task] = last
        self._raise_failure()

    def _check_declared(self, *, fresh: bool) -> None:
        """Raise `StateError` unless number and form of the states are those of the first run, which this records.

        While it is `fresh`, the ledger does not record the bolt: a file that exists is of a start that was killed or
        fenced.
        """
        path, tasks = self.path / STATES_FILE, None if self.managed.shared else self._tasks
        classes = {name: one for name, one in sorted(self.managed.conf.items()) if name.endswith("Class")}
        document = {"format": FORMAT, "version": VERSION, "tasks": tasks, "classes": classes}
        if fresh or not path.exists():
            write_durably(path, json.dumps(document).encode() + b"\n")
        try:
            found = json.loads(read_whole(path))
            format_, version, known = found["format"], found["version"], found["tasks"]
        except (ValueError, TypeError, KeyError) as error:
            raise TableCorrupt(f"{path}: is damaged ({error}); restore it from a copy of the data directory") from None
        if (format_, version) != (FORMAT, VERSION):
            raise TableCorrupt(
                f"{path}: expected format {FORMAT} {VERSION}, found {format_} {version}; use the txstorm that wrote it"
            )
        if known != tasks:
            ways = [one if one is None else counted(one, "state") for one in (known, tasks)]
            have, want = (one or "one state for all tasks" for one in ways)
            raise StateError(
                f"component {self.component!r}: the first run began with {have}, now declared is {want}, so that keys "
                "would be missing: keep the parallelism, or share the state of all tasks under a new component id"
            )
        if "classes" not in found:  # of before they were recorded
            write_durably(path, json.dumps(document).encode() + b"\n")
        elif found["classes"] != classes:
            raise StateError(
                f"component {self.component!r}: what it has stored was written with state_provider_config "
                f"{found['classes']}; the code has {classes}; go back to the former, or give the component another id"
            )

    def _timeline_began(self, committed: int) -> int:
        """Return the txid after which the timeline began, which its first start records."""
        path, timeline = self.path / STATES_FILE, self._owner.timeline
        found = json.loads(read_whole(path))
        if found.get("timeline") != timeline:
            found |= {"timeline": timeline, "began": committed}
            write_durably(path, json.dumps(found).encode() + b"\n")
        return int(found["began"])

    def _expected(self, state: State, last: int | None, recorded: int | None, began: int | None) -> int | None:
        """Return the least txid at which a state must be, as far as that is known."""
        if recorded in (None, UNKNOWN):
            return None
        if began is None or last is not None or (recorded or 0) > began:
            return recorded
        # After a rewind, a state that was kept has nothing of the new timeline until its next commit.
        return None if getattr(state, "has_commits", True) else recorded

    def _open_state(self, task: int) -> None:
        provider, owner = self.managed.provider, self._owner
        assert provider is not None
        context = StateContext(owner.topology, owner.incarnation, self.component, task, owner.timeline, self._epoch)
        with reached(self.where(task), "be opened"):
            self._states[task] = open_state(provider, self._namespace(task), self.managed.conf, context)

    def _namespace(self, task: int) -> str:
        return self.component if self.managed.shared else f"{self.component}-{task}"

    def _check(self, task: int, last: int | None, committed: int, known: int | None, decided: set[int]) -> None:
        """Check the last txid of a state against the ledger; `known`: the least it must be at."""
        if self.managed.may_be_lost:
            return
        where, provider = self.where(task), type(self.managed.provider).__name__
        if getattr(self.managed.provider, "volatile", False) and committed:
            raise InputError(
                f"{where}: txids to {committed} are committed, and {provider} keeps states in memory only, where they "
                "were lost; choose another state_provider with a new data directory, or accept it with "
                "state_may_be_lost=true"
            )
        if last is not None and last > committed:
            msg = f"{where}: is at txid {last}, the ledger at {committed}; restore both from the same copy"
            raise TableCorrupt(msg)
        if known and (last or 0) < min([known, *(one - 1 for one in decided)]):
            raise TableCorrupt(
                f"{where}: expected txid {known}, found {last or 'nothing'}: it was lost, or is an older copy; restore "
                "it, or accept it with state_may_be_lost=true"
            )

    def bolt_for_hooks(self, task: int) -> StatefulBolt | None:
        """Return a prepared new object of the user's bolt; None if it cannot be prepared."""
        try:
            return self._new_bolt(task)
        except TopologyFailed as error:
            log.warning("%s; its hooks are not called for this transaction", error)
            return None

    def _new_bolt(self, task: int) -> StatefulBolt:
        """Return a prepared new object of the user's bolt, for hooks after a crash."""
        bolt: StatefulBolt = deepcopy(self.managed.bolt)
        context = TaskContext(
            self._owner.topology, self.component, task, self._parallelism, settings=dict(self._settings)
        )
        try:
            bolt.prepare(context, AnchoringCollector(_SilentCollector(self.component)))
        except Exception as error:
            msg = f"{self.component}[{task}]: prepare raised {type(error).__name__}: {error}, called before its hooks"
            raise TopologyFailed(msg) from error
        return bolt

    def _write(self, staged: bytes, table: IntentTable, intent: Intent, epoch: int) -> None:
        rows = pq.read_table(pa.BufferReader(staged), schema=SCHEMA)
        tasks: dict[int, list[int]] = {}
        for task, txid in zip(rows["task"].to_pylist(), rows[TXID.name].to_pylist(), strict=True):
            tasks.setdefault(txid, []).append(task)
        for txid, members in tasks.items():
            self._commit(self._ended.get(txid) or [TaskTurn(self, task, txid) for task in members], txid)

    def _commit(self, turns: Sequence[TaskTurn], txid: int) -> None:
        """Call `pre_commit` for all tasks, then commit their states, except those that are committed already."""
        due = [turn for turn in turns if not self._is_done(turn.task, txid)]
        for turn in due if self.managed.hooked else ():
            if not turn.hooked:
                bolt = turn.bolt or self._new_bolt(turn.task)
                try:
                    bolt.pre_commit(txid)
                except Exception as error:  # noqa: BLE001 - user code; raised once the transaction is published
                    self._keep(error, f"pre_commit({txid})", turn.task)
                turn.hooked = True
        for task in sorted({self._index(turn.task) for turn in due}) if self.has_states else ():
            with reached(self.where(task), f"commit txid {txid}"):
                self._states[task].commit(txid)
        self._marks.update((self._index(turn.task), txid) for turn in turns)

    def check_mark(self, task: int) -> None:
        """Raise `TableCorrupt` unless the state of `task` is where its last commit has left it."""
        index = self._index(task)
        last, mark = self._states[index].last_committed(), self._marks.get(index)
        if last != mark:
            raise TableCorrupt(
                f"{self.where(task)}: expected {mark or 'nothing'} as last committed txid, found {last or 'nothing'}: "
                "it was lost, or is an older copy; restore it, or accept it at a start with state_may_be_lost=true"
            )

    def _is_done(self, task: int, txid: int) -> bool:
        if not self.has_states:
            return False
        with reached(self.where(task), f"commit txid {txid}"):
            last = self.state(task).last_committed()
        return last is not None and last >= txid

    def discard(self, turns: Sequence[TaskTurn]) -> None:
        """Call `pre_rollback` for the discarded turns that have begun, the latest first, and roll their states back."""
        for turn in sorted(turns, key=lambda one: (one.txid, one.task), reverse=True):
            turn.discard()
            if turn.bolt is not None:
                self._call_pre_rollback(turn.task, turn.bolt)
            if self.has_states and (turn.bolt is not None or turn.prepared):
                self._dirty.add(self._index(turn.task))
                try:
                    self._clean(turn.task)
                except BlockedError as error:
                    log.warning("%s; it is rolled back before it is used again", error)
        self._raise_failure()

    def _roll_back(self, task: int) -> None:
        self._call_pre_rollback(task, self._new_bolt(task))
        with reached(self.where(task), "be rolled back"):
            self.state(task).rollback()

    def _call_pre_rollback(self, task: int, bolt: StatefulHooks) -> None:
        try:
            bolt.pre_rollback()
        except Exception as error:  # noqa: BLE001 - user code; raised once the state is rolled back
            self._keep(error, "pre_rollback()", task)

    def _keep(self, error: BaseException, call: str, task: int) -> None:
        raised = f"{call} raised {type(error).__name__}: {error}"
        msg = f"{self.component}[{task}]: {raised}; no state is lost: mend the hook and start again"
        log.error("%s", msg, exc_info=error)
        if self._failure is None:
            self._failure = TopologyFailed(msg)
            self._failure.__cause__ = error

    def fail(self, error: BaseException) -> None:
        """End the run with `error` once the transaction at hand is discarded."""
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def conclude(self) -> None:
        """Raise what a hook has raised while its transaction was being published; called once it is completed."""
        self._raise_failure()

    def close(self) -> None:
        """Close the states."""
        for state in self._states.values():
            try:
                state.close()
            except (OSError, TxstormError) as error:
                log.warning("%s", error)


class _SilentCollector:
    """Collector for a bolt that is prepared for its hooks only."""

    def __init__(self, component: str) -> None:
        self._component = component

    def __getattr__(self, name: str) -> Callable[..., Never]:
        def refuse(*values: Any, **options: Any) -> Never:
            msg = f"{self._component}: {name} called in a hook after a crash, when no transaction is processed"
            raise EmitError(msg)

        return refuse
