import csv
import io
import json
import os
import pickle
import random
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from seeded import seeded
from spouts_recording import Bench, Recorder, flat

from txstorm import NOT_READY, OutputFieldsDeclarer
from txstorm.errors import SettingError, SpoutError
from txstorm.spouts import FileSpout
from txstorm.spouts.executors import check_spout
from txstorm.spouts.files import lines


@pytest.fixture
def chance() -> random.Random:
    return seeded()


def declared(spout: FileSpout) -> tuple[str, ...]:
    declarer = OutputFieldsDeclarer()
    spout.declare_output_fields(declarer)
    return declarer.streams["default"].fields


def read_all(spout: FileSpout, tasks: int = 1) -> list[list[tuple]]:
    return Bench(spout, tasks).drain()


def spout_of(directory: Path, content: str | bytes, name: str = "a.txt", **options) -> FileSpout:
    """Write a file with this content; return a spout that reads it."""
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return FileSpout(path, **options)


def texts(spout: FileSpout) -> list[str]:
    return [text for (text,) in flat(read_all(spout))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\n\r\nc\rd\r\ne\r", ["a", "b", "", "c\rd", "e"]),
        (b"a\n\r", ["a", ""]),
        ("é\n日本\n🌍".encode(), ["é", "日本", "🌍"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"nul\0inside\n", ["nul\0inside"]),
    ],
)
def test_text_lines(tmp_path, content, expected):
    for options in ({}, {"max_batch_rows": 1}):
        assert texts(spout_of(tmp_path, content, **options)) == expected


def test_text_is_emitted_as_record_batches_of_one_declared_field(tmp_path):
    bench = Bench(spout_of(tmp_path, "x\ny\n", "a.log", fields=["text"]))
    for options, field in (({"fields": ["text"]}, "text"), ({"fields": "text"}, "text"), ({}, "line")):
        assert declared(FileSpout(tmp_path / "a.log", **options)) == (field,)
    bench.plan(1)
    (recorder,) = bench.emit(1)
    assert recorder.batches[0].schema == pa.schema([("text", pa.string())])


def test_batches_hold_at_most_max_rows_and_span_files(tmp_path):
    for name, first in (("a", 0), ("b", 4), ("c", 5)):
        (tmp_path / f"{name}.txt").write_text("".join(f"{i}\n" for i in range(first, {"a": 4, "b": 5, "c": 12}[name])))
    batches = read_all(FileSpout(tmp_path / "*.txt", max_batch_rows=5))
    assert [[int(line) for (line,) in batch] for batch in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]


def test_batches_hold_at_most_max_bytes_except_for_one_large_record(tmp_path):
    batches = read_all(spout_of(tmp_path, "aaa\nbbb\n" + "c" * 100 + "\nd\ne\n", max_batch_bytes=8))
    assert [[len(line) for (line,) in batch] for batch in batches] == [[3, 3], [100], [1, 1]]
    (tmp_path / "b.txt").write_text("f\n")
    assert [len(batch) for batch in read_all(FileSpout(tmp_path / "*.txt", max_batch_bytes=6))] == [1, 1, 1, 3]


def test_metadata_lists_every_range_with_its_digest_and_the_next_position(tmp_path):
    bench = Bench(spout_of(tmp_path, "one\ntwo\nthree\n", max_batch_rows=2), tasks=2)
    path = tmp_path / "a.txt"
    bench.plan(1)
    meta = bench.documents[1]["meta"]
    assert meta["v"] == 1
    found = [(s["file"], s["from"], s["to"], s["rows"]) for s in meta["segments"]]
    assert found == [(str(path), 0, 4, 1), (str(path), 4, 8, 1)]
    assert meta["position"] == {"file": str(path), "offset": 8, "open": False, "behind": 0, "trail": ""}
    first, second = bench.emit(1)
    assert (first.rows, second.rows) == ([("one",)], [("two",)])
    assert first.digests == {f"{path}:0-4": meta["segments"][0]["digest"]}


def test_batches_depend_neither_on_the_number_of_tasks_nor_on_read_sizes(tmp_path, chance, monkeypatch):
    for number in range(5):
        text = "".join("x" * chance.randrange(40) + "\n" for _ in range(chance.randrange(60)))
        (tmp_path / f"{number}.txt").write_text(text)
    expected = [line for path in sorted(tmp_path.glob("*")) for line in path.read_text().splitlines()]
    plain = read_all(FileSpout(tmp_path / "*.txt", max_batch_rows=17))
    assert [line for (line,) in flat(plain)] == expected
    for tasks in (2, 3, 8):
        bench = Bench(FileSpout(tmp_path / "*.txt", max_batch_rows=17), tasks)
        batches = bench.drain()
        assert [sorted(batch) for batch in batches] == [sorted(batch) for batch in plain]
        for document in bench.documents.values():
            cut = document["meta"]["segments"]
            assert max(s["rows"] for s in cut) <= -(-sum(s["rows"] for s in cut) // tasks)
    (tmp_path / "a.txt").write_text("".join("y" * chance.randrange(90) + "\n" for _ in range(200)) + "end")

    def documents() -> dict:
        bench = Bench(FileSpout(tmp_path / "a.txt", max_batch_rows=7, max_batch_bytes=300), tasks=2)
        bench.drain()
        return bench.documents

    once = documents()
    for size in (1, 16, 100, 1000):
        monkeypatch.setattr(lines, "READ_BYTES", size)
        assert documents() == once, size


def test_a_restart_after_any_txid_and_a_replay_on_any_number_of_tasks_read_the_same(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name}{i}\n" for i in range(7)))
    spout = FileSpout(tmp_path / "*.txt", max_batch_rows=4)
    whole = Bench(spout)
    whole.drain()
    for last in range(len(whole.documents)):
        again = Bench(FileSpout(tmp_path / "*.txt", max_batch_rows=4))
        again.documents = {txid: whole.documents[txid] for txid in range(1, last + 1)}
        again.load(last)
        again.drain()
        assert again.documents == whole.documents
    bench = Bench(spout_of(tmp_path, "".join(f"{i}\n" for i in range(10)), max_batch_rows=6), tasks=3)
    first = bench.rows(1)
    for bench.tasks in (2, 5):
        assert sorted(bench.rows(1)) == sorted(first)


def test_invalid_utf8_is_reported_by_offset_or_replaced(tmp_path):
    expected = r"'lines', txid 2: .*a\.txt, line 2 \(bytes 5-9\): byte 0xff \(byte 2 of the record\) is not UTF-8"
    with pytest.raises(SpoutError, match=expected):
        read_all(spout_of(tmp_path, b"fine\nb\xffd\n", max_batch_rows=1))
    assert texts(FileSpout(tmp_path / "a.txt", errors="replace")) == ["fine", "b\ufffdd"]


def test_a_line_longer_than_a_read_is_one_record_unless_it_has_no_end(tmp_path, monkeypatch):
    """An endless record is rejected before memory runs out."""
    monkeypatch.setattr(lines, "READ_BYTES", 8)
    found = texts(spout_of(tmp_path, "x" * 1000 + "\nshort\n" + "y" * 77))
    assert [len(line) for line in found] == [1000, 5, 77]
    monkeypatch.setattr(lines, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(lines, "LARGEST_RECORD", 1 << 21)
    os.truncate(tmp_path / "a.txt", 0)
    os.truncate(tmp_path / "a.txt", 1 << 23)
    with pytest.raises(SpoutError, match=r"the record at offset 0 has no end within 2097152 bytes"):
        read_all(FileSpout(tmp_path / "a.txt"))


def test_csv_header_quotes_newlines_in_values_types_and_chosen_fields(tmp_path):
    content = 'name,text\r\nann,"two\nlines, and a "" quote"\r\nbob,\r\n\r\n"c","x\r\ny"'
    spout = spout_of(tmp_path, content, "a.csv")
    assert declared(spout) == ("name", "text")
    rows = [("ann", 'two\nlines, and a " quote'), ("bob", ""), ("c", "x\r\ny")]
    assert flat(read_all(spout)) == rows
    assert read_all(FileSpout(tmp_path / "a.csv", max_batch_rows=1)) == [[row] for row in rows]
    types = {"n": int, "x": pa.float32(), "day": date}
    spout = spout_of(tmp_path, "n,x,day,s\n1,2.5,2024-02-29,\n,,,t\n", "a.csv", types=types)
    assert flat(read_all(spout)) == [(1, 2.5, date(2024, 2, 29), ""), (None, None, None, "t")]
    chosen = spout_of(tmp_path, "p;q;r\n1;2;3\n", "a.csv", delimiter=";", fields=("r", "p"))
    assert flat(read_all(chosen)) == [("3", "1")]
    named = FileSpout(tmp_path / "a.csv", delimiter=";", header=False, fields=("a", "b", "c"))
    assert flat(read_all(named)) == [("p", "q", "r"), ("1", "2", "3")]


def test_csv_agrees_with_the_csv_module_on_random_tables(tmp_path, chance, monkeypatch):
    pieces = ["a", '"', ",", "\n", "\r\n", "é", " ", "", "0", '""']
    for number in range(40):
        rows = [["".join(chance.choices(pieces, k=chance.randrange(6))) for _ in range(3)] for _ in range(8)]
        text = io.StringIO()
        csv.writer(text, lineterminator=chance.choice(["\n", "\r\n"])).writerows([["x", "y", "z"], *rows])
        monkeypatch.setattr(lines, "READ_BYTES", chance.choice([1, 7, 64, 1 << 20]))
        spout = spout_of(tmp_path, text.getvalue(), f"{number}.csv", max_batch_rows=chance.choice([1, 3, 100]))
        assert flat(read_all(spout)) == [tuple(row) for row in rows], f"table {number}: {rows}"


def test_csv_files_share_a_header_and_each_may_be_empty(tmp_path):
    (tmp_path / "a.csv").write_text("")
    (tmp_path / "b.csv").write_text("x\n1\n")
    (tmp_path / "c.csv").write_text("x\n")
    (tmp_path / "d.csv").write_bytes(b"\xef\xbb\xbfx\n2")
    assert flat(read_all(FileSpout(tmp_path / "*.csv"))) == [("1",), ("2",)]
    (tmp_path / "e.csv").write_text("y\n3\n")
    with pytest.raises(SpoutError, match=r"e\.csv: expected the header \['x'\], got \['y'\]"):
        read_all(FileSpout(tmp_path / "*.csv"))
    (tmp_path / "f.csv").write_text("z,y,x\n4,5,6\n")  # named columns are found in each header
    assert flat(read_all(FileSpout(tmp_path / "[ef].csv", fields="y"))) == [("3",), ("5",)]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n1\n", {}, r"a\.csv, line 2 \(bytes 4-6\): Expected 2 columns, got 1: '1'; "),
        (
            "a,b\n1,x\n",
            {"types": {"b": int}},
            r"a\.csv, line 2 \(bytes 4-8\): column 'b': .*invalid value 'x': '1,x'; ",
        ),
        ('a,b\n1,"open\n2,3\n', {}, r"line 2 \(bytes 4-12\): a quote opened in the record is never closed"),
        ("a,b\n1,x\r2,y\n", {}, r"line 2 \(bytes 4-12\): a lone carriage return"),
        ("a,a\n1,2\n", {}, r"header \['a', 'a'\] has a duplicate or empty name"),
        ("a,\n1,2\n", {}, "a duplicate or empty name"),
        ("a,b\n", {"fields": ["a", "z"]}, r"no column \['z'\]; the columns are \['a', 'b'\]"),
        ("a,b\n", {"types": {"z": int}}, r"no column \['z'\]"),
        ("", {}, "no header or record to take the fields from"),
    ],
)
def test_csv_faults_are_reported(tmp_path, content, options, message):
    with pytest.raises(SpoutError, match=message):
        read_all(spout_of(tmp_path, content, "a.csv", **options))


class Refusals(Recorder):
    """Notes records that are refused instead of raising their errors."""

    def refuse(self, error, record):
        self.rows.append(("refused", record["text"]))


def test_records_beside_a_bad_one_keep_their_order(tmp_path):
    bench, recorder = Bench(spout_of(tmp_path, 'n\n1\n"2"\nx\n4\n5\n', "a.csv", types={"n": int})), Refusals()
    bench.plan(1)
    bench.emit(1, wrap=lambda _: recorder)
    assert recorder.rows == [("refused", "x"), (1,), (2,), (4,), (5,)]


def test_jsonl_fields_come_from_the_first_record_and_missing_keys_are_none(tmp_path):
    records = [{"w": "é", "n": 1}, {"n": 2.5, "extra": 0}, {"w": ["x", {"y": None}], "n": None}]
    content = "\n" + "\r\n\n".join(map(json.dumps, records)) + "\n"
    spout = spout_of(tmp_path, content, "a.jsonl", max_batch_rows=2)
    assert declared(spout) == ("w", "n")
    assert read_all(spout) == [[("é", 1), (None, 2.5)], [(["x", {"y": None}], None)]]
    assert flat(read_all(FileSpout(tmp_path / "a.jsonl", fields=["extra", "n"])))[1] == (0, 2.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"é":1}\n{"é":}\n', r"line 2 \(bytes 9-17\): not a JSON record: Expecting value"),
        ('{"a":1}\n[1]\n', r"line 2 \(bytes 8-12\): not a JSON record: expected an object, got list"),
        ('{"a":1},{"a":2}\n', "not a JSON record: Extra data"),
        ("", "no header or record to take the fields from"),
    ],
)
def test_jsonl_faults_are_reported(tmp_path, content, message):
    with pytest.raises(SpoutError, match=message):
        read_all(spout_of(tmp_path, content, "a.jsonl"))


def table(first: int, rows: int) -> pa.Table:
    numbers = np.arange(first, first + rows)
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int64()))])
    return pa.table([numbers, [str(n) for n in numbers], [[int(n)] for n in numbers]], schema=schema)


def parquet(directory: Path, first: int, rows: int, name: str = "a", **options) -> Path:
    """Write a Parquet file of this table; return its path."""
    path = directory / f"{name}.parquet"
    pq.write_table(table(first, rows), path, **options)
    return path


def test_parquet_row_ranges_over_row_groups_and_files(tmp_path):
    for first, rows, name in ((0, 10, "a"), (10, 0, "b"), (10, 5, "c")):
        parquet(tmp_path, first, rows, name, row_group_size=4)
    spout = FileSpout(tmp_path / "*.parquet", max_batch_rows=6)
    assert declared(spout) == ("n", "s", "l")
    batches = read_all(spout)
    assert [[row[0] for row in batch] for batch in batches] == [[*range(6)], [*range(6, 12)], [12, 13, 14]]
    assert batches[0][3] == (3, "3", [3])
    bench = Bench(spout, tasks=4)
    assert [sorted(batch) for batch in bench.drain()] == batches
    cut = bench.documents[2]["meta"]["segments"]
    assert [(os.path.basename(s["file"])[0], s["from"], s["to"]) for s in cut] == [
        ("a", 6, 7), ("a", 7, 9), ("a", 9, 10), ("c", 0, 2),
    ]  # fmt: skip


def test_parquet_keeps_types_selects_columns_and_respects_max_bytes(tmp_path):
    bench = Bench(FileSpout(parquet(tmp_path, 0, 3), fields=("s", "n")))
    bench.plan(1)
    (recorder,) = bench.emit(1)
    assert pa.table(recorder.batches[0]).schema == pa.schema([("s", pa.string()), ("n", pa.int64())])
    assert recorder.rows == [("0", 0), ("1", 1), ("2", 2)]
    path = parquet(tmp_path, 0, 1000, compression="none")
    batches = read_all(FileSpout(path, max_batch_bytes=os.path.getsize(path) // 3))
    assert len(batches) in (3, 4)
    assert [row[0] for row in flat(batches)] == list(range(1000))


def test_parquet_with_another_schema_or_of_another_format_is_reported(tmp_path):
    parquet(tmp_path, 0, 1)
    pq.write_table(pa.table({"z": [1]}), tmp_path / "b.parquet")
    with pytest.raises(SpoutError, match=r"b\.parquet: expected the columns .*got \['z: int64'\]"):
        check_spout(FileSpout(tmp_path / "*.parquet"))
    with pytest.raises(SpoutError, match="holds Parquet data"):
        check_spout(FileSpout(tmp_path / "a.parquet", format="csv"))
    (tmp_path / "c.parquet").write_text("no")
    with pytest.raises(SpoutError, match=r"c\.parquet is not a Parquet file"):
        check_spout(FileSpout(tmp_path / "c.parquet"))


def test_changed_parquet_is_rejected(tmp_path):
    path = parquet(tmp_path, 0, 10)
    bench = Bench(FileSpout(path, max_batch_rows=4))
    first = bench.rows(1)
    parquet(tmp_path, 1, 10)
    with pytest.raises(SpoutError, match=r"a\.parquet: range 0-4 changed since its range was planned: expected digest"):
        bench.rows(1)
    parquet(tmp_path, 0, 3)
    with pytest.raises(SpoutError, match="changed since its range was planned"):
        bench.rows(1)
    again = Bench(FileSpout(path, max_batch_rows=4))
    again.documents = dict(bench.documents)
    with pytest.raises(SpoutError, match=r"txid 2: .*shrank: expected the 4 rows that were read, got 3"):
        again.plan(2)
    parquet(tmp_path, 0, 10)
    assert bench.rows(1) == first


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("s3://bucket/a.txt",), SpoutError, "'s3://bucket/a.txt' is not local"),
        (("file://host/a.txt",), SpoutError, "is not local"),
        (("dbfs:/a.txt",), SpoutError, r"'dbfs:/a.txt' is not local.*on Databricks /Volumes/"),
        (("",), SpoutError, "is not a path"),
        (("a\0b",), SpoutError, "is not a path"),
        (([],), SpoutError, "no path given"),
        ((["a.txt", "b.csv"],), SettingError, r"several formats, \['csv', 'text'\]"),
    ],
)
def test_bad_paths(arguments, error, message):
    with pytest.raises(error, match=message):
        FileSpout(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows is 0"),
        ({"max_batch_bytes": -1}, "max_batch_bytes is -1"),
        ({"max_batch_bytes": 0}, "max_batch_bytes is 0"),
        ({"max_batch_rows": 1.5}, "max_batch_rows is 1.5"),
        ({"format": "xml"}, "format 'xml', expected one of"),
        ({"format": "ndjson"}, "format 'ndjson', expected one of .*did you mean 'jsonl'"),
        ({"types": {"a": int}}, "types belong to formats 'csv' and 'jsonl'"),
        ({"format": "csv", "types": {"a": "int"}}, r"types of \['a'\]"),
        ({"format": "csv", "header": False}, "header=False needs fields="),
        ({"fields": ["a", "b"]}, "text has one field"),
        ({"fields": []}, "fields is empty"),
        ({"errors": "ignore"}, "errors 'ignore'"),
        ({"format": "csv", "delimiter": ";;"}, "delimiter ';;'"),
        ({"order": "time"}, "order is 'time', expected 'arrival' or 'name'"),
        ({"seen_files_age": 7}, "seen_files_age is 7, expected a timedelta above 0"),
        ({"order": "name", "seen_files_age": timedelta(1)}, "seen_files_age belongs to files that are read as they"),
        ({"bounded": True, "seen_files_age": timedelta(1)}, "seen_files_age belongs to files that are read as they"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(SettingError, match=message):
        FileSpout("a.txt", **options)


def test_an_unreadable_file_is_reported(tmp_path, monkeypatch):
    check_spout(spout_of(tmp_path, "a\n"))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(SpoutError, match=r"a\.txt cannot be read: Permission denied"):
        check_spout(FileSpout(tmp_path / "a.txt"))


def test_paths_become_absolute_and_urls_and_unusual_names_work(tmp_path, monkeypatch):
    (tmp_path / "a b[1].txt").write_text("odd\n")
    monkeypatch.chdir(tmp_path)
    relative = FileSpout("a b[1].txt")
    monkeypatch.chdir("/")
    assert flat(read_all(relative)) == [("odd",)]
    assert flat(read_all(FileSpout(f"file://{tmp_path}/a%20b[1].txt"))) == [("odd",)]
    assert flat(read_all(FileSpout([tmp_path / "*.txt", str(tmp_path / "a b[1].txt")]))) == [("odd",)]
    (tmp_path / "x" / "y").mkdir(parents=True)
    (tmp_path / "x" / "y" / "a.txt").write_text("deep\n")
    assert flat(read_all(FileSpout(tmp_path / "**" / "*.txt"))) == [("odd",), ("deep",)]


def test_a_pickled_spout_keeps_its_fields(tmp_path):
    spout = spout_of(tmp_path, "x\n1\n", "a.csv")
    declared(spout)
    (tmp_path / "a.csv").unlink()
    assert declared(pickle.loads(pickle.dumps(spout))) == ("x",)


def test_metadata_of_a_newer_version_are_rejected(tmp_path):
    bench = Bench(spout_of(tmp_path, "a\n"))
    bench.plan(1)
    bench.documents[1]["meta"]["v"] = 3
    for use in (lambda: bench.plan(2), lambda: bench.emit(1)):
        with pytest.raises(SpoutError, match="metadata of format 3, this txstorm knows 2"):
            use()


def test_the_mark_is_reached_once_everything_is_read_and_without_a_txid_if_there_are_no_records(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n3\n")
    (tmp_path / "b.txt").write_text("")
    bench = Bench(FileSpout(tmp_path / "*.txt", max_batch_rows=2, order="name"))
    mark = bench.planner.latest()
    (tmp_path / "c.txt").write_text("later\n")
    assert bench.plan(1) is not NOT_READY
    assert not bench.planner.reached(None, mark)
    assert not bench.planner.reached(bench.documents[1], mark)
    bench.plan(2)
    assert bench.planner.reached(bench.documents[2], mark)
    assert bench.plan(3) is NOT_READY
    for name, content, empty in (("a.csv", "x\n", True), ("b.txt", "", True), ("c.csv", "x\n1\n\n\n", False)):
        bench = Bench(spout_of(tmp_path, content, name))
        assert bench.planner.reached(None, bench.planner.latest()) == empty
    bench.plan(1)
    assert bench.planner.reached(bench.documents[1], bench.planner.latest())
