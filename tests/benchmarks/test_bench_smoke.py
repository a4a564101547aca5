"""The benchmarks run and report what they promise to report; what they measure is not judged here."""

import json
from collections import Counter
from pathlib import Path

import pytest
from servers.running import Kafka

from benchmarks import kafka
from benchmarks.__main__ import main
from benchmarks.cases import CASES, SIZES, WORKLOADS
from benchmarks.machine import Spread, drift, percentile
from benchmarks.running import engines, run_peer, run_topology
from benchmarks.sides import Side, SideFailed, measure
from benchmarks.source import words_of
from benchmarks.topologies import word_count
from benchmarks.words import VOCABULARY, vocabulary
from txstorm.runtime.run import run


def test_quick_run_reports_every_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "figures.json"
    assert main(["--quick", "--engine", "local", "--json", str(file)]) == 0
    shown = capsys.readouterr().out
    figures = [one for one in map(json.loads, file.read_text().splitlines()) if one["record"] == "case"]
    assert {one["case"] for one in figures} == set(CASES)
    assert len([one for one in figures if one["case"] == "throughput"]) == len(WORKLOADS) * len(SIZES)
    for one in figures:
        assert one["name"] in shown
        assert one["met"] is None or one["target"] in shown


def test_one_case_can_be_chosen(capsys: pytest.CaptureFixture[str]):
    assert main(["--quick", "--engine", "local", "--only", "commit"]) == 0
    shown = capsys.readouterr().out
    assert "1,000 of 10,000 keys" in shown
    assert "throughput" not in shown


def test_words_depend_on_the_txid_alone():
    whole = words_of(7, range(1000))["word"].to_pylist()
    parts = [words_of(7, range(0, 400)), words_of(7, range(400, 1000))]
    assert [word for part in parts for word in part["word"].to_pylist()] == whole
    assert words_of(8, range(1000))["word"].to_pylist() != whole
    assert len(set(vocabulary().to_pylist())) == VOCABULARY


def test_topology_counts_what_the_source_emits(tmp_path: Path):
    run(word_count(500, 4), engine="local", data_dir=tmp_path, until_txid=4).awaitTermination()
    expected = Counter(word for txid in range(1, 5) for word in words_of(txid, range(500))["word"].to_pylist())
    assert dict(_rows(tmp_path)) == dict(expected)


def _rows(directory: Path) -> list[tuple[str, int]]:
    from txstorm.state.read import read_state

    table = read_state(directory, "counts")
    return list(zip(table["word"].to_pylist(), table["n"].to_pylist(), strict=True))


def test_the_peer_processes_the_same_packs():
    topology, make = word_count(200, 10), engines("local", None)
    ours = run_topology(topology, 200, 10, make, {})
    peer = run_peer(topology, 200, ours.packs, make, 2, whole=True)
    assert [txid for pack in peer.packs for txid in (one.attempt.txid for one in pack.inputs)] == list(range(1, 11))
    assert (ours.txids, ours.tuples) == (peer.txids, peer.tuples) == (10, 2000)
    assert sum(group.txids for group in ours.groups) == 10
    assert not peer.groups


def test_spreads_and_percentiles():
    assert format(Spread.of([3.0, 1.0, 2.0]), ".1f") == "2.0 (1.0–3.0)"
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile(range(1, 101), 0.5) == 51
    assert drift(10.0, 12.0) == pytest.approx(0.2)
    assert drift(12.0, 10.0) == pytest.approx(0.2)


@pytest.mark.integration
def test_sides_that_read_kafka_are_watched_and_checked(kafka_broker: Kafka, tmp_path: Path):
    topic = kafka_broker.make_topic(partitions=kafka.PARTITIONS)
    kafka.fill(kafka_broker.bootstrap, topic, 4000)
    options = {
        "bootstrap": kafka_broker.bootstrap,
        "topic": topic,
        "partitions": kafka.PARTITIONS,
        "batch": 800,
        "batches": 5,
        "warm": 1,
        "engine": "local",
    }
    for side in (kafka.OURS, kafka.LOOP):
        run = measure(side, {**options, "directory": str(tmp_path)}, tmp_path)
        kafka.check(run, topic)
        assert run.seconds > 0
        assert run.all_cpu > 0
        assert run.peak > 1 << 20
    [word, *_] = run.result["counts"]
    run.result["counts"][word] += 1
    with pytest.raises(AssertionError, match=r"1 of .* counts .* wrong"):
        kafka.check(run, topic)


def test_a_side_that_fails_says_why(tmp_path: Path):
    side = Side("broken", "benchmarks.kafka_sides:loop", "nothing")
    with pytest.raises(SideFailed, match=r"broken: ended with code 1(.|\n)*KeyError: 'bootstrap'"):
        measure(side, {}, tmp_path)
