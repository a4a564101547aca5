"""Benchmark suite: alternating runs of txstorm and its peers, exactness checks, verdicts on figures, and reports.

Peers that require an installation are not tested here. Of the whole command it is tested that it runs the requested parts.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers.running import Kafka

from benchmarks import processes
from benchmarks.__main__ import main
from benchmarks.machine import Spread, drift, percentile
from benchmarks.peers.loop import work
from benchmarks.suite.comparisons import COMPARISONS, Comparison, Entry
from benchmarks.suite.exact import COUNTS, TEXT, Inexact, check, leave
from benchmarks.suite.figures import FIGURES, judge, totals
from benchmarks.suite.job import LOAD, Job, Outcome
from benchmarks.suite.kafka import PARTITIONS, fill
from benchmarks.suite.long import kind_of, memory, written
from benchmarks.suite.peers import PEERS, NotInstalled, Peer, peers_on
from benchmarks.suite.recovery import coordinator, killed_driver
from benchmarks.suite.report import NOTES, PAGE, RECORDS, Report
from benchmarks.suite.results import Results, Setting
from benchmarks.suite.rounds import run_comparisons, steady
from benchmarks.suite.run import SOURCES, chosen, failed, names
from benchmarks.suite.sides import ROOT, Side, SideFailed, call
from benchmarks.words import VOCABULARY, message_ranks, ranks_of, spread_ranks, vocabulary, words

LOCAL = replace(peers_on("local")["txstorm"], warm_up=Job("words", 10, 3))


def quiet(text: str) -> None:
    """Discard a progress message."""


@pytest.mark.parametrize("keys", [10_000, 1_000_000])
def test_ranks_of_words_can_be_recovered(keys: int):
    ranks = np.array([0, 1, keys - 1, 4711])
    assert ranks_of(words(ranks, keys), keys).tolist() == ranks.tolist()
    assert ranks_of(pa.array(["K0", "", "k-1", "k007"]), keys).tolist() == [-1] * 4


def test_changed_keys_are_distinct_and_the_load_phase_has_every_key_once():
    assert len(set(spread_ranks(5, range(1_000), 10_000))) == 1_000
    job = Job("words", 10, 3, keys=1_000_000)
    assert job.loads == 4
    loaded = np.concatenate([job.ranks(txid, range(job.size(txid))) for txid in range(1, job.loads + 1)])
    assert loaded.tolist() == list(range(1_000_000))
    assert (job.size(1), job.size(job.loads + 1)) == (LOAD, 10)


@pytest.fixture
def counted(tmp_path: Path) -> Job:
    """Return a small job whose counts the plain Python loop has written and the exactness check has accepted."""
    job = Job("words", 300, 4, directory=str(tmp_path))
    outcome = work(job)
    assert (outcome.txids, outcome.tuples) == (4, 1200)
    check("loop", job)
    return job


WRONG = {
    "a wrong count": (
        lambda rows: rows[7].update(n=rows[7]["n"] + 1),
        r"loop, words of 5 .*: 1 counts are wrong; \w+: expected (\d+), got \d+",
    ),
    "a lost key": (lambda rows: rows.pop(), r"1 counts are wrong; \w+: expected \d+, got 0"),
    "a duplicate key": (lambda rows: rows.append(rows[0]), "some keys are there twice"),
    "a word not in the input": (lambda rows: rows[0].update(word="Storm"), "Storm is no word of the input"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_wrong_results_are_reported(counted: Job, change: Callable[[list[dict[str, object]]], object], message: str):
    path = Path(counted.directory) / COUNTS.format(table=0)
    rows = pq.read_table(path).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(Inexact, match=message):
        check("loop", counted)


def test_counts_may_be_stored_as_text(tmp_path: Path):
    job = Job("total", 10, 3, keys=1, directory=str(tmp_path))
    (tmp_path / TEXT.format(table=0)).write_text("31\n")
    check("storm", job)
    (tmp_path / TEXT.format(table=0)).write_text("30\n")
    with pytest.raises(Inexact, match="the total: expected 31, got 30"):
        check("storm", job)


ALONE = {"max_group_txids": 1}
RECORDED = [Entry("txstorm", (9, 0), (6, 0), form=form, label=form) for form in ("recorded", "stages", "jobs")]
BROKEN = [
    Entry("txstorm", (9, 0), (4, 0), settings=ALONE),
    Entry("loop", (9, 0), (4, 0)),
    Entry("broken", (9, 0), (1, 0)),
]
SIDES = [Entry("txstorm", (9, 2), (6, 2), columns=True), Entry("loop", (9, 1), (4, 1)), Entry("absent", (9, 0), (3, 0))]
FAILING, THREE = [Entry("txstorm", (9, 0), (9, 0), failing=50)], [Entry("txstorm", (9, 0), (3, 0))]
SMALL = [
    Comparison("small", "W2", "txids", Job("words", 100, 1, keys=100), SIDES, "A small word count"),
    Comparison("tables", "W8", "commit", Job("changes", 50, 1, keys=100, tables=2), BROKEN, "Two tables"),
    Comparison("opaque", "W5", "txids", Job("opaque", 50, 1, loaded=False), FAILING, "Some fail"),
    Comparison("total", "W1", "tuples", Job("total", 500, 1, keys=1), THREE, "A count"),
    Comparison("empty", "W7", "txids", Job("words", 0, 1, loaded=False), THREE, "Nothing"),
    Comparison("bare", "W2", "tuples", Job("words", 50, 1, loaded=False, exchange=True), RECORDED, "Without"),
]


def refused(say: object) -> None:
    msg = "no such thing"
    raise NotInstalled(msg)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of two rounds of all comparisons in `SMALL` on the local engine."""
    found, logs = Results(), tmp_path_factory.mktemp("logs")
    broken = [sys.executable, "-c", "import sys; input(); sys.exit('it broke')"]
    peers = {
        "txstorm": LOCAL,
        "loop": PEERS["loop"],
        "absent": Peer("absent", "none", [], refused),
        "broken": Peer("broken", "none", broken, quiet),
    }
    run_comparisons(SMALL, Setting(2, True, quiet, found, logs, "local", peers))
    return found


def test_sides_run_alternately_and_are_exact(results: Results):
    assert {name: list(found) for name, found in results.rounds.items()} == {
        "small": ["txstorm", "loop"],
        "tables": ["txstorm", "loop"],
        "opaque": ["txstorm"],
        "total": ["txstorm"],
        "empty": ["txstorm"],
        "bare": ["recorded", "stages", "jobs"],
    }
    for found in results.rounds.values():
        for outcomes in found.values():
            assert len(outcomes) == 2
            for one in outcomes:
                assert one.seconds > 0
                assert one.txids > 0
                assert one.peak_mib > 1
    [ours, _] = results.of("tables", "txstorm")
    assert len(ours.commits_ms) == ours.txids == 4  # one commit per txid
    assert list(results.seconds) == ["warm-up", *(one.name for one in SMALL)]
    assert list(results.seconds["small"]) == ["txstorm", "loop"]
    assert all(seconds > 0 for each in results.seconds.values() for seconds in each.values())


def test_peers_that_cannot_run_are_reported(results: Results):
    assert results.missing["absent"] == "not installed: no such thing"
    assert re.search("broken ended .*it broke", results.missing["tables: broken"])


def test_runs_without_transactions_process_the_same_packs(results: Results):
    for ours, *bare in zip(*(results.of("bare", form) for form in ("recorded", "stages", "jobs")), strict=True):
        assert ours.commits_ms
        for one in bare:
            assert not one.commits_ms
            assert (one.txids, one.tuples) == (ours.txids, ours.tuples) == (6, 300)
            assert one.more == {name: ours.more[name] for name in ("jobs", "largest pack")}


def test_a_side_or_call_reports_why_it_failed(tmp_path: Path):
    with Side("loop", PEERS["loop"].command, tmp_path) as side:
        with pytest.raises(SideFailed, match="loop: TypeError"):
            side.run(Job("words", "many", 1))  # type: ignore[arg-type]
        assert side.run(Job("total", 5, 1, keys=1)).tuples == 5
    with pytest.raises(SideFailed, match="memory: KeyError: 'txids'"):
        call("benchmarks.suite.long:memory", {}, tmp_path)


def test_a_side_that_exceeds_its_time_limit_is_ended(tmp_path: Path):
    with Side("slow", [sys.executable, "-c", "import time; time.sleep(600)"], tmp_path, patience=0.2) as side:
        with pytest.raises(SideFailed, match=r"slow ended \(or took more than 0 s\)"):
            side.run(Job("words", 1, 1))


def test_all_sides_end_when_the_benchmark_is_terminated(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks", "--quick", "--engine", "local", "--rounds", "1000", "pipelining"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment) as bench:
        assert bench.stderr is not None
        assert any("round 1 of 1000" in line for line in bench.stderr)
        [side] = [one.pid for one in processes.tree(bench.pid) if one.pid != bench.pid]
        bench.send_signal(signal.SIGTERM)
        assert bench.wait() == 128 + signal.SIGTERM
    assert not processes.tree(side)
    # Links to the logs of a killed process are removed by the next process that creates such links.
    assert not [path for path in tmp_path.iterdir() if not path.name.startswith("txstorm-log-")]


def test_sides_end_when_the_benchmark_is_killed(tmp_path: Path):
    starts = (
        "import sys, time, pathlib; from benchmarks.suite.sides import Side\n"
        "side = Side('slow', [sys.executable, '-m', 'benchmarks.suite.serve', 'time:sleep'], pathlib.Path(sys.argv[1]))\n"
        "print(side.start().pid, flush=True); side.ask('600')"
    )
    command = [sys.executable, "-c", starts, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        side = int(bench.stdout.readline())
        bench.kill()
    while processes.memory(side):
        time.sleep(0.05)


def test_a_side_is_warm_once_its_commit_times_are_steady():
    assert steady([900.0, 400.0, 110.0, 100.0, 114.0])
    assert not steady([100.0, 100.0, 116.0])
    assert not steady([100.0, 100.0])


def outcome(txids_s: float) -> Outcome:
    return Outcome(seconds=1.0, cpu=2.0, txids=int(txids_s), tuples=1000 * int(txids_s), commits_ms=[4.0])


def test_verdicts_on_figures():
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
    [figure] = [one for one in FIGURES if one.name == "recovery-driver"]  # whose limit is a maximum
    results = Results(values={"recovery-driver": Spread.of([14.0, 16.0, 12.0])})
    assert str(judge(figure, results, quick=False)) == "recovery-driver 14(12–16) ≤15s reached"


def test_every_figure_has_a_source_and_known_entries():
    assert {need for figure in FIGURES for need in figure.needs} <= {one.name for one in SOURCES}
    assert len({one.name for one in SOURCES}) == len(SOURCES)
    entries = {one.name: {entry.name for entry in one.entries} for one in COMPARISONS}
    for figure in FIGURES:
        assert set(figure.beside) <= entries.get(figure.needs[0], set())
    assert {entry.peer for one in COMPARISONS for entry in one.entries} <= set(PEERS)
    assert {f"W{number}" for number in (1, 2, 5, 6, 7, 8, 9, 10)} <= set(names())


def test_workloads_and_peers_of_a_quick_run():
    quick = chosen([], [], quick=True)
    assert quick[-1].name == "words-1000-1e4"  # MERGE has warmed up by then
    assert {one.workload for one in quick} == {"W1", "W2", "W6", "W7", "W8"}
    entries = {entry.peer for one in quick for entry in one.chosen(quick=True)}
    assert entries == {"txstorm", "merge", "loop", "bytewax"}
    assert {need for figure in FIGURES if figure.quick for need in figure.needs} <= {one.name for one in quick}


def test_a_report_has_lines_json_and_a_page(results: Results, tmp_path: Path):
    lines = [judge(figure, results, quick=True) for figure in FIGURES]
    report = Report("two cores", True, [one for one in SMALL if one.name != "tables"], results, lines)
    assert "absent: not installed: no such thing" in report.text()
    assert report.text().splitlines()[-1] == totals(lines)
    report.write_json(tmp_path / "results.jsonl")
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    runs = [one for one in records if one["record"] == "run"]
    assert len(runs) == 2 * (5 + 3)
    assert all(one["exact"] and one["guarantee"] and one["cpu"] >= 0 for one in runs)
    assert len([one for one in records if one["record"] == "figure"]) == len(FIGURES)
    page = report.write_page(tmp_path / "out")
    assert page.name == PAGE
    assert (page.parent / RECORDS).read_text() == (tmp_path / "results.jsonl").read_text()
    for plot in re.findall(r"!\[.*\]\((.*)\)", page.read_text()):
        assert ElementTree.parse(page.parent / plot).getroot().tag.endswith("svg")


def test_the_page_links_to_notes_on_figures(results: Results, tmp_path: Path):
    (tmp_path / NOTES).write_text("# Notes\n\n## loop\n\nJava strings.\n\n## something else\n")
    lines = [judge(figure, results, quick=True) for figure in FIGURES]
    page = Report("two cores", True, [], results, lines).write_page(tmp_path).read_text()
    assert re.findall(rf"\| (\S+) \|.*{NOTES}#(\S+)\)", page) == [("loop", "loop")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["W99"], "nothing is called W99; there are: W1 "),
        (["q7", "--sides", "ours,sparkle"], "no side is called sparkle; there are: ours txstorm "),
    ],
)
def test_unknown_names_are_rejected(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str):
    assert main(["--quick", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.long
def test_a_killed_driver_recovers(tmp_path: Path):
    seconds, again = killed_driver(tmp_path, 200, "local")
    assert seconds > 0
    assert again > 0


def local(tmp_path: Path, txids: int, **more: object) -> dict[str, object]:
    return {"txids": txids, "directory": str(tmp_path), "engine": "local", **more}


def test_recovery_of_a_lost_coordinator_is_measured(tmp_path: Path):
    """Without a lost coordinator, that is an error."""
    assert coordinator(local(tmp_path / "lost", 200, fault="p6.before:raise:2")) > 0
    with pytest.raises(RuntimeError, match="expected the coordinator to be lost in the middle of 3 transactions"):
        coordinator(local(tmp_path / "kept", 3, fault="p6.before:raise:99"))


def test_memory_is_sampled_over_a_run(tmp_path: Path):
    result = memory(local(tmp_path, 200))
    assert len(result["samples"]) == 100
    assert min(result["samples"]) > 10
    assert len(result["commit p99 ms"]) == 10


def test_bytes_are_counted_by_kind(tmp_path: Path):
    result = written(local(tmp_path, 16))
    assert result["process"] > result["bytes"]["data"] > 0
    assert result["bytes"]["log"] > 0
    assert result["changed"] > 16 * 300 * 12
    paths = ["t/_delta_log/1.json", "t/_delta_log/1.checkpoint.parquet", "t/part.parquet", "ledger.db-wal", "i/x.mdb"]
    assert [kind_of(path) for path in paths] == ["log", "checkpoints", "data", "ledger", "index"]


def test_the_requested_parts_are_run_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--quick", "--engine", "local", "--rounds", "1", "--out", str(tmp_path)]
    assert main([*arguments, "pipelining-packed", "--only", "long"]) == 0
    shown = capsys.readouterr().out
    assert "1 and 4 transactions of 1,000 words in flight, with packing" in shown
    assert re.search(r"^pipelining-packed [\d.]+\S* ≥2.5× not in quick$", shown, re.MULTILINE)  # shown, but not judged
    assert "without packing" not in shown
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    measured = {(one["comparison"], one["entry"]) for one in records if one["record"] == "run"}
    assert measured == {("pipelining-packed", f"txstorm, pending {pending}") for pending in (1, 4)}
    assert "memory-growth" in {one["name"] for one in records if one["record"] == "value"}
    assert "| memory-growth |" in (tmp_path / "results.md").read_text()


def test_words_depend_only_on_the_txid():
    job = Job("words", 1000, 8, loaded=False)
    whole = job.words(7).to_pylist()
    assert [word for part in (range(0, 400), range(400, 1000)) for word in job.words(7, part).to_pylist()] == whole
    assert job.words(8).to_pylist() != whole
    assert len(set(vocabulary().to_pylist())) == VOCABULARY


def test_spreads_and_percentiles():
    assert format(Spread.of([3.0, 1.0, 2.0]), ".1f") == "2.0 (1.0–3.0)"
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile(range(1, 101), 0.5) == 51
    assert drift(10.0, 12.0) == pytest.approx(0.2)
    assert drift(12.0, 10.0) == pytest.approx(0.2)


@pytest.mark.integration
def test_kafka_comparisons_are_exact(kafka_broker: Kafka, tmp_path: Path):
    topic = kafka_broker.make_topic(partitions=PARTITIONS)
    source = {"bootstrap": kafka_broker.bootstrap, "topic": topic, "partitions": PARTITIONS}
    [offered] = [one for one in COMPARISONS if one.name == "kafka-1000"]
    entries = [replace(one, quick=(4, 1)) for one in offered.entries if one.peer != "kafka-merge"]
    job = replace(offered.job, tuples=800)
    small = replace(offered, job=job, entries=entries, source=lambda _: nullcontext(source))
    fill(kafka_broker.bootstrap, topic, small.messages(quick=True))
    results = Results()
    run_comparisons([small], Setting(1, True, print, results, tmp_path, "local", peers_on("local")))
    for entry in entries:
        [outcome] = results.of(small.name, entry.name)
        assert outcome.tuples == 800 * outcome.txids > 0
        assert sum(outcome.more["ends"].values()) == 5 * 800


def test_counts_from_kafka_are_checked_up_to_the_end_offsets(tmp_path: Path):
    job = Job("kafka", 10, 1, loaded=False, directory=str(tmp_path))
    words = [vocabulary()[rank].as_py() for part in (0, 3) for rank in message_ranks(part, 0, 20).tolist()]
    leave(job, pa.table({"word": sorted({*words}), "n": [words.count(word) for word in sorted({*words})]}))
    check("loop", job, Outcome(1.0, 1.0, 1, 10, more={"ends": {"0": 20, "3": 20}}))
    with pytest.raises(Inexact, match=r"loop, kafka of 1 .*: 1 counts are wrong"):
        check("loop", job, Outcome(1.0, 1.0, 1, 10, more={"ends": {"0": 20, "3": 21}}))
