"""``jobs/stream_join.py``: two topics of a real broker joined as a configuration says; faults of configurations."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from commands import printed_by, run_program, serving
from servers.kafka_reading import messages
from servers.running import Kafka

from jobs.producers.clicks_and_views import LAST, events, main
from txstorm.results.views import SinkView

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "jobs" / "stream_join.py"
EXAMPLE = ROOT / "jobs" / "data" / "stream_join.toml"


def run(*arguments: Any, cwd: Path) -> CompletedProcess[str]:
    return run_program(JOB, *arguments, cwd=cwd)


FIVE = """
name = "clicks and views"
servers = "127.0.0.1:1"
variant = "memory"
[left]
topic = "views"
fields = { view = "int", at = "int" }
key = "vew"
time = "at"
[right]
topic = "clicks"
fields = { click = "int", view = "int", at = "int" }
key = "view"
time = "at"
lag = "soon"
[join]
after = "10 min"
"""


@pytest.mark.integration
def test_five_errors_are_one_message_and_nothing_is_started(tmp_path: Path):
    """A19: all errors of a configuration are listed at once, with exit code 2, before anything is written or asked."""
    (tmp_path / "five.toml").write_text(FIVE)
    done = run("--config", "five.toml", "--engine", "local", cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert lines[0] == "error: five.toml: 5 errors"
    places = ["name", "variant", "left.key", "right.lag", "join.before"]
    assert [line.split(": ")[1] for line in lines[1:]] == places
    text = FIVE.splitlines()
    named = [text[int(line.split(": ")[0].removeprefix("  line ")) - 1] for line in lines[1:]]
    assert [line.split(" ")[0] for line in named] == ["name", "variant", "key", "lag", "[join]"]
    assert [one.name for one in tmp_path.iterdir()] == ["five.toml"]
    as_json = run("--config", "five.toml", "--json", cwd=tmp_path)
    document = json.loads(as_json.stdout.splitlines()[-1])["error"]
    assert (document["type"], document["exit_code"]) == ("InputError", 2)
    assert all(place in document["message"] for place in places)


@pytest.mark.integration
def test_the_printed_example_is_valid(tmp_path: Path):
    """The example teaches every option, and passes the check."""
    shown = run("--print-example", cwd=tmp_path)
    (tmp_path / "clicks.toml").write_text(shown.stdout)
    assert shown.stdout == EXAMPLE.read_text(encoding="utf-8")
    checked = run("--config", "clicks.toml", "--check", cwd=tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "clicks.toml: no errors\n")
    text = run("--help", cwd=tmp_path).stdout
    assert all(word in text for word in ("--config", "--print-example", "--check", "Exit codes", "Redis"))


@pytest.mark.integration
def test_an_unreachable_broker_is_reported(tmp_path: Path):
    (tmp_path / "clicks.toml").write_text(EXAMPLE.read_text("utf-8").replace("127.0.0.1:9092", "127.0.0.1:1"))
    done = run("--config", "clicks.toml", "--engine", "local", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: kafka spout: the brokers cannot be asked: ")


@pytest.fixture(scope="module")
def produced(kafka_broker: Kafka) -> str:
    """Produce views and clicks once; return the address of the broker."""
    assert main([kafka_broker.bootstrap, "--minutes-per-second", "1000"]) == 0
    return kafka_broker.bootstrap


def expected() -> list[tuple[int, int | None]]:
    """Return each view with its click, or None."""
    minutes = range(1, LAST + 1)
    views, clicks = ([json.loads(one) for n in minutes for one in events(name, n)] for name in ("views", "clicks"))
    clicked = {one["view"]: one["click"] for one in clicks}
    return sorted(((one["view"], clicked.get(one["view"])) for one in views), key=str)


def of_rows(rows: list[dict[str, Any]], view: str = "left_view") -> list[tuple[int, int | None]]:
    """Return the view and the click of joined rows, as `expected` does."""
    return sorted(((row[view], row["click"]) for row in rows), key=str)


ONE, TWO = [["--end-of-input"]], [["--until-txid", "1"], ["--end-of-input"]]


def finish(place: Path, servers: str, replaced: dict[str, str], runs: list[list[str]]) -> None:
    """Run the example with parts replaced, once or several times, to the end of input."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in {"127.0.0.1:9092": servers, **replaced}.items():
        assert old in text
        text = text.replace(old, new)
    (place / "clicks.toml").write_text(text)
    for ending in runs:
        printed_by(JOB, "--config", "clicks.toml", "--engine", "local", *ending, "--data-dir", "data", cwd=place)


@pytest.mark.integration
@pytest.mark.slow
def test_two_topics_joined_in_a_state(produced: str, tmp_path: Path):
    """A19, A23: each view is in the table once, with its click or alone, and again in the table of those alone."""
    changes = {'# unmatched_left = "n': 'unmatched_left = "n'}
    finish(tmp_path, produced, changes, [*TWO, *ONE])  # the last finds nothing to do
    assert of_rows(SinkView(tmp_path / "data", "joined").to_pylist()) == expected()
    alone = SinkView(tmp_path / "data", "not-clicked").to_pylist()
    assert sorted(row["view"] for row in alone) == sorted(view for view, click in expected() if click is None)


@pytest.mark.integration
@pytest.mark.slow
def test_two_topics_joined_over_redis_into_a_topic(produced, kafka_broker, redis_server, tmp_path):
    """A19, U12: each view is in the topic once, for readers of committed records."""
    topic = kafka_broker.make_topic(partitions=2)
    store = f'[store]\nurl = "redis://{redis_server.address()}/0"\nretain = "2 h"\nprefix = "{topic}"\n[sink]'
    changes = {
        'variant = "state"': 'variant = "redis"',
        "[sink]": store,
        '"delta"': '"kafka"',
        '"joined"': f'"{topic}"',
    }
    finish(tmp_path, produced, changes, TWO)
    assert of_rows([json.loads(message.value()) for message in messages(produced, topic)]) == expected()


@pytest.mark.integration
@pytest.mark.slow
def test_two_topics_joined_over_a_store_server(produced: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A10, A19: the same over HTTP, with the token from the environment."""
    monkeypatch.setenv("STORE_TOKEN", "secret")
    command = ["store-server", "--store", "memory", "--port", "0"]
    with serving(*command, TXSTORM_STORE_TOKEN="secret") as (listening, _):
        store = f'[store]\nurl = "{listening["url"]}"\ntoken = "$STORE_TOKEN"\nretain = "2 h"\n[sink]'
        finish(tmp_path, produced, {'"state"': '"rest"', "[sink]": store}, ONE)
    assert of_rows(SinkView(tmp_path / "data", "joined").to_pylist()) == expected()


@pytest.mark.integration
@pytest.mark.slow
def test_the_same_in_code_over_two_topics(produced: str, tmp_path: Path):
    """A1, A23: the job that is written out joins the topics of a broker, each with two partitions."""
    target = f"jobs.clicks_and_views:topology({produced!r})"
    command = ["run", target, "--engine", "local", "--end-of-input", "--data-dir", tmp_path / "data"]
    printed_by("-m", "txstorm", *command)
    assert of_rows(SinkView(tmp_path / "data", "joined").to_pylist(), "view") == expected()


PIPELINE = """
name = "clicks-and-views"
servers = "127.0.0.1:9092"
parallelism = 2
[source.views]
type = "kafka"
topic = "views"
fields = { view = "int", ad = "str", at = "int" }
record = ["partition"]
[source.clicks]
type = "kafka"
topic = "clicks"
fields = { click = "int", view = "int", at = "int" }
record = ["partition"]
[step.join]
type = "join"
left = { from = "views", key = "view", time = "at", unit = "ms", partition = "partition", lag = "5 s" }
right = { from = "clicks", key = "view", time = "at", unit = "ms", partition = "partition", lag = "5 s" }
after = "10 min"
before = "0 s"
how = "left"
[sink.joined]
type = "delta"
from = "join"
[sink.not-clicked]
type = "delta"
from = "join.unmatched_left"
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("file", ["join", "pipeline"])
def test_the_same_from_files_that_txstorm_runs(file: str, produced: str, tmp_path: Path):
    """The file of a ready-made join, and a pipeline of the same parts, lead to the rows of plain Python."""
    joined = EXAMPLE.read_text(encoding="utf-8").replace('# unmatched_left = "n', 'unmatched_left = "n')
    text = (joined if file == "join" else PIPELINE).replace("127.0.0.1:9092", produced)
    (tmp_path / "clicks.toml").write_text(text, encoding="utf-8")
    for ending in TWO:
        command = ["run", "clicks.toml", "--engine", "local", *ending, "--data-dir", "data"]
        printed_by("-m", "txstorm", *command, cwd=tmp_path)
    view = "left_view" if file == "join" else "views_view"
    rows = SinkView(tmp_path / "data", "joined").to_pylist()
    assert of_rows(rows, view) == expected()
    assert {row[view]: row["ad"] for row in rows} == {n: f"ad{n % 7}" for n in range(600)}
    alone = SinkView(tmp_path / "data", "not-clicked").to_pylist()
    assert sorted(row["view"] for row in alone) == sorted(view for view, click in expected() if click is None)
