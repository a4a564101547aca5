"""External state and sinks: maps in the user's database, outlets to systems such as Kafka, states of stateful bolts.

Maps and outlets are declared as attributes of a committer, and written through a port that the user may implement for
another system. A mark, kept in the external system and changed atomically with its content, records the last
transaction written there and makes the writes exactly once. The states of stateful bolts are opened by a provider; they
are prepared before a transaction is decided, and committed afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import pyarrow as pa

from txstorm.api.names import StormNames
from txstorm.api.state import SinkTable


@dataclass(frozen=True, slots=True)
class Mark:
    """Progress record of a map or outlet: stored in the external system, changed atomically with its content.

    Attributes:
        topology: id of the owning topology.
        incarnation: identity of that topology's data directory.
        epoch: epoch of the coordinator that may write; a coordinator with a lower epoch is fenced.
        timeline: number of rewinds so far.
        txid: the last transaction written.
        content: digest of the rows written with it.
    """

    topology: str
    incarnation: str
    epoch: int
    timeline: int
    txid: int
    content: str = ""


class TargetDeclaration:
    """Declaration of something outside of the tables to which a committer's transactions are committed.

    It is an attribute of the committer. What it names stays in the driver: copies shipped to tasks have none of it.

    Attributes:
        committed_as: the name of its kind, by which the ledger, intents and messages know it.
        name: unique among those of its kind in the topology.
    """

    committed_as: str
    name: str

    @property
    def commits(self) -> bool:
        """Whether transactions are committed there, so that a decided one waits for this topology's code."""
        return True


MapKind = Literal["opaque", "transactional", "non_transactional"]
OPAQUE, TRANSACTIONAL, NON_TRANSACTIONAL = "opaque", "transactional", "non_transactional"
MAP_KINDS = (OPAQUE, TRANSACTIONAL, NON_TRANSACTIONAL)


@dataclass(frozen=True, slots=True)
class MapRow:
    """One row of a map: a value and its version; Storm's ``OpaqueValue`` and ``TransactionalValue``.

    Attributes:
        value: a JSON value; None is a tombstone: the key was removed in `txid`.
        txid: the transaction that last changed the row; 0 in a non-transactional map.
        timeline: number of rewinds before that transaction; rows are ordered by (timeline, txid).
        prev: the value before that transaction, in an opaque map; None if there was none.
    """

    value: Any
    txid: int = 0
    timeline: int = 0
    prev: Any = None


MapMark = Mark
"""The mark of a map; its store keeps it beside the rows."""


class MapBackend(Protocol):
    """Port to a key-value store, read and written in bulk; implement it for your own database.

    Keys are strings. Calls come from one thread at a time, usually two per transaction. While the store cannot be
    reached, both methods should raise an `OSError` (`ConnectionError`, `TimeoutError`): after a failed read the batch
    is replayed, a failed put is retried until it succeeds. Any put may be repeated, so it must be idempotent.

    A store with these two methods only is *at least once*: a stale coordinator, suspended in `multi_put` while another
    one took over, may overwrite newer rows when it wakes up. For exactly once see `MarkedMapBackend`.
    """

    def multi_get(self, keys: Sequence[str]) -> Sequence[MapRow | None]:
        """Return the rows of `keys`, in the order of `keys`; None for a key without a row."""

    def multi_put(self, rows: Mapping[str, MapRow | None]) -> None:
        """Store `rows` durably; None in place of a row deletes it.

        A row whose value is None is a tombstone: reads must return it until a row of a later txid has been put; then
        it may be deleted.
        """


@runtime_checkable
class MarkedMapBackend(MapBackend, Protocol):
    """Port to a key-value store that changes rows and a mark atomically, which makes a map *exactly once*."""

    def mark(self) -> MapMark | None:
        """Return the stored mark; None if there is none yet."""

    def put_marked(self, rows: Mapping[str, MapRow | None], expected: MapMark | None, mark: MapMark) -> bool:
        """Compare-and-set: if the stored mark equals `expected`, store `rows` (as `multi_put`) and `mark` atomically.

        Returns False, and changes nothing, if the stored mark differs from `expected`. If the call raises (its response
        was lost), the caller reads the mark to find out whether it succeeded.
        """


@dataclass(frozen=True)
class MapState(TargetDeclaration):
    """State in an external store: one JSON value per key.

    Set it as an attribute of a committer, like a `txstorm.api.state.KeyedState`; `context.state(name)` returns its
    handle. Writes are staged with the transaction and put into the store after it is decided. The backend, which may
    hold a password, stays in the driver: copies shipped to tasks have none.

    Attributes:
        name: a letter, then letters, digits, ``_`` or ``-``; unique among the states of the topology.
        backend: the store; each map needs its own.
        kind: the content of a row: ``opaque`` (value, previous value, txid), ``transactional`` (value, txid) or
            ``non_transactional`` (value).
        allow_opaque_spout: accept an opaque spout with a transactional map, which is not exactly once.
    """

    committed_as = "map"
    name: str
    backend: MapBackend = field(repr=False)
    kind: MapKind = "opaque"
    allow_opaque_spout: bool = False

    @property
    def marked(self) -> bool:
        """Whether the store keeps a mark for this map, so that its writes are exactly once."""
        return self.kind != NON_TRANSACTIONAL and isinstance(self.backend, MarkedMapBackend)

    def __reduce__(self) -> tuple[Any, ...]:
        return MapState, (self.name, None, self.kind, self.allow_opaque_spout)


OUTLET_METHODS = ("open", "published", "publish", "close")


@runtime_checkable
class OutletWriter(Protocol):
    """Port to an external system that receives rows exactly once; implement it for your own system.

    Everything rests on one primitive: `publish` atomically appends rows and replaces the mark, provided that the mark
    has not changed since `published` returned it. Fencing is a `publish` without rows that raises the mark's epoch.
    Calls come from one thread at a time. An exception while a decided transaction is being written appears in the
    status as the cause of a block, and the call is retried; if the response to a `publish` is lost, the mark shows
    whether it succeeded.
    """

    def open(self, outlet: str, topology: str, incarnation: str) -> None:
        """Connect and check the target; called first, when the run opens (P0). The arguments identify the mark.

        Raise `txstorm.errors.InputError` for an error that only a change of settings can fix. Anything else, such as
        `txstorm.errors.AwayError`, means that the target may answer later: a run waits for a target that it has written
        to before, and fails at once if the target is new to it.
        """

    def published(self) -> Mark | None:
        """Return the stored mark of this outlet; None if there is none yet.

        Anything that an earlier writer of this outlet has begun must be committed or aborted before this returns.
        """

    def publish(self, rows: pa.Table, expected: Mark | None, mark: Mark) -> bool:
        """Compare-and-set: if the mark equals `expected`, append `rows` in order and store `mark`, atomically, durably.

        `rows` has the declared columns and ``_txid``, and is sorted by txid. Returns False, and changes nothing, if
        the stored mark differs from `expected`.
        """

    def close(self) -> None:
        """Close connections; `open` may be called again afterwards."""


@dataclass(frozen=True)
class Outlet(TargetDeclaration):
    """An append-only sink in an external system, such as a Kafka topic: rows arrive exactly once, in txid order.

    Set it as an attribute of a committer; `context.sink(name)` returns its handle. Rows are staged with the
    transaction and passed to the writer after it is decided. The writer, which may hold a password, stays in the
    driver: copies shipped to tasks have none.

    Attributes:
        name: a letter, then letters, digits, ``_`` or ``-``; unique among the sinks of the topology.
        columns: column → type, as for `txstorm.api.state.KeyedState`.
        writer: the port to the system; each outlet needs its own.
    """

    committed_as = "outlet"
    name: str
    columns: Mapping[str, Any] = field(hash=False)
    writer: OutletWriter = field(repr=False)

    @property
    def table(self) -> SinkTable:
        """The declaration of a sink table with the same name and columns."""
        return SinkTable(self.name, self.columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Outlet, (self.name, self.columns, None)


@dataclass(frozen=True)
class OwnTarget(TargetDeclaration):
    """Declaration of a commit target of a kind of your own; set it as an attribute of a committer.

    `context.state(name)`, or the method that the class names as its `accessor`, returns its handle. The topology's code
    alone knows the kind: decided transactions wait until it is loaded, and a start without it is refused.

    Attributes:
        committed_as: the name of the kind: ``x-``, then letters, digits, ``_`` or ``-``; also that of its directory.
        name: as for a map; unique among the states, maps and own targets of the topology.
        make: a `txstorm.state.external.targets.ExternalTarget`; called with the data directory, the identity of the
            topology, the component and this declaration.
        settings: what `make` needs to know.
    """

    committed_as: str
    name: str
    make: Callable[..., Any] = field(repr=False, compare=False)
    settings: Any = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnTarget, (self.committed_as, self.name, None)


@dataclass(frozen=True, slots=True)
class StateContext:
    """The owner of a state: the topology, the task, and the coordinator that opens the state.

    Attributes:
        topology: id of the topology.
        incarnation: identity of the topology's data directory.
        component: id of the stateful bolt.
        task: index of its task; 0 if all tasks share one state.
        timeline: number of rewinds so far; transactions are ordered by (timeline, txid).
        epoch: epoch of the coordinator. A store must reject every write of a coordinator with a lower epoch than the
            highest with which the state was opened, by raising `txstorm.errors.FencedError`.
    """

    topology: str
    incarnation: str
    component: str
    task: int
    timeline: int
    epoch: int


class State(StormNames, ABC):
    """Port of a state that is saved in two steps: prepared before a transaction is decided, committed afterwards.

    What `prepare_commit` and `commit` have done must survive a crash, and be found by the next object that the provider
    makes for the same namespace. An error of the store, such as a lost connection, should be raised as an `OSError`;
    the call is then repeated, after `last_committed` and `prepared` were asked what has happened.
    """

    storm_names: ClassVar[Mapping[str, str]] = {"prepareCommit": "prepare_commit", "lastCommitted": "last_committed"}

    @abstractmethod
    def prepare_commit(self, txid: int) -> None:
        """Save all writes so far durably as the content of `txid`, invisible until `commit`.

        If `txid` is prepared already, the later content replaces the earlier one. Raise an error if another txid is
        prepared, or if `txid` is not above the last committed one. Later writes belong to the next transaction.
        """

    @abstractmethod
    def commit(self, txid: int | None = None) -> None:
        """Make the prepared content of `txid` permanent; raise an error if `txid` is not prepared.

        Without a txid, make all writes so far permanent at once; only for states that manage themselves.
        """

    @abstractmethod
    def rollback(self) -> None:
        """Forget what is prepared and written, and restore the last commit; may be called any number of times."""

    @abstractmethod
    def last_committed(self) -> int | None:
        """Return the last txid committed on this timeline; None if there is none."""

    def prepared(self) -> int | None:
        """Return the txid that is prepared and neither committed nor rolled back; None if there is none."""
        return None

    def close(self) -> None:
        """Release connections; the state is not used afterwards."""

    def prepareCommit(self, txid: int) -> None:  # noqa: N802 - Storm's name
        """Storm's spelling of `prepare_commit`."""
        self.prepare_commit(txid)


class KeyValueState(State):
    """Port of a state with one value per key."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`."""

    @abstractmethod
    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`; `default`, which is not stored, if it has none."""

    @abstractmethod
    def delete(self, key: Any) -> Any:
        """Remove `key`; return the value it had, None if it had none."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yield (key, value) for each key, own writes included; raise an error if the state is written meanwhile."""


class StateProvider(StormNames, ABC):
    """Port that opens states by namespace; named by the setting ``topology.state.provider`` as MODULE:CLASS."""

    storm_names: ClassVar[Mapping[str, str]] = {"newState": "new_state"}

    @abstractmethod
    def new_state(self, namespace: str, conf: Mapping[str, Any], context: StateContext | None) -> State:
        """Open the state of `namespace`, with what was committed and prepared there.

        Args:
            namespace: ``component-task``, or ``component`` if its tasks share one state.
            conf: the setting ``topology.state.provider.config``, as a dict.
            context: the owner; None outside of topologies, where no epoch is checked.

        Raises:
            FencedError: a coordinator with a higher epoch has opened the state.
        """

    def newState(self, namespace: str, conf: Mapping[str, Any], context: StateContext | None) -> State:  # noqa: N802
        """Storm's spelling of `new_state`."""
        return self.new_state(namespace, conf, context)


@dataclass(frozen=True)
class ManagedState(TargetDeclaration):
    """State and hooks of a stateful bolt, as far as they are not tables of the topology.

    It is an attribute of the committer in which the bolt runs. The provider and the bolt, which may hold a password,
    stay in the driver: copies shipped to tasks have none.

    Attributes:
        name: id of the component.
        bolt: the user's bolt; objects for recovery and hooks are copied from it.
        provider: opens the states of its tasks; None: the state is a table of the topology.
        conf: configuration of the provider.
        hooked: whether the bolt overrides `pre_commit`.
        shared: whether all tasks share one state.
        may_be_lost: whether a start accepts that a state has less than the ledger says.
    """

    committed_as = "checkpoint"
    name: str
    bolt: Any = field(default=None, repr=False, compare=False)
    provider: StateProvider | None = field(default=None, repr=False, compare=False)
    conf: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    hooked: bool = False
    shared: bool = False
    may_be_lost: bool = False

    @property
    def decides(self) -> bool:
        """Whether a decided transaction has something left to do here: a state to commit, or a hook to call."""
        return self.provider is not None or self.hooked

    def __reduce__(self) -> tuple[Any, ...]:
        return ManagedState, (self.name,)
