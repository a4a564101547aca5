"""Benchmarks of joins: their rows, their results by numpy, and those of txstorm and of two loops by hand.

Peers that require an installation are not tested here."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.joins import buffer, catch_up, lookups
from benchmarks.joins.results import NONE, digest, expected, leave_digest, until
from benchmarks.joins.rows import BEFORE_MS, FORMS, LAG_MS, LEFT, RIGHT, SIDES, draw, part, read, stored
from benchmarks.nexmark.queries import WrongResult
from benchmarks.peers import join_arrays, join_loop
from benchmarks.peers.ours import worker
from benchmarks.suite.comparisons import COMPARISONS
from benchmarks.suite.exact import check
from benchmarks.suite.figures import FIGURES
from benchmarks.suite.job import Job, Outcome

ROWS, NAMES = 240_000, ("join-wide", "join-narrow")
"""Rows of both sides: more than the lag holds back, and with the second form enough for right rows to expire."""


@pytest.fixture(scope="module")
def sources() -> Iterator[Mapping[str, Mapping[str, Any]]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(stored(name, ROWS)) for name in NAMES}


def job(name: str, source: Mapping[str, Any], directory: Path, form: str = "") -> Job:
    return Job(name, ROWS // 6, 6, loaded=False, source=source, directory=str(directory), form=form)


def test_rows_are_a_function_of_their_place():
    for side in SIDES:
        whole = draw("join-wide", side, range(250_000))
        for share in (range(100), range(99_000, 101_000), range(100_000, 200_000), range(199_999, 250_000)):
            for column, values in draw("join-wide", side, share).items():
                assert np.array_equal(values, whole[column][share.start : share.stop])


@pytest.mark.parametrize("name", FORMS)
def test_shares_of_matching_keys_and_late_rows(name: str):
    found = {side: draw(name, side, range(300_000)) for side in SIDES}
    assert (found[LEFT]["key"] < FORMS[name].keys).mean() == pytest.approx(0.8, abs=0.01)
    assert (found[RIGHT]["key"] < FORMS[name].keys).all()
    for rows in found.values():
        behind = np.maximum.accumulate(rows["time"]) - rows["time"]
        assert (behind > 0).mean() == pytest.approx(0.01, rel=0.15)
        assert 1_900 < behind.max() < LAG_MS


def test_right_rows_within_the_bounds():
    times = draw("join-narrow", RIGHT, range(300_000))["time"]
    within = (times > times.max() - 2 * BEFORE_MS) & (times <= times.max() - BEFORE_MS)
    assert within.sum() == pytest.approx(FORMS["join-narrow"].window, rel=0.01)


def test_rows_are_read_in_transactions(sources: Mapping[str, Mapping[str, Any]]):
    whole = read(sources["join-wide"], LEFT, range(300))
    parts = [read(sources["join-wide"], LEFT, part(200, txid)) for txid in (1, 2, 3)]
    for number, column in enumerate(whole):
        assert np.concatenate([one[number] for one in parts]).tolist() == column.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_expected_results_are_those_of_plain_python(name: str, sources: Mapping[str, Mapping[str, Any]]):
    source = sources[name]
    left, right = (zip(*(one.tolist() for one in read(source, side, range(ROWS // 2))), strict=True) for side in SIDES)
    by_key: dict[int, list[tuple[int, int]]] = {}
    for id, (key, at) in enumerate(right):
        by_key.setdefault(key, []).append((at, id))
    wanted, limit = set[tuple[int, int]](), until(source, ROWS)
    for id, (key, at) in enumerate(left):
        found = {(id, other) for time, other in by_key.get(key, []) if at - BEFORE_MS <= time <= at}
        wanted |= (found or {(id, NONE)}) if at < limit else set()
    pairs = [pair for one in expected(source, ROWS) for pair in zip(*(ids.tolist() for ids in one), strict=True)]
    assert len(pairs) == len({*pairs})
    assert {*pairs} == wanted
    assert any(right != NONE for _, right in wanted)


def test_a_digest_tells_other_pairs_of_the_same_ids():
    left, right = np.array([1, 2]), np.array([3, 4])
    assert digest(left, right)[:2] == digest(left, right[::-1])[:2]
    assert digest(left, right)[2] != digest(left, right[::-1])[2]


@pytest.mark.parametrize("work", [join_loop.work, join_arrays.work], ids=["dicts", "arrays"])
@pytest.mark.parametrize("name", NAMES)
def test_results_of_loops_by_hand_are_right(work, name, sources, tmp_path):
    asked = job(name, sources[name], tmp_path)
    outcome: Outcome = work(asked)
    assert (outcome.txids, outcome.tuples) == (6, ROWS)
    check("by hand", asked, outcome)


@pytest.mark.parametrize("form", ["", "sink"])
@pytest.mark.parametrize("name", NAMES)
def test_results_of_txstorm_are_right(name: str, form: str, sources: Mapping[str, Mapping[str, Any]], tmp_path: Path):
    asked = job(name, sources[name], tmp_path, form)
    outcome = worker("local")(asked)
    assert (outcome.txids, outcome.tuples) == (6, ROWS)
    check("txstorm", asked, outcome)


def test_results_of_look_ups_are_right(tmp_path: Path):
    with lookups.stored(30_000) as source:
        asked = Job(lookups.KIND, 10_000, 3, loaded=False, source=source, directory=str(tmp_path))
        outcome = worker("local")(asked)
        check("txstorm", asked, outcome)
    assert outcome.tuples == 30_000


def test_a_wrong_digest_is_reported(sources: Mapping[str, Mapping[str, Any]], tmp_path: Path):
    asked = job("join-wide", sources["join-wide"], tmp_path)
    leave_digest(str(tmp_path), [1, 2, 3])
    with pytest.raises(WrongResult, match=r"flink, join-wide of 240,000 rows: WRONG: expected .*, got \[1, 2, 3\]"):
        check("flink", asked)


def test_every_peer_of_joins_has_a_figure():
    compared = {one.name: one for one in COMPARISONS if one.workload == "joins"}
    assert {*compared} <= {need for one in FIGURES for need in one.needs}
    for name in ("join-wide", "join-narrow"):
        peers = {entry.name for entry in compared[name].entries}
        assert {"flink", "flink, RocksDB", "join-structured", "join-bytewax", "join-loop", "join-arrays"} <= peers
        assert sum(name in one.needs for one in FIGURES) == 6


@pytest.mark.long
def test_a_killed_join_of_a_window_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The comparison with numpy's results after the kill is part of the measurement."""
    monkeypatch.setattr(buffer, "MANY_QUICK", "join-wide")
    monkeypatch.setattr(buffer, "BATCH", 40_000)
    monkeypatch.setattr(buffer, "transactions", lambda name: 5)
    rows = list(buffer.measure(tmp_path, "local", lambda text: None, quick=True))
    assert [one.name.partition(",")[0] for one in rows] == [
        "join: ms of a transaction",
        "join: commit ms of a transaction",
        "join: GiB of the driver",
        "join: bytes written per Arrow byte received",
        "join: s from SIGKILL to the next commit",
    ]
    assert all(one.ratio > 0 and one.at_most for one in rows)


def test_a_right_side_that_is_behind_is_measured(tmp_path: Path):
    """The comparison with numpy's results is part of the measurement."""
    found = catch_up.measure({"engine": "local", "directory": str(tmp_path), "rounds": 1})
    assert found["ratios"] == [found["joined"][0] / found["alone"][0]]
