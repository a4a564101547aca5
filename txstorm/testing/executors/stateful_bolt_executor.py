"""Executor of a stateful bolt without a topology; the counterpart of Storm's ``StatefulBoltExecutor``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txstorm.api.attempt import TransactionAttempt
from txstorm.api.context import TaskContext
from txstorm.api.external import State
from txstorm.api.names import DEFAULT_STREAM, counted
from txstorm.api.output import OutputFieldsDeclarer
from txstorm.api.tuples import Origin, Tuple
from txstorm.engine.arrow import rows_of_batch
from txstorm.engine.task.collector import OutputCollector
from txstorm.errors import InputError
from txstorm.stateful.bolt import AnchoringCollector, StatefulBolt
from txstorm.stateful.checkpoints import COMMIT, INITSTATE, PREPARE, ROLLBACK
from txstorm.stateful.memory import MemoryStateProvider

ACKED, FAILED, WAITING = "acked", "failed", "waiting"


class StatefulBoltExecutor:
    """Executor of one task of a stateful bolt: queues tuples until it has its state, and acts on checkpoint messages.

    A checkpoint message is acted on, and forwarded, once it has arrived on all inputs. A message with a lower txid than
    the last one is acknowledged and ignored. Before the first INITSTATE a PREPARE fails.

    Example::

        executor = StatefulBoltExecutor(WordCount(), fields=["word"])
        executor.init_state(-1)
        executor.execute("cat")
        assert (executor.prepare(0), executor.commit(0)) == ("acked", "acked")

    Attributes:
        calls: the calls of the bolt and its state, such as ``("execute", "cat")`` and ``("state.commit", 0)``.
        forwarded: the messages forwarded, as (action, txid).
        errors: what the bolt or its state has raised while it acted on a message, which has failed.
        state: the state.

    Args:
        bolt: the bolt.
        fields: names of the fields of its input tuples.
        state: its state; None: a new one in memory.
        inputs: number of tasks from which checkpoint messages arrive.

    Raises:
        InputError: `bolt` is not a stateful bolt, or `inputs` is not at least 1.
    """

    def __init__(self, bolt: StatefulBolt, fields: Sequence[str], state: State | None = None, inputs: int = 1) -> None:
        if not isinstance(bolt, StatefulBolt):
            msg = f"stateful bolt executor: {type(bolt).__name__} is no StatefulBolt; give it an object of one"
            raise InputError(msg)
        if isinstance(inputs, bool) or not isinstance(inputs, int) or inputs < 1:
            raise InputError(f"stateful bolt executor: inputs is {inputs!r}, expected a whole number from 1")
        self.calls: list[tuple[Any, ...]] = []
        self.forwarded: list[tuple[str, int]] = []
        self.errors: list[Exception] = []
        self.state = MemoryStateProvider().new_state("bolt-0") if state is None else state
        self._bolt = bolt
        self._inputs = inputs
        self._origin = Origin(TransactionAttempt(0, 0), "source", DEFAULT_STREAM, 0, tuple(fields))
        self._queued: list[Tuple] | None = []
        self._last: int | None = None
        self._arrived: dict[tuple[str, int], set[int]] = {}
        declared = OutputFieldsDeclarer()
        bolt.declare_output_fields(declared)
        self._output = OutputCollector("bolt", declared.streams)
        self._collector = AnchoringCollector(self._output)
        self._call("prepare")
        bolt.prepare(TaskContext("test", "bolt", 0, 1), self._collector)

    @property
    def failed(self) -> list[Tuple]:
        """The first tuple that the bolt has failed, if there is one."""
        return [] if self._collector.failed is None else [self._collector.failed]

    def emitted(self) -> list[tuple[Any, ...]]:
        """Return the values emitted since the last call, on all streams."""
        return [tuple(row) for one in self._output.take() for row in rows_of_batch(one.batch)]

    def execute(self, *values: Any) -> None:
        """Pass a tuple to the bolt; it is queued until the bolt has its state."""
        if len(values) != len(self._origin.fields):
            number = counted(len(values), "value")
            msg = f"stateful bolt executor: {values!r} has {number}, expected one for each of {self._origin.fields}"
            raise InputError(msg)
        one = Tuple(values, self._origin)
        if self._queued is None:
            self._execute(one)
        else:
            self._queued.append(one)

    def init_state(self, txid: int, input: int = 0) -> str:  # noqa: A002 - the contract's word
        """Receive INITSTATE; return ``acked``, ``failed`` or ``waiting``."""
        return self._receive(INITSTATE, txid, input)

    def prepare(self, txid: int, input: int = 0) -> str:  # noqa: A002
        """Receive PREPARE; return ``acked``, ``failed`` or ``waiting``."""
        return self._receive(PREPARE, txid, input)

    def commit(self, txid: int, input: int = 0) -> str:  # noqa: A002
        """Receive COMMIT; return ``acked``, ``failed`` or ``waiting``."""
        return self._receive(COMMIT, txid, input)

    def rollback(self, txid: int, input: int = 0) -> str:  # noqa: A002
        """Receive ROLLBACK; return ``acked``, ``failed`` or ``waiting``."""
        return self._receive(ROLLBACK, txid, input)

    def _receive(self, action: str, txid: int, source: int) -> str:
        if not 0 <= source < self._inputs:
            raise InputError(f"stateful bolt executor: input {source!r} is unknown, expected 0 to {self._inputs - 1}")
        if self._last is not None and txid < self._last:
            return ACKED
        arrived = self._arrived.setdefault((action, txid), set())
        arrived.add(source)
        if len(arrived) < self._inputs:
            return WAITING
        del self._arrived[action, txid]
        try:
            if not self._act(action, txid):
                return FAILED
        except Exception as error:  # noqa: BLE001 - user code: the message fails
            self.errors.append(error)
            return FAILED
        self._last = txid
        if action == ROLLBACK:
            self._last = txid - 1
            self._arrived.clear()  # messages of the checkpoint that is rolled back, which will arrive again
        self.forwarded.append((action, txid))
        return ACKED

    def _act(self, action: str, txid: int) -> bool:
        """Act on a message; return whether that was possible."""
        if action == INITSTATE:
            self._initialize()
        elif action == PREPARE:
            if self._queued is not None:
                return False
            self._call("pre_prepare", txid)
            self._bolt.pre_prepare(txid)
            self._call("state.prepare_commit", txid)
            self.state.prepare_commit(txid)
        elif action == COMMIT:
            last = self.state.last_committed()
            if last is None or last < txid:  # otherwise it is done, and the message has been sent again
                self._call("pre_commit", txid)
                self._bolt.pre_commit(txid)
                self._call("state.commit", txid)
                self.state.commit(txid)
        else:
            self._call("pre_rollback")
            self._bolt.pre_rollback()
            self._call("state.rollback")
            self.state.rollback()
        return True

    def _initialize(self) -> None:
        """Give the bolt its state, then the queued tuples; a second time, do nothing."""
        queued = self._queued
        if queued is None:
            return
        self._call("init_state")
        self._bolt.init_state(self.state)
        self._queued = None
        for one in queued:
            self._execute(one)

    def _execute(self, one: Tuple) -> None:
        self._call("execute", *one.values)
        self._bolt.execute(one)

    def _call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))
