"""What the books of a topology say: whose they are, what was planned, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from txstorm.errors import DataDirectoryError
from txstorm.storage.tables.intent import DIRECTORIES, OUTSIDE, Intent

DROPPED_VERSION = 1
_OUTSIDE = tuple(f"{DIRECTORIES[kind]}/" for kind in OUTSIDE)
_NOTHING_READ: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Identity:
    """Whose ledger this is.

    Attributes:
        incarnation: uuid made at the first run; stands in every table too.
        timeline: counts rewinds; order is by (timeline, txid).
        fingerprint: digest of the graph's shape when it last ran.
    """

    topology: str
    incarnation: str
    timeline: int = 0
    fingerprint: str = ""


class Meta(NamedTuple):
    """What is stored of a planned txid.

    Attributes:
        document: the spout document; it determines the batch.
        stamp: processing time, UTC microseconds.
        digests: source partition → digest of what was read, once it was.
    """

    document: Any
    stamp: int
    digests: Mapping[str, str] = _NOTHING_READ

    def to_json(self) -> dict[str, Any]:
        """The fields; nothing is copied, since they are written at once."""
        return {"document": self.document, "stamp": self.stamp, "digests": dict(self.digests)}


class Standing(NamedTuple):
    """How far a topology has come, as its ledger says.

    Attributes:
        currtx: the next txid to commit.
        tables: table → its last published txid, as of the last completed group.
        intents: all kept ones, in txid order.
    """

    currtx: int
    tables: Mapping[str, int]
    intents: Sequence[Intent]

    @property
    def live(self) -> list[Intent]:
        """Decided groups that are not completed yet."""
        return [intent for intent in self.intents if intent.last >= self.currtx]


class Dropped(NamedTuple):
    """Tables and sources that were dropped by name, with the last txid that they are right for.

    Attributes:
        tables: states by their recorded table, sinks, maps and outlets.
        sources: of a composite spout; their positions stay in the spout documents.
    """

    tables: Mapping[str, int] = MappingProxyType({})
    sources: Mapping[str, int] = MappingProxyType({})

    def to_json(self) -> dict[str, Any]:
        """Both, with the format's version."""
        return {"version": DROPPED_VERSION, "tables": dict(self.tables), "sources": dict(self.sources)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Dropped:
        """What `to_json` made; raises `DataDirectoryError` if a newer txstorm wrote it."""
        if found["version"] > DROPPED_VERSION:
            msg = (
                f"dropped tables: format version {found['version']} is newer than {DROPPED_VERSION}, which this "
                "txstorm reads; upgrade it"
            )
            raise DataDirectoryError(msg)
        return cls(found["tables"], found["sources"])

    def until(self, txid: int) -> Dropped:
        """The same after a rewind to `txid`, which cannot take back what maps and outlets hold."""
        rewound = {uri: at if uri.startswith(_OUTSIDE) else min(at, txid) for uri, at in self.tables.items()}
        return Dropped(rewound, {name: min(at, txid) for name, at in self.sources.items()})


def with_digests(meta: Meta, document: Any, digests: Mapping[str, str]) -> Meta:
    """`meta` after its batch was read: real extents and what was read."""
    return Meta(document, meta.stamp, dict(digests))
