"""Topologies of the Hailstorm builder: sources and instances, refusals, and sinks of every N-th tuple."""

import json
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from crashes import crashing
from outlet_nets import MemoryWriter, Target
from programs import loaded
from recovery_cases import environment
from runs import ended

from txstorm import BatchBolt, Committer, MonoidBolt, TransactionalSpout
from txstorm.api.external import Outlet
from txstorm.api.spout import SpoutCoordinator
from txstorm.errors import BlockedError, InputError, StateError, TopologyError, TopologyFailed
from txstorm.hailstorm import FileSink, HailstormFileSource, HailstormTopologyBuilder, LinesSink, Sink, console
from txstorm.monoids import Sum
from txstorm.results.views import DeadLettersView
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout, RateSpout
from txstorm.topology.graph import Topology


def files(place: Path, **lines: str) -> list[Path]:
    for name, text in lines.items():
        (place / f"{name}.txt").write_text("".join(f"{word}\n" for word in text.split()), encoding="utf-8")
    return [place / f"{name}.txt" for name in lines]


def pair(record: bytes) -> tuple[str, int]:
    word, _, n = record.decode().partition("=")
    return word, int(n or 1)


def summed(handle) -> dict[str, int]:
    return {row["word"]: row["state"] for row in handle.state("sums").to_pylist()}


def sums(builder: HailstormTopologyBuilder, *sources: str, tasks: int = 2) -> Topology:
    declared = builder.set_bolt("sums", MonoidBolt("sums", Sum(), "word"), tasks)
    for source in sources:
        declared.fields_grouping(source, "word")
    return builder.build_topology()


@pytest.mark.parametrize("instances", [1, 2, 3])
def test_several_sources_become_one_spout_and_bolts_read_them_by_name(tmp_path, instances):
    one = HailstormFileSource(files(tmp_path, a="x y x", b="y z=5", c="x"))
    two = MemoryTransactionalSpout({0: [("y", 10)], 3: [("z", 20)]}, ["word", "n"])
    builder = HailstormTopologyBuilder("pages").set_spout("one", one, pair, ["word", "n"], instances, max_batch_rows=2)
    topology = sums(builder.set_spout("two", two), "one", "two")
    handle = ended(topology, tmp_path / "data")
    assert summed(handle) == {"x": 3, "y": 12, "z": 25}
    assert handle.clock() == {"one/a": 2, "one/b": 1, "one/c": 0, "two/0": 0, "two/3": 0}
    assert topology.spout.parallelism == instances


def test_a_record_may_give_no_tuple_or_several_and_one_that_cannot_be_converted_is_a_letter(tmp_path):
    """The place of a refused record is in its letter; tuples that cannot be sent are at the place of their record."""
    source = HailstormFileSource(files(tmp_path, a="1 x 3 -5 0 2"))
    made = lambda record: [(record.decode(), 1)] * n if (n := int(record)) > 0 else (None if n == 0 else (0, 1, 2))  # noqa: E731
    builder = HailstormTopologyBuilder("words").set_spout("source", source, made, ["word", "n"], max_batch_rows=4)
    topology = sums(builder.set_setting("on_error", "dead_letter"), "source")
    handle = ended(topology, tmp_path / "data")
    assert summed(handle) == {"1": 1, "2": 2, "3": 3}
    letters = [json.loads(one["record"]) for one in DeadLettersView(handle.data_dir).to_pylist()]
    assert [(one["offset"], one["partition"]) for one in letters] == [(1, "a"), (3, "a")]


class Timeless(TransactionalSpout):
    fields = ("value",)

    def coordinator(self, context):
        return SpoutCoordinator()


def source(place: Path) -> HailstormFileSource:
    return HailstormFileSource(files(place, a="x"))


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda b, p: None, "it has no spout; add one with set_spout"),
        (lambda b, p: b.set_spout("s", FileSpout(p / "a.txt"), pair, "w"), "'s': FileSpout reads its files one after"),
        (lambda b, p: b.set_spout("s", RateSpout(5)), "has no clocks; use HailstormFileSource"),
        (lambda b, p: b.set_spout("s", Timeless(), pair, "w"), "'s': .*Timeless.* has no clocks"),
        (
            lambda b, p: b.set_spout("s", "words.txt", pair, "w"),
            "'words.txt' has no clocks; .* kafka://HOST:PORT/TOPIC",
        ),
        (lambda b, p: b.set_spout("s", source(p)), "'s': give a convert function, which turns a record"),
        (lambda b, p: b.set_spout("s", source(p), pair), "'s': give a convert function and the fields"),
        (lambda b, p: b.set_spout("s", source(p), "pair", "w"), "'s': give a convert function and the fields"),
        (lambda b, p: [b.set_spout("s", source(p), pair, "w") for _ in range(2)], "spout 's' is there twice"),
        (lambda b, p: b.set_spout("s", source(p), pair, "w", 0), "instances: expected an int of at least 1, got 0"),
        (lambda b, p: b.set_spout("s", source(p), pair, "w", max_batch_rows=True), "max_batch_rows: expected an int"),
        (lambda b, p: b.set_sink("s", 5), "expected a committer such as LinesSink, or a function"),
        (lambda b, p: Sink(console(), 0), "every: expected an int of at least 1, got 0"),
        (lambda b, p: LinesSink("x.txt", 5), "text: expected a function of a tuple's values, got 5"),
        (lambda b, p: LinesSink("x.txt", name="no name"), "LinesSink: name"),
        (
            lambda b, p: b.set_spout("s", source(p), pair, "w").set_bolt("k", Sink(print), 2).shuffle_grouping("s"),
            "a sink has one task, and counts the tuples that arrive; it has 2",
        ),
    ],
)
def test_refusals(tmp_path, declare, told):
    files(tmp_path, a="x")
    builder = HailstormTopologyBuilder("t")
    with pytest.raises(InputError, match=told):
        declare(builder, tmp_path)
        builder.build_topology()


def test_all_faults_of_a_declaration_come_at_once():
    builder = HailstormTopologyBuilder("t").set_spout("s", Timeless(), pair, "w").set_spout("r", RateSpout(5))
    builder.set_bolt("x", MonoidBolt("x", Sum(), "other")).fields_grouping("s", "other")
    with pytest.raises(TopologyError) as refused:
        builder.build_topology()
    assert len(refused.value.faults) >= 3
    assert refused.value.faults == builder.validate().faults


def numbers(place: Path, consumer, every: int, rows: int = 13, take: int = 3) -> Topology:
    spout = MemoryTransactionalSpout(
        [[(n, datetime(2024, 1, 1, 0, n, tzinfo=UTC)) for n in range(1, rows + 1)]], ["n", "at"], take
    )
    builder = HailstormTopologyBuilder("numbers").set_spout("source", spout)
    for name, one in consumer.items() if isinstance(consumer, dict) else [("sink", consumer)]:
        builder.set_sink(name, Sink(one, every)).global_grouping("source")
    return builder.build_topology()


class Send(BatchBolt, Committer):
    def __init__(self, target: Target) -> None:
        self.outlet = Outlet("numbers", {"n": int}, MemoryWriter(target))

    def prepare(self, context, collector, attempt):
        self.sink, self.taken = context.sink("numbers"), []

    def execute(self, tuple):
        self.taken.append(tuple["n"])

    def finish_batch(self):
        for n in self.taken:
            self.sink.append(n)


@pytest.mark.parametrize("every", [1, 4, 50])
def test_a_sink_passes_on_every_nth_tuple_over_restarts_and_at_the_end_the_last_one(tmp_path, every):
    """Items of rows H24 and H37: a function, a file, lines, a table and an outlet behind the same sink."""
    calls, target = [], Target()
    consumers = {
        "function": lambda values, txid, number: calls.append((values, txid, number)),
        "lines": LinesSink(tmp_path / "lines.txt", lambda values: f"{values[0]}"),
        "file": FileSink(tmp_path / "file.txt", lambda values: f"{values[0]}\n{values[1]:%M}"),
        "delta": DeltaSink("rows", {"at": datetime, "n": int}),
        "send": Send(target),
    }
    expected = [n for n in range(1, 14) if n % every == 0 or n == 13]
    for stop in ({"until_txid": 1}, {"until_txid": 4}, {}, {"end_of_input": True}):
        handle = ended(numbers(tmp_path, consumers, every), tmp_path / "data", **stop)
    assert handle.state("lines-seen").to_pylist() == [{"sink": 0, "seen": 13, "last": None}]
    at = {n: datetime(2024, 1, 1, 0, n, tzinfo=UTC) for n in expected}
    due = [(values, number) for values, txid, number in calls]
    assert due == [((n, at[n]), n) for n in expected]
    assert [txid for values, txid, number in calls][:1] == [-(-expected[0] // 3) if every <= 13 else handle.committed]
    assert (tmp_path / "lines.txt").read_text() == "".join(f"{n}\n" for n in expected)
    assert (tmp_path / "file.txt").read_text() == "13\n13\n"
    rows = handle.sink("rows").to_pylist()
    assert [(one["n"], one["at"]) for one in rows] == [*at.items()]
    assert [one["n"] for one in target.rows] == expected


@pytest.mark.parametrize("point", ["p6.after", "p7.2.before", "p7.2.written", "p8.before"])
def test_lines_are_there_once_after_a_crash_at_every_step(tmp_path, point):
    path = tmp_path / "lines.txt"
    path.write_text("before\n")
    topology = numbers(tmp_path, LinesSink(path, lambda values: f"line {values[0]}"), 1)
    for nth in (2, 1):
        with crashing(point, nth):
            ended(topology, tmp_path / "data", settings={"max_group_txids": 1})
        with path.open("a") as file:
            file.write("torn")  # what is behind the last mark is cut off
    ended(topology, tmp_path / "data")
    assert path.read_text() == "before\n" + "".join(f"line {n}\n" for n in range(1, 14))


def lines(place: str) -> Topology:
    return numbers(Path(place), LinesSink(f"{place}/lines.txt", lambda values: f"line {values[0]}"), 1)


@pytest.mark.integration
def test_killed_between_the_lines_and_their_mark_and_killed_again_while_they_are_rolled_forward(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    command = ["-m", "txstorm", "run", f"test_hailstorm_topologies:lines({str(tmp_path)!r})", "--engine", "local"]
    command += ["--data-dir", tmp_path / "data", "--available-now", "--set", "max_group_txids=1"]
    # The first passage of a run takes the file over, and writes nothing.
    for fault in ("file.written:kill:3", "file.written:kill:2", "file.written:kill:1", "p7.2.written:kill:2", ""):
        done = loaded().run(*command, env=environment(TXSTORM_FAULT=fault))
        assert done.returncode == (-signal.SIGKILL if fault else 0), done.stderr
    assert (tmp_path / "lines.txt").read_text() == "".join(f"line {n}\n" for n in range(1, 14))


def test_text_files_refuse_others_and_what_is_no_line(tmp_path, capsys):
    path = tmp_path / "lines.txt"
    with pytest.raises(TopologyFailed, match=r"expected a line of .*: a line has no line end"):
        ended(
            numbers(tmp_path, LinesSink(tmp_path / "bad.txt", lambda values: "a\nb"), 1),
            tmp_path / "bad",
        )
    ended(numbers(tmp_path, LinesSink(path), 4), tmp_path / "data", until_txid=2)
    assert path.read_text() == "4, 2024-01-01 00:04:00+00:00\n"
    with pytest.raises(StateError, match="belongs to topology 'numbers'"):
        ended(numbers(tmp_path, LinesSink(path), 4), tmp_path / "other")
    path.write_text("")
    with pytest.raises(StateError, match="has 0 bytes, expected 29: it was cut since"):
        ended(numbers(tmp_path, LinesSink(path), 4), tmp_path / "data")
    with pytest.raises(InputError, match="its directory does not exist"):
        ended(numbers(tmp_path, LinesSink(tmp_path / "no" / "x"), 4), tmp_path / "none")
    path.with_name("lines.txt.mark").write_text("{}")
    with pytest.raises(StateError, match="is no mark of a sink"):
        ended(numbers(tmp_path, LinesSink(path), 4), tmp_path / "data")

    def failing(values, txid, number):
        raise OSError("the line is dead")

    with pytest.raises(BlockedError, match="the line is dead"):
        ended(numbers(tmp_path, failing, 4), tmp_path / "calls", settings={"retry_backoff": 0})
    ended(numbers(tmp_path, console("n "), 4), tmp_path / "calls")
    assert [line[:6] for line in capsys.readouterr().out.splitlines()] == ["n 4: 4", "n 8: 8", "n 12: "]


def test_an_opaque_source_replays_into_sinks_without_repeats(tmp_path):
    spout = OpaqueMemoryTransactionalSpout([list(range(20))], "n", 3)
    builder = HailstormTopologyBuilder("opaque").set_spout("source", spout)
    builder.set_sink("sink", LinesSink(tmp_path / "lines.txt")).global_grouping("source")
    topology = builder.set_setting("max_group_txids", 1).build_topology()
    with crashing("p6.before", 3):
        ended(topology, tmp_path / "data")
    spout.set_take(5)
    ended(topology, tmp_path / "data")
    assert (tmp_path / "lines.txt").read_text().split() == [str(n) for n in range(20)]
