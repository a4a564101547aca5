"""File spout in the order of arrival: files that come, grow, go and return, against a plain model."""

import os
import random
import uuid
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spouts_recording import Bench

from txstorm.api.spout import NOT_READY
from txstorm.errors import SpoutError
from txstorm.spouts import FileSpout
from txstorm.spouts.files import lines


class Zone:
    """A landing zone, and the rows of its spout as transactions that are planned, committed, replayed and rewound."""

    def __init__(self, path, chance, **options):
        self.path, self.chance, self.options = path, chance, options
        self.contents: dict[str, list[str]] = {}
        self.rows: dict[int, list[str]] = {}
        self.written = self.committed = self.floor = 0
        self.bench = self.made()

    def made(self):
        tasks = self.chance.choice([1, 2, 3])
        return Bench(FileSpout(self.path / "*.txt", max_batch_rows=self.rows_of_batch(), **self.options), tasks)

    def rows_of_batch(self):
        return self.chance.choice([2, 5, 50])

    def write(self, name, count, mode="a"):
        lines = [str(self.written + i) for i in range(count)]
        self.written += count
        self.contents.setdefault(name, []).extend(lines)
        with open(self.path / name, mode) as file:
            file.writelines(f"{line}\n" for line in lines)

    def arrive(self):
        self.write(f"{uuid.UUID(int=self.chance.getrandbits(128))}.txt", self.chance.choice([0, 1, 4, 20]))

    def grow(self):
        if there := sorted(os.listdir(self.path)):
            self.write(self.chance.choice(there), self.chance.choice([1, 3]))

    def touch(self):
        for name in sorted(os.listdir(self.path))[:1]:
            os.utime(self.path / name, ns=(self.written, self.written))

    def vanish(self):
        """Remove a file that is read to its end, as a finished transaction says; it can no more be read again."""
        read = {row for rows in self.rows.values() for row in rows}
        for name in sorted(os.listdir(self.path)):
            ended = any(name in str(one["meta"].get("files", ())) for one in self.bench.documents.values())
            if ended and read.issuperset(self.contents[name]):
                os.unlink(self.path / name)
                self.committed = self.floor = max(self.rows, default=0)
                return

    def return_(self):
        gone = sorted(self.contents.keys() - set(os.listdir(self.path)))
        for name in gone[:1]:
            (self.path / name).write_text("".join(f"{line}\n" for line in self.contents[name]))

    def plan(self):
        txid = max(self.rows, default=0) + 1
        if self.bench.plan(txid) is NOT_READY:
            return False
        self.rows[txid] = [row for (row,) in self.bench.rows(txid)]
        return True

    def commit(self):
        last = max(self.rows, default=0)
        self.committed = self.chance.randint(self.committed, last)
        if self.committed:
            self.bench.planner.committed(self.bench.documents[self.committed])

    def restart(self):
        documents = self.bench.documents
        self.bench = self.made()
        self.bench.documents = documents
        self.bench.load(self.committed)
        for txid in range(self.committed + 1, max(self.rows, default=0) + 1):
            assert sorted(row for (row,) in self.bench.rows(txid)) == sorted(self.rows[txid])

    def rewind(self):
        last = self.chance.randint(self.floor, self.committed)
        self.bench.documents = {txid: one for txid, one in self.bench.documents.items() if txid <= last}
        self.rows = {txid: rows for txid, rows in self.rows.items() if txid <= last}
        self.committed = last
        self.restart()

    def read_all(self):
        """Read what is there when asked, as a run with `available_now`; the first plan that covers all of it ends it."""
        asked, mark = set(map(str, range(self.written))), self.bench.planner.latest()
        while not self.bench.planner.reached(self.bench.documents.get(max(self.rows, default=0)), mark):
            assert self.plan(), "more was there when asked"
        assert asked == {row for rows in self.rows.values() for row in rows}
        covering = [txid for txid in self.rows if self.bench.planner.reached(self.bench.documents[txid], mark)]
        before = {row for txid, rows in self.rows.items() if txid <= min(covering, default=0) for row in rows}
        assert asked == before or not covering


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_read_once_whatever_happens(tmp_path, seed):
    chance = random.Random(seed)
    zone = Zone(tmp_path, chance)
    zone.write("m.txt", 3)
    steps = [zone.arrive, zone.grow, zone.plan, zone.plan, zone.commit, zone.restart]
    steps += [zone.touch, zone.vanish, zone.return_, zone.rewind, zone.read_all]
    for _ in range(60):
        chance.choice(steps)()
    zone.restart()
    zone.read_all()
    assert sorted(row for rows in zone.rows.values() for row in rows) == sorted(map(str, range(zone.written)))
    assert not any(document["meta"].get("files") == [] for document in zone.bench.documents.values())


def started(path, pattern="*.txt", before=None, **options):
    """Return a bench on `path` as a new process has it, with all transactions of the bench `before` committed."""
    bench = Bench(FileSpout(path / pattern, **options))
    bench.documents = dict(before.documents) if before else {}
    bench.load(max(bench.documents, default=0))
    bench.planner.latest()
    return bench


def write(path, text, mode="w"):
    with open(path, mode) as file:
        file.write(text)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: os.utime(path, (1, 1)), []),
        (lambda path: write(path, "1\n2\n"), []),
        (lambda path: write(path, "1\n2\n3\n"), [("3",)]),
        (lambda path: write(path, "\n", "a"), [("",)]),
        (lambda path: path.unlink(), []),
        (lambda path: write(path, "1\nX\n"), r"changed since it was read up to 4: it had 4 bytes, has 4 now"),
        (lambda path: write(path, "1\nX\n3\n"), r"b\.txt has changed"),
        (lambda path: write(path, "1\n"), r"b\.txt has changed .* has 2 now"),
        (lambda path: write(path, ""), r"b\.txt has changed"),
    ],
)
@pytest.mark.parametrize("gone", [False, True], ids=["there", "gone for a while"])
@pytest.mark.parametrize("again", [False, True], ids=["in one run", "in the next run"])
def test_a_file_that_was_read_and_changes(tmp_path, change, expected, gone, again):
    write(tmp_path / "b.txt", "1\n2\n")
    write(tmp_path / "c.txt", "0\n")
    bench = started(tmp_path)
    bench.drain()
    if gone:
        (tmp_path / "b.txt").rename(tmp_path / "away")
        bench = started(tmp_path, before=bench)
        (tmp_path / "away").rename(tmp_path / "b.txt")
    change(tmp_path / "b.txt")
    write(tmp_path / "a.txt", "new\n")

    def read():
        return [row for rows in (started(tmp_path, before=bench) if again else bench).drain() for row in rows]

    if isinstance(expected, str):
        with pytest.raises(SpoutError, match=expected):
            read()
    else:
        assert read() == [("new",), *expected]


def test_a_file_that_is_being_read_must_stay_as_it_is(tmp_path):
    write(tmp_path / "a.txt", "1\n2\n3\n")
    bench = started(tmp_path, max_batch_rows=2)
    bench.rows(1)
    os.utime(tmp_path / "a.txt", (1, 1))
    assert started(tmp_path, before=bench, max_batch_rows=2).rows(2) == [("3",)]
    write(tmp_path / "a.txt", "1\nX\n3\n")
    with pytest.raises(SpoutError, match=r"a\.txt has changed since it was read up to 4"):
        started(tmp_path, before=bench)
    (tmp_path / "a.txt").rename(tmp_path / "b.txt")
    with pytest.raises(SpoutError, match=r"a\.txt disappeared after it was read up to 4"):
        started(tmp_path, before=bench)


@pytest.mark.parametrize("suffix", ["txt", "parquet"])
@pytest.mark.parametrize("size", [3, 4, 6, 9])
def test_a_file_that_takes_the_place_of_one_being_read_is_refused(tmp_path, suffix, size, monkeypatch):
    monkeypatch.setattr(lines, "READ_BYTES", 4)

    def put(first, count):
        rows = [str(first + i) for i in range(count)]
        if suffix == "txt":
            write(tmp_path / "a.txt", "".join(f"{row}\n" for row in rows))
        else:
            pq.write_table(pa.table({"n": rows}), tmp_path / "a.parquet", row_group_size=2)

    put(10, 6)
    bench = started(tmp_path, f"*.{suffix}", max_batch_rows=2)
    assert [bench.rows(1), bench.rows(2)] == [[("10",), ("11",)], [("12",), ("13",)]]
    put(50, size)
    with pytest.raises(SpoutError, match=r"changed since|shrank"):
        bench.drain()


def test_a_file_that_is_replaced_while_it_waits_to_be_read_on_is_refused(tmp_path):
    write(tmp_path / "b.txt", "1\n")
    bench = started(tmp_path, max_batch_rows=1)
    bench.drain()
    write(tmp_path / "b.txt", "2\n", "a"), write(tmp_path / "a.txt", "x\n")
    assert bench.rows(2) == [("x",)]
    write(tmp_path / "b.txt", "3\n4\n5\n")
    with pytest.raises(SpoutError, match=r"b\.txt has changed since it was read up to 2: it had 2 bytes, has 6 now"):
        bench.drain()


def test_hidden_temporary_and_unfinished_files_are_passed_over(tmp_path):
    for name in ("a.txt", "_a.txt", ".a.txt", "_temporary/0/b.txt", "sub/_c.txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, f"{name}\n")
    found = {"**/*.txt": {"a.txt", "sub/d.txt"}, "_*.txt": {"_a.txt"}, "_a.txt": {"_a.txt"}, "*/_*.txt": {"sub/_c.txt"}}
    for pattern, names in found.items():
        assert {row for rows in started(tmp_path, pattern).drain() for (row,) in rows} == names, pattern
    table = pa.table({"n": [1, 2, 3]})
    pq.write_table(table.slice(0, 1), tmp_path / "b.parquet")
    pq.write_table(table.slice(1), tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for part in (b"", b"PA", content[:9], content[:-4]):
        (tmp_path / "a.parquet").write_bytes(part)
        bench = started(tmp_path, "*.parquet")
        bench.spout.check()
        assert bench.drain() == [[(1,)]]
        assert bench.planner.remarks() == [f"lines: 1 file ({tmp_path}/a.parquet) without a footer yet"]
        assert bench.planner.reached(bench.documents[1], bench.planner.latest())
    (tmp_path / "a.parquet").write_bytes(content)
    assert started(tmp_path, "*.parquet", bench).drain() == [[(2,), (3,)]]
    (tmp_path / "c.parquet").write_text("no Parquet at all")
    with pytest.raises(SpoutError, match="is not a Parquet file"):
        started(tmp_path, "*.parquet", bench).drain()


def test_newcomers_older_than_seen_files_age_are_counted_and_passed_over(tmp_path):
    def aged(name, days):
        write(tmp_path / name, f"{name}\n")
        os.utime(tmp_path / name, (1e9 - days * 86_400,) * 2)

    options = {"seen_files_age": timedelta(days=7), "max_batch_rows": 1}
    aged("b.txt", 0), aged("a.txt", 30), aged("d.txt", 8)
    bench = started(tmp_path, **options)
    assert bench.rows(1) == [("a.txt",)]  # all that a first listing finds is read, also after a restart in between
    bench = started(tmp_path, before=bench, **options)
    assert bench.drain() == [[("b.txt",)], [("d.txt",)]]
    aged("c.txt", 6), aged("e.txt", 8), aged("f.txt", 9), (tmp_path / "a.txt").unlink()
    bench = started(tmp_path, before=bench, **options)
    assert bench.drain() == [[("c.txt",)]]
    (remark,) = bench.planner.remarks()
    assert "2 files" in remark and "e.txt" in remark
    aged("a.txt", 30), aged("0.txt", 0)  # its row is deleted with that of the transaction before: an old newcomer
    bench = started(tmp_path, before=bench, **options)
    assert bench.drain() == [[("0.txt",)]] and "3 files" in bench.planner.remarks()[0]


def test_a_directory_of_before_goes_on_by_name_unless_it_is_switched(tmp_path):
    for name in "bd":
        write(tmp_path / f"{name}.txt", f"{name}1\n{name}2\n{name}3\n")
    before = Bench(FileSpout(tmp_path / "*.txt", max_batch_rows=2, order="name"))
    for txid in (1, 2):
        before.rows(txid)
    assert before.documents[2]["meta"]["v"] == 1
    assert started(tmp_path, before=before, max_batch_rows=2).drain() == [[("d2",), ("d3",)]]
    write(tmp_path / "a.txt", "before the position: counts as read\n")
    bench = started(tmp_path, before=before, max_batch_rows=2)
    with pytest.raises(SpoutError, match=r"files before .*d\.txt.*order='arrival'"):
        bench.planner.reached(bench.documents[2], bench.planner.latest())
    bench = started(tmp_path, before=before, order="arrival")
    write(tmp_path / "c.txt", "c\n")
    write(tmp_path / "e.txt", "e\n")
    bench.planner.latest()
    assert [sorted(rows) for rows in bench.drain()] == [[], [("c",), ("d2",), ("d3",), ("e",)]]
    bench = started(tmp_path, before=bench, order="arrival")
    write(tmp_path / "b.txt", "longer than it was\n", "a")
    with pytest.raises(SpoutError, match=r"b\.txt has changed"):
        bench.planner.latest()
    with pytest.raises(SpoutError, match="give order='arrival'"):
        by_name = Bench(FileSpout(tmp_path / "*.txt", order="name"))
        by_name.documents = bench.documents
        by_name.drain()


def test_a_transaction_that_is_planned_again_and_reads_more_leaves_less_to_the_next(tmp_path):
    write(tmp_path / "a.txt", "1\n")
    bench = started(tmp_path)
    assert bench.rows(1) == [("1",)]
    write(tmp_path / "a.txt", "2\n", "a")
    bench.planner.latest()
    del bench.documents[1]  # as that of an opaque source beside it
    assert bench.rows(1) == [("1",), ("2",)]
    assert bench.plan(2) is NOT_READY
