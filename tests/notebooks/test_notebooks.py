"""Notebooks: they run from top to bottom, on both engines where they can, and are stored without outputs."""

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from programs import loaded
from recovery_cases import long_if
from shared_session import run_here

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = {
    "01_first_topology": "local spark",
    "02_failures_and_replays": "local spark-long",
    "03_streaming_and_dataframes": "spark",
    "04_kafka": "local-kafka",
    "05_windows_and_joins": "local spark-long",
    "06_time_travel": "local spark-long",
    "07_performance": "local spark-long",
    "08_monoids_and_clocks": "local spark-long",
    "09_three_semantics": "local",
}
"""Notebook → the engines that it runs on here, `spark-long` in scripts/test-long only."""
ON_SPARK = long_if(lambda name: "long" in NOTEBOOKS[name], [name for name, on in NOTEBOOKS.items() if "spark" in on])
pytestmark = pytest.mark.filterwarnings("ignore::txstorm.errors.DeadLettersWarning")
DISPLAY = """
def show(value):
    for name in ("_repr_mimebundle_", "_repr_html_"):
        if hasattr(value, name):
            getattr(value, name)()
"""


def cells(path: Path) -> list[Any]:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_notebooks_are_stored_without_outputs():
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert [path.stem for path in paths] == list(NOTEBOOKS)
    assert [cell.source for path in paths for cell in cells(path) if cell.outputs or cell.execution_count] == []


def program(name: str) -> str:
    """Return a notebook as a program that shows the last value of each cell."""
    whole = ast.parse(DISPLAY)
    for cell in cells(ROOT / "notebooks" / f"{name}.ipynb"):
        *most, last = ast.parse(cell.source).body
        if isinstance(last, ast.Expr):
            last = ast.Expr(ast.Call(ast.Name("show", ast.Load()), [last.value], []))
        whole.body += [*most, last]
    return ast.unparse(ast.fix_missing_locations(whole))


def run_notebook(name: str, tmp_path: Path, **environment: str) -> str:
    (tmp_path / "notebook.py").write_text(program(name), encoding="utf-8")
    fork = f'#!/bin/sh\nexec {sys.executable} -I -S {ROOT / "tests/helpers/called.py"} {loaded().socket} "$@"\n'
    (tmp_path / "python").write_text(fork, encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        patch.setattr(sys, "executable", str(tmp_path / "python"))  # programs that the notebook starts are forks
        done = run_here(tmp_path / "notebook.py", cwd=tmp_path, env={"PYTHONPATH": str(ROOT), **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name, engines in NOTEBOOKS.items() if "local" in engines.split()])
def test_a_notebook_runs_on_the_local_engine(name: str, tmp_path: Path):
    """U25: in that on joins, after a rewind to a time, what is read again is joined once."""
    run_notebook(name, tmp_path, PATH=os.path.dirname(os.__file__))  # no Java on the path


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.parametrize("name", ON_SPARK)
def test_a_notebook_runs_on_spark(name: str, tmp_path: Path):
    """Also the golden results: counts of words through a query and a frame bolt, and two MERGEs beside a transaction."""
    run_notebook(name, tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])])
def test_the_notebook_on_kafka_runs(engine: str, kafka_broker: Any, tmp_path: Path):
    path = {"PATH": os.path.dirname(os.__file__)} if engine == "local" else {}
    run_notebook("04_kafka", tmp_path, KAFKA_BOOTSTRAP_SERVERS=kafka_broker.bootstrap, **path)


def script(*arguments: str, **environment: str) -> tuple[int, str]:
    command, env = [ROOT / "scripts" / "notebooks", *arguments], {**os.environ, "TXSTORM_VENV": "keep", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.integration
def test_the_script_explains_itself_and_refuses_what_it_does_not_know():
    assert [part for part in ("--check [NAME...]", "127.0.0.1", "examples:") if part not in script("--help")[1]] == []
    for wrong in (["--nothing"], ["--check", "99"], ["01"]):
        code, text = script(*wrong)
        assert (code, text.startswith(("unknown option", "no notebook"))) == (2, True)


@pytest.mark.long
@pytest.mark.integration
def test_the_script_runs_notebooks_in_kernels(kafka_broker: Any):
    code, text = script("--check", "04", "05", KAFKA_BOOTSTRAP_SERVERS=kafka_broker.bootstrap)
    assert (code, text.count(": ok (")) == (0, 4), text  # each at its end, and in the list
