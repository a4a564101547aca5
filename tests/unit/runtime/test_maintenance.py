"""Table maintenance: runs on its own thread, commits its log entry in the committer's turn, and survives I/O errors."""

import threading
import time
from concurrent.futures import Future

import pytest
from runs import counting, ended

from txstorm import faults, run
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import FencedError, TableCorrupt
from txstorm.lanes import Threads
from txstorm.results.read import read_state
from txstorm.runtime import maintenance as upkeep
from txstorm.storage.upkeep import growth
from txstorm.storage.upkeep import small_files as gathering


class Work:
    def __init__(self, steps=2, error=None):
        self.count, self.error, self.thread, self.given_up = steps, error, None, False
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()

    def steps(self):
        self.thread = threading.current_thread().name
        for _ in range(self.count):
            self.begun.set()
            self.go.wait()
            yield
            if self.error is not None:
                raise self.error

    def give_up(self):
        self.given_up = True


class Schedule:
    def __init__(self, *works):
        self.works, self.done, self.error, self.logs = list(works), [], None, []

    def long_log(self):
        return next((log for log in self.logs if log.is_long), None)

    def due(self, now):
        return "state/counts" if self.works else None

    def behind(self):
        return []

    def unsettled(self):
        return []

    def has_superseded(self, now):
        return False

    def begin(self, uri, now, *, stays=False):
        return self.works.pop(0)

    def finish(self, work, now):
        if self.error is not None:
            raise self.error
        self.done.append(work)


class Clocked(Threads):
    """Threads whose monotonic clock the test moves."""

    def __init__(self, bench):
        super().__init__()
        self.monotonic = lambda: bench.now


class Bench:
    """Test harness: an `Upkeep` whose driver thread is the test's own thread."""

    def __init__(self, *works, committed=True):
        self.schedule, self.inbox, self.failures, self.now, self.turns = Schedule(*works), [], [], 0.0, 0
        self.upkeep = upkeep.Upkeep(self.schedule, self.in_turn, self.inbox.append, self.failures.append, Clocked(self))
        if committed:
            self.upkeep.committed()

    def wait(self, seconds):
        self.now += seconds

    def in_turn(self, call):
        done, self.turns = Future(), self.turns + 1
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001 - a future stores any exception
            done.set_exception(error)
        self.turns -= 1
        return done

    def turn(self, steps=10):
        """Run up to `steps` iterations of the driver's loop, waiting for all maintenance threads in each."""
        for _ in range(steps):
            self.upkeep.look(idle=False)
            self.join()
            while self.inbox:
                self.inbox.pop(0)()
                self.join()

    def join(self):
        for thread in self.upkeep._tasks:
            thread.join()


def test_upkeep_works_on_its_own_thread_finishes_in_a_turn_and_ending_waits_for_one_file_only():
    first, second = Work(), Work()
    bench = Bench(first, second)
    bench.turn()
    assert bench.schedule.done == [first, second]
    assert {first.thread, second.thread} == {"txstorm-upkeep"}
    assert bench.failures == []
    bench = Bench(None)  # no work is not a failure
    bench.turn()
    assert bench.failures == []
    work = Work(steps=1000)
    work.go.clear()
    bench = Bench(work)
    bench.upkeep.look(idle=False)
    bench.inbox.pop(0)()
    work.begun.wait()
    work.go.set()
    bench.upkeep.end()
    assert bench.schedule.done == []


@pytest.mark.parametrize("begin", [lambda bench: bench.upkeep.committed(), lambda bench: bench.wait(upkeep.PAUSE)])
def test_upkeep_begins_after_the_first_commit_or_a_pause(begin):
    bench = Bench(Work(), committed=False)
    bench.turn()
    bench.wait(upkeep.PAUSE - 1)
    bench.turn()
    assert bench.schedule.done == []
    begin(bench)
    bench.turn()
    assert len(bench.schedule.done) == 1


@pytest.mark.parametrize("error", [OSError(28, "no space left"), TableCorrupt("a file is missing")])
def test_failed_upkeep_is_retried_later(error, caplog):
    first, second = Work(error=error), Work()
    bench = Bench(first, second)
    bench.turn()
    assert first.given_up
    assert (bench.schedule.done, bench.failures) == ([], [])
    assert "retried later" in caplog.text
    bench.now = upkeep.PAUSE + 1
    bench.turn()
    assert bench.schedule.done == [second]


class Log:
    """A fake table log that counts as too long until it has been shortened."""

    def __init__(self, bench, error=None):
        self.bench, self.error, self.is_long = bench, error, True

    def shortening(self):
        assert self.bench.turns == 1
        return self

    def steps(self):
        assert threading.current_thread().name == "txstorm-log"
        yield
        if self.error is not None:
            raise self.error

    def shortened(self, work):
        assert (work, self.bench.turns) == (self, 1)
        self.is_long = False


def test_long_logs_are_shortened_concurrently_one_per_commit():
    bench = Bench()
    bench.schedule.logs = [Log(bench), Log(bench)]
    for left in (1, 0, 0):
        bench.upkeep.committed()
        bench.upkeep.committed()  # the first call is still in progress
        bench.turn(1)
        assert sum(log.is_long for log in bench.schedule.logs) == left
    assert bench.failures == []


def test_retention_runs_after_compaction_one_step_per_turn_and_its_queries_beside_commits():
    bench, found = Bench(), []

    class Asking(Kept):
        def steps(self):
            self.due = False
            found.append((yield lambda: (threading.current_thread().name, self.bench.turns)))
            found.append((yield None))

    bench.upkeep._retention = Asking(bench)
    bench.turn()
    assert found == [("txstorm-upkeep", 0), None]
    bench = Bench()
    kept = bench.upkeep._retention = Kept(bench)
    works = {"state/a": Work(), "state/b": Work()}
    bench.schedule.unsettled = lambda: list(works)
    bench.schedule.begin = lambda uri, now, *, stays: works[uri]
    bench.turn()
    assert set(bench.schedule.done) == set(works.values())
    assert kept.done == [0, 1, 2]
    kept.due, kept.done = True, []
    bench.upkeep.end()
    bench.upkeep._tasks.clear()
    bench.turn(1)
    assert (kept.done, bench.failures) == ([], [])


class Kept:
    """A fake retention run of three steps, due exactly once."""

    def __init__(self, bench):
        self.bench, self.done, self.due = bench, [], True

    def is_due(self):
        return self.due

    def steps(self):
        self.due = False
        for step in range(3):
            assert self.bench.turns == 1
            self.done.append(step)
            yield


@pytest.mark.parametrize("error", [FencedError("taken over"), ValueError("ours")])
def test_fencing_and_internal_errors_end_the_run(error):
    bench = Bench(Work())
    bench.schedule.error = error
    bench.turn()
    assert bench.failures == [error]
    bench = Bench()
    bench.schedule.logs = [Log(bench, faults.InjectedFault("x"))]
    bench.upkeep.committed()
    bench.turn(1)
    assert [str(failure) for failure in bench.failures] == ["x"]


def kinds(table):
    return [entry.info.get("kind") for entry in DeltaHandle.open(table).history()]


def counts_in(table):
    return {row["word"]: row["n"] for row in table.to_pylist()}


def test_a_run_maintains_its_tables_concurrently_with_commits(tmp_path, monkeypatch):
    for module, name, value in (
        (upkeep, "IDLE_SECONDS", 0.01),
        (gathering, "LEAST_FILES", 4),
        (gathering, "NEWEST", 1),
        (growth, "LEAST_ROWS", 10),
    ):
        monkeypatch.setattr(module, name, value)
    words = [f"w{i % 7}" for i in range(60)]
    settings = {"max_group_txids": 1, "compact_on_stop": False}
    handle = run(counting(words, take=5), engine="local", data_dir=tmp_path / "data", settings=settings)
    handle.processAllAvailable()
    expected = {word: words.count(word) for word in words}
    last = handle.state("counts").to_arrow()
    state, changes = tmp_path / "data/state/counts", tmp_path / "data/changes/counts"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = counts_in(DeltaHandle.open(state).read())
        if found == expected and "regroup" in kinds(changes):
            break
        time.sleep(0.02)
    handle.stop()
    handle.awaitTermination()
    assert found == expected
    assert "compact" in kinds(state)
    assert "regroup" in kinds(changes)
    assert read_state(tmp_path / "data", "counts").to_pylist() == last.to_pylist()


def test_a_state_larger_than_its_memory(tmp_path):
    """The second of two runs over more keys than fit in memory reuses the index of the first."""
    words = [f"w{i}" for i in range(30_000)]
    topology = counting(words + words[:500] + words[:500], take=10_000)
    settings = {"index_cache_bytes": 1 << 20, "max_group_txids": 1}
    for last in (3, 4):
        ended(topology, tmp_path, until_txid=last, settings=settings)
        assert len(list((tmp_path / "index/counts").iterdir())) == 1
    rows = counts_in(read_state(tmp_path, "counts"))
    assert len(rows) == 30_000
    assert {word for word, count in rows.items() if count == 3} == set(words[:500])
    assert sum(rows.values()) == 31_000
