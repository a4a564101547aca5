"""State providers: the one that a setting names, and the states it opens, even if they are not derived from ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from txstorm.api.external import KeyValueState, State, StateContext, StateProvider
from txstorm.api.names import near
from txstorm.errors import InputError
from txstorm.stateful.classes import known_class
from txstorm.stateful.memory import MemoryStateProvider
from txstorm.stateful.redis_provider import RedisStateProvider, checked_conf

DELTA, MEMORY, REDIS = "delta", "memory", "redis"
PROVIDERS: dict[str, Callable[[], StateProvider]] = {
    MEMORY: MemoryStateProvider,
    "org.apache.storm.state.InMemoryKeyValueStateProvider": MemoryStateProvider,
    REDIS: RedisStateProvider,
    "org.apache.storm.redis.state.RedisKeyValueStateProvider": RedisStateProvider,
}


def configured_provider(name: str, conf: Mapping[str, Any]) -> tuple[StateProvider | None, Mapping[str, Any]]:
    """Return a new provider named by the settings, with its configuration; no provider for ``delta``.

    Raises:
        InputError: there is no such provider, or its configuration is wrong.
    """
    if name == DELTA:
        if conf:
            msg = f"setting state_provider_config: the provider {DELTA} has no configuration, got {sorted(conf)}"
            raise InputError(msg)
        return None, {}
    make = PROVIDERS.get(name)
    if make is None:
        known = [DELTA, *PROVIDERS]
        if ":" not in name:
            raise InputError(
                f"setting state_provider: {name!r} is unknown{near(name, known)}; use {DELTA}, {MEMORY}, {REDIS} or "
                "MODULE:CLASS"
            )
        make = known_class("setting state_provider", name)
        if not callable(getattr(make, "new_state", None)) and not callable(getattr(make, "newState", None)):
            msg = f"setting state_provider: {name!r} has no method new_state; derive it from txstorm.StateProvider"
            raise InputError(msg)
    if make is RedisStateProvider:
        checked_conf(conf)
    return make(), conf


def open_state(provider: Any, namespace: str, conf: Mapping[str, Any], context: StateContext | None) -> State:
    """Open a state; one that has the methods of the ports without being derived from them is adapted.

    Raises:
        InputError: the state lacks methods.
    """
    state = _method(provider, "new_state", "newState")(namespace, dict(conf), context)
    if isinstance(state, State):
        return state
    warnings.warn(
        f"state provider {type(provider).__name__}: {type(state).__name__} is not derived from txstorm.KeyValueState; "
        "derive it: the next version accepts no others",
        DeprecationWarning,
        stacklevel=2,
    )
    return AdaptedState(f"state {namespace!r}", state)


class AdaptedState(KeyValueState):
    """A user's key-value state that is not derived from `KeyValueState`; methods may have Storm's names.

    Args:
        label: its name, for messages.
        state: the object.

    Raises:
        InputError: it lacks methods.
    """

    def __init__(self, label: str, state: Any) -> None:
        spellings = {"prepare_commit": "prepareCommit", "last_committed": "lastCommitted"}
        names = ("put", "get", "delete", "__iter__", "prepare_commit", "commit", "rollback", "last_committed")
        found = {name: _method(state, name, spellings.get(name, name)) for name in names}
        missing = [name for name, method in found.items() if method is None]
        if missing:
            raise InputError(
                f"{label}: the provider has returned an object of {type(state).__name__}, which has no "
                f"{', '.join(missing)}; derive its class from txstorm.KeyValueState"
            )
        self._call = found
        self._state = state

    def put(self, key: Any, value: Any) -> None:
        """See `KeyValueState`."""
        self._call["put"](key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        """See `KeyValueState`."""
        return self._call["get"](key, default)

    def delete(self, key: Any) -> Any:
        """See `KeyValueState`."""
        return self._call["delete"](key)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._state)

    def prepare_commit(self, txid: int) -> None:
        """See `State`."""
        self._call["prepare_commit"](txid)

    def commit(self, txid: int | None = None) -> None:
        """See `State`."""
        self._call["commit"](*() if txid is None else (txid,))

    def rollback(self) -> None:
        """See `State`."""
        self._call["rollback"]()

    def last_committed(self) -> int | None:
        """See `State`."""
        last: int | None = self._call["last_committed"]()
        return last

    def prepared(self) -> int | None:
        """See `State`; None if the object cannot tell."""
        known = _method(self._state, "prepared")
        return None if known is None else known()

    def close(self) -> None:
        """See `State`."""
        end = _method(self._state, "close")
        if end is not None:
            end()


def _method(of: Any, *names: str) -> Any:
    """Return the first of the methods that an object has; None if it has none of them."""
    return next((method for name in names if callable(method := getattr(of, name, None))), None)
