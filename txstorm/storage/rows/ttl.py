"""Time to live of a state's rows, measured by the stamps of txids, never by the clock.

A row has expired as of a given stamp if the row's own stamp plus the time to live is not later than that stamp. Stamps
never decrease from txid to txid, so an expired row stays expired for all later txids, whether or not it is still
stored anywhere.
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
"""Name of the table property that records the time to live, in microseconds."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def moment(micros: int) -> datetime:
    """Convert a txid's stamp, UTC microseconds, to a datetime."""
    return EPOCH + timedelta(microseconds=micros)


def over_at(micros: int, ttl: timedelta) -> datetime:
    """Return the expiry threshold as of a txid with the stamp `micros`, in UTC microseconds.

    Rows with this stamp or an earlier one have expired.
    """
    return moment(micros) - ttl


def check_ttl(state: KeyedState) -> None:
    """Raise `StateError` if the time to live of `state` is neither None nor a positive timedelta."""
    ttl = state.ttl
    if ttl is not None and not (isinstance(ttl, timedelta) and ttl > timedelta(0)):
        raise StateError(f"state {state.name!r}: expected a ttl that is a timedelta above 0, or None, got {ttl!r}")


def ttl_property(state: KeyedState) -> dict[str, str]:
    """Return the table properties that record the time to live of `state`; empty if it has none."""
    return {} if state.ttl is None else {TTL: str(state.ttl // MICROSECOND)}


def ttl_of(properties: Mapping[str, str]) -> timedelta | None:
    """Return the time to live recorded in the properties of a table, or None if it has none."""
    return timedelta(microseconds=int(properties[TTL])) if TTL in properties else None


def alive(rows: pa.Table, ttl: timedelta | None, now: datetime | None) -> pa.Table:
    """Drop the rows that have expired as of `now` (None: as of the newest stamp in `rows`)."""
    if ttl is None or not rows.num_rows:
        return rows
    newest: Any = pc.max(rows[STAMP.name]).as_py() if now is None else now
    if newest is None:
        return rows
    return rows.filter(pc.greater(rows[STAMP.name], pa.scalar(newest - ttl, STAMP.type)))
