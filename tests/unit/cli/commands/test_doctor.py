import configparser
import re
from pathlib import Path

import pytest

from txstorm.cli.commands import doctor as checks
from txstorm.cli.commands.doctor import PACKAGES, Check, Package, engines, fits, java, package, verdict

SPARK = next(one for one in PACKAGES if one.name == "pyspark")
PANDAS = next(one for one in PACKAGES if one.name == "pandas")


@pytest.mark.parametrize(
    ("name", "version", "fit"),
    [
        *((SPARK, version, True) for version in ("4.0.1", "4.1.0.dev1", "4.2.0")),
        *((SPARK, version, False) for version in ("4.0.0", "4.2.1", "5.0")),
        (PANDAS, "2.10.0", True),
        (PANDAS, "3.0.0", False),
    ],
)
def test_versions_of_spark_and_pandas(name, version, fit):
    assert fits(version, name) is fit


def test_version_bounds_match_the_package_metadata_and_unsupported_packages_name_theirs():
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[4] / "setup.cfg", encoding="utf-8")
    texts = [config["options"]["install_requires"], config["options.extras_require"]["spark"]]
    bounds = {}
    for line in "\n".join(texts).split():
        name, low, high = re.fullmatch(r"([a-z0-9_-]+)>=([0-9.]+)(?:,(<=?[0-9.]+))?", line).groups()
        bounds[name] = (low, high)
    for one in PACKAGES:
        low, high = bounds[one.name]
        assert low == one.low
        if high is not None:
            assert fits(high.removeprefix("<="), one) if high.startswith("<=") else high == f"<{one.high}"
        assert (high is None) == (one.high is None)
    found = package(Package("no-such-package-anywhere", "1", None, "spark", "spark"))
    assert (found.ok, found.remedy) == (False, "pip install 'txstorm[spark]'")
    found = package(Package("pytest", "1", "2", "", "runs"))
    assert (found.ok, found.remedy) == (False, "pip install 'pytest>=1,<2'")
    assert "expected >=1,<2" in found.found


def fake_java(directory: Path, says: str) -> None:
    (directory / "bin").mkdir()
    script = directory / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("says", "ok"),
    [
        ('openjdk version "17.0.9" 2023-10-17', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_391"', False),
        ('openjdk version "11.0.2" 2019-01-15', False),
        ("what?", False),
    ],
)
def test_versions_of_java(says, ok, tmp_path, monkeypatch):
    fake_java(tmp_path, says)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = java()
    assert found.ok is ok
    assert bool(found.remedy) is not ok


def test_no_java(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (java().ok, java().found) == (False, "none on PATH")
    assert "install" in java().remedy
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "unset JAVA_HOME" in java().remedy


def test_disk(in_tmp, monkeypatch):
    assert checks.disk().name == "disk"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert "cannot be written to" in checks.disk().found


def test_the_local_engine_is_checked_by_a_run(monkeypatch):
    assert checks.engine("local") == Check("engine local", True, "a small topology ran")
    monkeypatch.setattr("txstorm.cli.commands.probe.WORDS", [[1]])
    found = checks.engine("local")
    assert not found.ok
    assert "word" in found.found


def test_spark_is_not_checked_without_its_requirements(monkeypatch):
    monkeypatch.setattr(checks, "java", lambda: Check("Java", False, "none", "install it", "spark"))
    found = list(checks.all_checks(lambda what: None))
    assert found[-1] == Check("engine spark", False, "not tried: needs Java", "see above", "spark")
    assert engines(found) == ["local"]


def test_verdict_exit_code_and_json(txstorm, txstorm_json, monkeypatch):
    assert verdict(["local", "spark"]) == "Everything works."
    only_local = "Topologies run with --engine local; spark needs what is marked above."
    assert verdict(["local"]) == only_local
    assert verdict([]) == "Topologies cannot run here yet."
    monkeypatch.setattr(checks, "all_checks", lambda started: iter([Check("engine local", False, "no", "mend")]))
    code, out, _ = txstorm("doctor")
    assert code == 1
    assert out.splitlines() == ["✗ engine local: no", "    → mend", "Topologies cannot run here yet."]
    code, result = txstorm_json("doctor")
    assert (code, result["ok"], result["engines"]) == (1, False, [])
    monkeypatch.setattr(checks, "all_checks", lambda started: iter([Check("engine local", True, "ran")]))
    assert txstorm("doctor")[:2] == (0, f"✓ engine local: ran\n{only_local}\n")
