"""Trending hashtags: counts and the most frequent ones equal those of plain Python, also after kills."""

import json
import signal
from collections import Counter
from pathlib import Path

import pytest
from programs import loaded
from recovery_cases import environment
from runs import ended

from jobs.data.hashtags.generate import main as generate
from jobs.trending_hashtags import HASHTAGS, make
from txstorm.results.views import StateView


def tags(paths: list[Path]) -> list[str]:
    return [line for path in paths for line in path.read_text().splitlines()]


def plain(words: list[str], n: int) -> list[list[object]]:
    counts = Counter(words)
    return [[tag, counts[tag]] for tag in sorted(counts, key=lambda tag: (-counts[tag], tag))[:n]]


def found(data_dir: Path) -> tuple[dict[str, int], list[list[object]]]:
    counts = {row["tag"]: row["state"] for row in StateView(data_dir, "counts").to_pylist()}
    (top,) = StateView(data_dir, "top").to_pylist()
    return counts, [[one["key"], one["count"]] for one in top["state"]]


def check(data_dir: Path, paths: list[Path], n: int) -> None:
    words = tags(paths)
    assert found(data_dir) == (Counter(words), plain(words, n))


@pytest.fixture
def short(tmp_path: Path) -> list[Path]:
    """Return four files with the first hashtags of ours."""
    for path in HASHTAGS:
        (tmp_path / path.name).write_text("".join(f"{tag}\n" for tag in tags([path])[:50]), encoding="utf-8")
    return [tmp_path / path.name for path in HASHTAGS]


@pytest.mark.parametrize(
    ("n", "rows", "counts", "topns", "files", "emit"),
    [
        (3, 1, 1, 2, 4, "batch"),
        (3, 7, 4, 1, 1, "tuple"),
        (20, 7, 2, 4, 4, "batch"),
        (20, 1000, 4, 2, 4, "tuple"),
        (500, 1000, 1, 4, 1, "batch"),
        (500, 7, 2, 1, 4, "batch"),
    ],
)
def test_counts_and_top_equal_plain_python(tmp_path, short, n, rows, counts, topns, files, emit):
    paths = short if files == 4 else short[:1]
    topology = make(paths, n, counts, topns, rows, emit, every=5, out=str(tmp_path / "top.txt"))
    handle = ended(topology, tmp_path / "data", end_of_input=True)
    check(tmp_path / "data", paths, n)
    shown = [f"{tag} {count}" for tag, count in plain(tags(paths), n)]
    assert (tmp_path / "top.txt").read_text().splitlines() == shown
    assert handle.clock() == {path.stem: 49 for path in paths}


def test_all_of_our_hashtags_on_both_engines(tmp_path, make_engine):
    handle = ended(make(), tmp_path / "data", make_engine(), end_of_input=True)
    check(tmp_path / "data", HASHTAGS, 20)
    assert handle.sink("trends").to_pylist()[-1]["state"][0] == {"key": "#bluenight", "count": 3438}


def test_the_hashtags_are_those_of_the_script(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.data.hashtags.generate.__file__", str(tmp_path / "generate.py"))
    generate()
    assert [(tmp_path / path.name).read_bytes() for path in HASHTAGS] == [path.read_bytes() for path in HASHTAGS]
    assert len(tags(HASHTAGS)) == 20_000
    assert len(set(tags(HASHTAGS))) == 200


@pytest.mark.integration
def test_killed_in_every_run_at_another_step_it_counts_once(tmp_path, short):
    """SIGKILL before and after a decision, and between the text of a file and its mark."""
    out = tmp_path / "top.txt"
    arguments = f"{[str(path) for path in short]}, 5, max_batch_rows=30, every=1, out={str(out)!r}"
    command = ["-m", "txstorm", "run", f"jobs.trending_hashtags:make({arguments})", "--engine", "local", "--json"]
    command += ["--data-dir", tmp_path / "data", "--end-of-input", "--set", "max_group_txids=1"]
    for fault in ("p4.after:kill:1", "file.written:kill:2", "p6.after:kill:1", "p8.before:kill:1", ""):
        done = loaded().run(*command, env=environment(TXSTORM_FAULT=fault))
        assert done.returncode == (-signal.SIGKILL if fault else 0), done.stderr
    check(tmp_path / "data", short, 5)
    assert out.read_text().splitlines() == [f"{tag} {count}" for tag, count in plain(tags(short), 5)]
    assert json.loads(out.with_name("top.txt.mark").read_text())["mark"]["topology"] == "trending-hashtags"
