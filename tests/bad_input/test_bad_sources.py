"""Input files that are missing, unreadable or changed since they were planned."""

import os

import pytest
from bad_input_cases import Says, go, listing, refused, run_words, topology, unchanged, write_words
from crashes import crashing
from runs import ended

from txstorm import CompositeSpout, TransactionalTopologyBuilder
from txstorm.errors import SpoutError
from txstorm.results.read import read_state
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout

MISSING = {
    "missing": (lambda path: None, "cannot be read: No such file", "check that it exists"),
    "directory": (lambda path: path.mkdir(), "is a directory, expected a file", "name the files"),
    "fifo": (os.mkfifo, "is not a regular file, expected a file", "name the files"),
    "dangling": (lambda path: path.symlink_to("/absent"), "cannot be read: No such file", "check that it exists"),
    "gzip": (
        lambda path: path.write_bytes(b"\x1f\x8b\x08\0" + bytes(20)),
        "holds gzip data, expected lines",
        "unpack it",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_source_that_cannot_be_read_is_refused_before_anything_is_made(name, tmp_path):
    make, found, cure = MISSING[name]
    source = tmp_path / "source.txt"
    made = topology(source)
    make(source)
    with unchanged(tmp_path / "data"), refused(Says(SpoutError, str(source), found, cure)):
        go(made, tmp_path / "data")


@pytest.mark.parametrize("composite", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "txt"])
def test_a_zone_that_is_empty_at_a_later_start_has_nothing_new(tmp_path, ending, composite):
    def rows():
        spout = FileSpout(tmp_path / f"*.{ending}", **({"fields": ["line"]} if ending == "jsonl" else {}))
        builder = TransactionalTopologyBuilder("t", "zone", CompositeSpout({"default": spout}) if composite else spout)
        builder.set_bolt("keep", DeltaSink("rows", {"line": str})).global_grouping("zone")
        return sorted(
            row["line"] for row in ended(builder.build_topology(), tmp_path / "data").sink("rows").to_pylist()
        )

    def write(name):
        (tmp_path / f"{name}.{ending}").write_text(f'{{"line": "{name}"}}\n' if ending == "jsonl" else f"{name}\n")

    assert ending == "txt" or rows() == []  # a first start without a file needs declared fields
    write("a")
    assert rows() == ["a"]
    (tmp_path / f"a.{ending}").unlink()
    assert rows() == ["a"]
    write("b")
    assert rows() == ["a", "b"]


def test_a_glob_that_matches_nothing(tmp_path):
    made = topology(tmp_path / "*.txt")
    with unchanged(tmp_path), refused(Says(SpoutError, f"{tmp_path}/*.txt", "no file matches", "check the path")):
        go(made, tmp_path / "data")


def test_a_source_that_is_gone_when_the_run_goes_on(tmp_path):
    data_dir = run_words(tmp_path)
    made = topology(tmp_path / "words.txt")
    (tmp_path / "words.txt").unlink()
    with unchanged(data_dir), refused(Says(SpoutError, "words.txt", "No such file", "check that it exists")):
        go(made, data_dir)


CHANGED = {
    "other bytes": (lambda path: path.write_text("a\nb\nx\nc\n"), "range 4-6 changed since its range was planned"),
    "truncated": (lambda path: path.write_text("a\nb\n"), "range 4-6 changed since its range was planned"),
    "emptied": (lambda path: path.write_text(""), "range 0-2 changed since its range was planned"),
    "deleted": (lambda path: path.unlink(), "cannot be read: No such file"),
}
CURES = {"deleted": "check that it exists"}


@pytest.mark.parametrize("name", CHANGED)
def test_a_file_that_changed_since_its_range_was_planned(name, tmp_path):
    """A replay after a crash must read the same bytes of a file as planned, or fail."""
    change, found = CHANGED[name]
    source = write_words(tmp_path / "words.txt")
    made = topology(source)
    with crashing("p1.after"):
        go(made, tmp_path / "data", settings={"max_spout_pending": 4})
    change(source)
    with refused(Says(SpoutError, str(source), found, CURES.get(name, "restore the file"))):
        go(made, tmp_path / "data")
    rows = read_state(tmp_path / "data", "counts").to_pylist()
    assert rows == {"other bytes": [{"word": "a", "n": 1}, {"word": "b", "n": 1}]}.get(name, rows)
    assert all(row["n"] == 1 for row in rows)
    write_words(source)
    assert go(made, tmp_path / "data") == 4
    assert read_state(tmp_path / "data", "counts").to_pylist() == [
        {"word": "a", "n": 2}, {"word": "b", "n": 1}, {"word": "c", "n": 1}
    ]  # fmt: skip


def test_a_file_that_shrank_below_what_was_read(tmp_path):
    data_dir = run_words(tmp_path)
    (tmp_path / "words.txt").write_text("a\n")
    with refused(Says(SpoutError, "words.txt", "shrank", "restore it")):
        go(topology(tmp_path / "words.txt"), data_dir, available_now=False)
    assert "state/counts/_delta_log" in listing(data_dir)
