"""Benchmarks of queries on windows: their events, their results by numpy, and those of txstorm and of a loop by hand.

Peers that require an installation are not tested here."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.nexmark import events, heartbeats
from benchmarks.nexmark.events import BID, LAG_MS, SLIDE_MS, START_MS, WINDOW_MS, campaigns, draw, read, stored
from benchmarks.nexmark.queries import DIGEST, QUERIES, WrongResult, compare, expected
from benchmarks.peers import nexmark_loop
from benchmarks.peers.ours import worker
from benchmarks.suite.comparisons import COMPARISONS, Comparison, Entry
from benchmarks.suite.exact import check
from benchmarks.suite.figures import MISSED, line_of
from benchmarks.suite.job import Job
from benchmarks.suite.peers import Peer
from benchmarks.suite.results import Results, Setting
from benchmarks.suite.rounds import run_comparisons

EVENTS = 250_000
"""Enough for the first windows of 10 s."""


@pytest.fixture(scope="module")
def sources() -> Iterator[Mapping[str, Mapping[str, Any]]]:
    with ExitStack() as stack:
        yield {form: stack.enter_context(stored(form, EVENTS)) for form in events.FORMS}


def test_events_are_a_function_of_their_place():
    long, short = draw("nexmark", 230_000), draw("nexmark", 130_000)
    for name, column in short.items():
        assert (column == long[name][:130_000]).all()


def test_shares_of_kinds_keys_and_late_events():
    found = draw("nexmark", 1_000_000)
    shares = np.bincount(found["kind"]) / 1_000_000
    assert shares == pytest.approx([0.02, 0.06, 0.92], abs=0.002)
    bids = {name: column[found["kind"] == BID] for name, column in found.items()}
    within = (bids["time"] > START_MS + 50_000) & (bids["time"] < START_MS + 60_000)
    assert within.sum() == pytest.approx(100_000, rel=0.01)
    assert len(np.unique(bids["auction"][within])) == pytest.approx(22_000, rel=0.1)
    assert len(np.unique(bids["bidder"][within])) == pytest.approx(63_000, rel=0.02)
    behind = np.maximum.accumulate(bids["time"]) - bids["time"]
    assert (behind > 2).mean() == pytest.approx(0.01, rel=0.1)
    assert 1_900 < behind.max() < LAG_MS


@pytest.mark.parametrize("form", events.FORMS)
def test_no_time_is_one_on_which_systems_disagree(form: str):
    times = np.unique(draw(form, 500_000)["time"])
    assert times.min() > START_MS
    assert (times % SLIDE_MS != 0).all()
    assert not np.isin(times + WINDOW_MS, times).any()


def test_stored_events_are_read_in_parts_and_hot_auctions_are_a_thousand(sources: Mapping[str, Mapping[str, Any]]):
    assert len(np.unique(read(sources["hot"], range(EVENTS), "auction")["auction"])) == 1_000
    whole = read(sources["nexmark"], range(1000), "time", "price")
    parts = [read(sources["nexmark"], part, "time", "price") for part in (range(400), range(400, 1000))]
    for name, column in whole.items():
        assert np.concatenate([part[name] for part in parts]).tolist() == column.tolist()


def by_hand(name: str, source: Mapping[str, Any]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return (key, end) → (events, highest price) by plain Python; of all keys, not only the top ones."""
    query, found = QUERIES[name], dict[tuple[int, int], tuple[int, int]]()
    ads = campaigns(source).tolist()
    columns = read(source, range(EVENTS), *query.columns)
    open_sessions: dict[int, list[int]] = {}
    rows = sorted(zip(*(column.tolist() for column in columns.values()), strict=True), key=lambda row: row[1])
    joined = set[tuple[int, int]]()
    for kind, at, key, *price in rows:
        if kind == query.joined:
            joined.add((key, -(-at // query.slide) * query.slide))
        if kind != query.chosen:
            continue
        key = ads[key] if query.key == "campaign" else key
        if not query.slide:
            session = open_sessions.get(key)
            if session is None or at >= session[0]:
                if session is not None:
                    found[key, session[0]] = (session[1], 0)
                session = open_sessions[key] = [0, 0]
            session[0], session[1] = at + WINDOW_MS, session[1] + 1
            continue
        end = -(-at // query.slide) * query.slide
        for last in range(end, end + WINDOW_MS, query.slide):
            n, highest = found.get((key, last), (0, 0))
            found[key, last] = (n + 1, max(highest, *price) if price else 0)
    if query.joined is not None:
        found = {key: value for key, value in found.items() if key in joined}
    return found | {(key, end): (n, 0) for key, (end, n) in open_sessions.items()}


@pytest.mark.parametrize("name", QUERIES)
def test_expected_results_are_those_of_plain_python(name: str, sources: Mapping[str, Mapping[str, Any]]):
    source = sources[QUERIES[name].events]
    wanted = by_hand(name, source)
    columns = [column.to_pylist() for column in expected(source, name, EVENTS).columns]
    found = {(key, end): (n, value) for key, end, n, value in zip(*columns, strict=True)}
    if QUERIES[name].top:
        ends = {end for _, end in wanted}
        best = {end: min((-n, key) for (key, at), (n, _) in wanted.items() if at == end) for end in ends}
        wanted = {(key, end): (-n, 0) for end, (n, key) in best.items()}
    assert found == wanted


def job(name: str, source: Mapping[str, Any], directory: Path, txids: int = 5) -> Job:
    return Job(name, EVENTS // txids, txids, loaded=False, source=source, directory=str(directory))


@pytest.mark.parametrize("name", QUERIES)
def test_results_of_txstorm_are_right(name: str, sources: Mapping[str, Mapping[str, Any]], tmp_path: Path):
    asked = job(name, sources[QUERIES[name].events], tmp_path)
    outcome = worker("local")(asked)
    assert (outcome.txids, outcome.tuples) == (5, EVENTS)
    check("txstorm", asked, outcome)


@pytest.mark.parametrize("name", ["q5", "q12", "w3"])
def test_results_of_the_loop_are_right(name: str, sources: Mapping[str, Mapping[str, Any]], tmp_path: Path):
    asked = job(name, sources[QUERIES[name].events], tmp_path)
    check("nexmark-loop", asked, nexmark_loop.work(asked))


def test_a_wrong_digest_is_reported(sources: Mapping[str, Mapping[str, Any]], tmp_path: Path):
    (tmp_path / DIGEST).write_text(json.dumps([1, 2, 3]))
    with pytest.raises(WrongResult, match=r"flink, q7 of 250,000 events: WRONG: expected .*, got \[1, 2, 3\]"):
        compare("flink", "q7", EVENTS, sources["nexmark"], tmp_path)


def test_a_wrong_side_has_no_figures(tmp_path: Path):
    """A side that is wrong in its second round loses its first one, too."""
    program = (
        "import json, sys, pathlib\nfrom benchmarks.suite.job import Job\n"
        "from benchmarks.nexmark.queries import digest, expected, until, QUERIES\n"
        "for number, line in enumerate(sys.stdin):\n"
        "    job = Job.of(line); events = job.last * job.tuples\n"
        "    limit = until(job.source, QUERIES[job.kind], events)\n"
        "    found = digest(expected(job.source, job.kind, events), limit)\n"
        "    found[1] += number\n"
        "    (pathlib.Path(job.directory) / 'digest.json').write_text(json.dumps(found))\n"
        "    print(json.dumps({'seconds': 1.0, 'cpu': 1.0, 'txids': 1, 'tuples': 1}), flush=True)\n"
    )
    peers = {"drifting": Peer("drifting", "none", [sys.executable, "-c", program], lambda say: None)}
    small = Comparison(
        "small", "windows", "tuples", Job("q7", 130_000, 1, loaded=False), [Entry("drifting", (1, 0), (1, 0))],
        "Small", source=lambda count: stored("nexmark", count), rounds=(3, 2),
    )  # fmt: skip
    results = Results()
    run_comparisons([small], Setting(5, True, lambda text: None, results, tmp_path, "local", peers))
    assert results.of("small", "drifting") == []
    assert "WRONG: expected" in results.missing["small: drifting"]
    assert len(results.drifts) == 2  # rounds


def test_every_window_query_is_compared():
    windows = {one.name: one for one in COMPARISONS if one.job.kind in QUERIES}
    assert {one.job.kind for one in windows.values()} == {*QUERIES}
    for name in ("q5", "q7", "q8", "q11", "q12", "w3"):
        assert {"txstorm", "txstorm-local", "flink"} <= {entry.peer for entry in windows[name].entries}


def test_figures_of_another_benchmark_are_judged():
    alone = SimpleNamespace(name="ms to fire, p50", ours=9.0, peer=None, ratio=9.0, limit=20, goal=8, at_most=True)
    assert str(line_of(alone, "window-tuples")) == "ms-to-fire-p50 9(9–9) ≤20 reached"
    ratio = SimpleNamespace(name="sum: Storm", ours=200.0, peer=100.0, ratio=2.0, limit=3, goal=8, at_most=False)
    line = line_of(ratio, "window-tuples")
    assert (line.verdict, line.figure.text) == (MISSED, "sum: Storm: 200 against 100")
    assert str(line) == "sum-storm 2(2–2) ≥3× missed"


def test_heartbeats_are_timed(tmp_path: Path):
    found = heartbeats.measure({"heartbeats": 5, "engine": "local", "directory": str(tmp_path)})
    assert 0 < found["p50 ms"] <= found["p99 ms"]
