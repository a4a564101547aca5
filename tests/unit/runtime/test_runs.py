"""Runs and their handles, end to end on the local engine."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from watched import Gathering

from txstorm import Committer, KeyedState, SinkTable, TransactionalTopologyBuilder, run
from txstorm.coordinator import journal
from txstorm.errors import InputError, SettingError, StoppedError, TopologyFailed
from txstorm.monitor.live import Watcher, line
from txstorm.operations.status import read_status
from txstorm.runtime.handle import RunHandle
from txstorm.spouts import MemoryTransactionalSpout

PATIENCE = 60


class Count(Gathering, Committer):
    """A word counter; `finish_batch` waits for the gate of its txid, if any, and fails on the word ``boom``."""

    takes = "word"
    state = KeyedState("counts", {"word": str}, {"n": int})
    sink = SinkTable("sizes", {"n": int})
    gates: dict[int, threading.Event] = {}
    waiting: list[int] = []

    def finish_batch(self):
        if "boom" in self.taken:
            raise ValueError("boom")
        if self.attempt.txid in self.gates:
            self.waiting.append(self.attempt.txid)
            self.gates[self.attempt.txid].wait(PATIENCE)
        for word in self.taken:
            self.context.state("counts").update(word, lambda n: (n or 0) + 1)
        self.context.sink("sizes").append(len(self.taken))


def gates(*txids: int) -> dict[int, threading.Event]:
    Count.gates.update({txid: threading.Event() for txid in txids})
    return Count.gates


@pytest.fixture(autouse=True)
def _no_gates() -> Iterator[None]:
    yield
    for gate in Count.gates.values():
        gate.set()
    Count.gates.clear()
    Count.waiting.clear()


def wait(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


class Words:
    """Test harness: starts runs of a word-count topology (memory spout, counting committer) in one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir, self.runs = data_dir, []
        self.source = MemoryTransactionalSpout([["a", "b", "a"]], ["word"], 2)

    def start(self, *, settings: dict[str, Any] | None = None, **options: Any) -> RunHandle:
        builder = TransactionalTopologyBuilder("words", "source", self.source)
        builder.set_bolt("count", Count()).global_grouping("source")
        options = {"engine": "local", "data_dir": self.data_dir, **options}
        handle = run(builder.build_topology(), settings=settings, **options)
        self.runs.append(handle)
        return handle

    def finish(self, **options: Any) -> RunHandle:
        handle = self.start(**options)
        assert handle.awaitTermination(PATIENCE)
        return handle


@pytest.fixture
def words(tmp_path: Path) -> Iterator[Words]:
    made = Words(tmp_path / "data")
    yield made
    for handle in made.runs:
        for gate in Count.gates.values():
            gate.set()
        handle.stop()


def test_available_now_commits_all_existing_data_and_starts_no_empty_transaction(words: Words) -> None:
    words.source = MemoryTransactionalSpout([[]], ["word"], 2)
    handle = words.finish(available_now=True)
    assert (handle.committed, handle.progress.txids) == (0, 0)
    assert handle.state("counts").to_pylist() == []
    words.source.add(0, "a", "b", "a")
    assert words.finish(available_now=True).committed == 2
    assert words.finish(available_now=True).committed == 2
    words.source.add(0, "c")
    again = words.finish(available_now=True)
    assert (again.committed, again.progress.txids) == (3, 1)
    assert [row["n"] for row in again.sink("sizes").to_pylist()] == [2, 1, 1]
    words.source.add(0)
    assert words.finish(available_now=True).progress.txids == 0


def test_without_available_now_a_memory_spout_continues_with_empty_transactions(words: Words) -> None:
    handle = words.start()
    wait(lambda: handle.committed > 5)
    handle.stop()
    assert {row["n"] for row in handle.sink("sizes").to_pylist()[2:]} == {0}


def test_until_txid_ends_there_even_if_nothing_is_left_to_do(words: Words) -> None:
    runs = [words.finish(until_txid=txid) for txid in (4, 4, 2, 5)]
    assert [one.committed for one in runs] == [4, 4, 4, 5]
    assert [one.progress.txids for one in runs] == [4, 0, 0, 1]
    assert len({one.id for one in runs}) == 1  # of the topology
    assert len({one.runId for one in runs}) == 4


def test_process_all_available_covers_existing_data_and_starts_no_empty_transaction(words: Words) -> None:
    gates(2)
    handle = words.start()
    asked = threading.Thread(target=handle.processAllAvailable)
    asked.start()
    wait(lambda: 2 in Count.waiting)
    asked.join(0.05)
    assert asked.is_alive()
    Count.gates[2].set()
    asked.join(PATIENCE)
    assert handle.state("counts").to_pylist() == [{"word": "a", "n": 2}, {"word": "b", "n": 1}]
    before = handle.committed
    wait(lambda: not handle.in_flight)
    settled = handle.committed
    handle.processAllAvailable()
    assert handle.committed == settled >= before
    words.source.add(0, "c", "c", "c")
    handle.processAllAvailable()
    assert handle.committed == settled + 2
    assert handle.state("counts").to_pylist()[-1] == {"word": "c", "n": 3}
    assert handle.isActive


def test_process_all_available_of_a_run_that_ended(words: Words) -> None:
    handle = words.finish(available_now=True)
    with pytest.raises(StoppedError):
        handle.processAllAvailable()
    words.source.add(0, "boom")
    handle = words.start()
    with pytest.raises(TopologyFailed, match="boom"):
        handle.processAllAvailable()


def test_min_interval_applies_within_packs_too(words: Words) -> None:
    words.source.add(0, *"cdefghij")
    handle = words.start(settings={"min_interval": 3600, "max_spout_pending": 8})
    wait(lambda: handle.committed == 1)
    for _ in range(3):
        handle._driver.ask(lambda: None).result(PATIENCE)
        time.sleep(0.02)
    assert (handle.committed, handle.in_flight) == (1, ())
    assert handle.lastProgress.pack == 1


def test_limits_on_pending_packs_and_groups_are_respected(words: Words) -> None:
    words.source.add(0, *("x" for _ in range(77)))
    widths: list[int] = []
    handle = words.finish(
        available_now=True,
        settings={"max_spout_pending": 6, "max_pack_txids": 2, "max_group_txids": 3},
        listeners=[lambda one: widths.append(len(words.runs[-1].in_flight) if words.runs else 0)],
    )
    assert handle.committed == 40
    assert max(widths) <= 6
    done = handle.recentProgress
    assert max(one.pack for one in done) == 2
    assert max(one.group for one in done) <= 3


def test_pack_size_is_tuned_automatically(words: Words) -> None:
    words.source.add(0, *("x" for _ in range(400)))
    handle = words.finish(available_now=True)
    assert max(one.pack for one in handle.recentProgress) > 1
    assert handle.progress.txids == handle.committed == 202


def test_several_processed_txids_wait_while_one_commits(words: Words) -> None:
    words.source.add(0, *("x" for _ in range(20)))
    gates(1)
    handle = words.start(available_now=True, settings={"max_spout_pending": 4, "max_group_txids": 1})
    wait(lambda: [phase for _, _, phase in handle.in_flight] == ["committing", *["processed"] * 3])
    assert (handle.committed, handle.txid) == (0, 1)
    assert [txid for txid, _, _ in handle.in_flight] == [1, 2, 3, 4]
    Count.gates[1].set()
    assert handle.awaitTermination(PATIENCE)
    assert [one.txid for one in handle.recentProgress] == list(range(1, 13))


def test_run_returns_at_once_and_reports_its_status(words: Words) -> None:
    gates(1)
    handle = words.start(until_txid=2)
    assert handle.isActive
    assert not handle.awaitTermination(0.01)
    wait(lambda: 1 in Count.waiting)
    assert (handle.name, handle.txid, handle.committed) == ("words", 1, 0)
    assert (handle.lastProgress, handle.recentProgress) == (None, [])
    assert handle.status["message"] == "running"
    assert handle.status["isDataAvailable"]
    assert handle.status["inFlight"] == 2
    assert "words: running, committed txid 0, 2 in flight" in repr(handle)
    Count.gates[1].set()
    assert handle.awaitTermination()
    assert not handle.isActive
    assert handle.exception() is None
    assert handle.status["phase"] == "stopped"
    assert (handle.txid, handle.committed) == (3, 2)


def test_progress_has_the_names_of_structured_streaming(words: Words) -> None:
    heard: list[int] = []
    handle = words.finish(available_now=True, listeners=[lambda one: heard.append(one.txid)])
    assert heard == [1, 2]
    first, last = handle.recentProgress
    assert last == handle.lastProgress
    assert (first.txid, first.numInputRows, last.numInputRows) == (1, 2, 1)
    assert first.attempt < last.attempt
    assert first.timestamp.endswith("+00:00")
    assert {"process", "finish", "stage", "decide", "publish", "complete"} <= set(first.durationMs)
    document = json.loads(last.json)
    assert document["txid"] == 2
    assert document["numInputRows"] == 1
    assert json.loads(last.prettyJson) == document
    assert list(handle.progress_df()["rows"]) == [2, 1]


def test_results_are_available_from_the_handle_and_the_journal_can_be_replayed(words, tmp_path, capsys) -> None:
    """The settings of the run override those of the topology, also under Storm's keys."""
    path, settings = tmp_path / "journal", {"topology.max.spout.pending": "3"}
    handle = words.finish(available_now=True, journal=path, settings=settings)
    assert handle.topology.settings.max_spout_pending == 3
    assert handle.state("counts").to_pandas().to_dict("list") == {"word": ["a", "b"], "n": [2, 1]}
    assert handle.state("counts").as_of(txid=1).to_pylist() == [{"word": "a", "n": 1}, {"word": "b", "n": 1}]
    assert handle.history().column("txid").to_pylist() == [1, 2]
    handle.explain()
    assert "commit phase" in capsys.readouterr().out
    assert "<td>2</td>" in handle._repr_html_()
    replayed = journal.replay(path.read_text(encoding="utf-8").splitlines())
    assert replayed.difference is None
    assert replayed.state.currtx == 3


def test_work_that_takes_long_shows_how_far_it_is(words: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job and a commit: in the status, the line, and the status that other processes read; nothing afterwards."""
    monkeypatch.setattr("txstorm.runtime.driver.LONG", 0.0)
    monkeypatch.setattr("txstorm.runtime.control.WORK", 0.0)
    gates(2)
    handle = words.start(available_now=True)
    wait(lambda: Count.waiting == [2])
    (working,) = handle.status["working"]
    assert working["text"] in line(Watcher(handle)()) and working["text"].endswith(" s, count[0] at row 1")
    facts = {name: working[name] for name in ("first", "last", "phase", "place", "row")}
    assert facts == {"first": 2, "last": 2, "phase": "committing", "place": "count[0]", "row": 1}
    wait(lambda: [one["place"] for one in read_status(words.data_dir)["working"]] == ["count[0]"])
    Count.gates[2].set()
    assert handle.awaitTermination(PATIENCE)
    assert "working" not in handle.status and read_status(words.data_dir)["working"] == []
    monkeypatch.setattr("txstorm.runtime.driver.LONG", 60.0)
    Count.gates[3] = threading.Event()
    words.source.add(0, "c")
    again = words.start(available_now=True)
    wait(lambda: Count.waiting == [2, 3])
    assert again.progress.working == ()


def test_every_method_of_a_failed_run_reports_the_error(words: Words) -> None:
    words.source.add(0, "c", "boom")
    handle = words.start(available_now=True)
    with pytest.raises(TopologyFailed, match=r"txid 3 .*count\[0\] raised ValueError at .*: boom"):
        handle.awaitTermination(PATIENCE)
    assert isinstance(handle.exception(), TopologyFailed)
    assert handle.status["phase"] == "failed"
    assert "boom" in handle.status["lastFailure"]
    assert "boom" in handle._repr_html_()
    assert {row["word"]: row["n"] for row in handle.state("counts").to_pylist()} == {"a": 2, "b": 1, "c": 1}


def test_the_data_directory_is_named_after_the_topology(words: Words, in_tmp: Path) -> None:
    words.data_dir = None
    handle = words.finish(available_now=True)
    assert handle.data_dir == in_tmp / "txstorm-data" / "words"
    assert handle.data_dir.is_dir()


def test_wrong_arguments_are_rejected_before_anything_is_created(words: Words) -> None:
    refused = [
        ({"engine": "flink"}, InputError, "engine 'flink': expected one of spark, local"),
        ({"until_txid": 0}, InputError, "at least 1, got 0"),
        ({"settings": {"max_pending": 1}}, SettingError, "did you mean 'max_spout_pending'"),
        ({"settings": {"max_jobs": 0}}, SettingError, "max_jobs"),
    ]
    for options, kind, message in refused:
        with pytest.raises(kind, match=message):
            words.start(**options)
    with pytest.raises(InputError, match=r"build_topology\(\)"):
        run(TransactionalTopologyBuilder("words", "source", words.source), engine="local")
    assert not words.data_dir.exists()
