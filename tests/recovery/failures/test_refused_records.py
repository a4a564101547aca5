"""Malformed records from file spouts and user-defined spouts: skipped alone, with position and text stored."""

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recovery_cases import ended
from seeded import seeded
from spouts_recording import Recorder

from txstorm import CompositeSpout, TransactionalTopologyBuilder
from txstorm.api.output import StreamDeclaration
from txstorm.engine.task.collector import OutputCollector
from txstorm.engine.task.dead_letters import Letters
from txstorm.engine.task.error_rows import error_row
from txstorm.errors import EmitError, SpoutError
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout, MemoryTransactionalSpout
from txstorm.spouts.composite import _SourceCollector
from txstorm.spouts.files import lines
from txstorm.spouts.files.csv_records import CsvFormat
from txstorm.spouts.files.lines import JsonLinesFormat, TextFormat, TypedJsonFormat
from txstorm.spouts.files.ranges import Position, segments
from txstorm.spouts.json_objects import JsonObjects

BAD_TEXT = pa.StringArray.from_buffers(3, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffc"))


def kept(spout: Any, data_dir: Path, columns: dict[str, Any], stream: str = "default", **settings: Any) -> Any:
    builder = TransactionalTopologyBuilder("refusing", "source", spout, parallelism=2)
    builder.set_bolt("keep", DeltaSink("rows", columns)).global_grouping("source", stream)
    builder.set_settings({"on_error": "dead_letter", **settings})
    handle = ended(builder.build_topology(), data_dir)
    assert handle.progress.replays == 0, "bad records are left out at once"
    return handle


def rows(handle: Any, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(one[name] for name in names) for one in handle.sink("rows").to_pylist())


def refused(handle: Any) -> list[tuple[dict[str, Any], str]]:
    found = handle.dead_letters().to_pylist()
    assert {one["what"] for one in found} <= {"record"}
    return sorted(((json.loads(one["record"]), one["message"]) for one in found), key=lambda one: str(one[0]))


def test_one_bad_value_of_a_csv_file_is_left_out_alone(tmp_path):
    lines = [f"{n},{n / 2}" for n in range(100)]
    lines[41] = "41,much"
    (tmp_path / "sales.csv").write_text("\n".join(["id,amount", *lines, ""]))
    spout = FileSpout(tmp_path / "sales.csv", types={"id": int, "amount": float})
    handle = kept(spout, tmp_path / "data", {"id": int, "amount": float})
    assert rows(handle, "id", "amount") == [(n, n / 2) for n in range(100) if n != 41]
    [(record, message)] = refused(handle)
    start = sum(len(line) + 1 for line in ["id,amount", *lines[:41]])
    path = str(tmp_path / "sales.csv")
    assert record == {"file": path, "line": 43, "from": start, "to": start + 8, "text": "41,much"}
    assert f"{path}, line 43" in message
    assert "column 'amount': CSV conversion error to double: invalid value 'much'" in message


CSV = b"""a,b
1,good
2
3,too,many
x,bad value
4,"two
lines"
5,not utf \xff
6,a "quote" inside
7,lone\rcarriage

8,fine
9,"never closed
10,last
"""


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_every_kind_of_bad_csv_record(tmp_path, batch):
    (tmp_path / "a.csv").write_bytes(CSV)
    spout = FileSpout(tmp_path / "a.csv", types={"a": int}, max_batch_rows=batch)
    handle = kept(spout, tmp_path / "data", {"a": int, "b": str})
    assert rows(handle, "a", "b") == [
        (1, "good"), (4, "two\nlines"), (6, 'a "quote" inside'), (8, "fine"), (10, "last"),
    ]  # fmt: skip
    found = {record["line"]: (record["text"], message) for record, message in refused(handle)}
    expected = {
        3: ("2", "Expected 2 columns, got 1"),
        4: ("3,too,many", "Expected 2 columns, got 3"),
        5: ("x,bad value", "column 'a'"),
        8: ("5,not utf \\xff", "is not UTF-8"),
        10: ("7,lone\rcarriage", "a lone carriage return"),
        13: ('9,"never closed', "never closed"),
    }
    assert {line: text for line, (text, _) in found.items()} == {line: text for line, (text, _) in expected.items()}
    for line, (_, why) in expected.items():
        assert why in found[line][1]


def test_bad_lines_of_text_and_json(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\n\ntw\xffo\r\nthree\n\xfe")
    handle = kept(FileSpout(tmp_path / "a.txt"), tmp_path / "text", {"line": str})
    assert rows(handle, "line") == [("",), ("one",), ("three",)]
    assert [(one["line"], one["text"]) for one, _ in refused(handle)] == [(3, "tw\\xffo"), (5, "\\xfe")]

    text = b'{"n":1}\n\n[2]\n{"n":3\n{"n":4}\n{"n":"\xff"}\n{"n":6}'
    (tmp_path / "a.jsonl").write_bytes(text)
    handle = kept(FileSpout(tmp_path / "a.jsonl"), tmp_path / "json", {"n": int})
    assert rows(handle, "n") == [(1,), (4,), (6,)]
    assert [(one["line"], one["text"]) for one, _ in refused(handle)] == [
        (3, "[2]"), (4, '{"n":3'), (6, '{"n":"\\xff"}'),
    ]  # fmt: skip


def test_rows_of_parquet_with_values_that_python_cannot_have(tmp_path):
    times = pa.array([1, 2, 1 << 62, None], pa.int64()).view(pa.timestamp("us", "UTC"))
    names = pa.concat_arrays([BAD_TEXT, pa.array(["d"])])
    pq.write_table(pa.table({"n": [0, 1, 2, 3], "s": names, "at": times}), tmp_path / "a.parquet")
    handle = kept(FileSpout(tmp_path / "a.parquet"), tmp_path / "data", {"n": int, "s": str, "at": datetime})
    assert rows(handle, "n", "s", "at") == [(0, "a", datetime(1970, 1, 1, 0, 0, 0, 1, UTC)), (3, "d", None)]
    assert [(one["row"], one["text"]) for one, _ in refused(handle)] == [
        (1, "n=1, s=b'\\xff', at=1970-01-01T00:00:00.000002+00:00"),
        (2, f"n=2, s='c', at={1 << 62}"),
    ]


def test_times_in_lists_of_parquet_that_python_cannot_have(tmp_path):
    lists = pa.array([[1], [2, 1 << 62], None]).cast(pa.list_(pa.timestamp("us", "UTC")))
    pq.write_table(pa.table({"n": [0, 1, 2], "at": lists}), tmp_path / "a.parquet")
    columns = {"n": int, "at": pa.list_(pa.timestamp("us", "UTC"))}
    handle = kept(FileSpout(tmp_path / "a.parquet"), tmp_path / "data", columns)
    assert rows(handle, "n") == [(0,), (2,)]
    [(record, message)] = refused(handle)
    assert record["row"] == 1
    assert "column 'at': a time out of the years 1 to 9999" in message


def test_decimals_of_csv_are_those_of_the_text_or_refused(tmp_path):
    texts = ["1.5", "1e30", "100000000000000000000", "9" * 20, "1e19", "1e-19", "-1E+30", " 2 ", "", "1e999999999"]
    (tmp_path / "a.csv").write_text("\n".join(["n,d", *(f"{n},{text}" for n, text in enumerate(texts)), ""]))
    spout = FileSpout(tmp_path / "a.csv", types={"n": int, "d": Decimal})
    handle = kept(spout, tmp_path / "data", {"n": int, "d": Decimal})
    good = [(0, Decimal("1.5")), (3, Decimal("9" * 20)), (4, Decimal("1e19")), (7, Decimal(2)), (8, None)]
    assert rows(handle, "n", "d") == good
    assert sorted(one["line"] - 2 for one, _ in refused(handle)) == [1, 2, 5, 6, 9]
    assert all("column 'd': expected a value that fits decimal128(38, 18), got " in why for _, why in refused(handle))


def test_a_cause_is_warned_of_once_and_then_counted(tmp_path, caplog):
    """Thirty bad lines in ten transactions: one warning for the first, one for the tenth, without useless advice."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n[{n}]\n' for n in range(30)))
    spout = FileSpout(tmp_path / "a.jsonl", max_batch_rows=6)
    handle = kept(spout, tmp_path / "data", {"n": int}, on_error="retry(2), dead_letter")
    assert rows(handle, "n") == [(n,) for n in range(30)]
    assert len(refused(handle)) == 30
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    said = [one for one in warned if "not a JSON" in one]
    assert ["source left out a record" in one for one in said] == [True, True]
    assert said[1].startswith("12 errors like this so far")
    assert not any("on_error" in text for text in [*said, *(message for _, message in refused(handle))])


class Thing:
    def __repr__(self) -> str:
        return "<a thing>"


def test_values_of_a_memory_spout_that_cannot_be_sent(tmp_path):
    spout = MemoryTransactionalSpout([[1, Thing(), "\ud800", 4], [5, {"x": Thing()}]], ["n"])
    handle = kept(spout, tmp_path / "data", {"n": int})
    assert rows(handle, "n") == [(1,), (4,), (5,)]
    assert {(one["partition"], one["index"], one["tuple"]) for one, _ in refused(handle)} == {
        (0, 2, "('\\ud800',)"), (1, 1, "({'x': <a thing>},)"), (0, 1, "(<a thing>,)")
    }  # fmt: skip


def test_sources_of_a_composite_spout(tmp_path):
    (tmp_path / "a.csv").write_text("n\n1\nx\n3\n")
    (tmp_path / "b.jsonl").write_text('{"n": "1"}\nx\n\n{"n": "\\ud800"}\n{"n": "2"}\n')
    memory = MemoryTransactionalSpout([[1], [2], [3, Thing()]], ["n"], take=2)
    files = {
        "file": FileSpout(tmp_path / "a.csv", types={"n": int}),
        "json": FileSpout(tmp_path / "b.jsonl", fields="n"),
    }
    handle = kept(CompositeSpout({**files, "memory": memory}), tmp_path / "data", {"n": int}, stream="file")
    assert rows(handle, "n") == [(1,), (3,)]
    found = [(one.get("source"), one.get("line", one.get("index")), why) for one, why in refused(handle)]
    assert [one[:2] for one in found] == [("file", 3), ("json", 2), ("json", 4), ("memory", 1)]
    assert "(source 'memory', partition 2, index 1)" in found[-1][2]


def test_without_the_policy_the_first_bad_record_ends_the_run(tmp_path):
    (tmp_path / "a.csv").write_text("n\n1\nx\ny\n")
    with pytest.raises(SpoutError, match=r"line 3 \(bytes 4-6\): column 'n'.*'x'.*on_error='dead_letter'"):
        kept(FileSpout(tmp_path / "a.csv", types={"n": int}), tmp_path / "data", {"n": int}, on_error="fail_topology")
    refusal = r"source, stream 'default', tuple \(<a thing>,\): field 'n': a value of type Thing cannot"
    with pytest.raises(EmitError, match=refusal):
        kept(MemoryTransactionalSpout([[1, Thing()]], ["n"]), tmp_path / "more", {"n": int}, on_error="fail_topology")


def test_records_that_are_refused_together_become_the_letters_of_each(tmp_path):
    (tmp_path / "a.csv").write_bytes(CSV + b"password=hunter2,y\n")
    chosen = CsvFormat(("a", "b"), "strict", ("a", "b"), {"a": pa.int64()})
    [segment] = segments([chosen.block(str(tmp_path / "a.csv"), 0).take(4, 99, float("inf"), at_least=1)], 1)
    task: Any = SimpleNamespace(failure=partial(error_row, "source", 1, 0))
    found = []
    for together in (True, False):
        collector, letters = OutputCollector("source", {"default": StreamDeclaration(("a", "b"))}), Letters()
        collector.divert, divert_all = letters.refuse(task)
        collector.divert_all = divert_all if together else collector.divert_all
        chosen.emit(segment, _SourceCollector(collector, "left", {"default": "default"}, 0))
        found.append(letters.take().to_pylist())
    assert found[0] == found[1]
    assert "hunter2" not in found[0][-1]["message"]
    assert [(json.loads(one["record"])["source"], one["column"]) for one in found[0]] == [
        ("left", "left/a" if number in (2, 6) else None) for number in range(7)
    ]


class Pieces(Recorder):
    """A collector that stores emitted rows and refused records."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def refuse(self, error: BaseException, record: Any) -> None:
        self.refused.append(record["text"])

    def digest(self, partition: str, digest: str) -> None:
        pass


def read_in_pieces(chosen, path, size, most, monkeypatch):
    """Return the rows and refused records of a file that is read in blocks of `size` bytes, `most` records at a time."""
    monkeypatch.setattr(lines, "READ_BYTES", size)
    found, offset = Pieces(), 0
    while len((block := chosen.block(str(path), offset)).ends):
        piece = block.take(offset, most, float("inf"), at_least=1)
        for segment in segments([piece], 2):
            chosen.emit(segment, found)  # type: ignore[arg-type]
        assert Position(str(path), piece.stop).offset > offset
        offset = piece.stop
    return repr((found.rows, found.refused))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), ["7", "0x1f", "noon", "8", "1.5", "-3", "9" * 20]),
        (pa.int64(), [*["7"] * 30, " 0x1f", "9" * 20]),  # few that are tried one by one
        (pa.time32("s"), ["12:30:00", "noon", "12:31:00"]),  # tried by halves
    ],
    ids=str,
)
def test_records_beside_a_bad_one_are_those_that_they_are_alone(kind, values, tmp_path, monkeypatch):
    path, chosen = tmp_path / "a.csv", CsvFormat(("x", "y"), "strict", ("x", "y"), {"x": kind}, ",", False)
    path.write_text("".join(f"{one},{number}\n" for number, one in enumerate(values * 2)))
    alone, together = (read_in_pieces(chosen, path, 1 << 20, most, monkeypatch) for most in (1, 1000))
    assert alone == together


@pytest.mark.parametrize("files", [24, pytest.param(800, marks=pytest.mark.long)])
def test_records_are_emitted_or_refused_alike_at_any_batch_size(tmp_path, monkeypatch, files):
    """Random malformed records: each is either emitted or refused, exactly once, at any batch size, as if it was alone."""
    chance = seeded()
    pieces = [b"a", b'"', b",", b"\n", b"\r\n", b"\xff", b'""', b',"', b'",', b"1,2\n", b'"x\ny",z\n', b"7,8\n", b"\r"]
    values = [
        b"7", b" 7 ", b"-3", b"300", b"0x1f", b"1.5", b"1e3", b"nan", b"tRue", b"true", b'"4"', b'6" pipe', b"\xc3\xa9", b"noon",
        b"2026-02-28", b" 2026-02-28", b"2026-02-30", b"2026-01-31T12:00:00Z", b"2026-01-31T12:00:00", b"12:30:00", b"9" * 20,
        b'{"x": 1}', b'{"x": 99999999999999999999}', b'{"x": 1.5}', b'{"x": 1', b'{"x": "\\ud800"}', b"[1]",
    ]  # fmt: skip
    kinds = [
        pa.string(), pa.int64(), pa.uint8(), pa.float64(), pa.bool_(), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(9, 2),
        pa.time32("s"),
    ]  # fmt: skip
    path = tmp_path / "a.csv"
    formats = (
        *(CsvFormat(("x", "y"), "strict", ("x", "y"), {"x": kind}, ",", False) for kind in kinds), TextFormat(("line",)),
        JsonLinesFormat(("x",)), TypedJsonFormat(("x",), "strict", JsonObjects({"x": pa.int64()})),
    )  # fmt: skip
    for number in range(files):
        usual = chance.choices(values, k=2) * 9 + values  # most values of a file are of one kind
        rows = [b"%b,%b\n" % (chance.choice(usual), chance.choice(values)) for _ in range(chance.randrange(60))]
        objects = [chance.choice(usual) + b"\n" for _ in range(chance.randrange(30))]
        path.write_bytes(b"".join([rows, objects, chance.choices(pieces, k=chance.randrange(30))][number % 3]))
        for chosen in chance.sample(formats, 5):
            cuts = (1 << 20, 1000), (chance.choice([1, 7, 64]), chance.choice([1, 2, 5]))
            seen = {read_in_pieces(chosen, path, *cut, monkeypatch) for cut in cuts}
            assert len(seen) == 1, f"file {number}, {type(chosen).__name__}: {path.read_bytes()!r}: {seen}"


def test_good_tables_lose_nothing_beside_bad_records(tmp_path):
    """All valid rows, written by the csv module, are read, even with malformed records in between."""
    chance = seeded()
    pieces = ["a", '"', ",", "\n", "\r\n", "é", " ", "0", '""']
    good, text = [], io.BytesIO()
    for number in range(300):
        if chance.random() < 0.1:
            text.write(chance.choice([b"1\n", b"1,2,3\n", b"1,\xff\n", b'x"y\n']))
        row = [str(number), "".join(chance.choices(pieces, k=chance.randrange(6)))]
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        text.write(line.getvalue().encode())
        good.append(tuple(row))
    (tmp_path / "a.csv").write_bytes(b"x,y\n" + text.getvalue())
    handle = kept(FileSpout(tmp_path / "a.csv", max_batch_rows=70), tmp_path / "data", {"x": str, "y": str})
    assert rows(handle, "x", "y") == sorted(good)
