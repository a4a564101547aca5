"""JSON objects with declared types: one table of values and faults, alike through every spout and the ready-made join."""

import gc
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from runs import ended
from seeded import seeded
from spouts_recording import Bench, Recorder

from txstorm import NOT_READY, TransactionalTopologyBuilder
from txstorm.errors import SettingError, SpoutError, TxstormError
from txstorm.joins.service.ready_made import JsonFields
from txstorm.misfits import Misfits
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout, TransactionalKafkaSpout
from txstorm.spouts.json_objects import JsonObjects, declared_types
from txstorm.spouts.kafka.records import emit_records

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BAD = object()
Read = tuple[list[Any], list[int]]  # values, and rows of bad records
TABLE: dict[Any, dict[str, Any]] = {
    int: {
        "1": 1, "null": None, "2.0": 2, "1e3": 1000, "-0.0": 0, "9007199254740993.0": (1 << 53) + 1,
        "1.5": BAD, "4503599627370496.4": BAD, "true": BAD, '"1"': BAD, str(1 << 63): BAD, "1e400": BAD,
        "1e999999999": BAD, f"1e{10**20}": BAD, "NaN": BAD, "[]": BAD,
    },
    pa.int8(): {"127": 127, "127.0": 127, "128": BAD},
    float: {
        "1": 1.0, "0.1": 0.1, "-Infinity": float("-inf"), str(1 << 53): float(1 << 53),
        str((1 << 53) + 1): BAD, "1e400": BAD, "false": BAD, '"1"': BAD,
    },
    pa.float32(): {"0.5": 0.5, "16777216": 16777216.0, "16777217": BAD, "1e39": BAD},
    Decimal: {
        "12.5": Decimal("12.5"), '"12.50"': Decimal("12.5"), "0.1": Decimal("0.1"), "3": Decimal(3), '"-1E2"': Decimal(-100),
        "1e30": BAD, "1e-19": BAD, '"1e999999999"': BAD, '""': BAD, '" 1"': BAD, '"NaN"': BAD, "NaN": BAD, "true": BAD,
    },
    str: {'"é"': "é", '"\\ud83d\\ude00"': "😀", '"\\ud800"': BAD, "1": BAD, "{}": BAD},
    bool: {"true": True, "1": BAD, '"true"': BAD},
    datetime: {
        '"2026-01-31T12:00:00Z"': NOON, '"2026-01-31T14:00:00.000+02:00"': NOON, '"2026-01-31 12:00:00+0000"': NOON,
        '"2026-01-31T12:00:00"': BAD, '"2026-01-31"': BAD, '"2026-02-30T12:00:00Z"': BAD, "1769860800": BAD,
        '"0000-12-31T23:00:00Z"': BAD, '"9999-12-31T23:00:00-02:00"': BAD, '"2026-01-31T12:00:00.1234567Z"': BAD,
        '"\\ud800"': BAD,
    },
    date: {'"2026-01-31"': date(2026, 1, 31), '"2026-01-31T12:00:00Z"': BAD, '"0000-01-01"': BAD, '"31.1.2026"': BAD},
    pa.list_(pa.int64()): {"[1, 2.0, null]": [1, 2, None], "[1.5]": BAD, "1": BAD},
    pa.struct([("at", pa.timestamp("us", "UTC")), ("d", pa.decimal128(4, 2))]): {
        '{"at": "2026-01-31T12:00:00Z", "other": 1}': {"at": NOON, "d": None}, '{"d": 1.5}': {"at": None, "d": Decimal("1.5")},
        '{"d": 1.005}': BAD, '{"at": "noon"}': BAD,
    },
}  # fmt: skip
RECORDS: dict[bytes | None, Any] = {
    b"{}": None, b' {"y": 1e400, "x": null } ': None, b'{"x": null}\r': None,
    b"": BAD, b"{": BAD, b"{}{}": BAD, b'"x"': BAD, b"null": BAD, b"[{}]": BAD, b'{"x": "\xff"}': BAD,
    b'{"x":' * 100_000: BAD, None: BAD,
}  # fmt: skip


def cases(kind: Any) -> list[tuple[bytes | None, Any]]:
    """Return the records for one type, in a random order, good ones more often than bad ones."""
    found = [(f'{{"x": {text}}}'.encode(), value) for text, value in TABLE[kind].items()] + list(RECORDS.items())
    found += [one for one in found if one[1] is not BAD] * 3
    seeded().shuffle(found)
    return found


class Collected(Recorder):
    """Collector of rows, and of the positions of the records that are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[int] = []

    def refuse(self, error: BaseException, record: Any) -> None:
        assert "expected" in str(error) or "is not UTF-8" in str(error)
        self.refused.append(record["line"] - 1 if "line" in record else record["offset"])


class Message(NamedTuple):
    """A Kafka record."""

    at: int
    content: bytes | None
    offset = property(lambda self: lambda: self.at)
    value = property(lambda self: lambda: self.content)
    key = property(lambda self: lambda: b"k")
    timestamp = property(lambda self: lambda: (1, 1000))


def by_function(kind: Any, texts: list[bytes | None], directory: Path) -> Read:
    found = JsonObjects(declared_types({"x": kind}, "test")).read(texts)
    assert [found.batch.column(0)[row].as_py() for row in found.bad] == [None] * len(found.bad)
    return found.good().column(0).to_pylist(), sorted(found.bad)


def by_file(kind: Any, texts: list[bytes | None], directory: Path) -> Read:
    """Lines cannot be absent or blank: another record that is no object takes their place."""
    path, found = directory / "a.jsonl", Collected()
    path.write_bytes(b"".join(b"%b\r\n" % (text or b"0") for text in texts))
    spout = FileSpout(path, types={"x": kind, "unread": int}, fields="x", max_batch_rows=seeded().choice([1, 7, 1000]))
    bench = Bench(spout)
    while bench.plan(len(bench.documents) + 1) is not NOT_READY:
        bench.emit(len(bench.documents), wrap=lambda recorder: found)
    assert spout.known_types() == declared_types({"x": kind}, "test")
    return [x for (x,) in found.rows], found.refused


def by_kafka(kind: Any, texts: list[bytes | None], directory: Path) -> Read:
    """The field is emitted between those of the record."""
    spout, found = TransactionalKafkaSpout("t", "h:1", value={"x": kind}, fields=["offset", "x", "key"]), Collected()
    assert spout.known_types() == {**declared_types({"x": kind}, "test"), "offset": int, "key": str}
    messages = [Message(*one) for one in enumerate(texts)]
    emit_records(spout._source, "here", ("t", 0), (0, len(texts)), messages, found)  # type: ignore[arg-type]
    assert sorted([offset for offset, _, _ in found.rows] + found.refused) == list(range(len(texts)))
    return [x for _, x, _ in found.rows], found.refused


def by_bolt(kind: Any, texts: list[bytes | None], directory: Path) -> Read:
    """The ready-made join's bolt, whose input is text; what it knows to be bad is what it cannot read alone."""
    bolt, good, bad = JsonFields({"x": kind}), Collected(), []
    texts = [text and text.replace(b"\xff", b"\\") for text in texts]
    batch = pa.record_batch({"value": pa.array(texts, pa.string()), "partition": list(range(len(texts)))})
    with pytest.raises(Misfits) as caught:
        bolt.execute_batch(batch, good)  # type: ignore[arg-type]
    for row in range(len(texts)):
        try:
            bolt.execute_batch(batch.slice(row, 1), good)  # type: ignore[arg-type]
        except ValueError:
            bad.append(row)
    assert sorted(caught.value.rows) == bad
    return [x for x, _ in good.rows], bad


@pytest.fixture(autouse=True)
def collected():
    """Let no finalizer of another test's objects run where the stack of a parser ends: it would fail, and be reported."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("read", [by_function, by_file, by_kafka, by_bolt])
def test_every_path_reads_the_same_values_and_finds_the_same_records_bad(tmp_path, read):
    for kind in TABLE:
        records = cases(kind)
        values, bad = read(kind, [text for text, _ in records], tmp_path)
        expected = [number for number, (_, value) in enumerate(records) if value is BAD]
        assert [records[number] for number in set(bad) ^ set(expected)] == [], kind
        assert values == [value for _, value in records if value is not BAD]


def test_one_bad_record_of_a_join_is_a_dead_letter_of_its_own(tmp_path):
    rows = [('{"x": "no"}' if n % 10 == 5 else f'{{"x": {n}}}', 0) for n in range(100)]
    builder = TransactionalTopologyBuilder(
        "join", "topics", MemoryTransactionalSpout([rows], ["value", "partition"], 50)
    )
    builder.set_bolt("left", JsonFields({"x": int})).local_or_shuffle_grouping("topics")
    builder.set_bolt("keep", DeltaSink("rows", {"x": int, "partition": int})).global_grouping("left")
    builder.set_settings({"on_error": "dead_letter"})
    handle = ended(builder.build_topology(), tmp_path)
    assert sorted(handle.sink("rows").to_pylist()[n]["x"] for n in range(90)) == [n for n in range(100) if n % 10 != 5]
    letters = handle.dead_letters().to_pylist()
    assert [json.loads(one["record"])["value"] for one in letters] == ['{"x": "no"}'] * 10
    assert {one["message"] for one in letters} == {"field 'x': expected int or null, got 'no'"}


def test_a_topology_over_a_landing_zone_that_is_still_empty(tmp_path):
    """Declared fields are enough; the directory must be there, as another path is a mistake."""
    types = {"types": {"n": int}}
    cases = {
        "a.jsonl": (types, '{"n": 5}\n'),
        "b.csv": ({**types, "fields": "n", "header": False}, "5\n"),
        "c.csv": ({**types, "fields": "n"}, "m,n\n4,5\n"),  # the header of each file is read
        "d.csv": (types, "n\n5\n"),
        "e.csv": (types, "n,m\n5,4\n"),
        "f.csv": ({**types, "fields": "n"}, "m\n5\n"),
    }
    faults = {"e.csv": r"\['n'\], got \['n', 'm'\]", "f.csv": r"a: expected a header with \['n'\], got \['m'\]"}
    for name, (declared, content) in cases.items():
        form = name.partition(".")[2]
        spout = FileSpout(tmp_path / name / "*", format=form, **declared)  # type: ignore[arg-type]
        with pytest.raises(SpoutError, match="no file matches"):
            spout.check()
        (tmp_path / name).mkdir()
        builder = TransactionalTopologyBuilder(form, "source", spout)
        builder.set_bolt("keep", DeltaSink("rows", {"n": int})).global_grouping("source")
        for text, expected in ("", []), (content, [5]):
            if text:
                (tmp_path / name / "a").write_text(text)
            if text and name in faults:
                with pytest.raises(TxstormError, match=faults[name]):
                    ended(builder.build_topology(), tmp_path / "data" / name)
                break
            handle = ended(builder.build_topology(), tmp_path / "data" / name)
            assert [one["n"] for one in handle.sink("rows").to_pylist()] == expected


def test_faults_of_declarations():
    for value in ({}, {"x": bytes}, {"x": "int"}, {"x": pa.list_(pa.binary())}, {1: int}, {"timestamp": int}):
        with pytest.raises(SettingError, match="value"):
            TransactionalKafkaSpout("t", "h:1", value=value)
    for options in ({"fields": ["value"]}, {"fields": ["y"]}, {"fields": ["x", "x"]}, {"key": {"x": int}}):
        with pytest.raises(SettingError, match="expected"):
            TransactionalKafkaSpout("t", "h:1", **{"value": {"x": int}, **options})
    for options in ({"types": {"n": bytes}}, {"types": {"n": int}, "fields": ["n", "m"]}):
        with pytest.raises(SettingError, match="types"):
            FileSpout("a.jsonl", **options)  # type: ignore[arg-type]
    spout = TransactionalKafkaSpout("t", "h:1", value={"value": float, "x": int})
    assert spout.known_types() == {"value": pa.float64(), "x": pa.int64()}  # in place of the record's value
