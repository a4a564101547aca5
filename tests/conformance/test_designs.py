"""The designs of the document transactional topologies come from, where they are ordinary settings.

T5: one tuple per transaction. T6: one batch after the other.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from storm_world import Keep, PlainLog, Watch, World

from txstorm import TransactionalTopologyBuilder, run
from txstorm.state.read import read_sink


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "world")
    made.amount = 1
    return made


def start(world: World, data_dir: Path, engine, **settings):
    builder = TransactionalTopologyBuilder("designs", "log", PlainLog(world))
    builder.set_bolt("watch", Watch(world)).global_grouping("log")
    builder.set_committer_bolt("keep", Keep(world)).global_grouping("watch")
    builder.set_settings({"retry_backoff": 0.001, **settings})
    world.handle = run(builder.build_topology(), engine=engine, data_dir=data_dir, available_now=True)
    return world.handle


def lines_of(data_dir: Path) -> list[str]:
    return [row["line"] for row in sorted(read_sink(data_dir, "rows").to_pylist(), key=lambda row: row["_txid"])]


@pytest.mark.parametrize("pending", [1, "auto"])
def test_t5_t6_one_tuple_per_transaction(pending, world, make_engine, tmp_path) -> None:
    lines = list("abcdefgh")
    world.append(0, *lines)
    handle = start(world, tmp_path / "data", make_engine(), max_spout_pending=pending)
    assert handle.awaitTermination(120)
    assert lines_of(tmp_path / "data") == lines
    assert {row["_txid"] for row in read_sink(tmp_path / "data", "rows").to_pylist()} == set(range(1, 9))
    if pending == 1:
        what = [(note[0], note[1]) for note in world.notes() if note[0] in ("emit", "kept")]
        assert what == [(word, txid) for txid in range(1, 9) for word in ("emit", "kept")]
        assert {one.pack for one in handle.recentProgress} == {1}
