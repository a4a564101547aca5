"""The benchmark of join stores, at a small size."""

import shutil

import pytest

from benchmarks.join_stores import in_redis, in_rest, rows


def test_rows_are_the_same_in_every_run():
    assert rows(100, 10) == rows(100, 10)
    assert len({row.key for row in rows(1000, 10)}) == 10


@pytest.mark.integration
@pytest.mark.parametrize("part", [in_redis, in_rest])
def test_both_sides_are_measured(part, tmp_path):
    if part is in_redis and shutil.which("redis-server") is None:
        pytest.skip("scripts/redis --install installs it")
    [row] = part(tmp_path, 2_000, 200, 1)
    assert row.ours > 0 < row.peer
    assert (row.limit, row.goal) == (0.6, 0.9)
