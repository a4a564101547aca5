"""Starts of a new directory with a snapshot that are killed at any step, while the store goes on to newer snapshots."""

import json

import pytest
from recovery_cases import ends, killed
from snapshot_runs import counted, donate, plain

from txstorm.hailstorm import open_store
from txstorm.results.views import read_directory_history

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("point", "chosen"),
    [
        ("p0.after", 4),
        ("begin.filled", 4),  # nothing is decided: the next start chooses again
        ("begin.after", 2),
        ("p1.after", 2),
        ("p5.staged.after", 2),
        ("p6.after", 2),
        ("p7.1.after", 2),
        ("p8.before", 2),
        ("history.written", 2),
    ],
)
def test_a_directory_goes_on_from_the_snapshot_that_it_has_recorded(point, chosen, tmp_path):
    store = f"dir:{tmp_path / 'store'}"
    opened = open_store(store, 1)
    donate(tmp_path / "donor", opened, 2)
    killed(f"{point}:kill:1", tmp_path / "data", store, scenario="restored")
    donate(tmp_path / "donor", opened, 4)  # the snapshot of before is gone
    ends(tmp_path / "data", store, scenario="restored")
    first, *rows = read_directory_history(tmp_path / "data").to_pylist()
    assert json.loads(first["extents"])["facts"]["clock"] == {"0": chosen - 1, "1": min(chosen, 4) - 1}
    assert [row["txid"] for row in (first, *rows)] == list(range(9))
    assert counted(tmp_path / "data") == plain()
    assert counted(tmp_path / "data", 0) == plain(taken={"0": chosen - 1, "1": min(chosen, 4) - 1})


def test_a_store_that_is_killed_in_the_middle_of_a_save_has_the_snapshot_before(tmp_path):
    store, donor = f"dir:{tmp_path / 'store'}", tmp_path / "donor"
    donate(donor, open_store(store), 2)
    for txid in (3, 4):  # twice in a row: the second must not replace the complete one
        killed("snapshot.renamed:kill:2", donor, store, str(txid), scenario="donated")
    ends(tmp_path / "data", store, scenario="restored")
    assert counted(tmp_path / "data", 0) == plain(taken={"0": 1, "1": 1})
    assert counted(tmp_path / "data") == plain()
