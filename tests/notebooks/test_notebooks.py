"""Notebooks: they run from top to bottom, and are stored without outputs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def code_cells(notebook: Any) -> Iterator[Any]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def test_the_notebooks_are_these():
    names = ["event_time_windows.ipynb", "first_day.ipynb", "first_topology.ipynb", "stream_joins.ipynb"]
    assert [path.name for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path):
    notebook = read(path)
    assert [cell.source for cell in code_cells(notebook) if cell.outputs or cell.execution_count] == []
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that executes a notebook, with further cells, and returns the output of each code cell."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def execute(name: str, *more: str) -> list[str]:
        notebook = read(ROOT / "notebooks" / f"{name}.ipynb")
        notebook.cells += map(nbformat.v4.new_code_cell, more)
        place = {"metadata": {"path": tmp_path}}
        NotebookClient(notebook, timeout=240, kernel_name="python3", resources=place).execute()
        return [output_of(cell) for cell in code_cells(notebook)]

    return execute


@pytest.mark.notebook
@pytest.mark.integration
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])])
def test_the_first_topology_notebook_runs(engine: str, executed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if engine == "local":
        monkeypatch.setenv("PATH", str(tmp_path))  # no Java on the path
    shown = executed("first_topology", "print(engine)")
    picture, handle, top, new, stopped = (
        next(text for text in shown if needle in text)
        for needle in ("<svg", "<caption>first-topology", "moon", "txids 6 to 6 are new", "transactions committed")
    )
    assert all(name in picture for name in ("lines", "split", "partial", "counts"))
    assert "<th>committed txid</th><td>5</td>" in handle
    assert top.splitlines()[1].split()[-2:] == ["the", "33"]
    assert sorted(line.split()[-2] for line in new.splitlines()[2:]) == ["back", "came", "cow", "the"]
    assert stopped == "6 transactions committed, 0 of them in this run\n"
    assert shown[-1].strip() == engine


SHOWN = {
    "event_time_windows": [
        "watermark 00:00:21",
        "late: [('z', 1, 100)]",
        "attempts at txid 3 so far: 2",
        "[('00:00:40', 8, ['d', 'e'])]",
        "4 {'00:00:10': 6, '00:00:20': 7, '00:00:30': 4, '00:00:40': 8, '00:00:50': 12, '00:01:00': 7}",
    ],
    "first_day": [
        "hours: [('08:00', 'north', 5), ('08:00', 'south', 7)]\nrows: 4 broken: 1",
        "hours: [('08:00', 'north', 5), ('08:00', 'south', 7), ('09:00', 'south', 36), ('10:00', 'north', 8)]\nrows: 5",
        "only before: [('08:00', 'north', 5), ('09:00', 'south', 36)]",
        "only after: [('08:00', 'north', 9), ('09:00', 'south', 38)]",
    ],
    "stream_joins": [
        "txid 2: ('v1', 'shoes', 'c1') ('v2', 'books', None)",
        "attempts at txid 5 so far: 2 - results: []",
        "txid 8: ('v6', 'books', 'c7') ('v7', 'shoes', 'c8') ('v8', 'books', 'c9') ('v8', 'books', 'c10')",
        "txid 8: pending ['v9'] clicks kept ['c11']",
        "arrived in txid 9, after left row v4 was released in txid 7 (straggler)",
        "kept up to txid 3 - taken back: [4, 9]",
        "11 results, 11 of them different\nonly before: [('v6', 'c7')]",
    ],
}


@pytest.mark.notebook
@pytest.mark.integration
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_and_shows_its_results(executed: Any, name: str):
    """U25: in that on joins, after a rewind to a time, what is read again is joined once."""
    shown = "".join(executed(name))
    assert [one for one in SHOWN[name] if one not in shown] == []


def output_of(cell: Any) -> str:
    """Return the output of a cell: printed text, and each display as HTML if it has markup, else as plain text."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        html = data.get("text/html", "") or data.get("image/svg+xml", "")
        plain = data.get("text/plain", "")
        parts.append(output.get("text", "") or (html if plain.startswith("<") or "<svg" in html else plain))
    return "".join(parts)
