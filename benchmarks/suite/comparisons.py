"""What is compared with what: the workloads, declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.suite.job import Job

ALONE = {"max_group_txids": 1}
TOTAL, SMALL, MILLION = 1, 10_000, 1_000_000


@dataclass(frozen=True)
class Entry:
    """One line of a comparison.

    Attributes:
        peer: who does it.
        txids, quick: how many transactions are measured, of a run and of a quick one; 0: not in a quick one.
        warm: transactions before them; in a quick run at most as many as are measured.
        columns: with record batches.
        failing: percent of the transactions that fail once.
        pending: values of `max_spout_pending` of which the best is found in a first round that does not count.
    """

    peer: str
    txids: int
    quick: int = 0
    warm: int = 0
    columns: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    pending: Sequence[Any] = ()
    failing: int = 0
    label: str = ""

    @property
    def name(self) -> str:
        """The line's name."""
        return self.label or self.peer

    def job(self, template: Job, *, quick: bool, pending: Any = None) -> Job:
        """The job it does."""
        settings = dict(self.settings) if pending is None else {**self.settings, "max_spout_pending": pending}
        txids = self.quick if quick else self.txids
        warm = min(self.warm, txids) if quick else self.warm
        return replace(template, txids=txids, warm=warm, columns=self.columns, failing=self.failing, settings=settings)


@dataclass(frozen=True)
class Comparison:
    """Entries that do the same work, in turn.

    Attributes:
        workload: W1, W2, …: what is asked for by name.
        sort: what there is to compare: ``tuples`` or ``txids`` a second, or the ``commit``'s milliseconds.
        job: the work; its number of transactions is each entry's own.
    """

    name: str
    workload: str
    sort: str
    job: Job
    entries: Sequence[Entry]
    title: str

    def chosen(self, *, quick: bool) -> Sequence[Entry]:
        """The entries of a run."""
        return [one for one in self.entries if one.quick] if quick else self.entries


PENDING = ("auto", 32, 128)
STORM_PENDING = (1, 4, 16)


def _ours(txids: int, quick: int = 0, *, columns: bool = False, warm: int = 40, choose: bool = True) -> Entry:
    label = "txstorm, record batches" if columns else "txstorm"
    return Entry("txstorm", txids, quick, warm, columns, pending=PENDING if choose else (), label=label)


def _alone(txids: int, quick: int = 0, warm: int = 20, *, columns: bool = False) -> Entry:
    return Entry("txstorm", txids, quick, warm, columns, ALONE, pending=("auto", 32), label="txstorm, each alone")


def _storms(txids: int, warm: int) -> list[Entry]:
    return [Entry(name, txids, warm=warm, pending=STORM_PENDING) for name in ("storm", "trident")]


def _flinks(txids: int) -> list[Entry]:
    return [Entry(name, txids, warm=1) for name in ("pyflink-process", "pyflink-thread")]


COMPARISONS: Sequence[Comparison] = (
    Comparison(
        "total-20000",
        "W1",
        "tuples",
        Job("total", 20_000, 1, keys=TOTAL),
        [
            _ours(200, 40, warm=20, choose=False),
            Entry("merge", 8, 3, 2),
            Entry("append", 8, 0, 2),
            Entry("loop", 200, 40, 5),
            Entry("bytewax", 200, 40, 5),
            *_storms(200, 200),
            *_flinks(20),
        ],
        "Global count, 20,000 tuples a transaction",
    ),
    Comparison(
        "words-1000-1e4",
        "W2",
        "txids",
        Job("words", 1_000, 1, keys=SMALL),
        [
            _ours(1_000, 300, warm=100),
            _alone(300, 80),
            Entry("merge", 10, 4, 3),
            Entry("append", 12, 0, 3),
            Entry("loop", 200, 80, 10),
            Entry("bytewax", 1_000, 300, 20),
            Entry("bytewax-recovery", 1_000, 0, 20),
            *_storms(1_000, 600),
        ],
        "Word count, 1,000 words a transaction, 10,000 keys",
    ),
    Comparison(
        "words-1000-1e6",
        "W2",
        "txids",
        Job("words", 1_000, 1, keys=MILLION),
        [
            _ours(1_000, columns=True, warm=100),
            replace(_alone(300, columns=True), label="txstorm, each alone"),
            Entry("merge", 8, 0, 3),
            Entry("append", 12, 0, 3),
            Entry("loop", 200, 0, 10),
            Entry("bytewax", 1_000, 0, 20),
        ],
        "Word count, 1,000 words a transaction, 1,000,000 keys",
    ),
    Comparison(
        "words-100000",
        "W2",
        "tuples",
        Job("words", 100_000, 1, keys=SMALL),
        [
            _ours(60, 20, warm=10),
            _ours(120, 30, warm=20, columns=True),
            Entry("merge", 8, 0, 2),
            Entry("loop", 60, 20, 5, columns=True),
            Entry("bytewax", 40, 15, 3),
            Entry("bytewax-recovery", 20, 0, 3),
            *_storms(60, 60),
            *_flinks(4),
        ],
        "Word count, 100,000 words a transaction, 10,000 keys",
    ),
    *(
        Comparison(
            f"changes-{keys}",
            "W6",
            "commit",
            Job("changes", 1_000, 1, keys=int(float(keys))),
            [
                _alone(200, 40 if keys in ("1e4", "1e5") else 0, columns=True),
                *([] if keys == "1e7" else [Entry("merge", 8, 3 if keys == "1e4" else 0, 3)]),
                Entry("loop", 200, 40 if keys in ("1e4", "1e5") else 0, 10),
                *([] if keys == "1e7" else [Entry("bytewax", 300, 40 if keys == "1e4" else 0, 10)]),
            ],
            f"1,000 changed keys a transaction, of {int(float(keys)):,}",
        )
        for keys in ("1e4", "1e5", "1e6", "1e7")
    ),
    *(
        Comparison(
            name,
            "W7",
            "txids",
            Job("words", tuples, 1, loaded=False),
            [
                _ours(2_000, 400, warm=200, choose=tuples == 0),
                _alone(400, 80),
                Entry("merge", 8, 3 if tuples == 0 else 0, 2),
                Entry("append", 8, 0, 2),
                Entry("loop", 400, 80, 5),
            ],
            f"{tuples} tuples a transaction" if tuples else "Empty transactions",
        )
        for name, tuples in (("empty", 0), ("tiny-1", 1), ("tiny-10", 10))
    ),
    *(
        Comparison(
            f"tables-{tables}-{keys}",
            "W8",
            "commit",
            Job("changes", 1_000, 1, keys=int(float(keys)), tables=tables),
            [
                _alone(200, 40 if keys == "1e4" and tables < 8 else 0, columns=True),
                *([Entry("merge", 6, 3 if tables == 3 else 0, 2)] if keys == "1e4" else []),
                Entry("loop", 200, 40 if keys == "1e4" and tables < 8 else 0, 5),
            ],
            f"{tables} tables of {int(float(keys)):,} keys, 1,000 changed rows each",
        )
        for tables, keys in ((1, "1e4"), (3, "1e4"), (8, "1e4"), (3, "1e6"))
    ),
    Comparison(
        "opaque",
        "W5",
        "txids",
        Job("opaque", 1_000, 1, loaded=False),
        [
            Entry(
                "txstorm",
                400,
                warm=40,
                settings={"max_spout_pending": 16, "retry_backoff": 0.001},
                failing=failing,
                label=f"txstorm, {failing} % fail" if failing else "txstorm",
            )
            for failing in (0, 1, 10, 50)
        ],
        "Opaque source, about 1,000 words a transaction, some fail once and are planned anew",
    ),
)
