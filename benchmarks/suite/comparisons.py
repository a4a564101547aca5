"""The workloads and the entries compared in each, as declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from benchmarks.joins import lookups, rows
from benchmarks.nexmark.events import stored
from benchmarks.nexmark.queries import QUERIES
from benchmarks.suite.job import Job
from benchmarks.suite.kafka import topic

ALONE = {"max_group_txids": 1}
SMALL, MILLION = 10_000, 1_000_000
Count = tuple[int, int]
"""Number of measured transactions, and of those for the warm-up."""


@dataclass(frozen=True)
class Entry:
    """One line of a comparison.

    Attributes:
        peer: name of the peer.
        full, quick: amount of work in a full and in a quick run; None: not part of a quick run.
        columns: whether with record batches.
        failing: percentage of transactions that fail once.
        form: see `Job`.
        pending: values of `max_spout_pending` to try in a first round, which does not count; the best one is used.
    """

    peer: str
    full: Count
    quick: Count | None = None
    columns: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    pending: Sequence[Any] = ()
    failing: int = 0
    form: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.label or self.peer

    def job(self, template: Job, *, quick: bool, pending: Any = None) -> Job:
        """Return the job of the entry, made from the comparison's `template`."""
        settings = dict(self.settings) if pending is None else {**self.settings, "max_spout_pending": pending}
        txids, warm = (quick and self.quick) or self.full
        return replace(
            template,
            txids=txids,
            warm=warm,
            columns=self.columns,
            failing=self.failing,
            form=self.form,
            settings=settings,
        )


@dataclass(frozen=True)
class Comparison:
    """Entries that do the same work, in turn.

    Attributes:
        workload: W1, W2, …, or another name shared by several comparisons.
        sort: the measure to compare: ``tuples`` or ``txids`` a second, or the ``commit``'s milliseconds.
        job: the work; the number of transactions is chosen by each entry.
        quick: whether it is part of a quick run when no names are given.
        source: creates a source with the given number of tuples, for the whole comparison.
        rounds: maximum number of rounds of a full and of a quick run; None: as many as the run has.
    """

    name: str
    workload: str
    sort: str
    job: Job
    entries: Sequence[Entry]
    title: str
    quick: bool = False
    source: Callable[[int], AbstractContextManager[Mapping[str, Any]]] | None = None
    rounds: Count | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which the comparison can be chosen."""
        return self.workload, self.name

    def chosen(self, *, quick: bool) -> Sequence[Entry]:
        """Return the entries of a full or quick run."""
        return [one for one in self.entries if one.quick] if quick else self.entries

    def peers(self, *, quick: bool) -> Sequence[str]:
        """Return the peers of a full or quick run."""
        return list(dict.fromkeys(one.peer for one in self.chosen(quick=quick)))

    def messages(self, *, quick: bool) -> int:
        """Return the number of source tuples that the longest entry needs."""
        jobs = [entry.job(self.job, quick=quick) for entry in self.chosen(quick=quick)]
        return max(job.last for job in jobs) * self.job.tuples


PENDING = ("auto", 32, 128)
COMMIT_PENDING = (1, "auto")
STORM_PENDING = (1, 4, 16)


def _ours(full: Count, quick: Count | None = None, *, columns: bool = False, choose: bool = True) -> Entry:
    label = "txstorm, record batches" if columns else "txstorm"
    return Entry("txstorm", full, quick, columns, pending=PENDING if choose else (), label=label)


def _alone(
    full: Count, quick: Count | None = None, *, columns: bool = False, pending: Sequence[Any] = ("auto", 32)
) -> Entry:
    return Entry("txstorm", full, quick, columns, ALONE, pending=pending, label="txstorm, each alone")


def _storms(full: Count) -> list[Entry]:
    return [Entry(name, full, pending=STORM_PENDING) for name in ("storm", "trident")]


def _flinks(full: Count) -> list[Entry]:
    return [Entry(name, full) for name in ("pyflink-process", "pyflink-thread")]


def _totals() -> Iterator[Comparison]:
    """Return the comparisons of W1: a state with a single row."""
    for tuples, full, more in (
        (1_000, (1_000, 100), []),
        (10_000, (300, 40), [*_storms((300, 300)), *_flinks((20, 1))]),
        (100_000, (100, 10), _storms((100, 60))),
        (500_000, (30, 4), []),
    ):
        quick = tuples == 10_000
        entries = [
            _ours(full, (40, 20) if quick else None, choose=False),
            Entry("merge", (8, 5), (1, 1) if quick else None),
            Entry("append", (8, 5)),
            Entry("loop", full, (40, 5) if quick else None),
            Entry("bytewax", full, (40, 5) if quick else None),
            *more,
        ]
        job = Job("total", tuples, 1, keys=1)
        title = f"Global count, {tuples:,} tuples a transaction"
        yield Comparison(f"total-{tuples}", "W1", "tuples", job, entries, title, quick=quick)


def _words() -> Iterator[Comparison]:
    """Return the comparisons of W2: word counts with Zipf-distributed words."""
    yield Comparison(
        "words-1000-1e4",
        "W2",
        "txids",
        Job("words", 1_000, 1, keys=SMALL),
        [
            _ours((1_000, 100), (300, 100)),
            _alone((300, 20), (80, 20)),
            Entry("merge", (12, 5), (3, 2)),
            Entry("append", (12, 5)),
            Entry("loop", (200, 10), (80, 10)),
            Entry("bytewax", (1_000, 20), (300, 20)),
            Entry("bytewax-recovery", (1_000, 20)),
            *_storms((1_000, 600)),
        ],
        "Word count, 1,000 words a transaction, 10,000 keys",
        quick=True,
    )
    yield Comparison(
        "words-1000-1e6",
        "W2",
        "txids",
        Job("words", 1_000, 1, keys=MILLION),
        [
            _ours((1_000, 100), columns=True),
            _alone((300, 20), columns=True),
            Entry("merge", (8, 5)),
            Entry("append", (12, 5)),
            Entry("loop", (200, 10)),
            Entry("bytewax", (1_000, 20)),
        ],
        "Word count, 1,000 words a transaction, 1,000,000 keys",
    )
    yield Comparison(
        "words-100000",
        "W2",
        "tuples",
        Job("words", 100_000, 1, keys=SMALL),
        [
            _ours((60, 10), (20, 10)),
            _ours((120, 20), (30, 20), columns=True),
            Entry("merge", (8, 5)),
            Entry("loop", (60, 5), (20, 5), columns=True),
            Entry("bytewax", (40, 3), (15, 3)),
            Entry("bytewax-recovery", (20, 3)),
            *_storms((60, 60)),
            *_flinks((4, 1)),
        ],
        "Word count, 100,000 words a transaction, 10,000 keys",
        quick=True,
    )


def _opaque() -> Comparison:
    """Return the comparison of W5: failed batches are planned again with a different size."""
    settings = {"max_spout_pending": 16, "retry_backoff": 0.001}
    entries = [
        Entry(
            "txstorm",
            (400, 40),
            (60, 10),
            settings=settings,
            failing=failing,
            label=f"txstorm, {failing} % fail" if failing else "txstorm",
        )
        for failing in (0, 1, 10, 50)
    ]
    title = "Opaque source, about 1,000 words a transaction, some fail once and are planned again"
    return Comparison("opaque", "W5", "txids", Job("opaque", 1_000, 1, loaded=False), entries, title)


def _changes() -> Iterator[Comparison]:
    """Return the comparisons of W6: a growing state."""
    for keys in ("1e4", "1e5", "1e6", "1e7"):
        quick = keys == "1e4"
        entries = [_alone((200, 20), (40, 20) if quick else None, columns=True, pending=COMMIT_PENDING)]
        if keys != "1e7":
            entries.append(Entry("merge", (8, 5), (1, 1) if keys == "1e4" else None))
        entries.append(Entry("loop", (200, 10), (40, 10) if quick else None))
        if keys != "1e7":
            entries.append(Entry("bytewax", (300, 10), (40, 10) if keys == "1e4" else None))
        job = Job("changes", 1_000, 1, keys=int(float(keys)))
        title = f"1,000 changed keys a transaction, of {job.keys:,}"
        yield Comparison(f"changes-{keys}", "W6", "commit", job, entries, title, quick=quick)


def _tiny() -> Iterator[Comparison]:
    """Return the comparisons of W7: tiny and empty transactions."""
    for name, tuples in (("empty", 0), ("tiny-1", 1), ("tiny-10", 10)):
        entries = [
            _ours((2_000, 200), (400, 200), choose=tuples == 0),
            _alone((400, 20), (80, 20)),
            Entry("merge", (8, 5), (1, 1) if tuples == 0 else None),
            Entry("append", (8, 5)),
            Entry("loop", (400, 5), (80, 5)),
        ]
        title = f"{tuples} tuples a transaction" if tuples else "Empty transactions"
        quick = tuples != 1
        yield Comparison(name, "W7", "txids", Job("words", tuples, 1, loaded=False), entries, title, quick=quick)


def _tables() -> Iterator[Comparison]:
    """Return the comparisons of W8: several tables in each transaction."""
    for tables, keys in ((1, "1e4"), (3, "1e4"), (8, "1e4"), (3, "1e6")):
        quick = keys == "1e4" and tables < 8
        entries = [_alone((200, 20), (40, 20) if quick else None, columns=True, pending=COMMIT_PENDING)]
        if keys == "1e4":
            entries.append(Entry("merge", (6, 4), (1, 1) if tables == 1 else None))
        entries.append(Entry("loop", (200, 5), (40, 5) if quick else None))
        job = Job("changes", 1_000, 1, keys=int(float(keys)), tables=tables)
        title = f"{tables} tables of {job.keys:,} keys, 1,000 changed rows each"
        yield Comparison(f"tables-{tables}-{keys}", "W8", "commit", job, entries, title, quick=quick)


STAGES, JOBS = "the same stages without transactions", "the Spark jobs alone"


def _overheads() -> Iterator[Comparison]:
    """Return the comparisons of overhead: each txstorm run is repeated without transactions and state."""
    for name, job, what in (
        ("overhead", Job("words", 0, 1, loaded=False, exchange=True), "Word count"),
        ("overhead-columns", Job("words", 0, 1, loaded=False), "Word count in columns"),
        ("overhead-total", Job("total", 0, 1, loaded=False), "Global count"),
    ):
        for tuples, full, quick in ((1_000, 1000, 40), (20_000, 300, 8), (200_000, 24, 2)):
            entries = [
                Entry("txstorm", (full, 0), (quick, 0), name == "overhead-columns", form=form, label=label)
                for form, label in (("recorded", "txstorm"), ("stages", STAGES), ("jobs", JOBS))
            ]
            title = f"{what}, {tuples:,} a transaction, with and without transactions"
            one = replace(job, tuples=tuples)
            yield Comparison(f"{name}-{tuples}", "overhead", "tuples", one, entries, title)


def _pipelines() -> Iterator[Comparison]:
    """Return the comparisons for the gain from processing transactions while earlier ones commit."""
    job = Job("words", 1_000, 1, loaded=False, exchange=True)
    for name, settings, how in (
        ("pipelining", {"max_pack_txids": 1}, "without packing"),
        ("pipelining-packed", {}, "with packing"),
    ):
        entries = [
            Entry(
                "txstorm",
                (120, 20),
                (20, 5),
                settings={**settings, "max_spout_pending": pending},
                label=f"txstorm, pending {pending}",
            )
            for pending in (1, 4)
        ]
        title = f"1 and 4 transactions of 1,000 words in flight, {how}"
        yield Comparison(name, "pipelining", "txids", job, entries, title)


def _kafka() -> Iterator[Comparison]:
    """Return the comparisons from a Kafka broker to counts in Delta."""
    for tuples in (1_000, 100_000):
        entries = [
            Entry("kafka-txstorm", (48, 12), (8, 4), label="txstorm"),
            Entry("kafka-loop", (48, 12), (8, 4)),
            Entry("kafka-merge", (12, 4), (2, 1)),
        ]
        job, title = (
            Job("kafka", tuples, 1, loaded=False),
            f"Kafka to counts in Delta, {tuples:,} messages a transaction",
        )
        yield Comparison(f"kafka-{tuples}", "kafka", "tuples", job, entries, title, source=topic)


QUERY_EVENTS = 200_000
"""Events in a transaction of queries on windows, except where transactions are small."""


def _windows() -> Iterator[Comparison]:
    """Return the comparisons of queries on windows; only Structured Streaming has transactions for the warm-up."""
    structured = Entry("structured", (8, 3), (2, 2))
    rocksdb = Entry("flink", (5, 0), settings={"state.backend.type": "rocksdb"}, label="flink, RocksDB")
    grouped = Entry("txstorm", (600, 0), (200, 0), pending=PENDING)
    stages = [
        Entry("txstorm", (80, 0), (20, 0), form=form, label=label)
        for form, label in (("recorded", "txstorm"), ("stages", STAGES), ("jobs", JOBS))
    ]
    few, many, most = ((20, 0), (5, 0)), ((40, 0), (10, 0)), ((80, 0), (20, 0))
    loop, bytewax = Entry("nexmark-loop", (10, 0), (3, 0)), Entry("nexmark-bytewax", (5, 0), (2, 0))
    for name, query, tuples, entries in (
        ("q5", "q5", QUERY_EVENTS, [*_on_engines(*few), Entry("flink", *few), rocksdb, structured, loop]),
        ("q5-hot", "q5-hot", QUERY_EVENTS, [*_on_engines(*few), bytewax]),
        ("q5-1000", "q5", 1_000, [grouped, Entry("structured", (6, 3), (2, 2))]),
        ("q7", "q7", QUERY_EVENTS, [*_on_engines(*many), Entry("flink", *many)]),
        ("q11", "q11", QUERY_EVENTS, [*_on_engines(*few), Entry("flink", *few)]),
        ("q12", "q12", QUERY_EVENTS, [*_on_engines(*few), Entry("flink", *few)]),
        ("w3", "w3", QUERY_EVENTS, [*_on_engines(*most), Entry("flink", *most), structured]),
        ("w3-stages", "w3", QUERY_EVENTS, stages),
    ):
        about = QUERIES[query]
        title = f"{query}: {about.title}; {tuples:,} events a transaction"
        sort = "txids" if tuples < QUERY_EVENTS else "tuples"
        job, source = Job(query, tuples, 1, loaded=False), partial(stored, about.events)
        yield Comparison(name, "windows", sort, job, entries, title, source=source, rounds=(3, 2))


JOINED = 200_000
"""Rows in a transaction of joins, half of them left ones, except where transactions are small."""
LOOKED_UP = 100_000
"""Rows in a transaction of look-ups."""
SINK = "txstorm, Delta sink"
"""Entry whose result rows are appended to a Delta table, as those of Structured Streaming; else they are added up."""


def _joins() -> Iterator[Comparison]:
    """Return the comparisons of left joins within an interval, and Nexmark's q8."""
    many = (20, 0), (4, 0)
    flinks = [
        Entry("flink", *many),
        Entry("flink", *many, settings={"state.backend.type": "rocksdb"}, label="flink, RocksDB"),
    ]
    by_hand = [Entry(name, *many) for name in ("join-bytewax", "join-loop", "join-arrays")]
    structured = Entry("join-structured", (17, 3), (3, 1))
    ours = [*_on_engines(*many), Entry("txstorm", *many, form="sink", label=SINK)]
    grouped = Entry("txstorm", (600, 0), (200, 0), pending=PENDING, form="sink", label=SINK)
    for name, form, tuples, entries in (
        ("join-wide", "join-wide", JOINED, [*ours, *flinks, structured, *by_hand]),
        ("join-narrow", "join-narrow", JOINED, [*ours, *flinks, structured, *by_hand]),
        ("join-1000", "join-wide", 2_000, [grouped, Entry("join-structured", (6, 3), (2, 2))]),
    ):
        title = f"Left join, {rows.FORMS[form].window:,} right rows within the bounds; {tuples:,} rows a transaction"
        sort = "txids" if tuples < JOINED else "tuples"
        job, source = Job(form, tuples, 1, loaded=False), partial(rows.stored, form)
        yield Comparison(name, "joins", sort, job, entries, title, source=source, rounds=(3, 2))
    title = f"Look-ups in a Delta table of {lookups.KEYS:,} rows, {LOOKED_UP:,} rows a transaction"
    job = Job(lookups.KIND, LOOKED_UP, 1, loaded=False)
    entries = [*_on_engines((60, 0), (10, 0)), Entry("lookup-structured", (12, 3), (3, 1))]
    yield Comparison("lookup", "joins", "tuples", job, entries, title, source=lookups.stored, rounds=(3, 2))
    title = f"q8: {QUERIES['q8'].title}; {QUERY_EVENTS:,} events a transaction"
    job, source = Job("q8", QUERY_EVENTS, 1, loaded=False), partial(stored, "nexmark")
    entries = [*_on_engines((80, 0), (20, 0)), Entry("flink", (80, 0), (20, 0))]
    yield Comparison("q8", "joins", "tuples", job, entries, title, source=source, rounds=(3, 2))


def _on_engines(full: Count, quick: Count) -> list[Entry]:
    return [Entry(name, full, quick) for name in ("txstorm", "txstorm-local")]


COMPARISONS: Sequence[Comparison] = (
    *_totals(),
    *_words(),
    _opaque(),
    *_changes(),
    *_tiny(),
    *_tables(),
    *_overheads(),
    *_pipelines(),
    *_kafka(),
    *_windows(),
    *_joins(),
)
