"""States of stateful bolts: the ports of a state and of its provider, for states that are not Delta tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from txstorm.api.names import StormNames


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


@dataclass(frozen=True)
class ManagedState:
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
