"""The suite runs sides beside each other, checks what they counted, judges figures and reports; peers that need
installing are not installed here."""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.__main__ import main
from benchmarks.machine import Spread
from benchmarks.peers.loop import work
from benchmarks.sides import SideFailed
from benchmarks.suite.comparisons import COMPARISONS, Comparison, Entry
from benchmarks.suite.exact import COUNTS, TEXT, Inexact, check
from benchmarks.suite.figures import FIGURES, judge, totals
from benchmarks.suite.job import LOAD, Job, Outcome
from benchmarks.suite.long import kind_of, memory, written
from benchmarks.suite.measurements import MEASUREMENTS
from benchmarks.suite.peers import PEERS, NotInstalled, Peer
from benchmarks.suite.recovery import coordinator, killed_driver
from benchmarks.suite.report import PAGE, Report
from benchmarks.suite.rounds import Results, run_comparisons
from benchmarks.suite.run import failed, names
from benchmarks.suite.server import Server
from benchmarks.words import ranks_of, spread_ranks, words

LOCAL = replace(PEERS["txstorm"], command=[sys.executable, "-m", "benchmarks.peers.ours", "local"])


def quiet(text: str) -> None:
    """Nobody listens."""


# --- the input and the exactness check --------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [10_000, 1_000_000])
def test_words_know_their_rank(keys: int):
    ranks = np.array([0, 1, keys - 1, 4711])
    assert ranks_of(words(ranks, keys), keys).tolist() == ranks.tolist()
    assert ranks_of(pa.array(["K0", "", "k-1", "k007"]), keys).tolist() == [-1] * 4


def test_changed_keys_are_all_different():
    assert len(set(spread_ranks(5, range(1_000), 10_000))) == 1_000


def test_load_brings_every_key_once():
    job = Job("words", 10, 3, keys=1_000_000)
    assert job.loads == 4
    loaded = np.concatenate([job.ranks(txid, range(job.size(txid))) for txid in range(1, job.loads + 1)])
    assert loaded.tolist() == list(range(1_000_000))
    assert (job.size(1), job.size(job.loads + 1)) == (LOAD, 10)


@pytest.fixture
def counted(tmp_path: Path) -> Job:
    """A job of which the loop has left its counts."""
    job = Job("words", 300, 4, directory=str(tmp_path))
    outcome = work(job)
    assert (outcome.txids, outcome.tuples) == (4, 1200)
    check("loop", job)
    return job


def replaced(job: Job, change: Callable[[list[dict[str, object]]], object]) -> None:
    path = Path(job.directory) / COUNTS.format(table=0)
    rows = pq.read_table(path).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows), path)


def test_a_wrong_count_is_named(counted: Job):
    replaced(counted, lambda rows: rows[7].update(n=rows[7]["n"] + 1))
    with pytest.raises(Inexact, match=r"loop, words of 5 .*: 1 counts are wrong; \w+: expected (\d+), got \d+"):
        check("loop", counted)


def test_a_lost_key_is_named(counted: Job):
    replaced(counted, lambda rows: rows.pop())
    with pytest.raises(Inexact, match=r"1 counts are wrong; \w+: expected \d+, got 0"):
        check("loop", counted)


def test_a_key_that_is_there_twice_is_told(counted: Job):
    replaced(counted, lambda rows: rows.append(rows[0]))
    with pytest.raises(Inexact, match="some keys are there twice"):
        check("loop", counted)


def test_a_word_that_was_never_sent_is_named(counted: Job):
    replaced(counted, lambda rows: rows[0].update(word="Storm"))
    with pytest.raises(Inexact, match="Storm is no word of the input"):
        check("loop", counted)


def test_counts_may_be_left_as_text(tmp_path: Path):
    job = Job("total", 10, 3, keys=1, directory=str(tmp_path))
    (tmp_path / TEXT.format(table=0)).write_text("31\n")
    check("storm", job)
    (tmp_path / TEXT.format(table=0)).write_text("30\n")
    with pytest.raises(Inexact, match="the total: expected 31, got 30"):
        check("storm", job)


# --- sides ------------------------------------------------------------------------------------------------------------

SMALL = [
    Comparison(
        "small",
        "W2",
        "txids",
        Job("words", 100, 1, keys=100),
        [Entry("txstorm", 9, 6, 2, columns=True), Entry("loop", 9, 4, 1), Entry("absent", 9, 3)],
        "A small word count",
    ),
    Comparison(
        "tables",
        "W8",
        "commit",
        Job("changes", 50, 1, keys=100, tables=2),
        [Entry("txstorm", 9, 4, settings={"max_group_txids": 1}), Entry("loop", 9, 4), Entry("broken", 9, 1)],
        "Two tables",
    ),
    Comparison("opaque", "W5", "txids", Job("opaque", 50, 1, loaded=False), [Entry("txstorm", 9, 9, failing=50)], "W5"),
    Comparison("total", "W1", "tuples", Job("total", 500, 1, keys=1), [Entry("txstorm", 9, 3)], "A count"),
    Comparison("empty", "W7", "txids", Job("words", 0, 1, loaded=False), [Entry("txstorm", 9, 3)], "Nothing"),
]


def refused(say: object) -> None:
    msg = "no such thing"
    raise NotInstalled(msg)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """All of `SMALL`, two rounds on the local engine."""
    found, logs = Results(), tmp_path_factory.mktemp("logs")
    broken = [sys.executable, "-c", "import sys; print('{}', flush=True); input(); sys.exit('it broke')"]
    peers = {
        "txstorm": LOCAL,
        "loop": PEERS["loop"],
        "absent": Peer("absent", "none", [], refused),
        "broken": Peer("broken", "none", broken, quiet),
    }
    run_comparisons(SMALL, 2, logs, quiet, quick=True, results=found, peers=peers)
    return found


def test_sides_run_in_turn_and_are_exact(results: Results):
    assert {name: list(found) for name, found in results.rounds.items()} == {
        "small": ["txstorm", "loop"],
        "tables": ["txstorm", "loop"],
        "opaque": ["txstorm"],
        "total": ["txstorm"],
        "empty": ["txstorm"],
    }
    for found in results.rounds.values():
        for outcomes in found.values():
            assert len(outcomes) == 2
            for one in outcomes:
                assert one.seconds > 0
                assert one.txids > 0
                assert one.peak_mib > 1
    [ours, _] = results.of("tables", "txstorm")
    assert len(ours.commits_ms) == ours.txids == 4  # each alone


def test_what_cannot_run_is_reported(results: Results):
    assert results.missing["absent"] == "not installed: no such thing"
    assert re.search("broken ended .*it broke", results.missing["tables: broken"])


def test_a_side_says_why_a_job_failed(tmp_path: Path):
    server = Server(PEERS["loop"], tmp_path)
    try:
        with pytest.raises(SideFailed, match="loop: TypeError"):
            server.run(Job("words", "many", 1))  # type: ignore[arg-type]
        assert server.run(Job("total", 5, 1, keys=1)).tuples == 5
    finally:
        server.close()


# --- figures and reports ----------------------------------------------------------------------------------------------


def outcome(txids_s: float) -> Outcome:
    return Outcome(seconds=1.0, cpu=2.0, txids=int(txids_s), tuples=1000 * int(txids_s), commits_ms=[4.0])


def test_figures_are_judged():
    results = Results()
    results.rounds["words-1000-1e4"] = {
        "txstorm": [outcome(200), outcome(300), outcome(400)],
        "txstorm, each alone": [outcome(45)] * 3,
        "merge": [outcome(5)] * 3,
    }
    lines = {figure.name: judge(figure, results, quick=True) for figure in FIGURES}
    assert str(lines["txids-merge-1e4"]) == "txids-merge-1e4 60(40–80) ≥50× reached"
    assert str(lines["alone-merge-1e4"]) == "alone-merge-1e4 9(9–9) ≥10× missed"
    assert str(lines["empty-grouped"]) == "empty-grouped - ≥500/s not measured"
    assert str(lines["txids-storm"]) == "txids-storm - ≥1× not in quick"
    assert failed(list(lines.values()))
    assert not failed([lines["txids-merge-1e4"], lines["txids-storm"], lines["empty-grouped"]])
    form = re.compile(r"\S+ \S+ [≥≤]\S+ (reached|missed|not in quick|not measured)")
    assert all(form.fullmatch(str(line)) for line in lines.values())
    assert totals(list(lines.values())).startswith(f"{len(FIGURES)} figures: 1 reached, 1 missed, ")


def test_a_limit_may_be_a_most():
    [figure] = [one for one in FIGURES if one.name == "recovery-driver"]
    results = Results(values={"recovery-driver": Spread.of([14.0, 16.0, 12.0])})
    assert str(judge(figure, results, quick=False)) == "recovery-driver 14(12–16) ≤15s reached"


def test_every_figure_has_its_source():
    sources = {one.name for one in (*COMPARISONS, *MEASUREMENTS)}
    assert {need for figure in FIGURES for need in figure.needs} <= sources
    entries = {one.name: {entry.name for entry in one.entries} for one in COMPARISONS}
    for figure in FIGURES:
        assert set(figure.beside) <= entries.get(figure.needs[0], set())
    assert {entry.peer for one in COMPARISONS for entry in one.entries} <= set(PEERS)
    assert {f"W{number}" for number in (1, 2, 5, 6, 7, 8, 9, 10)} <= set(names())


def test_report_is_lines_json_and_a_page(results: Results, tmp_path: Path):
    lines = [judge(figure, results, quick=True) for figure in FIGURES]
    report = Report("two cores", True, [one for one in SMALL if one.name != "tables"], results, lines)
    assert "absent: not installed: no such thing" in report.text()
    assert report.text().splitlines()[-1] == totals(lines)
    report.write_json(tmp_path / "results.jsonl")
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    runs = [one for one in records if one["record"] == "run"]
    assert len(runs) == 2 * 5
    assert all(one["exact"] and one["guarantee"] and one["cpu"] >= 0 for one in runs)
    assert len([one for one in records if one["record"] == "figure"]) == len(FIGURES)
    page = report.write_page(tmp_path / "out")
    assert page.name == PAGE
    for plot in re.findall(r"!\[.*\]\((.*)\)", page.read_text()):
        assert ElementTree.parse(page.parent / plot).getroot().tag.endswith("svg")


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["--quick", "W99"]) == 2
    assert "nothing is called W99; there are: W1 " in capsys.readouterr().err


# --- what has no peers ------------------------------------------------------------------------------------------------


def test_a_killed_driver_recovers(tmp_path: Path):
    assert killed_driver(tmp_path, 400, "local") > 0


def no_mark(what: str, **values: object) -> None:
    """Nobody listens."""


def local(tmp_path: Path, txids: int, **more: object) -> dict[str, object]:
    return {"txids": txids, "directory": str(tmp_path), "engine": "local", **more}


def test_a_lost_coordinator_recovers(tmp_path: Path):
    assert coordinator(local(tmp_path, 200, fault="p6.before:raise:2"), no_mark) > 0


def test_a_coordinator_that_is_not_lost_measures_nothing(tmp_path: Path):
    with pytest.raises(RuntimeError, match="expected the coordinator to be lost in the middle of 3 transactions"):
        coordinator(local(tmp_path, 3, fault="p6.before:raise:99"), no_mark)


def test_memory_is_sampled_over_a_run(tmp_path: Path):
    result = memory(local(tmp_path, 200), no_mark)
    assert len(result["samples"]) == 100
    assert min(result["samples"]) > 10
    assert len(result["commit p99 ms"]) == 10


def test_bytes_are_counted_by_kind(tmp_path: Path):
    result = written(local(tmp_path, 16), no_mark)
    assert result["process"] > result["bytes"]["data"] > 0
    assert result["bytes"]["log"] > 0
    assert result["changed"] > 16 * 300 * 12


def test_files_are_told_apart():
    paths = ["t/_delta_log/1.json", "t/_delta_log/1.checkpoint.parquet", "t/part.parquet", "ledger.db-wal", "i/x.mdb"]
    assert [kind_of(path) for path in paths] == ["log", "checkpoints", "data", "ledger", "index"]
