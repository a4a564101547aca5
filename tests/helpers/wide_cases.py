"""A sample state with columns of every type, and random rows of it."""

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from txstorm.api.state import KeyedState

WIDE = KeyedState(
    "wide",
    key={"i": int, "s": str, "b": bytes, "t": bool, "at": datetime, "d": Decimal},
    value={"f": float, "f4": pa.float32(), "i1": pa.int8(), "l": pa.list_(pa.int64()),
           "st": pa.struct([("x", pa.string()), ("y", pa.list_(pa.timestamp("us", tz="UTC")))]), "dec": Decimal},
)  # fmt: skip


def wide_rows(draw: random.Random, count: int):
    def some(value):
        return None if draw.random() < 0.2 else value

    for i in range(count):
        at = datetime(1900, 1, 1, tzinfo=UTC) + timedelta(microseconds=draw.randrange(1 << 53))
        key = (some(i), some(draw.choice(["", "ß", "x" * 50])), some(draw.randbytes(3)), some(draw.random() < 0.5),
               some(at), some(Decimal(draw.randrange(10**30)).scaleb(-12)))  # fmt: skip
        struct = {"x": some("é"), "y": some([at, None])}
        yield key, {"f": some(draw.random()), "f4": some(draw.random()), "i1": some(draw.randrange(-128, 128)),
                    "l": some([1, None, draw.randrange(1 << 60)]), "st": some(struct),
                    "dec": some(Decimal(draw.randrange(10**20)).scaleb(-18))}  # fmt: skip
