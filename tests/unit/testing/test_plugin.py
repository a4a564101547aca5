"""pytest plugin, tested in a separate project that uses it."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

import txstorm

pytest_plugins = ["pytester"]

ROOT = Path(txstorm.__file__).parents[1]
TESTS = """
import pytest
from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import CountByKey
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.testing import ManualClock

@pytest.fixture
def topology():
    builder = TransactionalTopologyBuilder("words", "words", MemoryTransactionalSpout([["a", "b", "a"]], "word", take=2))
    builder.set_committer_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    return builder.build_topology()

ROWS = [{"word": "a", "n": 2}, {"word": "b", "n": 1}]

def test_driver(topology, topology_test_driver, txstorm_data_dir):
    driver = topology_test_driver(topology, clock=ManualClock())
    assert driver.data_dir == txstorm_data_dir
    driver.commit(2)
    assert driver.state("counts").to_pylist() == ROWS
    driver.close()

def test_local(topology, txstorm_local):
    assert txstorm_local(topology).state("counts").to_pylist() == ROWS

def test_a_run_that_goes_on(topology, txstorm_local):
    handle = txstorm_local(topology, available_now=False)
    handle.processAllAvailable()
    assert handle.isActive
    assert handle.state("counts").to_pylist() == ROWS

def test_the_driver_of_a_failed_test_is_closed(topology, topology_test_driver):
    topology_test_driver(topology)
    assert False
"""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the entry points of an installed txstorm, so that pytest discovers the plugin."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    points = config["options.entry_points"]["pytest11"].strip()
    info = pytester.mkdir("site") / "txstorm-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: txstorm\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{points}\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{info.parent}")


@pytest.mark.usefixtures("installed")
def test_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess("-q")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines("FAILED *::test_the_driver_of_a_failed_test_is_closed*")


def test_loading_the_plugin_loads_nothing_else() -> None:
    code = "import sys, txstorm.testing.plugin; print(sorted({'pyspark', 'pyarrow', 'deltalake'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_exported() -> None:
    import txstorm.testing

    for name in txstorm.testing.__all__:
        assert getattr(txstorm.testing, name).__doc__, name
    assert dir(txstorm.testing) == sorted(txstorm.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = txstorm.testing.nothing
