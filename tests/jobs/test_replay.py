"""``jobs/replay.py``: audits find differences from a recorded run, backfills create directories that runs continue."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import spout_samples
from programs import loaded
from user_modules import change, tree

from jobs.replay import main, parser
from txstorm import NOT_READY, BasicBolt, TransactionalTopologyBuilder, run
from txstorm.books.origin import CodeOrigin
from txstorm.engine.local import LocalEngine
from txstorm.replay.backfill import backfill
from txstorm.replay.recording import Recording, Result, Span
from txstorm.results.views import (
    DeadLettersView,
    SinkView,
    StateView,
    committed_txid,
    origin_recorded,
    read_directory_history,
)
from txstorm.runtime.handle import RunHandle
from txstorm.sinks import DeltaSink
from txstorm.topology.graph import Topology

ROOT = Path(__file__).resolve().parents[2]
HELPERS = ROOT / "tests" / "helpers"
Replayed = Callable[..., tuple[int, dict[str, Any], str]]

NET = """
import time

from spout_samples import OpaquePartitionedSpout, PartitionedSpout

from txstorm import BasicBolt, BatchBolt, Committer, FailedException, KeyedState, SinkTable, TransactionalTopologyBuilder
from txstorm.spouts import FileSpout

FACTOR = 1


class Split(BasicBolt):
    fields = ("word",)

    def execute(self, tuple, collector):
        for word in tuple["line"].split():
            collector.emit(word)


class Keep(BatchBolt, Committer):
    state = KeyedState("counts", key={"word": str}, value={"n": int})
    log = SinkTable("log", {"word": str, "n": int})

    def prepare(self, context, collector, attempt):
        self.counts, self.rows, self.batch = context.state("counts"), context.sink("log"), {}

    def execute(self, tuple):
        self.batch[tuple["word"]] = self.batch.get(tuple["word"], 0) + 1

    def finish_batch(self):
        for word, n in self.counts.update_many(self.batch, lambda old, n: (old or 0) + FACTOR * n).items():
            self.rows.append(word, n)


def built(spout, name):
    builder = TransactionalTopologyBuilder(name, "lines", spout, 2)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    builder.set_bolt("keep", Keep(), 2).fields_grouping("split", ["word"])
    builder.set_setting("max_group_txids", 2)
    return builder.build_topology()


class TwoParts:
    fields = ("line",)

    def num_partitions(self):
        return 2


class Lines(TwoParts, PartitionedSpout):
    def emit_partition_batch_new(self, attempt, collector, partition, last):
        at = 0 if last is None else last["to"]
        self.emit_partition_batch(attempt, collector, partition, {"from": at, "to": at + 2})
        return {"from": at, "to": at + 2}

    def emit_partition_batch(self, attempt, collector, partition, metadata):
        for line in lines(partition)[metadata["from"] : metadata["to"]]:
            collector.emit(line)


class Opaque(TwoParts, OpaquePartitionedSpout):
    def emit_partition_batch(self, attempt, collector, partition, last):
        at = 0 if last is None else last
        found = lines(partition)[at : at + 2]
        for line in found:
            collector.emit(line)
        return at + len(found)


def lines(partition):
    return open(f"part{partition}.txt").read().splitlines()


files = built(FileSpout("books/*.txt", max_batch_rows=2), "files")
parts = built(Lines(), "parts")
opaque = built(Opaque(), "opaque")
"""


@pytest.fixture
def net(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the current directory, which has a module `net` with three topologies, and their input files."""
    (in_tmp / "books").mkdir()
    parts = ["\n".join(f"w{part} v{number % 3}" for number in range(12)) for part in (0, 1)]
    files = {"net.py": NET, "part0.txt": parts[0], "part1.txt": parts[1]}
    files |= {"books/a.txt": "a b\nb c\nc d\nd e\ne a\n", "books/b.txt": "x\ny x\nz\n"}
    for name, text in files.items():
        (in_tmp / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(in_tmp))
    yield in_tmp
    sys.modules.pop("net", None)


@pytest.fixture
def replayed(capsys: pytest.CaptureFixture[str]) -> Replayed:
    """Return a function that runs the replay job in this process, with the topology recorded in ``data``.

    It returns the exit code, the last line of output (parsed JSON), and the standard error output."""

    def call(*arguments: str, data_dir: str = "data") -> tuple[int, dict[str, Any], str]:
        origin = origin_recorded("data")
        assert origin is not None and origin.target is not None
        capsys.readouterr()
        code = main(["--engine", "local", "--topology", origin.target, "--data-dir", data_dir, *arguments])
        captured = capsys.readouterr()
        return code, json.loads(captured.out.splitlines()[-1]), captured.err

    return call


def ran(name: str = "files", data_dir: str = "data", txid: int = 5) -> RunHandle:
    """Run the topology `name` of the module `net` to the end of its files, or to a txid if it reads partitions."""
    import net

    how = {"available_now": True} if name == "files" else {"until_txid": txid}
    handle = run(getattr(net, name), engine="local", data_dir=data_dir, **how)
    handle.awaitTermination()
    return handle


def counts(data_dir: str, txid: int | None = None) -> dict[str, int]:
    return {row["word"]: row["n"] for row in StateView(Path(data_dir), "counts", txid).to_pylist()}


@pytest.mark.parametrize("name", ["files", "parts", "opaque"])
def test_an_audit_without_changes_finds_no_difference(net: Path, replayed: Replayed, name: str):
    committed = ran(name).committed
    before = tree(net / "data")
    code, result, err = replayed()
    assert code == 0, err
    assert (result.pop("seconds") >= 0, result.pop("tuples") > 0) == (True, True)
    numbers = dict.fromkeys(("to_txid", "txids", "equal"), committed)
    assert result == {"topology": name, "from_txid": 1, **numbers, "different": [], "into": None}
    assert tree(net / "data") == before


SPLIT, FINISH = "        for word in tuple", "        for word, n in self"
"""Where the bolt that splits lines, and the committer, begin their work."""


def change_opaque(net: Path) -> None:
    """Change the first line of a part, and drop those from the fifth on."""
    rows = (net / "part1.txt").read_text().splitlines()
    (net / "part1.txt").write_text("\n".join(["new words", *rows[1:4]]), encoding="utf-8")


DIFFERENT = {
    # Txid 2 has the changed line; later txids are compared based on the committed state, not on the replayed one.
    "changed data": (lambda net: change(net / "books/a.txt", "c d", "c q"), [2], ["txid 2", "a.txt", "changed"]),
    "missing data": (lambda net: (net / "books/b.txt").unlink(), [3, 4], ["b.txt"]),
    "changed code": (
        lambda net: change(net / "net.py", "for word in tuple", 'for word in () if "x" in tuple["line"] else tuple'),
        [3, 4],
        ["changes/counts: 1 rows differ", 'word="x"', "sinks/log"],
    ),
    "code that fails": (
        lambda net: change(net / "net.py", SPLIT, f'        assert tuple["line"] != "d e"\n{SPLIT}'),
        [2],
        ["AssertionError"],
    ),
    "changed opaque source": (
        change_opaque,
        [1, 3, 4, 5],
        ["the spout is opaque", "read other extents than were recorded"],
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_an_audit_explains_differences_and_continues(net: Path, replayed: Replayed, what: str):
    make, different, reasons = DIFFERENT[what]
    committed = ran("opaque" if "opaque" in what else "files").committed
    before = tree(net / "data")
    make(net)
    code, result, err = replayed()
    assert (code, result["different"], result["equal"]) == (1, different, committed - len(different)), err
    assert [one for one in reasons if one not in err] == []
    code, result, err = replayed("--from-txid", "2", "--to-txid", "4")
    assert (code, result["txids"], result["different"]) == (1, 3, [txid for txid in different if 2 <= txid <= 4]), err
    assert tree(net / "data") == before


def test_a_batch_that_raises_failed_exception_is_retried(net: Path, replayed: Replayed):
    ran()
    often = "        open('tries', 'a').write('.')\n        if os.path.getsize('tries') < 3: raise FailedException\n"
    change(net / "net.py", SPLIT, f"        import os\n{often}{SPLIT}")
    code, result, err = replayed()
    assert (code, result["equal"]) == (0, 4), err


REFUSED = [
    (("--to-txid", "9"), "txid 9 is not committed; the last one is 4"),
    (("--from-txid", "0"), "txid 0 is not committed"),
    (("--from-txid", "3", "--to-txid", "2"), "ends before it begins"),
    (("--into", "data"), "expected a directory that is new or empty"),
    (("--into", "net.py"), "expected a directory that is new or empty"),
    (("--into", "data/deeper"), "lies inside data"),
    (("--into", "new", "--from-txid", "2"), "a backfill begins with txid 1"),
    (("--topology", "net:parts"), "the code is that of 'parts'"),
]


def test_invalid_replay_requests_are_rejected(net: Path, replayed: Replayed):
    ran()
    before = tree(net / "data")
    for arguments, said in REFUSED:
        for more in ((), ("--dry-run",)):
            code, result, _ = replayed(*arguments, *more)
            assert (code, result["error"]["exit_code"]) == (2, 2), arguments
            assert said in result["error"]["message"]
    assert (tree(net / "data"), (net / "new").exists()) == (before, False)


@pytest.mark.parametrize("more", [(), ("--into", "new"), ("--dry-run",)])
def test_the_recorded_code_is_not_imported_without_topology_option(net, capsys, more):
    ran()
    sys.modules.pop("net")
    assert main(["--engine", "local", "--data-dir", "data", *more]) == 2
    error = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    words = " ".join(["--data-dir data", *more[:2], "--engine local"] if more != ("--dry-run",) else [])
    exact = f"python jobs/replay.py {words or '--data-dir data --engine local --dry-run'} --topology net:files"
    assert error["message"].endswith(exact), error
    assert ("net" in sys.modules, (net / "new").exists()) == (False, False)


def test_a_dry_run_checks_but_runs_nothing(net: Path, replayed: Replayed):
    ran()
    code, result, err = replayed("--into", "new", "--dry-run")
    assert (code, result["to_txid"], result["txids"], (net / "new").exists()) == (0, 4, 0, False)
    assert "a backfill into" in err and "nothing was run" in err
    shutil.rmtree(net / "books")
    code, result, _ = replayed("--dry-run")
    assert (code, result["error"]["type"]) == (2, "SpoutError")


def history(directory: Path) -> list[tuple[Any, ...]]:
    """Return the history columns that a backfill preserves, one row per txid."""
    rows = read_directory_history(directory).to_pylist()
    return [(row["txid"], row["attempt"], row["stamp"], row["digest"], row["extents"]) for row in rows]


@pytest.mark.parametrize("name", ["files", "parts", "opaque"])
def test_a_run_continues_after_a_backfill_with_changed_code(net: Path, replayed: Replayed, name: str):
    ran(name, txid=4)
    before, recorded = tree(net / "data"), history(net / "data")
    change(net / "net.py", "FACTOR = 1", "FACTOR = 100")
    code, result, err = replayed("--into", "new")
    assert code == 0, err
    assert (result["txids"], result["equal"], result["into"]) == (4, 4, str(net / "new"))
    assert tree(net / "data") == before
    assert history(net / "new") == recorded
    new = counts("new")
    assert new == {word: 100 * n for word, n in counts("data").items()}

    # The new directory is a normal one: it can be audited, and a run continues after the backfilled range.
    code, audited, _ = replayed(data_dir="new")
    assert (code, audited) == (0, {**result, "seconds": audited["seconds"], "into": None})
    (net / "books/c.txt").write_text("a a\n", encoding="utf-8")
    ran(name, "new")
    assert committed_txid(net / "new") == 5
    assert [row[0] for row in history(net / "new")] == [1, 2, 3, 4, 5]
    after = counts("new")
    expected = {"a": new["a"] + 200} if name == "files" else {"w0": new["w0"] + 200, "w1": new["w1"] + 200}
    assert {word: after[word] for word in expected} == expected


def test_a_partial_backfill(net: Path, replayed: Replayed):
    ran()
    code, result, _ = replayed("--into", "new", "--to-txid", "3")
    assert (code, result["txids"]) == (0, 3)
    assert committed_txid(net / "new") == 3
    assert StateView(net / "new", "counts").to_json() == StateView(net / "data", "counts", 3).to_json()


ENDING = {
    "code that fails": (
        lambda net: change(net / "net.py", FINISH, f'        assert "x" not in self.batch\n{FINISH}'),
        (1, "TopologyFailed", ["txid 3", "net.py"]),
    ),
    "missing data": (lambda net: (net / "books/b.txt").unlink(), (2, "SpoutError", [])),
    "changed opaque source": (
        lambda net: (net / "part1.txt").write_text("\n".join((net / "part1.txt").read_text().splitlines()[:4])),
        (2, "SpoutError", ["txid 3: the spout read other extents"]),
    ),
}


@pytest.mark.parametrize("what", ENDING)
def test_what_ends_a_backfill_after_the_preceding_txids(net: Path, replayed: Replayed, what: str):
    make, (exit_code, kind, reasons) = ENDING[what]
    ran("opaque" if "opaque" in what else "files", txid=4)
    make(net)
    code, result, err = replayed("--into", "new")
    assert (code, result["error"]["type"]) == (exit_code, kind)
    assert [one for one in reasons if one not in result["error"]["message"]] == []
    assert "code" not in what or "holds 2 of the 4 txids" in err
    assert committed_txid(net / "new") == 2


@pytest.mark.parametrize("place", ["tasks", "committers"])
def test_failures_in_a_backfill_are_retried_twice_under_the_recorded_attempt(net: Path, replayed: Replayed, place: str):
    ran()
    line = SPLIT if place == "tasks" else FINISH
    fail = "        FAILED.append(1)\n        if len(FAILED) in range(LEAST, MOST): raise FailedException('not now')\n"
    change(net / "net.py", line, fail + line)
    change(net / "net.py", "FACTOR = 1", "FACTOR = 1\nFAILED = []\nLEAST, MOST = 1, 3")
    code, result, err = replayed("--into", "new")
    assert (code, result["equal"]) == (0, 4), err
    assert history(net / "new") == history(net / "data")
    change(net / "net.py", "LEAST, MOST = 1, 3", "LEAST, MOST = 1, 1000")
    code, result, _ = replayed("--into", "newer")
    assert (code, "failed 3 times" in result["error"]["message"]) == (1, True)
    assert committed_txid(net / "newer") == 0


def kill_backfill(net: Path) -> None:
    """Run ``net:files``, and kill a backfill of it into ``new`` during the commit of txid 3, after its first group."""
    ran()
    change(net / "net.py", FINISH, f'        if "x" in self.batch: time.sleep(60)\n{FINISH}')
    command = [ROOT / "jobs/replay.py", "--engine", "local", "--topology", "net:files"]
    command += ["--data-dir", "data", "--into", "new"]
    process = loaded().start(*command, env={**os.environ, "PYTHONPATH": f"{ROOT}:{HELPERS}"})
    try:
        limit = time.monotonic() + 60
        while not (net / "new/ledger.db").exists() or committed_txid(net / "new") < 1:
            assert time.monotonic() < limit and process.poll() is None
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    assert committed_txid(net / "new") < 3
    change(net / "net.py", "time.sleep(60)", "pass")


def test_a_killed_backfill_continues_as_a_run_or_resumes(net: Path, replayed: Replayed):
    """A backfill must be restarted in another directory; one that resumes uses the recorded attempts and timestamps."""
    kill_backfill(net)
    code, result, _ = replayed("--into", "new")
    assert (code, "new or empty" in result["error"]["message"]) == (2, True)
    # Transactions committed before the kill are kept, and a run of the topology continues after them.
    shutil.copytree("new", "run")
    ran(data_dir="run")
    assert StateView(net / "run", "counts").to_json() == StateView(net / "data", "counts").to_json()
    before, committed = committed_txid(net / "new"), list[int]()
    import net as module

    resumed = backfilled(module.files, net / "data", net / "new", committed.append)
    assert (resumed.txids, resumed.equal, resumed.different) == (4, 4, [])
    assert committed == list(range(before + 1, 5))
    assert history(net / "new") == history(net / "data")
    old, new = ((StateView(net / one, "counts"), SinkView(net / one, "log")) for one in ("data", "new"))
    assert [view.to_pylist() for view in new] == [view.to_pylist() for view in old]


def backfilled(
    topology: Topology, data: Path, into: Path, committed: Callable[[int], None] = lambda txid: None
) -> Result:
    """Backfill all of `data` into `into` on the local engine, even if `into` already has committed txids."""
    recording = Recording(data)
    span = Span(1, recording.committed)
    return backfill(topology, recording, span, into, LocalEngine(), CodeOrigin(None, "", ""), committed)


class Bad(BasicBolt):
    fields = ("line",)

    def execute(self, tuple, collector):
        if tuple["line"] == "bad":
            raise ValueError("a bad line")
        collector.emit(tuple["line"])


LINES = ("good", "bad", "good", "worse", "good")
CLEANED: list[int] = []


class Cleaned(spout_samples.PlainSpout):
    """A spout of one line of `LINES` per txid; "worse" fails the whole batch. Records calls of `cleanup_before`."""

    fields = ("line",)

    def initialize_transaction(self, txid, previous):
        return NOT_READY if txid > len(LINES) else txid - 1

    def emit_batch(self, attempt, metadata, collector):
        if LINES[metadata] == "worse":
            raise ValueError("no line can be read")
        collector.emit(LINES[metadata])

    def cleanup_before(self, txid):
        CLEANED.append(txid)


@pytest.mark.filterwarnings("ignore::txstorm.errors.DeadLettersWarning")
def test_a_backfill_skips_dead_letters_and_cleans_up_nothing(tmp_path: Path):
    """A backfill skips the same dead letters (records and a whole batch), and calls no `cleanup_before`."""
    builder = TransactionalTopologyBuilder("letters", "lines", Cleaned(), 1)
    builder.set_bolt("bad", Bad(), 1).shuffle_grouping("lines")
    builder.set_bolt("log", DeltaSink("log", {"line": str}), 1).global_grouping("bad")
    # Batches begin after commits, of which emitters hear.
    one_by_one = {"max_pack_txids": 1, "max_spout_pending": 1}
    builder.set_settings({"on_error": "dead_letter", "max_dead_letters": 10, **one_by_one})
    topology = builder.build_topology()
    run(topology, engine="local", data_dir=tmp_path / "data", until_txid=len(LINES)).awaitTermination()
    assert CLEANED
    CLEANED.clear()
    result = backfilled(topology, tmp_path / "data", tmp_path / "new")
    assert (result.txids, result.different) == (len(LINES), [])
    assert CLEANED == []
    assert history(tmp_path / "new") == history(tmp_path / "data")
    old, new = (SinkView(tmp_path / one, "log").to_pylist() for one in ("data", "new"))
    assert new == old and len(new) == 3
    old, new = (DeadLettersView(tmp_path / one).to_pylist() for one in ("data", "new"))
    assert [row["_txid"] for row in new] == [row["_txid"] for row in old] == [2, 4]


@pytest.mark.spark
def test_an_audit_and_a_backfill_on_spark(spark: Any, net: Path, capsys: pytest.CaptureFixture[str]):
    ran()
    change(net / "books/b.txt", "y x", "y z")
    spark.sparkContext.addPyFile(str(net / "net.py"))
    assert main(["--data-dir", "data", "--topology", "net:files"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["different"] == [4]
    assert main(["--data-dir", "data", "--topology", "net:files", "--into", "new", "--to-txid", "3"]) == 0
    assert StateView(net / "new", "counts").to_json() == StateView(net / "data", "counts", 3).to_json()


def test_help_explains_the_command():
    shown = parser().format_help()
    for word in ("--data-dir", "--into", "--dry-run", "spark-submit", "backfill", "audit", "Exit codes"):
        assert word in shown
