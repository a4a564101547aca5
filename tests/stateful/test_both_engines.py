"""Stateful bolts on both engines: the same state, byte for byte."""

import pytest
from runs import ended
from stateful_nets import LINES, StormWordCount, TypedWordCount, WordCount, counted, net

from txstorm.results.views import StateView


@pytest.mark.parametrize("bolt", [WordCount, StormWordCount, TypedWordCount])
def test_the_word_count_is_the_same(make_engine, tmp_path, bolt):
    ended(net(bolt(), lines=LINES * 3, take=2), tmp_path / "data", make_engine(), until_txid=8)
    with_text = bolt is not TypedWordCount
    expected = counted(LINES * 3)
    rows = StateView(tmp_path / "data", "count").to_pylist()
    assert {row["key"].strip('"'): int(row["value"]) for row in rows} == expected
    tasks = {row["key"].strip('"'): row["task"] for row in rows}
    made = sorted(
        (tasks[word], f'"{word}"' if with_text else word, str(n) if with_text else n) for word, n in expected.items()
    )
    assert [(row["task"], row["key"], row["value"]) for row in rows] == made
