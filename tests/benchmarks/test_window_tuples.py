"""The benchmark of windowed and stateful bolts: its events, and its own side, at a small size."""

from itertools import pairwise

import numpy as np

from benchmarks.peers.window_bolts import sliding, word_count
from benchmarks.sensor_events import events, sums
from benchmarks.window_tuples import Row


def test_events_are_the_same_in_every_cut():
    whole = events(0, 200_000)
    for cuts in ((0, 200_000), (0, 70_000, 70_001, 131_072, 200_000)):
        parts = [events(first, last) for first, last in pairwise(cuts)]
        for column, pieces in zip(whole, zip(*parts, strict=True), strict=True):
            assert np.array_equal(column, np.concatenate(pieces))


def test_the_sliding_sum_is_right(tmp_path):
    found = sliding({"engine": "local", "place": str(tmp_path / "data"), "count": 200_000, "batch": 50_000})
    assert len(found["sums"]) == 9
    assert dict(found["sums"]) == sums(200_000)
    assert found["tuples/s"] > 0 < found["tuples/CPU s"]


def test_both_word_counts_agree(tmp_path):
    options = {"engine": "local", "count": 40_000, "batch": 10_000}
    forms = ("stateful", "keyed")
    stateful, keyed = (word_count({**options, "place": str(tmp_path / form), "form": form}) for form in forms)
    assert stateful["total"] == keyed["total"] == 40_000
    assert stateful["words"] == keyed["words"]


def test_figures_are_judged_by_limit_and_goal():
    assert [Row("", one, 1.0, one, 3, 8).verdict for one in (2.9, 3, 8)] == ["missed", "reached", "goal"]
    at_most = [Row("", one, None, one, 20, 8, at_most=True).verdict for one in (21, 20, 8)]
    assert at_most == ["missed", "reached", "goal"]
