"""The setting max_dead_letters: the txid at which a run ends, its committed rows, and its error message."""

import json
from contextlib import nullcontext
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace

import pytest
from seeded import seeded

from txstorm import (
    BasicBolt,
    CompositeSpout,
    Duration,
    FailedException,
    TransactionalTopologyBuilder,
    WindowAggregate,
    run,
)
from txstorm.api.spout import Emitter
from txstorm.errors import DeadLettersWarning, SettingError, TooManyDeadLetters, TopologyFailed
from txstorm.joins import IntervalJoin, MemoryStore, Side, StoreFeed
from txstorm.results.read import read_letters, read_sink
from txstorm.runtime.failures import LetterLimit, Tally
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.spouts.kafka.decode import decoder
from txstorm.spouts.kafka.records import emit_records

pytestmark = pytest.mark.filterwarnings("ignore::txstorm.errors.DeadLettersWarning")


class Shaky(BasicBolt):
    """A bolt that always raises for negative numbers, and fails some batches at their first attempt only."""

    fields = ("n",)

    def __init__(self, fails):
        self.fails = fails

    def prepare(self, context):
        self.attempt = context.attempt

    def execute(self, tuple, collector):
        if self.attempt.txid in self.fails and FAILED.setdefault(self.attempt.txid, 0) < 3:
            FAILED[self.attempt.txid] += 1
            raise FailedException
        if tuple["n"] < 0:
            raise ValueError(tuple["n"])
        collector.emit(tuple["n"])


FAILED = {}


def started(numbers, data_dir, fails=(), take=2, **settings):
    FAILED.clear()
    builder = TransactionalTopologyBuilder("limited", "numbers", MemoryTransactionalSpout([numbers], "n", take=take))
    builder.set_bolt("shaky", Shaky(fails)).shuffle_grouping("numbers")
    builder.set_committer_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("shaky")
    builder.set_settings({"on_error": "dead_letter", "retry_backoff": 0.001, **settings})
    return run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True)


def kept(data_dir):
    return sorted(read_sink(data_dir, "rows")["n"].to_pylist())


def left_out(data_dir):
    return sorted(json.loads(one)["n"] for one in read_letters(data_dir)["record"].to_pylist())


def test_the_run_ends_before_the_commit_that_would_exceed_the_limit(data_dir):
    numbers = [1, 2, -3, 4, -5, -6, 7, 8]
    handle = started(numbers, data_dir, max_dead_letters=2)
    with pytest.raises(TooManyDeadLetters) as caught:
        handle.awaitTermination(60)
    assert handle.exception() is caught.value
    message = str(caught.value)
    assert "txid 3 is not committed: with it the dead letters are 3 of 6 input rows of this run, more than" in message
    assert (
        "max_dead_letters=2; what is before it is committed. Left out of it would be: shaky: ValueError: -5, and 1"
        in message
    )
    assert f"txstorm dead-letters {data_dir}" in message
    assert (kept(data_dir), left_out(data_dir)) == ([1, 2, 4], [-3])
    # started again, nothing of it is lost or doubled
    handle = started(numbers, data_dir, max_dead_letters=3)
    with pytest.warns(DeadLettersWarning, match=r"topology limited: 2 records were left out; see: txstorm dead"):
        handle.awaitTermination(60)
    assert (kept(data_dir), left_out(data_dir)) == ([1, 2, 4, 7, 8], [-6, -5, -3])


def test_none_at_all(data_dir):
    with pytest.raises(TooManyDeadLetters, match=r"txid 2 is not committed: with it the dead letters are 1 of 4 input"):
        started([1, 2, 3, -4], data_dir, max_dead_letters="0").awaitTermination(60)
    assert (kept(data_dir), left_out(data_dir)) == ([1, 2], [])


def test_a_percentage_of_a_short_input_counts_at_the_end(data_dir):
    handle = started([1, 2, 3, -4], data_dir, max_dead_letters="20%")
    expected = r"everything is committed, but the dead letters are 1 of 4 .*=20%; see them"
    with pytest.raises(TooManyDeadLetters, match=expected):
        handle.awaitTermination(60)
    assert (kept(data_dir), left_out(data_dir)) == ([1, 2, 3], [-4])
    started([1, 2, 3, -4], data_dir.with_name("more"), max_dead_letters="25%").awaitTermination(60)


def test_a_percentage_counts_from_a_thousand_rows_on_before_every_commit(data_dir):
    numbers = [-n if n % 50 == 1 else n for n in range(1, 4001)]  # 2 %, the first one at once
    with pytest.raises(TooManyDeadLetters, match=r"txid 5 is not committed: .* are 16 of 1,000 .*=1.5%"):
        more = [*numbers[:600], *range(4001, 4201), *numbers[600:]]
        started(more, data_dir, take=200, max_dead_letters="1.5%").awaitTermination(60)
    assert len(left_out(data_dir)) == 12
    with pytest.warns(DeadLettersWarning, match="80 records were left out"):
        started(numbers, data_dir.with_name("more"), take=200, max_dead_letters="2%").awaitTermination(60)


def test_records_that_the_source_refuses_are_input_rows(tmp_path, data_dir):
    (tmp_path / "a.csv").write_text("n\n1\nx\n3\n4\n")
    builder = TransactionalTopologyBuilder("file", "numbers", FileSpout(tmp_path / "a.csv", types={"n": int}))
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("numbers")
    builder.set_settings({"on_error": "dead_letter", "max_dead_letters": 0})
    handle = run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True)
    with pytest.raises(TooManyDeadLetters, match=r"are 1 of 4 input rows .* numbers: SpoutError: .*line 3"):
        handle.awaitTermination(60)


@pytest.mark.parametrize("fits", [1, 0])
@pytest.mark.parametrize("typed", [True, False], ids=["by the source", "by the sink"])
def test_an_input_to_whose_type_no_value_fits_ends_the_run(tmp_path, data_dir, typed, fits):
    sources = {name: FileSpout(tmp_path / f"{name}.csv", types={"n": int if typed else str}) for name in "ab"}
    sources["a"] = FileSpout(tmp_path / "a.csv", types={"n": int})
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 1800 + ("x\n" * 20 if typed else ""))
    (tmp_path / "b.csv").write_text("n\n" + "1\n" * (fits and typed) + "x\n" * 1200)
    builder = TransactionalTopologyBuilder("files", "numbers", CompositeSpout(sources))
    keep = builder.set_bolt("keep", DeltaSink("rows", {"n": int}))
    keep.global_grouping("numbers", "a")
    if typed or not fits:
        keep.global_grouping("numbers", "b")
    builder.set_settings({"on_error": "dead_letter"})
    expected = f"none of the 1,200 values of '{'b/' * typed}n' that"
    with nullcontext() if fits else pytest.raises(TopologyFailed, match=expected):
        run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True).awaitTermination(60)
    assert len(kept(data_dir)) == (1800 + typed if fits else 0)


def test_replays_do_not_count_twice(tmp_path):
    """Random replays, including ahead of commit order, do not change the txid at which the run ends."""
    chance = seeded()
    for number in range(6):
        numbers = [n if chance.random() < 0.8 else -n for n in range(1, 61)]
        fails = set(chance.sample(range(1, 21), 6))
        limit = chance.randrange(0, 16)
        bad = [n for n in numbers if n < 0]
        data = tmp_path / str(number)
        settings = {"max_dead_letters": limit, "max_group_txids": chance.choice([1, 2, 64])}
        handle = started(numbers, data, fails, take=3, **settings)
        if len(bad) <= limit:
            handle.awaitTermination(60)
            assert left_out(data) == sorted(bad), number
            continue
        with pytest.raises(TooManyDeadLetters):
            handle.awaitTermination(60)
        exceeds = (numbers.index(bad[limit]) // 3) * 3
        assert left_out(data) == sorted(n for n in numbers[:exceeds] if n < 0), number
        assert kept(data) == [n for n in numbers[:exceeds] if n > 0], number


def test_sums_follow_the_txids_whatever_was_tried_before():
    limit = LetterLimit(5, "source")

    def added(txid, letters, rows):
        found = limit.add(txid, {"source": Tally(rows), "bolt": Tally(rows, letters)})
        return None if found is None else found.message

    assert added(10, 2, 10) is None
    assert added(11, 3, 10) is None
    assert added(12, 1, 10) == "6 of 30 input rows of this run, more than max_dead_letters=5"
    assert added(11, 0, 8) is None
    assert added(12, 3, 10) is None
    assert added(13, 0, 10) is None
    limit.settled(12)
    assert added(13, 1, 10) == "6 of 38 input rows of this run, more than max_dead_letters=5"
    assert limit.at_end(12) is None
    assert limit.at_end(99) is None


class Records(MemoryTransactionalSpout):
    """A spout of Kafka's records, each with a value that is its JSON document or its time."""

    def emitter(self, context):
        return RecordsEmitter(context, *self._columns)


class RecordsEmitter(Emitter):
    def __init__(self, context, field):
        self.context, self.field = context, field

    def emit_batch(self, attempt, metadata, collector):
        json_of = decoder("json", "value")
        source = SimpleNamespace(typed={}, fields=(self.field,), key=decoder("bytes", "key"), value=json_of)
        messages = [Record(value) for [value] in self.context.payload["0"]]
        emit_records(source, "values", ("topic", 0), (0, len(messages)), messages, collector)


class Record:
    def __init__(self, given):
        self.offset, self.key, self.headers = lambda: 0, lambda: None, lambda: None
        self.value = lambda: None if given is None else str(given).encode()
        self.timestamp = lambda: (int(given is not None), 1 << 62 if given == "x" else 1)

    def __len__(self):
        return 1


# Numbers of two components, and by default no more than half of what one of them receives may be left out.
MOSTLY = [-n for n in range(1, 701)] + list(range(701, 1001)) + [-n for n in range(1001, 1101)]


@pytest.mark.parametrize(
    ("numbers", "settings", "until"),
    [
        (MOSTLY[:999], {}, None),  # never judged below 1,000 rows, not even at the end
        (MOSTLY, {}, 900),
        (MOSTLY, {"max_dead_letters": "none"}, None),
        ([n if n % 2 else -n for n in range(1, 1201)], {}, None),  # a half is not more than half
        ([*range(1, 1101), *MOSTLY], {}, None),
    ],
    ids=["few", "most", "none", "half", "later"],
)
def test_by_default_more_than_half_of_a_component_is_too_much(numbers, settings, until, data_dir):
    too_many = pytest.raises(TooManyDeadLetters, match=r"700 of 1,000 rows of component 'shaky' .*=half; what is")
    with too_many if until else nullcontext():
        started(numbers, data_dir, take=100, **settings).awaitTermination(60)
    assert kept(data_dir) == sorted(n for n in numbers[:until] if n > 0)
    assert left_out(data_dir) == sorted(n for n in numbers[:until] if n < 0)


@pytest.mark.parametrize(
    ("values", "limit", "committed"),
    [
        (["x"] * 1100, "none", 9),
        (["x"] * 300, "100%", 3),  # the run ends earlier: at its end, with everything committed
        ([*["x"] * 1100, 1], "none", 9),
        ([1, *["x"] * 1100], "none", 12),
        ([*["x"] * 900, *[None] * 99, 1, *["x"] * 100], "none", 11),
    ],
    ids=["all", "few", "the first 1,000", "one fits", "one fits later"],
)
@pytest.mark.parametrize("source", ["memory", "csv", "json", "decimals", "value", "timestamp"])
def test_a_type_that_no_value_fits_is_a_fault_of_the_declaration(source, values, limit, committed, data_dir, tmp_path):
    spout, component, column = MemoryTransactionalSpout([values], "n", take=100), "keep", "n"
    kind = {"decimals": Decimal, "timestamp": datetime}.get(source, int)
    if source in ("value", "timestamp"):  # of Kafka's records
        spout, component, column = Records([values], source, take=100), "values", source
    elif source != "memory":  # the spout itself knows the type
        name, component = "n.json" if source == "json" else "n.csv", "values"
        texts = [json.dumps({"n": n}) if source == "json" else f"1,{'' if n is None else n}" for n in values]
        (tmp_path / name).write_text("\n".join([*(["k,n"] if name == "n.csv" else []), *texts]))
        spout = FileSpout(tmp_path / name, fields=["n"], types={"n": kind}, max_batch_rows=100)
    builder = TransactionalTopologyBuilder("typed", "values", spout)
    builder.set_bolt("keep", DeltaSink("rows", {column: kind}), 2).shuffle_grouping("values")
    builder.set_settings({"on_error": "dead_letter", "max_dead_letters": limit})
    handle = run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True)
    message = rf"none of the [0-9,]* values of '{column}' that component '{component}' has"
    none_fits = pytest.raises(TopologyFailed, match=message)
    with nullcontext() if 1 in values[:1000] else none_fits:
        handle.awaitTermination(60)
    assert handle.committed == committed


SIDES = [Side("values", name, key="k", time="at", id="k", columns={"n": int}) for name in "lr"]
TIMED = {
    "windows": lambda: WindowAggregate("k", n="count").with_tumbling_window(Duration(10)).with_timestamp_field("at"),
    "join": lambda: IntervalJoin(*SIDES, before=Duration(1)),
    "feed": lambda: StoreFeed(SIDES[0], MemoryStore(), retain=Duration(1)),
}


@pytest.mark.parametrize("bolt", TIMED)
@pytest.mark.parametrize(("name", "value"), [("at", "soon"), ("at", 1 << 60), ("at", None), ("n", "x")])
def test_times_and_columns_of_sides_are_declared_too(bolt, name, value, data_dir):
    wrong = [tuple({"k": "k", "at": at, "n": 1, name: value}.values()) for at in range(1100)]
    inputs = {"l": wrong, "r": [("k", at, 1) for at in range(1100)]}
    sources = {of: MemoryTransactionalSpout([rows], ["k", "at", "n"], take=100) for of, rows in inputs.items()}
    builder = TransactionalTopologyBuilder("timed", "values", CompositeSpout(sources))
    declarer = builder.set_bolt(bolt, TIMED[bolt]())
    for stream in "l" if bolt == "feed" else "lr":
        declarer.fields_grouping("values", stream, ["k"])
    builder.set_settings({"on_error": "dead_letter", "max_dead_letters": "none"})
    handle = run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True)
    counted = nullcontext()
    if name == "at" or bolt != "windows":
        counted = pytest.raises(TopologyFailed, match=f"none of the 1,000 values of '{name}' that component '{bolt}'")
    with counted:
        handle.awaitTermination(60)


def test_records_with_other_faults_do_not_count_as_values_of_a_column(data_dir, tmp_path):
    (tmp_path / "n.jsonl").write_text('{"n": "x"}\n[1]\n{"n": 1.5}\n{\n')
    builder = TransactionalTopologyBuilder("typed", "values", FileSpout(tmp_path / "n.jsonl", types={"n": int}))
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("values")
    builder.set_settings({"on_error": "dead_letter", "max_dead_letters": "none"})
    with pytest.raises(TopologyFailed, match="none of the 2 values of 'n'"):
        run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True).awaitTermination(60)


@pytest.mark.parametrize("value", ["-1", "x", "101%", "1.5", "%", True, -3, 1.5, "1e3"])
def test_limits_that_are_none(value):
    builder = TransactionalTopologyBuilder("l", "n", MemoryTransactionalSpout([[1]], "n"))
    builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("n")
    builder.set_settings({"on_error": "dead_letter", "max_dead_letters": value})
    with pytest.raises(Exception, match=r"setting max_dead_letters: got .*expected N or P%"):
        builder.build_topology()


def test_a_limit_without_the_policy_is_a_fault(data_dir):
    with pytest.raises(SettingError, match=r"max_dead_letters: got 5, but on_error is 'fail_topology'"):
        started([1], data_dir, on_error="dead_letter", max_dead_letters=5).stop()
        from txstorm.topology.settings import Settings

        Settings().updated({"max_dead_letters": "5"})
