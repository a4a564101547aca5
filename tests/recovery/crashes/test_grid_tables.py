"""Tests of the crash grid's verifier: it detects every kind of damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from crash_cells import expected
from grid_tables import verify
from recovery_cases import ends

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("undamaged") / "data"
    ends(data_dir, "same", "before", 1, scenario="grid")
    return data_dir


def commits(table: Path) -> list[Path]:
    """Return the log entries that publish a group, oldest first."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    return [entry for entry in entries if '"kind":"commit"' in entry.read_text().replace(" ", "")]


def logged(entry: Path, change: Callable[[dict[str, Any]], None]) -> None:
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        change(action)
    entry.write_text("\n".join(map(json.dumps, actions)) + "\n")


def rewritten(table: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Apply `change` to the rows of the last group, and adjust the file size in the log."""

    def change_file(action: dict[str, Any]) -> None:
        if "add" in action:
            path = table / action["add"]["path"]
            pq.write_table(change(pq.ParquetFile(path).read()), path)
            action["add"]["size"] = path.stat().st_size

    logged(commits(table)[-1], change_file)


def more(column: str) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(rows.column_names.index(column), column, pc.add(rows[column], 1))


def leave_a_file(data_dir: Path) -> None:
    file = next((data_dir / "changes/counts/_txstorm/staged").glob("*.parquet"))
    shutil.copy(file, file.with_name(f"2-{file.name}"))


def cut_a_file(data_dir: Path) -> None:
    file = next((data_dir / "changes/totals/_txstorm/staged").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])


def publish_another_attempt(action: dict[str, Any]) -> None:
    if "commitInfo" in action:
        action["commitInfo"]["txstorm"]["txids"][-1]["attempt"] += 1


def let_an_older_one_write(action: dict[str, Any]) -> None:
    if action.get("txn", {}).get("appId", "").endswith("/epoch"):
        action["txn"]["version"] += 1


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a lost commit": lambda data: sorted((data / "sinks/rows/_delta_log").glob("*.json"))[-1].unlink(),
    "a file that was left": leave_a_file,
    "a file that was cut": cut_a_file,
    "another attempt": lambda data: logged(commits(data / "changes/counts")[2], publish_another_attempt),
    "an older coordinator": lambda data: logged(commits(data / "changes/totals")[2], let_an_older_one_write),
    "rows written twice": lambda data: rewritten(data / "sinks/rows", lambda rows: pa.concat_tables([rows, rows])),
    "lost rows": lambda data: rewritten(data / "sinks/rows", lambda rows: rows.slice(0, rows.num_rows - 1)),
    "a skipped offset": lambda data: rewritten(data / "sinks/rows", more("offset")),
    "a count too large": lambda data: rewritten(data / "changes/counts", more("n")),
    "a sum too large": lambda data: rewritten(data / "changes/totals", more("rows")),
}


def test_an_undisturbed_run_is_clean(undamaged: Path) -> None:
    tables = verify(undamaged)
    assert tables.batches() == expected("same", 0)
    assert tables.epochs == {1}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found(undamaged: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    data_dir = shutil.copytree(undamaged, tmp_path / "data")
    damage(data_dir)
    with pytest.raises(AssertionError):
        verify(data_dir)


def test_a_transaction_of_two_attempts_is_found(undamaged: Path, tmp_path: Path) -> None:
    """The verifier detects rows of an opaque batch that survive from a previous attempt."""
    data_dir = shutil.copytree(undamaged, tmp_path / "data")

    def mixed(rows: pa.Table) -> pa.Table:
        other = pa.array([1] + [0] * (rows.num_rows - 1), pa.int64())
        return rows.set_column(rows.column_names.index("generation"), "generation", other)

    rewritten(data_dir / "sinks/rows", mixed)
    with pytest.raises(AssertionError, match="rows of two attempts"):
        verify(data_dir).batches()
