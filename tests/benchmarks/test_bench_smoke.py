"""Smoke tests of the benchmark command: it runs the requested parts; measured values are not checked."""

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from servers.running import Kafka

from benchmarks.__main__ import main
from benchmarks.machine import Spread, drift, percentile
from benchmarks.suite.comparisons import COMPARISONS
from benchmarks.suite.exact import Inexact, check, leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.kafka import PARTITIONS, fill
from benchmarks.suite.peers import peers_on
from benchmarks.suite.results import Results, Setting
from benchmarks.suite.rounds import run_comparisons
from benchmarks.words import VOCABULARY, message_ranks, vocabulary


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
