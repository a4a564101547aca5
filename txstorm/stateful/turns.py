"""Turns of stateful bolts: the bolt object and the state of each task in each transaction that is not published yet."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

from txstorm.api.external import KeyValueState, State
from txstorm.errors import StateError, TableCorrupt
from txstorm.keys import any_text
from txstorm.state.external.mark_rules import Replayed
from txstorm.stateful.bolt import StatefulHooks
from txstorm.stateful.key_values import ManagedKeyValueState

if TYPE_CHECKING:
    from txstorm.stateful.target import StatefulTarget


class TaskTurn:
    """Turn of one task in one txid: its bolt object, its state and its hooks.

    Attributes:
        active: whether `finish_batch` of the task is running; set by the commit runner.
        bolt: the object that gets the hooks; None before it has begun.
        hooked: whether `pre_commit` has been called.
        written: the keys of a shared state that the task has changed, as text; two tasks must not change the same one.
        prepared: whether the state is prepared.
    """

    def __init__(self, target: StatefulTarget, task: int, txid: int) -> None:
        self.active = False
        self.bolt: StatefulHooks | None = None
        self.hooked = False
        self.written: set[str] | None = set() if target.is_written_by_many else None
        self.prepared = False
        self.task = task
        self.txid = txid
        self._target = target
        self._lock = RLock()
        self._discarded = False
        self._changes: list[tuple[Any, ...]] | None = None

    def begin(self, bolt: StatefulHooks | None, *, repeatable: bool = False) -> State | None:
        """Register the object that gets the hooks; return its state, None if that is a table of the topology.

        `repeatable`: whether changes of a shared state are noted, for `repeat`.
        """
        self.bolt = bolt
        if not self._target.has_states:
            return None
        with self.reached("be rolled back"):
            state = self._target.restored(self.task)
        if not isinstance(state, KeyValueState):
            return state
        self._changes = [] if repeatable and self._target.managed.shared else None
        return TurnState(self, state)

    def note(self, key: Any, *value: Any) -> None:
        """Note a change of the state, for `repeat` and for `written`; without a value, the key is deleted."""
        if self._changes is not None:
            self._changes.append(deepcopy((key, *value)))
        if self.written is not None:
            self.written.add(any_text(key))

    def repeat(self) -> None:
        """Change the state again, which another task has rolled back for all.

        Raises:
            StateError: it is not known how.
        """
        if self._changes is None:
            raise StateError(
                f"{self._target.where(self.task)}, txid {self.txid}: cannot be rolled back for one task alone, since "
                "the provider's state is no KeyValueState; the whole batch is left out"
            )
        with self.reached("be written"):
            state = cast("KeyValueState", self._target.restored(self.task))
            for key, *value in self._changes:
                if value:
                    state.put(key, *value)
                else:
                    state.delete(key)
            if self.prepared:
                state.prepare_commit(self.txid)

    def prepare(self) -> None:
        """Prepare the state durably; raise `ReportedFailedException` if its store cannot be reached."""
        with self._lock:
            self.check()
            if self._target.has_states:
                try:
                    with self.reached("be prepared"):
                        self._target.check_mark(self.task)
                        self._target.state(self.task).prepare_commit(self.txid)
                        self.prepared = True
                except TableCorrupt as error:  # no replay, and no dead letter, can mend that
                    self._target.fail(error)
                    raise

    def discard(self) -> None:
        """Let the attempt do nothing more."""
        with self._lock:
            self._discarded = True

    def check(self) -> None:
        """Raise `StateError` if the attempt has been given up, or the state is used outside of its turn."""
        if self._discarded or not self.active:
            raise StateError(
                f"{self._target.where(self.task)}, txid {self.txid}: used outside of its transaction; read and write "
                "the state in execute and pre_prepare only"
            )

    def reached(self, what: str) -> Replayed:
        """Return a context manager that converts an `OSError` of the store, so that the batch is replayed."""
        return Replayed(f"{self._target.where(self.task)} cannot {what}")


class TurnState(ManagedKeyValueState):
    """A key-value state as its bolt sees it: usable within one turn; saved by the topology only."""

    def __init__(self, turn: TaskTurn, state: KeyValueState) -> None:
        self._turn = turn
        self._state = state

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""
        self._turn.check()
        with self._turn.reached("be written"):
            self._state.put(key, value)
        self._turn.note(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`; `default`, which is not stored, if it has none."""
        self._turn.check()
        with self._turn.reached("be read"):
            return self._state.get(key, default)

    def delete(self, key: Any) -> Any:
        """Remove `key`; return the value it had, None if it had none."""
        self._turn.check()
        with self._turn.reached("be written"):
            found = self._state.delete(key)
        self._turn.note(key)
        return found

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) for each key."""
        self._turn.check()
        with self._turn.reached("be read"):
            yield from self._state

    def last_committed(self) -> int | None:
        """Return the last committed txid of the state."""
        return self._state.last_committed()

    def _refused(self, call: str) -> StateError:
        return StateError(
            f"{call} called by a stateful bolt; the topology saves its state with each transaction: remove the call"
        )
