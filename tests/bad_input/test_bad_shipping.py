"""Classes whose modules only the driver can import: an error detected on real Spark workers only."""

import sys
from importlib import import_module

import pytest
from bad_input_cases import Keep, Says, go, refused
from bad_topologies import Pass

from txstorm import TransactionalTopologyBuilder
from txstorm.engine.program import program_of
from txstorm.engine.spark import SparkEngine
from txstorm.errors import InputError
from txstorm.plan.stages import compile_plan
from txstorm.results.read import read_state
from txstorm.spouts import MemoryTransactionalSpout

MODULE = """
from txstorm import BasicBolt

class Pass(BasicBolt):
    fields = ("line",)

    def execute(self, tuple, collector):
        collector.emit(tuple["line"])

class First:
    def prepare(self, component, stream, targets):
        pass

    def choose_tasks(self, source_task, values):
        return [0]
"""


@pytest.fixture
def only_here(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("only_here")
    del sys.modules["only_here"]


def made(declare):
    builder = TransactionalTopologyBuilder("shipped", "lines", MemoryTransactionalSpout({0: ["a"]}, ["line"]))
    declare(builder)
    builder.set_committer_bolt("keep", Keep()).global_grouping("pass")
    return builder.build_topology()


@pytest.mark.spark
def test_one_that_would_stand_by_learns_of_it_before_it_waits(only_here, spark):
    topology = made(lambda builder: builder.set_bolt("pass", only_here.Pass()).shuffle_grouping("lines"))
    engine = SparkEngine(spark)
    engine.start(program_of(compile_plan(topology)))
    with refused(Says(InputError, "component 'pass'", "cannot be loaded in a worker", "PYTHONPATH")):
        engine.warm_up()
    engine.close()


@pytest.mark.spark
def test_a_bolt(only_here, spark, tmp_path):
    topology = made(lambda builder: builder.set_bolt("pass", only_here.Pass()).shuffle_grouping("lines"))
    says = Says(
        InputError, "component 'pass'", "cannot be loaded in a worker: No module named 'only_here'", "PYTHONPATH"
    )
    with refused(says):
        go(topology, tmp_path / "data", SparkEngine(spark))
    assert read_state(tmp_path / "data", "counts").num_rows == 0


@pytest.mark.spark
def test_a_grouping(only_here, spark, tmp_path):
    topology = made(lambda builder: builder.set_bolt("pass", Pass()).custom_grouping("lines", only_here.First()))
    says = Says(InputError, "grouping", "cannot be loaded in a worker: No module named 'only_here'", "PYTHONPATH")
    with refused(says):
        go(topology, tmp_path / "data", SparkEngine(spark))
