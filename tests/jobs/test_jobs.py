"""Example jobs: on both engines their results equal Storm's, or those of plain Python."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from commands import printed_by
from crashes import crashing
from runs import ended

from jobs import (
    card_fraud,
    click_stream,
    clicks_and_views,
    reach,
    sliding_window,
    stateful_windowing,
    transactional_global_count,
    transactional_words,
    trending_topics,
    tweet_counts,
    word_count,
)
from jobs.producers import card_fraud as payments
from jobs.producers import click_stream as clicks
from jobs.producers.clicks_and_views import LAST, events
from jobs.replay import main as replay
from txstorm import TransactionalTopologyBuilder
from txstorm.bolts import SumByKey
from txstorm.engine.port import Engine
from txstorm.results.views import SinkView, committed_txid
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("__init__", "demo", "replay", "kafka_producer", "kafka_to_delta", "stream_join")
JOBS = sorted(path for path in (ROOT / "jobs").glob("*.py") if path.stem not in OTHERS)
MakeEngine = Callable[[], Engine]


@pytest.fixture
def finished(make_engine: MakeEngine, tmp_path: Path) -> Callable[..., RunHandle]:
    """Return a function that runs a topology to completion, on the engine under test, and returns its handle."""
    return lambda topology, **how: ended(topology, tmp_path / topology.id, make_engine(), **how)


def state(handle: RunHandle, name: str, txid: int | None = None) -> dict[Any, Any]:
    """Return a state with one key and one value column as ``{key: value}``, as of `txid` (None: the latest)."""
    view = handle.state(name) if txid is None else handle.state(name).as_of(txid)
    return dict(tuple(row.values()) for row in view.to_pylist())


def test_transactional_global_count(finished: Callable[..., RunHandle]):
    """The global count yields the sums of Storm's example, transaction by transaction (T46, item 78)."""
    handle = finished(transactional_global_count.topology, until_txid=5)
    sums = [(row["_txid"], row["sum"]) for row in handle.sink("sums").to_pylist()]
    assert sums == [(1, 9), (2, 16), (3, 19), (4, 19), (5, 19)]
    assert handle.state("count").to_pylist() == [{"count": 19}]
    assert [one.numInputRows for one in handle.recentProgress] == [9, 7, 3, 0, 0]


def test_transactional_words(finished: Callable[..., RunHandle]):
    """Word counts and buckets are those of Storm's example after every transaction (T47, T11, item 79)."""
    handle = finished(transactional_words.topology, until_txid=4)
    counts = [state(handle, "counts", txid) for txid in (1, 2, 3, 4)]
    assert counts[0] == {"chicken": 1, "dog": 2, "apple": 1, "cat": 5}
    assert counts[1] == {"chicken": 1, "dog": 4, "apple": 2, "cat": 8, "banana": 1}
    assert counts[2] == counts[3] == {"chicken": 1, "dog": 7, "apple": 2, "cat": 8, "banana": 1}
    assert [state(handle, "buckets", txid) for txid in (1, 2, 3, 4)] == [{0: 4}, {0: 5}, {0: 5}, {0: 5}]
    changed = handle.state("counts").changes(1, 4).to_pylist()
    before = {(row["_txid"], row["word"]): (row["count"], (row["_prev"] or {}).get("count")) for row in changed}
    assert before == {
        **{(1, "chicken"): (1, None), (1, "dog"): (2, None), (1, "apple"): (1, None), (1, "cat"): (5, None)},
        **{(2, "dog"): (4, 2), (2, "apple"): (2, 1), (2, "cat"): (8, 5), (2, "banana"): (1, None)},
        (3, "dog"): (7, 4),
    }


def test_transactional_words_move_between_buckets(finished: Callable[..., RunHandle]):
    words = MemoryTransactionalSpout([["cat"] * 25 + ["dog"]], "word", take=9)
    builder = TransactionalTopologyBuilder("buckets", "spout", words)
    builder.set_bolt("count", transactional_words.KeyedCountUpdater(), 2).fields_grouping("spout", ["word"])
    builder.set_bolt("bucketize", transactional_words.Bucketize()).none_grouping("count")
    builder.set_bolt("buckets", SumByKey({"bucket": int}, "words", "buckets")).global_grouping("bucketize")
    handle = finished(builder.build_topology())
    assert [state(handle, "buckets", txid) for txid in (1, 2, 3)] == [{0: 1}, {0: 0, 1: 1}, {0: 1, 1: 0, 2: 1}]


def test_reach(finished: Callable[..., RunHandle]):
    handle = finished(reach.topology)
    expected = {
        url: len({follower for person in reach.TWEETERS.get(url, ()) for follower in reach.FOLLOWERS.get(person, ())})
        for url in reach.URLS
    }
    assert expected["foo.com/blog/1"] == 16  # the result of Storm's topology
    assert state(handle, "reach") == expected


def test_t48_tweet_counts(finished: Callable[..., RunHandle]):
    """Counts by address and by domain, two states of one transaction, agree as of every txid (T48)."""
    handle = finished(tweet_counts.topology())
    urls, domains = state(handle, "urls"), state(handle, "domains")
    assert urls["storm.apache.org/releases/1.2.4/Transactional-topologies.html"] == 4
    assert urls["en.wikipedia.org/wiki/Idempotence"] == 2
    assert domains == {
        **{"github.com": 7, "en.wikipedia.org": 7, "storm.apache.org": 4, "youtube.com": 4, "oreilly.com": 3},
        **{"spark.apache.org": 2, "openstreetmap.org": 2, "docs.python.org": 2, "news.ycombinator.com": 2},
        **{"ourworldindata.org": 2, "research.google": 1},
    }
    assert handle.committed == 4
    for txid in range(1, 5):
        by_domain: Counter[str] = Counter()
        for url, n in state(handle, "urls", txid).items():
            by_domain[url.partition("/")[0]] += n
        assert by_domain == state(handle, "domains", txid)


def counted(path: Path) -> Counter[str]:
    """Return the word counts of the text file at `path`, computed in plain Python."""
    return Counter(re.findall(r"[a-z']+", path.read_text(encoding="utf-8").lower()))


def test_word_count(finished: Callable[..., RunHandle]):
    words: list[int] = []
    listeners = [lambda done: words.append(done.tuples["split"])]
    handle = finished(word_count.topology(), listeners=listeners)
    expected = counted(word_count.BIBLE)
    assert expected.total() == 789_684
    assert state(handle, "counts") == dict(expected)
    assert len(words) == handle.committed >= 40
    assert sum(words) == expected.total()
    assert 18_000 < sum(words) / len(words) < 22_000


def test_word_count_of_other_files(finished: Callable[..., RunHandle], tmp_path: Path):
    (tmp_path / "a.txt").write_text("Don't stop\r\n\r\nSTOP it", encoding="utf-8")
    (tmp_path / "b.txt").write_text("it's 5 o'clock: it İs\n", encoding="utf-8")
    handle = finished(word_count.topology(str(tmp_path / "*.txt"), max_batch_rows=2))
    assert state(handle, "counts") == dict(counted(tmp_path / "a.txt") + counted(tmp_path / "b.txt"))
    assert handle.committed == 2


@pytest.mark.parametrize("path", [*JOBS, ROOT / "jobs" / "kafka_to_delta.py"], ids=lambda path: path.stem)
def test_a_job_has_at_most_60_lines(path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
@pytest.mark.integration
def test_a_job_runs_from_the_command_line(path: Path, tmp_path: Path):
    command = ["run", f"jobs.{path.stem}", "--until-txid", "2", "--engine", "local", "--data-dir", tmp_path / "data"]
    assert json.loads(printed_by("-m", "txstorm", *command, "--json").splitlines()[-1])["committed_txid"] >= 2


SUBMITTED = """
from txstorm.clients.spark import UNIX_SOCKETS, make_session

session = make_session("submitted")
names = ("spark.master", "spark.sql.shuffle.partitions", "spark.scheduler.mode", UNIX_SOCKETS, "spark.app.name")
print([session.conf.get(name) for name in names])
"""


@pytest.mark.spark
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    ["transactional_words", *(pytest.param(job, marks=pytest.mark.long) for job in ("reach", "clicks_and_views"))],
)
def test_a_job_runs_under_spark_submit_with_the_options_given_there(job: str, tmp_path: Path):
    """A job's classes work although spark-submit runs it as the main module, which workers cannot import."""
    program = tmp_path / f"{job}.py"
    program.write_text(SUBMITTED + (ROOT / "jobs" / f"{job}.py").read_text(encoding="utf-8"), encoding="utf-8")
    submit = Path(sys.executable).with_name("spark-submit")
    options = ["--master", "local[1]", "--conf", "spark.scheduler.mode=FIFO", "--conf", "spark.ui.enabled=false"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [submit, *options, program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "['local[1]', '2', 'FIFO', 'true', 'submitted']"
    (data_dir,) = tmp_path.glob("txstorm-data/*")
    assert committed_txid(data_dir) >= 2


def test_jobs_run_as_scripts(tmp_path: Path):
    """A script has its own directory on the path, but not the one that contains the package `jobs`."""
    scripts = [str(path) for path in sorted((ROOT / "jobs").glob("*.py")) if "    run(topology" in path.read_text()]
    code = "import runpy, sys; sys.path[:0] = [sys.argv[1]]; print(len([runpy.run_path(one) for one in sys.argv[2:]]))"
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-I", "-c", code, ROOT / "jobs", *scripts], **options)
    assert (done.returncode, done.stdout) == (0, f"{len(scripts)}\n"), done.stderr
    assert len(scripts) > 5


def test_sliding_window(finished: Callable[..., RunHandle]):
    """Sums of 30 integers and averages of three sums are those of Storm's example (W25), each exactly once."""
    handle = finished(sliding_window.topology, end_of_input=True)
    sums = [sum(range(max(1, end - 29), end + 1)) for end in range(10, 101, 10)]
    averages = [sum(sums[first : first + 3]) // 3 for first in (0, 3, 6)]
    assert [row["average"] for row in handle.sink("averages").to_pylist()] == averages
    assert handle.state("running-sum").to_pylist() == [{"name": "sum", "sum": sums[-1]}]


def test_stateful_windowing(finished: Callable[..., RunHandle]):
    """The running sum counts every integer of a fired window once (W42)."""
    handle = finished(stateful_windowing.topology, end_of_input=True)
    fired = range(3, 51, 3)
    assert [row["sum"] for row in handle.sink("sums").to_pylist()] == [last * (last + 1) // 2 for last in fired]


def test_trending_topics(finished: Callable[..., RunHandle]):
    """The rankings of each minute are those that plain Python finds in the last hour."""
    handle = finished(trending_topics.topology(), end_of_input=True)
    mentions = [json.loads(line) for line in trending_topics.MENTIONS.read_text(encoding="utf-8").splitlines()]
    times = [one["time"] for one in mentions]
    expected = []
    minute = 60_000
    for end in range(-(-min(times) // minute) * minute, max(times) + 60 * minute, minute):
        counts = Counter(one["topic"] for one in mentions if end - 60 * minute < one["time"] <= end)
        for topic, n in counts.items():
            rank = 1 + sum(other > n for other in counts.values())
            if rank <= 3:
                expected.append((end, rank, topic, n))
    found = [
        (round(row["end"].timestamp() * 1000), row["rank"], row["topic"], row["mentions"])
        for row in handle.sink("trends").to_pylist()
    ]
    assert sorted(found) == sorted(expected)
    assert len(found) > 300


def milliseconds(rows: list[dict[str, Any]], key: str) -> list[Any]:
    return sorted(
        [row[key], *(round(row[one].timestamp() * 1000) for one in ("start", "end")), row["n"]] for row in rows
    )


@pytest.mark.parametrize("closed", ["left", "right"])
def test_click_stream(closed: str, finished: Callable[..., RunHandle]):
    """Pages per minute, sessions and late clicks are those that plain Python finds, whichever side is closed (U29)."""
    assert clicks.CLICKS.read_text(encoding="utf-8").splitlines() == clicks.lines()
    rows = [json.loads(line) for line in clicks.EXPECTED.read_text(encoding="utf-8").splitlines()]
    expected = {name: [one for of, one in rows if of == name] for name in ("left", "right", "sessions", "late")}
    assert expected == clicks.expected()
    handle = finished(click_stream.topology(closed=closed), end_of_input=True)
    assert milliseconds(handle.state("pages").to_pylist(), "page") == expected[closed]
    assert milliseconds(handle.state("sessions").to_pylist(), "user") == expected["sessions"]
    assert sorted(row["id"] for row in handle.sink("late").to_pylist()) == expected["late"]
    assert len(handle.dead_letters().to_pylist()) == 4  # two bad lines, and one without a time in both aggregates


@pytest.mark.spark
def test_windows_of_the_click_stream_equal_those_of_spark(spark: Any):
    """The expected rows of the windows closed on the left are those of Spark's `window`."""
    from pyspark.sql import functions as of

    late = [one["id"] for one in clicks.clicks() if one["late"]]
    read = spark.read.schema("id long, user string, page string, time long").json(str(clicks.CLICKS))
    rows = read.where("time is not null").dropDuplicates(["id"]).where(~of.col("id").isin(late))
    minutes = of.window(of.timestamp_millis("time"), "1 minute").alias("minute")
    counts = rows.groupBy(minutes, "page").count()
    counts = counts.select("page", "minute.start", "minute.end", of.col("count").alias("n"))
    found = counts.select("page", of.unix_millis("start"), of.unix_millis("end"), "n").collect()
    assert sorted(map(list, found)) == clicks.expected()["left"]


def alarms(small: int, minutes: int) -> list[tuple[int, str, datetime, Decimal]]:
    """Return the large payments right after `small` small ones of the same card within some minutes, by id."""
    cards: dict[str, list[tuple[int, str, datetime, Decimal]]] = {}
    for line in (line for file in range(1, payments.FILES + 1) for line in payments.lines(file)):
        if (one := json.loads(line))["at"] != "noon":
            row = (one["id"], one["card"], datetime.fromisoformat(one["at"]), Decimal(one["amount"]))
            cards.setdefault(row[1], []).append(row)
    found = []
    for rows in cards.values():
        for last in range(small, len(rows)):
            *before, large = rows[last - small : last + 1]
            near = large[2] - before[0][2] <= timedelta(minutes=minutes)
            found += [large] if near and large[3] >= 250 and all(one[3] <= 5 for one in before) else []
    return sorted(found)


def test_card_fraud(finished, tmp_path, capsys, monkeypatch):
    """Alarms, after a crash too, are those of plain Python, as are those that another rule drops or adds."""
    files = {
        path.name: path.read_text(encoding="utf-8").splitlines()
        for path in card_fraud.PAYMENTS.parent.glob("payments-*")
    }
    assert files == {f"payments-{n}.jsonl": payments.lines(n) for n in range(1, payments.FILES + 1)}
    with crashing("p7.2.before", 3):
        finished(card_fraud.topology(), settings={"max_group_txids": 1})  # so that there are three commits
    handle = finished(card_fraud.topology())
    data = tmp_path / "card-fraud"

    def kept(data: Path) -> dict[tuple[Any, ...], int]:
        rows = SinkView(data, "alarms").to_pylist()
        return {tuple(row[name] for name in card_fraud.FIELDS): row["_txid"] for row in rows}

    first, before, after = kept(data), alarms(3, 10), alarms(4, 20)
    assert sorted(first) == before
    assert len(handle.dead_letters().to_pylist()) == payments.FILES
    monkeypatch.syspath_prepend(str(ROOT))  # as a replay does, but undone
    target = "jobs.card_fraud:topology(small=4, minutes=20)"
    command = ["--engine", "local", "--data-dir", str(data), "--topology", target]
    assert replay([*command, "--into", str(tmp_path / "new")]) == 0
    second = kept(tmp_path / "new")
    assert sorted(second) == after
    dropped, added = first.keys() - second.keys(), second.keys() - first.keys()
    assert min(len(dropped), len(added), len(first.keys() & second.keys())) >= 3
    # What is kept does not depend on the rule, so an audit by the other one finds these alarms and nothing else.
    capsys.readouterr()
    assert replay(command) == 1
    different = {first[one] for one in dropped} | {second[one] for one in added}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["different"] == sorted(different)


def test_clicks_and_views(finished: Callable[..., RunHandle]):
    """Every view comes out once, with its click or without, although the clicks pause and lag; what is kept is small (A1, A20, A22)."""
    views, clicks = (
        [json.loads(one) for minute in range(1, LAST + 1) for one in events(topic, minute)]
        for topic in ("views", "clicks")
    )
    clicked = {one["view"]: one["click"] for one in clicks}
    expected = sorted((one["view"], one["ad"], clicked.get(one["view"])) for one in views)
    assert (len(expected), len(clicked)) == (600, 360)
    handle = finished(clicks_and_views.topology(), end_of_input=True)
    rows = handle.sink("joined").to_pylist()
    assert sorted((row["view"], row["ad"], row["click"]) for row in rows) == expected
    # The clicks of the first ten minutes are not enough for any view; in the pause, all of them wait.
    assert min(row["_txid"] for row in rows) == 25
    # Clicks of the ten minutes before the oldest pending view are kept, and no others.
    kept = [len(handle.state("join-right").as_of(txid).to_pylist()) for txid in range(26, handle.committed, 4)]
    assert max(kept) < 100 < len(clicked)
    assert handle.state("join-left").to_pylist() == handle.state("join-right").to_pylist() == []
