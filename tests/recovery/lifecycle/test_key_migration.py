"""Directories of an older txstorm, which kept equal keys apart: they go on unchanged; a migration makes the keys one."""

from decimal import Decimal
from pathlib import Path

import pytest
from commands import Commands
from crashes import crashing
from old_keys import SPELLED, driver, fed, unpacked

from txstorm.errors import InputError
from txstorm.keys import row_text
from txstorm.operations.rewind import migrate, rewind
from txstorm.results.read import read_state
from txstorm.results.snapshot import snapshot

STATES = ("c", "d-ids", "w-due", "w-progress", "w-tuples")
EQUAL = [Decimal("1.5"), Decimal(100), Decimal(0), "a,b", 1, True]
POINTS = ["decided", *(f"{table}.restored" for table in (1, 4, 10, 12)), "history", "after"]


def content(data_dir, txid):
    return {name: read_state(data_dir, name, txid, txid).to_pylist() for name in STATES}


def test_a_directory_of_before_keeps_its_form_and_refuses_to_be_migrated(tmp_path, capsys, monkeypatch):
    data_dir = unpacked("clash", tmp_path)
    for name in ("new", "clash"):
        with driver(tmp_path / name) as running:
            if name == "new":
                fed(running, SPELLED["clash"], 1)
                assert sorted(fed(running, SPELLED["clash"], 2)["c"]) == [2, 2, 2, 3, 4]
                continue
            assert fed(running, SPELLED["clash"], 3) == {"w": [], "d": [], "c": [3] * 5}
    before = content(data_dir, 3)
    for line in ('c: {"n":"1.5"} and {"n":"1.50"}', 'w-progress: [{"n":"1.5"}] and [{"n":"1.50"}]'):
        assert f"state {line}" in Commands(capsys, monkeypatch).refused("migrate", data_dir)
    assert content(data_dir, 3) == before
    with driver(data_dir) as running:
        windows = fed(running, ["z"], 25)["w"]
    assert [(str(key), len(ids)) for key, ids in windows] == [(str(key), 3) for key in SPELLED["clash"]]


@pytest.mark.parametrize("point", [None, *POINTS])
def test_migrated_keys_are_equal_ones_also_after_a_crash(tmp_path: Path, point: str | None) -> None:
    data_dir = unpacked("plain", tmp_path)
    with driver(data_dir) as running:
        fed(running, [], 3)
    if point is not None:
        with crashing(f"rewind.{point}"):
            migrate(data_dir)
    decided = point is not None
    assert (migrate(data_dir)["migrated"] == []) is decided
    units = {row["unit"] for row in content(data_dir, 3)["w-progress"]}
    assert units == {"component", *(row_text([key]) for key in EQUAL)}
    with pytest.raises(InputError, match="before the kept history, which begins with txid 3"):
        rewind(data_dir, 2)
    with driver(data_dir, tasks=2) as running:
        assert fed(running, EQUAL, 4) == {"w": [], "d": [], "c": [4 - 1] * len(EQUAL)}
        found = fed(running, SPELLED["plain"], 25)
        assert sorted(found["c"]) == [4] * len(EQUAL)
        windows = {str(key): ids for key, ids in found["w"]}
    assert windows.keys() == set(map(str, EQUAL))
    assert all([one.split("@")[1] for one in ids] == ["1", "2", "4"] for ids in windows.values())
    assert snapshot(data_dir).txid == 5
