"""Jobs of the benchmarks: a side's work, its transactions' content, and its outcome. Usable without txstorm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.words import VOCABULARY, Ranks, spread_ranks, words, zipf_ranks

LOAD = 250_000
"""Maximum number of keys in one transaction of the load."""


@dataclass(frozen=True)
class Job:
    """One run of one workload.

    The first transactions load all keys, each once; `warm` more follow; then `txids` are measured.

    Attributes:
        kind: ``words`` by Zipf's law, ``changes`` of keys that are all different, ``total``: words, only counted;
            ``opaque``: words from a source whose batches differ when they are planned again; ``kafka``: the keys of
            the messages of a topic; one of the queries of `benchmarks.nexmark`, or of the forms of `benchmarks.joins`.
        tuples: number of tuples in a transaction after the load; may be 0.
        keys: number of distinct words.
        loaded: whether all keys are loaded before the measurement.
        tables: number of tables; each gets the same counts.
        failing: percentage of transactions that fail once; with ``opaque`` only.
        columns: whether bolts process record batches, if the side has both forms.
        exchange: whether every word is shuffled before it is counted, if the side could count without.
        form: for txstorm only: ``recorded`` records the packs of its Spark jobs; then ``stages`` runs the same stages
            on them without transactions, and ``jobs`` the Spark jobs alone. ``sink`` appends the results of a join
            to a sink.
        settings: settings of the side that runs it.
        source: where the input is, if the side does not generate it.
        directory: directory of the side; its counts go there, see `suite.exact`.
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
        """Number of transactions of the load."""
        return -(-self.keys // LOAD) if self.loaded else 0

    @property
    def start(self) -> int:
        """Last transaction before the measured ones; 0 if all are measured."""
        return self.loads + self.warm

    @property
    def last(self) -> int:
        """Txid of the last transaction."""
        return self.start + self.txids

    def size(self, txid: int) -> int:
        """Return the number of tuples of a transaction."""
        return min(LOAD, self.keys - (txid - 1) * LOAD) if txid <= self.loads else self.tuples

    def ranks(self, txid: int, share: range) -> Ranks:
        """Return the ranks of the words at the positions `share` of a transaction."""
        if txid <= self.loads:
            return np.arange(share.start, share.stop, dtype=np.int64) + (txid - 1) * LOAD
        draw = spread_ranks if self.kind == "changes" else zipf_ranks
        return draw(txid, share, self.keys)

    def words(self, txid: int, share: range | None = None) -> pa.Array:
        """Return the words of a transaction, or of a share of it."""
        return words(self.ranks(txid, range(self.size(txid)) if share is None else share), self.keys)

    def within(self, directory: str) -> Job:
        """Return the same job in another directory."""
        return replace(self, directory=directory)

    def line(self) -> str:
        """Return the job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> Job:
        """Parse a job from a line of JSON, as `line` returns it."""
        return cls(**json.loads(line))


@dataclass(frozen=True)
class Outcome:
    """A side's answer to one job; everything refers to the measured transactions.

    Attributes:
        seconds, cpu: wall time, and CPU seconds of the side's whole process tree.
        latency_ms: median time from the begin of a transaction to the end of its commit; 0 if not applicable.
        commits_ms: duration of every commit.
        more: further values, by name.
        peak_mib: maximum resident memory of the process tree, as seen by the runner.
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
        """Tuples per CPU second of the whole process tree."""
        return self.tuples / self.cpu

    @property
    def cpu_million(self) -> float:
        """CPU seconds of the whole process tree per million tuples; 0 without tuples."""
        return self.cpu / self.tuples * 1e6 if self.tuples else 0.0

    def line(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps(asdict(self))
