"""Stateful bolts: bolts whose key-value state the framework saves with every transaction, and the stores for it.

A `StatefulBolt` runs inside a committer of the framework. Its state is a Delta table of the topology, or is kept by a
`StateProvider`: in memory, in Redis, or in a store of the user's, prepared before and committed after the decision.

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
