"""The figures to reach, each with its definition, and the line that says whether it is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.machine import Spread
from benchmarks.suite.job import Outcome
from benchmarks.suite.rounds import Results, commit_ms

TXIDS, TUPLES, CPU = (lambda one: one.txids_s), (lambda one: one.tuples_s), (lambda one: one.tuples_cpu_s)
OURS, ALONE, COLUMNS = "txstorm", "txstorm, each alone", "txstorm, record batches"
REACHED, MISSED, NOT_IN_QUICK, NOT_MEASURED = "reached", "missed", "not in quick", "not measured"


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        needs: the comparisons or measurements it is taken from; `beside` is of the first.
        value: takes it; None where it was not measured.
        limit: the least, or with `at_most` the most it may be; `goal`: what it should be.
        quick: whether a quick run has it.
        beside: entries whose pending and latency are told with it.
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
        """The limit in words."""
        return f"{'≤' if self.at_most else '≥'} {self.limit:g} {self.unit}"

    def reached(self, value: float) -> bool:
        """Whether a value is as promised."""
        return value <= self.limit if self.at_most else value >= self.limit


@dataclass(frozen=True)
class Line:
    """What is said of one figure."""

    figure: Figure
    value: Spread | None
    verdict: str

    def __str__(self) -> str:
        shown = "-" if self.value is None else f"{self.value:.3g}".replace(" ", "")
        return f"{self.figure.name} {shown} {self.figure.target.replace(' ', '')} {self.verdict}"


def judge(figure: Figure, results: Results, *, quick: bool) -> Line:
    """A figure's line."""
    if quick and not figure.quick:
        return Line(figure, None, NOT_IN_QUICK)
    value = figure.value(results)
    if value is None:
        return Line(figure, None, NOT_MEASURED)
    return Line(figure, value, REACHED if figure.reached(value.median) else MISSED)


def totals(lines: Sequence[Line]) -> str:
    """The last line: how many there are of each verdict."""
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
    peer: str, tuples: float, columns: float, measure: Callable[[Outcome], float], *, quick: bool
) -> list[Figure]:
    comparison = "words-100000"
    per = "a CPU second" if measure is CPU else "a second"
    return [
        Figure(
            f"{name}-{peer}",
            f"words {per} against {peer}, 100,000 a transaction, {how}",
            (comparison,),
            _ratio(comparison, entry, peer, measure),
            limit,
            quick=quick,
            beside=(entry, peer),
        )
        for name, entry, limit, how in (
            ("tuples", OURS, tuples, "tuple by tuple"),
            ("batches", COLUMNS, columns, "record batches"),
        )
    ]


def _overheads() -> list[Figure]:
    return [
        Figure(
            f"overhead-{tuples}",
            f"time against the same Spark stages without transactions, word count, {tuples:,} a transaction",
            ("overhead",),
            _value(f"overhead-{tuples}"),
            limit,
            goal,
            at_most=True,
        )
        for tuples, limit, goal in ((200_000, 1.05, 1.02), (20_000, 1.25, 1.1), (1_000, 1.5, 1.2))
    ]


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
    *_words("bytewax", 0.7, 1.8, CPU, quick=True),
    *_words("pyflink-process", 30, 100, TUPLES, quick=False),
    *_words("pyflink-thread", 10, 30, TUPLES, quick=False),
    *_words("storm", 0.6, 1.4, TUPLES, quick=False),
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
    Figure(
        "pipelining",
        "4 transactions in flight against 1, 1,000 words each, without packing",
        ("pipelining",),
        _value("pipelining"),
        1.3,
        1.5,
    ),
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
)
BY_NAME: Mapping[str, Figure] = {one.name: one for one in FIGURES}
