"""Errors name a line of the user's code, never a line of txstorm, of Python or of an installed package."""

import contextlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from runs import ended
from watched import Gathering

from txstorm import BasicBolt, BatchBolt, TransactionalTopologyBuilder, run
from txstorm.errors import EmitError, SpoutError, TopologyFailed
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.user_code import calling_line, is_own, line_of


def line_number(marker: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(number for number, line in enumerate(lines) if line.endswith(f"# {marker}"))


def test_user_files_are_recognized():
    assert is_own(__file__)
    assert is_own("/home/me/txstorm_jobs/words.py")
    assert is_own("<ipython-input-3-abc>")
    for one in (contextlib.__file__, json.__file__, pytest.__file__, "<frozen importlib>", "pyarrow/array.pxi"):
        assert not is_own(one), one
    package = Path(sys.modules["txstorm"].__file__ or "").parent
    assert not is_own(str(package / "errors.py"))
    assert is_own(f"{package}_jobs/mine.py")


def ran(bolt: BasicBolt | BatchBolt, place: Path) -> None:
    builder = TransactionalTopologyBuilder("lines", "numbers", MemoryTransactionalSpout([list(range(40))], "n"))
    builder.set_bolt("bolt", bolt).shuffle_grouping("numbers")
    ended(builder.build_topology(), place / "data")


class InALibrary(BasicBolt):
    def execute(self, tuple, collector):
        json.loads("{")  # in a library


def test_an_exception_deep_in_a_library_names_the_line_that_called_it(tmp_path):
    with pytest.raises(TopologyFailed) as caught:
        ran(InALibrary(), tmp_path)
    assert f"JSONDecodeError at {__file__}:{line_number('in a library')} in execute" in str(caught.value)


class Thing:
    def __repr__(self) -> str:
        return "<a thing>"


class EmitsTooLate(Gathering):
    fields = ("a", "b")

    def finish_batch(self):
        for n in self.taken:
            self.collector.emit(n, Thing() if n == 17 else n)  # cannot be sent


class EmitsAtOnce(BasicBolt):
    fields = ("a", "b")

    def execute(self, tuple, collector):
        collector.emit(tuple["n"], {"x": Thing()} if tuple["n"] == 17 else 1)  # nor can this


@pytest.mark.parametrize(("bolt", "marker"), [(EmitsTooLate(), "cannot be sent"), (EmitsAtOnce(), "nor can this")])
def test_a_value_that_cannot_be_sent_names_tuple_field_component_and_line(tmp_path, bolt, marker):
    with pytest.raises(EmitError) as caught:
        ran(bolt, tmp_path)
    text = str(caught.value)
    assert f"bolt[0] raised EmitError at {__file__}:{line_number(marker)} in " in text
    assert "bolt, stream 'default', tuple (17, " in text
    assert "field 'b': a value of type Thing cannot be sent" in text
    if marker == "nor can this":
        assert "n=17" in text.partition("it was given")[2]


def test_a_missing_file_names_the_line_that_created_the_spout(tmp_path):
    builder = TransactionalTopologyBuilder("files", "rows", FileSpout(tmp_path / "gone.txt"))  # asked for here
    builder.set_bolt("bolt", InALibrary()).shuffle_grouping("rows")
    with pytest.raises(SpoutError) as caught:
        run(builder.build_topology(), engine="local", data_dir=tmp_path / "data")
    where = f"{__file__}:{line_number('asked for here')}"
    assert "gone.txt cannot be read: No such file" in str(caught.value)
    assert f"the spout was created at {where} in test_a_missing_file" in str(caught.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.integration
def test_an_installed_job_is_named_at_the_line_called_by_txstorm(tmp_path):
    """If the job itself is installed in site-packages, the error names the line that txstorm called."""
    site = tmp_path / "lib" / "site-packages"
    (site / "installed_job").mkdir(parents=True)
    (site / "installed_job" / "__init__.py").write_text(
        "import json\nfrom txstorm import BasicBolt\n\n\nclass Mine(BasicBolt):\n    fields = ('x',)\n\n"
        "    def execute(self, tuple, collector):\n        json.loads('{')\n"
    )
    program = (
        "from installed_job import Mine\nfrom txstorm.engine.task.bolt_run import BoltRun\nfrom txstorm.user_code import line_of\n"
        "from txstorm.engine.task.component_run import DeadLetterRun\nimport txstorm.engine.task.bolt_run as b\n"
        "try:\n    b.BoltRun.execute_tuple(type('R', (), {'bolt': Mine(), 'collector': None})(), None)\n"
        "except ValueError as error:\n    trace = error.__traceback__.tb_next\n    print(line_of(trace))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert found.strip() == f"{site}/installed_job/__init__.py:9 in execute"


def test_the_line_being_executed():
    found = calling_line()  # this one
    assert found == f"{__file__}:{line_number('this one')} in test_the_line_being_executed"
    assert line_of(None) == ""
    assert not is_own(sysconfig.__file__)
