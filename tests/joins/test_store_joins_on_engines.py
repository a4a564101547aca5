"""External store join on both engines: the article's parts in one topology, over a file of views and clicks."""

import pytest
from helpers.store_runs import compare, topology_of, write_lines
from runs import ended

from txstorm.joins import MemoryStore


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("lines"))


def check(engine, lines, data_dir):
    compare(ended(topology_of(lines[0], MemoryStore()), data_dir, engine, end_of_input=True), lines)


def test_in_process(make_engine, lines, tmp_path):
    """A9, A12, A13, A16, A20: every pair within bounds, every other left row once."""
    check(make_engine(), lines, tmp_path)


@pytest.mark.spark
def test_on_spark(spark, lines, tmp_path):
    """A13: the same in a run that finds its Spark session itself."""
    check("spark", lines, tmp_path)
