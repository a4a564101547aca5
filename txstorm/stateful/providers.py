"""The setting ``topology.state.provider``: which provider it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txstorm.api.external import StateProvider
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
            msg = (
                f"setting state_provider: {name!r} is unknown{near(name, known)}; use {DELTA}, {MEMORY}, {REDIS} or "
                "MODULE:CLASS"
            )
            raise InputError(msg)
        make = known_class("setting state_provider", name)
        if not callable(getattr(make, "new_state", None)) and not callable(getattr(make, "newState", None)):
            msg = f"setting state_provider: {name!r} has no method new_state; derive it from txstorm.StateProvider"
            raise InputError(msg)
    if make is RedisStateProvider:
        checked_conf(conf)
    return make(), conf
