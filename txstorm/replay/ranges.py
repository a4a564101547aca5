"""Ranges of committed txids to replay, and the result of replaying one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txstorm.errors import InputError
from txstorm.replay.recording import Recording


@dataclass(frozen=True)
class Span:
    """Committed txids `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass
class Result:
    """Result of replaying a range, as in the last line of ``jobs/replay.py``.

    Attributes:
        tuples: number of tuples emitted by spout and bolts.
        equal: number of txids equal to the committed ones: the same input and, in an audit, the same rows.
        different: the txids that are not.
        not_compared: txids whose input is the same, and whose rows need not be (`Committer.not_reproduced`).
        into: the new data directory of a backfill.
    """

    topology: str
    span: Span
    txids: int = 0
    tuples: int = 0
    equal: int = 0
    different: list[int] = field(default_factory=list)
    not_compared: list[int] = field(default_factory=list)
    into: Path | None = None

    def count(self, txid: int, tuples: int, *, equal: bool, compared: bool = True) -> None:
        """Add the result of one txid: its tuples, and whether it is equal to the committed one, as far as compared."""
        self.txids += 1
        self.tuples += tuples
        if equal and compared:
            self.equal += 1
        else:
            (self.not_compared if equal else self.different).append(txid)

    def to_json(self, seconds: float) -> dict[str, Any]:
        """Return the fields and the duration in seconds as JSON values."""
        return {
            "topology": self.topology,
            "from_txid": self.span.first,
            "to_txid": self.span.last,
            "txids": self.txids,
            "tuples": self.tuples,
            "seconds": round(seconds, 3),
            "equal": self.equal,
            "different": self.different,
            **({"not_compared": self.not_compared} if self.not_compared else {}),
            "into": None if self.into is None else str(self.into),
        }


def span_of(recording: Recording, first: int | None, last: int | None) -> Span:
    """Return the requested range, by default all committed txids; raise `InputError` unless all are retained."""
    span = Span(1 if first is None else first, recording.committed if last is None else last)
    recording.check(span.first)
    recording.check(span.last)
    if len(span) < 1:
        raise InputError(f"txids {span.first} to {span.last}: expected a range, got one that ends before it begins")
    return span
