"""Time to live: which rows of a state are there at a moment. A moment is the stamp of a txid, never the clock's time.

A row whose stamp and time to live are not after the moment is not there. Stamps do not decrease from txid to txid, so
what is gone once is gone for all later ones, whether its row is still somewhere or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstorm.api.state import KeyedState
from txstorm.errors import StateError
from txstorm.storage.rows.schema import STAMP

TTL = "txstorm.ttl"
"""The table property with the time to live, in microseconds."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    """The stamp of a txid, UTC microseconds, as a datetime."""
    return EPOCH + timedelta(microseconds=micros)


def over_at(micros: int, ttl: timedelta) -> datetime:
    """The stamp up to which rows are over at the stamp `micros` of a txid."""
    return moment(micros) - ttl


def check_ttl(state: KeyedState) -> None:
    """Raise `StateError` for a time to live that is none."""
    ttl = state.ttl
    if ttl is not None and not (isinstance(ttl, timedelta) and ttl > timedelta(0)):
        msg = f"state {state.name!r}: expected a ttl that is a timedelta above 0, or None, got {ttl!r}"
        raise StateError(msg)


def ttl_property(state: KeyedState) -> dict[str, str]:
    """What the tables of `state` say of its time to live."""
    return {} if state.ttl is None else {TTL: str(state.ttl // MICROSECOND)}


def ttl_of(properties: Mapping[str, str]) -> timedelta | None:
    """The time to live that a table has among its properties."""
    return timedelta(microseconds=int(properties[TTL])) if TTL in properties else None


def alive(rows: pa.Table, ttl: timedelta | None, now: datetime | None) -> pa.Table:
    """Those of `rows` that are there at `now`; without one at the newest of their own stamps."""
    if ttl is None or not rows.num_rows:
        return rows
    newest: Any = pc.max(rows[STAMP.name]).as_py() if now is None else now
    if newest is None:
        return rows
    return rows.filter(pc.greater(rows[STAMP.name], pa.scalar(newest - ttl, STAMP.type)))
