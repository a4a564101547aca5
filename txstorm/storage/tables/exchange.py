"""What a compaction wants of a table: files in the place of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txstorm.clients.delta.delta_values import DataFile


@dataclass(frozen=True, slots=True)
class Exchange:
    """Files of a table in the place of others.

    Attributes:
        adds: the new ones, durable.
        removes: the paths of the old ones.
        now: milliseconds since 1970, which the old ones are marked with.
        base, as_of: the table goes from the one txid to the other; None: its rows stay what they are.
        floor: rows up to this txid leave the table; None: none do.
        about: what else the commit info says, of a table that goes to `as_of`.
    """

    adds: Sequence[DataFile]
    removes: Sequence[str]
    now: int
    base: int | None = None
    as_of: int | None = None
    floor: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
