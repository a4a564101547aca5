"""What an intent says of one staged file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

STAGED = "_txstorm/staged"
_STAGED_PATH = re.compile(rf"{STAGED}/[^/\\\0]*[^/\\\0.][^/\\\0]*")


@dataclass(frozen=True, slots=True)
class Staged:
    """One staged file.

    Attributes:
        path: relative to its table.
        size: bytes.
        digest: blake2b over the bytes, as hex.
        rows: number of rows.
        stats: Delta's statistics of the file, as JSON.
        first: lowest txid of a row.
        last: highest txid of a row.
    """

    path: str
    size: int
    digest: str
    rows: int
    stats: str
    first: int
    last: int

    def to_json(self) -> dict[str, Any]:
        """The fields, for an intent."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Staged:
        """What `to_json` made; raises `ValueError` where its path is not that of a staged file."""
        if not isinstance(found["path"], str) or not _STAGED_PATH.fullmatch(found["path"]):
            raise ValueError(f"expected the path of a file in {STAGED}, got {found['path']!r}")
        return cls(**{name: found[name] for name in cls.__slots__})
