"""A sample state with a column of every supported type, and one row of it."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
from store_cases import intent_of, open_store, record

from txstorm.api.state import KeyedState

KINDS = {"s": str, "i": int, "b": bool, "y": bytes, "t": datetime, "d": date, "m": Decimal}
ROW = {
    "s": "ä\n",
    "i": -(2**63),
    "b": True,
    "y": b"\x00\xff",
    "t": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "d": date(2026, 1, 2),
    "m": Decimal("1.5"),
    "f": 0.1,
    "l": [1, None],
}
WIDE = KeyedState(
    "wide", key=KINDS, value={**{f"v{k}": v for k, v in KINDS.items()}, "f": float, "l": pa.list_(pa.int64())}
)


def put(data_dir, state, values, txid=1, store=None, drop=()):
    store = store or open_store(data_dir, states={"c": [state]}, sinks={}, create=True, epoch=None)
    group = store.group(txid)
    handle = group.begin_txid(txid).state("c", 0, state.name)
    group.activate(True)
    handle.put_many(values)
    handle.remove_many(drop)
    group.end_txid(txid)
    store.publish(intent_of(group, [record(txid)]), 1)
    group.apply(txid)
    return store


def wide(name_of_value=lambda name: f"v{name}"):
    return {name_of_value(name) if name in KINDS else name: value for name, value in ROW.items()}
