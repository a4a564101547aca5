"""A job for a side, what is in its transactions, and what the side answers. Needs no txstorm: peers import it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.words import VOCABULARY, Ranks, spread_ranks, words, zipf_ranks

LOAD = 250_000
"""Keys that one transaction of the load brings at most."""


@dataclass(frozen=True)
class Job:
    """One run of one workload.

    The first transactions load all keys, each once; `warm` more follow; then `txids` are measured.

    Attributes:
        kind: ``words`` by Zipf's law, ``changes`` of keys that are all different, ``total``: words, only counted;
            ``opaque``: words from a source whose batches differ when they are planned again; or ``kafka``: the keys of
            the messages of a topic.
        tuples: of a transaction after the load; may be 0.
        keys: different words there are.
        loaded: whether all keys are there before the measurement.
        tables: each gets the same counts.
        failing: percent of the transactions that fail once; with ``opaque`` only.
        columns: bolts take record batches, where a side has both forms.
        exchange: every word goes through an exchange before it is counted, where a side can do without.
        form: of txstorm only: ``recorded`` keeps what its Spark jobs were given; then ``stages`` gives it to the same
            stages without transactions, and ``jobs`` to the Spark jobs alone.
        settings: of the side that runs it.
        source: where the input is, if it is not made by the side.
        directory: where the side may write; its counts go there, see `suite.exact`.
    """

    kind: str
    tuples: int
    txids: int
    keys: int = VOCABULARY
    warm: int = 0
    loaded: bool = True
    tables: int = 1
    failing: int = 0
    columns: bool = False
    exchange: bool = False
    form: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    directory: str = ""

    @property
    def loads(self) -> int:
        """Transactions of the load."""
        return -(-self.keys // LOAD) if self.loaded else 0

    @property
    def start(self) -> int:
        """The last transaction that is not measured; 0 where all are."""
        return self.loads + self.warm

    @property
    def last(self) -> int:
        """The last transaction."""
        return self.start + self.txids

    def size(self, txid: int) -> int:
        """Tuples of a transaction."""
        return min(LOAD, self.keys - (txid - 1) * LOAD) if txid <= self.loads else self.tuples

    def ranks(self, txid: int, share: range) -> Ranks:
        """Which words are in `share` of a transaction's positions."""
        if txid <= self.loads:
            return np.arange(share.start, share.stop, dtype=np.int64) + (txid - 1) * LOAD
        draw = spread_ranks if self.kind == "changes" else zipf_ranks
        return draw(txid, share, self.keys)

    def words(self, txid: int, share: range | None = None) -> pa.Array:
        """The words of a transaction, or of a share of it."""
        return words(self.ranks(txid, range(self.size(txid)) if share is None else share), self.keys)

    def within(self, directory: str) -> Job:
        """The same job in another directory."""
        return replace(self, directory=directory)

    def line(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> Job:
        """The job of such a line."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Outcome:
    """What a side says of one job; all of it concerns the measured transactions.

    Attributes:
        seconds, cpu: wall time, and CPU seconds of the side's whole tree of processes.
        latency_ms: the median from the begin of a transaction to the end of its commit; 0 where there is no such thing.
        commits_ms: every commit.
        more: what else there is to say, by name.
        peak_mib: resident memory of the tree at most, as the runner saw it.
    """

    seconds: float
    cpu: float
    txids: int
    tuples: int
    latency_ms: float = 0.0
    commits_ms: Sequence[float] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    peak_mib: float = 0.0

    @property
    def txids_s(self) -> float:
        return self.txids / self.seconds

    @property
    def tuples_s(self) -> float:
        return self.tuples / self.seconds

    @property
    def tuples_cpu_s(self) -> float:
        """Tuples per CPU second of the whole tree: what one core does."""
        return self.tuples / self.cpu

    def line(self) -> str:
        """The outcome as one line of JSON."""
        return json.dumps(asdict(self))
