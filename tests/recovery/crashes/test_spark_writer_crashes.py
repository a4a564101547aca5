"""Runs whose tables Spark publishes: killed, and continued by the same writer or the other one."""

import json
from collections import Counter

import pytest
from recovery_cases import check_tiling, killed
from scenarios.spark_writer import count

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.operations.rewind import rewind
from txstorm.results.read import read_sink, read_state

pytestmark = [pytest.mark.spark, pytest.mark.integration]


def by_spark(data_dir, uri):
    """Return the txids of the groups that Spark has published to the table, in the order of its log."""
    entries = sorted((data_dir / uri / "_delta_log").glob("*.json"))
    infos = [json.loads(line)["commitInfo"] for entry in entries for line in entry.read_text().splitlines()[:1]]
    metadata = [json.loads(info["userMetadata"]) for info in infos if "Apache-Spark" in info.get("engineInfo", "")]
    return [one["txstorm"]["last"] for one in metadata]


def check_content(data_dir, parts):
    counts = read_state(data_dir, "counts").to_pylist()
    assert {row["word"]: row["n"] for row in counts} == Counter(word for part in parts for word in part.split("-"))
    rows = sorted((row["_txid"], row["words"]) for row in read_sink(data_dir, "all").to_pylist())
    assert rows == list(enumerate(parts, 1))


@pytest.mark.long
def test_killed_before_spark_answers_and_gone_on_with_by_the_other_writer(spark, data_dir):
    parts, jars = ["a-b", "a-c", "d-a"], spark.conf.get("spark.jars")
    killed("p7.1.written:kill:2", data_dir, "spark", jars, *parts, scenario="spark-writer")
    assert by_spark(data_dir, "changes/counts") == [1, 2]
    count(data_dir, "deltalake", parts)
    check_tiling(data_dir, len(parts))
    check_content(data_dir, parts)
    assert by_spark(data_dir, "changes/counts") == [1, 2]


def test_an_opaque_replay_with_other_content_after_a_crash(spark, data_dir):
    """A staged but undecided txid is replayed after a crash with other rows: only the new rows are published."""
    killed("p6.before:kill:2", data_dir, "deltalake", "", "a-b", "a-c", "d-a", scenario="spark-writer")
    assert list((data_dir / "changes/counts/_txstorm/staged").glob("*-2-*.parquet"))
    parts = ["a-b", "x-y-a", "d-a"]
    count(data_dir, "spark", parts)
    check_tiling(data_dir, len(parts))
    check_content(data_dir, parts)
    assert by_spark(data_dir, "changes/counts") == by_spark(data_dir, "sinks/all") == [2, 3]
    assert DeltaHandle.open(data_dir / "changes/counts").read()["_txid"].to_pylist().count(2) == 3


@pytest.mark.long
def test_a_rewind_of_what_spark_has_written(spark, data_dir):
    count(data_dir, "spark", ["a-b", "a-c"])
    rewind(data_dir, 1)
    parts = ["a-b", "d"]
    count(data_dir, "spark", parts)
    check_content(data_dir, parts)
    assert by_spark(data_dir, "changes/counts") == [1, 2, 2]
