"""Spark sessions map their classes from an archive, if there is one that only the user can write."""

import json
import os
from pathlib import Path

import pytest
from commands import Commands, printed_by

from txstorm.clients import class_archive

ROOT = Path(__file__).resolve().parents[2]
SESSION = """
import sys
from txstorm.clients.class_archive import java_options
from txstorm.clients.spark import make_session

log = f" -Xlog:class+load:file={sys.argv[1]}"
session = make_session("t", java=None if len(sys.argv) == 3 else java_options() + log)
assert session.range(4).count() == 4
print(session.conf.get("spark.driver.extraJavaOptions"))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Let the archives of this user be in a directory with a space in its name; return where this machine's would be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    found = class_archive.archive()
    found.parent.mkdir(parents=True)
    return found


def test_without_an_archive_there_are_no_options(cache):
    assert class_archive.java_options() == ""
    cache.write_bytes(b"x")
    cache.chmod(0o622)
    assert class_archive.java_options() == ""
    cache.chmod(0o400)
    assert f'"-XX:SharedArchiveFile={cache}"' in class_archive.java_options()


def test_other_jars_and_another_java_have_archives_of_their_own(cache, tmp_path, monkeypatch):
    (tmp_path / "java" / "bin").mkdir(parents=True)
    java = tmp_path / "java" / "bin" / "java"
    java.write_text("")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    other = class_archive.archive()
    assert other.parent == cache.parent
    assert other != cache
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.99"')
    assert class_archive.archive() != other


def test_the_command_shows_an_archive_and_deletes_it(cache, command: Commands):
    cache.write_bytes(b"x" * 2_000_000)
    cache.chmod(0o400)
    shown = command.json("archive-classes")
    assert (shown["archive"], shown["bytes"]) == (str(cache), 2_000_000)
    assert shown["java_options"] == class_archive.java_options()
    assert "spark-submit --driver-java-options '" in command.printed("archive-classes")
    cache.chmod(0o666)
    assert "expected a file that only you can write" in command.refused("archive-classes")
    (cache.parent / ".making-x").mkdir()  # left by a command that was killed
    assert command.json("archive-classes", "--delete") == {"deleted": [str(cache)]}
    assert list(cache.parent.iterdir()) == []


def test_a_machine_without_java_is_told_what_is_missing(monkeypatch, tmp_path, command: Commands):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert class_archive.archive() is None
    assert class_archive.java_options() == ""
    assert "no Java found by JAVA_HOME" in command.refused("archive-classes")


def test_a_user_without_a_home_directory_has_no_archive(monkeypatch, command: Commands):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user id that the system does not know
    assert (class_archive.archive(), class_archive.java_options()) == (None, "")
    assert "or XDG_CACHE_HOME" in command.refused("archive-classes")
    command.printed("archive-classes", "--delete")


@pytest.fixture
def session(monkeypatch, tmp_path):
    """Return a program that starts a session without options from the environment."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    program = tmp_path / "session.py"
    program.write_text(SESSION)
    return program


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_maps_its_classes_from_the_archive(cache, session, tmp_path):
    made = ROOT / ".cache" / "spark.jsa"
    assert made.exists(), "run scripts/jars"
    cache.symlink_to(made)
    log = tmp_path / "classes.log"
    assert f"-XX:SharedArchiveFile={cache}" in printed_by(session, log)
    spark = [line for line in log.read_text().splitlines() if " org.apache.spark." in line]
    mapped = [line for line in spark if "source: shared objects file (top)" in line]
    assert len(mapped) > len(spark) / 2 > 500


@pytest.mark.spark
@pytest.mark.long
def test_the_command_makes_an_archive_that_later_sessions_use(cache, session, tmp_path):
    made = json.loads(printed_by("-m", "txstorm", "archive-classes", "--json", timeout=500).splitlines()[-1])
    assert made["archive"] == str(cache)
    assert [one.name for one in cache.parent.iterdir()] == [cache.name]
    assert f"-XX:SharedArchiveFile={cache}" in printed_by(session, tmp_path / "log", "default")
