"""Stateful bolts: bolts whose key-value state, in a table or a provider's store, is saved with every transaction.

May import: api, clients, state, storage, topology, windows.
Start: bolt.py, committer.py; for stores key_values.py.
"""

from txstorm.api.external import KeyValueState, State, StateContext, StateProvider
from txstorm.stateful.bolt import BaseStatefulBolt, StatefulBolt
from txstorm.stateful.checkpoints import CheckpointMachine
from txstorm.stateful.memory import MemoryStateProvider
from txstorm.stateful.redis_provider import RedisStateProvider
from txstorm.stateful.windowed import BaseStatefulWindowedBolt, StatefulWindowedBolt

__all__ = [
    "BaseStatefulBolt",
    "BaseStatefulWindowedBolt",
    "CheckpointMachine",
    "KeyValueState",
    "MemoryStateProvider",
    "RedisStateProvider",
    "State",
    "StateContext",
    "StateProvider",
    "StatefulBolt",
    "StatefulWindowedBolt",
]
