"""The target figures of the benchmarks: their definitions, and the report line for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.machine import Spread
from benchmarks.suite.comparisons import SINK, STAGES
from benchmarks.suite.job import Outcome
from benchmarks.suite.results import Results, commit_ms

TXIDS, TUPLES, CPU = (lambda one: one.txids_s), (lambda one: one.tuples_s), (lambda one: one.tuples_cpu_s)
OURS, ALONE, COLUMNS = "txstorm", "txstorm, each alone", "txstorm, record batches"
LOCAL = "txstorm-local"
REACHED, MISSED, NOT_IN_QUICK, NOT_MEASURED = "reached", "missed", "not in quick", "not measured"


@dataclass(frozen=True)
class Figure:
    """One target figure of the benchmarks.

    Attributes:
        needs: the comparisons or measurements that it needs; `beside` refers to the first.
        value: computes the figure; None if it was not measured.
        limit: the minimum, or with `at_most` the maximum allowed; `goal`: the desired value.
        quick: whether it is part of a quick run.
        beside: entries whose pending and latency are reported with it.
    """

    name: str
    text: str
    needs: Sequence[str]
    value: Callable[[Results], Spread | None]
    limit: float
    goal: float | None = None
    at_most: bool = False
    quick: bool = False
    unit: str = "×"
    beside: Sequence[str] = ()

    @property
    def target(self) -> str:
        """The limit as text for the report."""
        return f"{'≤' if self.at_most else '≥'} {self.limit:g} {self.unit}"

    def reached(self, value: float) -> bool:
        """Whether `value` is within the limit."""
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True)
class Line:
    """Report line of one figure."""

    figure: Figure
    value: Spread | None
    verdict: str

    def __str__(self) -> str:
        shown = "-" if self.value is None else f"{self.value:.3g}".replace(" ", "")
        return f"{self.figure.name} {shown} {self.figure.target.replace(' ', '')} {self.verdict}"


def judge(figure: Figure, results: Results, *, quick: bool) -> Line:
    """Return the report line of a figure."""
    value = figure.value(results)
    if quick and not figure.quick:
        return Line(figure, value, NOT_IN_QUICK)
    if value is None:
        return Line(figure, None, NOT_MEASURED)
    return Line(figure, value, REACHED if figure.reached(value.median) else MISSED)


def totals(lines: Sequence[Line]) -> str:
    """Return the last line of the report: the number of figures by verdict."""
    counts = {verdict: sum(one.verdict == verdict for one in lines) for verdict in VERDICTS}
    return f"{len(lines)} figures: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


VERDICTS = (REACHED, MISSED, NOT_IN_QUICK, NOT_MEASURED)


def _ratio(comparison: str, ours: str, peer: str, measure: Callable[[Outcome], float]) -> Callable[..., Spread | None]:
    return lambda results: results.ratio(comparison, ours, peer, measure)


def _own(comparison: str, entry: str, measure: Callable[[Outcome], float]) -> Callable[..., Spread | None]:
    return lambda results: results.spread(comparison, entry, measure)


def _value(name: str) -> Callable[..., Spread | None]:
    return lambda results: results.values.get(name)


def _growth(results: Results) -> Spread | None:
    large, small = (results.of(f"changes-{keys}", ALONE) for keys in ("1e7", "1e4"))
    pairs = list(zip(large, small, strict=False))
    return Spread.of([commit_ms(0.5)(much) / commit_ms(0.5)(little) for much, little in pairs]) if pairs else None


def _driver_gib(one: Outcome) -> float:
    return float(one.more["driver MiB"]) / 1024


def _against_merge() -> list[Figure]:
    found = []
    for keys, grouped, alone in (("1e4", 50, 10), ("1e6", 100, 20)):
        comparison = f"words-1000-{keys}"
        ours = COLUMNS if keys == "1e6" else OURS
        for name, entry, limit, goal in (("txids", ours, grouped, 300), ("alone", ALONE, alone, 40)):
            how = "grouped" if name == "txids" else "one intent and one commit each"
            text = f"transactions a second against foreachBatch + MERGE, 1,000 words each, {keys} keys, {how}"
            figure = Figure(
                f"{name}-merge-{keys}",
                text,
                (comparison,),
                _ratio(comparison, entry, "merge", TXIDS),
                limit,
                goal,
                quick=keys == "1e4",
                beside=(entry, "merge"),
            )
            found.append(figure)
    return found


def _words(
    peer: str,
    tuples: tuple[float, float | None],
    columns: tuple[float, float | None],
    measure: Callable[[Outcome], float],
) -> list[Figure]:
    """Return the figures of the word count against a peer, with limit and goal for each form."""
    comparison = "words-100000"
    per = "a CPU second" if measure is CPU else "a second"
    return [
        Figure(
            f"{name}-{peer}",
            f"words {per} against {peer}, 100,000 a transaction, {how}",
            (comparison,),
            _ratio(comparison, entry, peer, measure),
            limit,
            goal,
            quick=peer == "bytewax",
            beside=(entry, peer),
        )
        for name, entry, (limit, goal), how in (
            ("tuples", OURS, tuples, "tuple by tuple"),
            ("batches", COLUMNS, columns, "record batches"),
        )
    ]


def _overheads() -> list[Figure]:
    """Return the figures for the time of a run divided by that of the same packs without transactions."""
    return [
        Figure(
            f"{comparison}-{tuples}",
            f"time against the same Spark stages without transactions, {what}, {tuples:,} a transaction",
            (f"{comparison}-{tuples}",),
            _ratio(f"{comparison}-{tuples}", STAGES, OURS, TXIDS),
            limit,
            goal,
            at_most=True,
        )
        for comparison, what, tuples, limit, goal in (
            ("overhead", "word count", 200_000, 1.05, 1.02),
            ("overhead", "word count", 20_000, 1.25, 1.1),
            ("overhead", "word count", 1_000, 1.5, 1.2),
            ("overhead-total", "global count", 200_000, 1.3, None),
            ("overhead-total", "global count", 20_000, 1.5, None),
        )
    ]


def _pipelines() -> list[Figure]:
    return [
        Figure(
            comparison,
            f"4 transactions in flight against 1, 1,000 words each, {how}",
            (comparison,),
            _ratio(comparison, "txstorm, pending 4", "txstorm, pending 1", TXIDS),
            limit,
            goal,
        )
        for comparison, how, limit, goal in (
            ("pipelining", "without packing", 1.3, 1.5),
            ("pipelining-packed", "with packing", 2.5, None),
        )
    ]


def _from_kafka() -> list[Figure]:
    found = [
        Figure(
            f"kafka-{peer}",
            f"messages a second against {what}, from Kafka, 100,000 a transaction",
            ("kafka-100000",),
            _ratio("kafka-100000", OURS, f"kafka-{peer}", TUPLES),
            limit,
        )
        for peer, what, limit in (
            ("loop", "a loop by hand (confluent-kafka, deltalake)", 0.5),
            ("merge", "foreachBatch + MERGE", 5.0),
        )
    ]
    text = "planning eight partitions of Kafka and a ledger in ZooKeeper, per transaction, median"
    return [*found, Figure("planning", text, ("planning",), _value("planning"), 5, at_most=True, unit="ms")]


def _windows() -> list[Figure]:
    """Return the figures of queries on windows."""
    found = [
        Figure(f"{name}-flink", f"events a second of {name} against Flink SQL, hashmap state", (name,),
               _ratio(name, OURS, "flink", TUPLES), limit, goal)
        for name, limit, goal in (("q5", 2, 5), ("q12", 1, 2), ("q11", 1, 3), ("q7", 0.7, 1.5), ("w3", 0.5, 1))
    ]  # fmt: skip
    found += [
        Figure(f"{name}-structured", f"events a second of {name} against Structured Streaming, RocksDB", (name,),
               _ratio(name, OURS, "structured", TUPLES), limit, 20)
        for name, limit in (("q5", 8), ("w3", 10))
    ]  # fmt: skip
    return [
        *found,
        Figure(
            "q5-1000-structured",
            "transactions a second of q5 against Structured Streaming, RocksDB, 1,000 events each, grouped",
            ("q5-1000",),
            _ratio("q5-1000", OURS, "structured", TXIDS),
            80,
            200,
        ),
        Figure(
            "q5-loop",
            "events of q5 a CPU second against a loop by hand, in memory; ours in one process, durable",
            ("q5",),
            _ratio("q5", LOCAL, "nexmark-loop", CPU),
            0.4,
            1,
        ),
        Figure(
            "q5-bytewax",
            "events of q5 a CPU second against bytewax, on 1,000 auctions; ours in one process, durable",
            ("q5-hot",),
            _ratio("q5-hot", LOCAL, "nexmark-bytewax", CPU),
            10,
            25,
        ),
        Figure(
            "w3-stages",
            "time of w3 against the same stages with results discarded",
            ("w3-stages",),
            _ratio("w3-stages", STAGES, OURS, TXIDS),
            1.2,
            1.08,
            at_most=True,
        ),
        Figure(
            "heartbeat",
            "heartbeat transaction, from planning to commit, median",
            ("heartbeat",),
            _value("heartbeat"),
            20,
            8,
            at_most=True,
            unit="ms",
        ),
    ]


def _joins() -> list[Figure]:
    """Return the figures of joins beside their peers."""
    found = []
    for name, what in (("join-wide", "10^6"), ("join-narrow", "10^5")):
        join = f"of a left join with {what} right rows within the bounds"
        for peer, entry, ours, measure, limit, goal, how in (
            ("flink-rocksdb", "flink, RocksDB", OURS, TUPLES, 6, 18, "a second {} against Flink SQL, RocksDB state"),
            ("flink", "flink", OURS, TUPLES, 3, 9, "a second {} against Flink SQL, hashmap state"),
            ("structured", "join-structured", SINK, TUPLES, 6, 20, "a second {} against Structured Streaming, RocksDB"),
            ("bytewax", "join-bytewax", LOCAL, CPU, 1.5, 5, "a CPU second {} against bytewax; ours durable"),
            ("loop", "join-loop", LOCAL, CPU, 0.7, 2, "a CPU second {} against a loop over dicts; ours durable"),
            ("arrays", "join-arrays", LOCAL, CPU, 0.1, 0.3, "a CPU second {} against a loop over arrays; ours durable"),
        ):
            text = "rows " + how.format(join)
            figure = Figure(f"{name}-{peer}", text, (name,), _ratio(name, ours, entry, measure), limit, goal)
            found.append(figure)
    return [
        *found,
        Figure(
            "join-1000-structured",
            "transactions a second of a left join against Structured Streaming, RocksDB, 1,000 + 1,000 rows, grouped",
            ("join-1000",),
            _ratio("join-1000", SINK, "join-structured", TXIDS),
            60,
            150,
            beside=(SINK,),
        ),
        Figure(
            "lookup-structured",
            "rows a second of look-ups in a Delta table of 10^6 rows against Spark's broadcast join in foreachBatch",
            ("lookup",),
            _ratio("lookup", OURS, "lookup-structured", TUPLES),
            1,
            2,
        ),
        Figure(
            "join-catch-up",
            "time until a right side that is 10^6 rows behind is joined, against reading both sides alone",
            ("join-catch-up",),
            _value("join-catch-up"),
            1.5,
            1.2,
            at_most=True,
        ),
        Figure(
            "q8-flink",
            "events a second of q8 against Flink SQL, hashmap state",
            ("q8",),
            _ratio("q8", OURS, "flink", TUPLES),
            0.7,
            1.5,
        ),
    ]


class Judged(Protocol):
    """A figure that another benchmark has measured, with its limit and goal.

    Attributes:
        ours, peer: what was measured; `peer` is None for a figure without one.
        ratio: the value that is compared.
        at_most: whether `limit` is a maximum.
    """

    name: str
    ours: float
    peer: float | None
    ratio: float
    limit: float
    goal: float
    at_most: bool


def line_of(row: Judged, source: str) -> Line:
    """Return the report line of a figure that the measurement `source` has judged."""
    value = Spread.of([row.ratio])
    text = row.name if row.peer is None else f"{row.name}: {row.ours:,.4g} against {row.peer:,.4g}"
    name = "-".join(re.findall(r"\w+", row.name.lower()))
    unit = "" if row.peer is None else "×"
    figure = Figure(name, text, (source,), lambda _: value, row.limit, row.goal, at_most=row.at_most, unit=unit)
    return Line(figure, value, REACHED if figure.reached(value.median) else MISSED)


FIGURES: Sequence[Figure] = (
    *_against_merge(),
    Figure(
        "txids-storm",
        "transactions a second against Storm's transactional topology in memory, 1,000 words each; ours durable",
        ("words-1000-1e4",),
        _ratio("words-1000-1e4", OURS, "storm", TXIDS),
        1.0,
        2.0,
        beside=(OURS, "storm"),
    ),
    *_words("bytewax", (0.7, 1.0), (1.8, 2.5), CPU),
    *_words("pyflink-process", (30, None), (100, None), TUPLES),
    *_words("pyflink-thread", (10, None), (30, None), TUPLES),
    *_words("storm", (0.6, 1.0), (1.4, 2.0), TUPLES),
    Figure(
        "loop",
        "words a second against the deltalake loop, 100,000 a transaction, record batches, through Spark",
        ("words-100000",),
        _ratio("words-100000", COLUMNS, "loop", TUPLES),
        0.5,
        0.8,
        quick=True,
        beside=(COLUMNS, "loop"),
    ),
    *_overheads(),
    Figure(
        "commit-p50",
        "commit of three tables of 1,000,000 keys, 1,000 changed rows each, median",
        ("tables-3-1e6",),
        _own("tables-3-1e6", ALONE, commit_ms(0.5)),
        25,
        12,
        at_most=True,
        unit="ms",
    ),
    Figure(
        "commit-p99",
        "the same, 99 of 100",
        ("tables-3-1e6",),
        _own("tables-3-1e6", ALONE, commit_ms(0.99)),
        80,
        40,
        at_most=True,
        unit="ms",
    ),
    Figure(
        "growth",
        "median commit at 10^7 keys against 10^4",
        ("changes-1e7", "changes-1e4"),
        _growth,
        1.3,
        1.1,
        at_most=True,
    ),
    Figure(
        "bytes-written",
        "bytes written (data, log, checkpoints, compaction) per Arrow byte of changed rows, 10,000 transactions",
        ("bytes",),
        _value("bytes-written"),
        3,
        2,
        at_most=True,
    ),
    Figure(
        "empty-grouped",
        "empty transactions a second, grouped",
        ("empty",),
        _own("empty", OURS, TXIDS),
        500,
        quick=True,
        unit="/s",
        beside=(OURS,),
    ),
    Figure(
        "empty-alone",
        "empty transactions a second, one commit each",
        ("empty",),
        _own("empty", ALONE, TXIDS),
        40,
        quick=True,
        unit="/s",
        beside=(ALONE,),
    ),
    *_pipelines(),
    Figure(
        "recovery-session",
        "from the loss of the coordinator to the next commit, the Spark session alive",
        ("recovery",),
        _value("recovery-session"),
        2,
        1,
        at_most=True,
        unit="s",
    ),
    Figure(
        "recovery-driver",
        "from the start of a driver, after SIGKILL, to the next commit",
        ("recovery",),
        _value("recovery-driver"),
        15,
        10,
        at_most=True,
        unit="s",
    ),
    Figure(
        "memory-growth",
        "growth of the driver's memory over 100,000 transactions, after the first 1,000",
        ("long",),
        _value("memory-growth"),
        3,
        at_most=True,
        unit="%",
    ),
    Figure(
        "memory-1e7",
        "the driver's memory at 10^7 keys, above the JVM",
        ("changes-1e7",),
        _own("changes-1e7", ALONE, _driver_gib),
        1.5,
        at_most=True,
        unit="GiB",
    ),
    Figure(
        "commit-1e4",
        "commit of one table of 10,000 keys, 1,000 changed rows, median",
        ("changes-1e4",),
        _own("changes-1e4", ALONE, commit_ms(0.5)),
        30,
        at_most=True,
        unit="ms",
    ),
    *_from_kafka(),
    *_windows(),
    *_joins(),
)
BY_NAME: Mapping[str, Figure] = {one.name: one for one in FIGURES}
