"""File spout: input files that grow, appear, disappear or change during a run."""

import os

import pytest
from spouts_recording import Bench

from txstorm.api.spout import NOT_READY
from txstorm.errors import SpoutError
from txstorm.spouts import FileSpout


def write(path, text: str, mode: str = "w") -> None:
    with open(path, mode, encoding="utf-8", newline="") as file:
        file.write(text)


def append(path, text: str) -> None:
    write(path, text, "a")


@pytest.fixture
def bench(tmp_path):
    write(tmp_path / "b.txt", "1\n2\n3\n")
    write(tmp_path / "d.txt", "4\n5\n")
    return Bench(FileSpout(tmp_path / "*.txt", max_batch_rows=3, order="name"))


def restarted(bench: Bench, upto: int) -> Bench:
    again = Bench(FileSpout(bench.spout.paths, max_batch_rows=3, order="name"))
    again.documents = {txid: document for txid, document in bench.documents.items() if txid <= upto}
    return again


def test_a_new_file_that_sorts_last_and_new_lines_of_the_last_file_are_read(bench, tmp_path):
    bench.drain()
    write(tmp_path / "e.txt", "6\n")
    assert bench.rows(3) == [("6",)]
    append(tmp_path / "e.txt", "7\n8\n")
    assert bench.rows(4) == [("7",), ("8",)]
    write(tmp_path / "f.txt", "9\n")
    assert restarted(bench, 4).rows(5) == [("9",)]


def test_a_file_that_appears_after_the_position_is_read_after_a_restart(bench, tmp_path):
    bench.rows(1)
    write(tmp_path / "c.txt", "new\n")
    assert restarted(bench, 1).rows(2) == [("new",), ("4",), ("5",)]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda d: write(d / "a.txt", "0\n"), "a.txt appeared"),
        (lambda d: write(d / "c.txt", ""), "c.txt appeared"),
        (lambda d: os.unlink(d / "b.txt"), "b.txt disappeared"),
        (lambda d: append(d / "b.txt", "late\n"), "b.txt had 6 bytes when it was read and has 11"),
        (lambda d: os.rename(d / "b.txt", d / "a.txt"), "a.txt appeared, .*b.txt disappeared"),
    ],
)
def test_a_change_before_the_position_is_an_error_naming_the_file(bench, tmp_path, change, seen):
    bench.drain()
    change(tmp_path)
    with pytest.raises(SpoutError, match=f"files before .*d.txt, which is being read, .*{seen}"):
        bench.plan(3)
    # A new process has only a count and a digest of the files: its error lists the candidates.
    with pytest.raises(SpoutError, match=r"expected the 1 file that was read, got \d"):
        restarted(bench, 2).plan(3)


def test_a_new_process_reports_the_most_recently_changed_candidates(bench, tmp_path):
    bench.drain()
    write(tmp_path / "a.txt", "0\n")
    os.utime(tmp_path / "b.txt", (1, 1))
    with pytest.raises(SpoutError, match=r"got 2, .*changed last: .*a\.txt, .*b\.txt"):
        restarted(bench, 2).plan(3)


@pytest.mark.parametrize(
    ("before", "change", "seen", "restarted_seen"),
    [
        ("4\n5\n", os.unlink, r"d\.txt", r"d\.txt disappeared after it was read up to 4"),
        ("4\n5\n", lambda d: write(d, "4\n"), *[r"d\.txt shrank: expected the 4 bytes that were read, got 2"] * 2),
        ("4\n5", lambda d: append(d, "6\n"), *[r"d\.txt grew inside its last line, .* read up to 3"] * 2),
    ],
    ids=["disappeared", "shrank", "grew inside its last line"],
)
def test_a_changed_last_file_is_reported(bench, tmp_path, before, change, seen, restarted_seen):
    write(tmp_path / "d.txt", before)
    bench.drain()
    change(tmp_path / "d.txt")
    for one, message in ((bench, seen), (restarted(bench, 2), restarted_seen)):
        with pytest.raises(SpoutError, match=message):
            one.plan(3)


def test_a_listed_file_that_disappears_before_it_is_read_is_reported(bench, tmp_path):
    bench.rows(1)
    (tmp_path / "d.txt").unlink()
    with pytest.raises(SpoutError, match=r"'lines', txid 2: .*d\.txt cannot be read"):
        bench.plan(2)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_terminator_added_later_has_no_effect(bench, tmp_path, end):
    write(tmp_path / "d.txt", "4\n5")
    bench.drain()
    append(tmp_path / "d.txt", end)
    assert bench.plan(3) is NOT_READY
    assert bench.planner.reached(bench.documents[2], bench.planner.latest())
    append(tmp_path / "d.txt", "6\n")
    again = restarted(bench, 2)
    assert bench.rows(3) == [("6",)]
    assert again.rows(3) == [("6",)]
    write(tmp_path / "e.txt", "7\n")
    assert restarted(bench, 3).rows(4) == [("7",)]


def test_an_unterminated_last_line_of_a_file_that_is_not_the_last(bench, tmp_path):
    write(tmp_path / "b.txt", "1\n2")
    assert [[line for (line,) in batch] for batch in bench.drain()] == [["1", "2", "4"], ["5"]]
    assert restarted(bench, 1).rows(2) == [("5",)]


@pytest.mark.parametrize(
    ("content", "how"),
    [("1\n2\nX\n", "expected digest [0-9a-f]{32}, got [0-9a-f]{32}"), ("1\n", "expected 6 bytes, got 2")],
)
def test_a_changed_planned_range_is_rejected_until_it_is_restored(bench, tmp_path, content, how):
    first = bench.rows(1)
    write(tmp_path / "b.txt", content)
    with pytest.raises(SpoutError, match=rf"'lines', txid 1: .*b\.txt: range 0-6 changed since .* planned: {how}"):
        bench.rows(1)
    (tmp_path / "b.txt").unlink()
    with pytest.raises(SpoutError, match=r"b\.txt cannot be read"):
        bench.rows(1)
    write(tmp_path / "b.txt", "1\n2\n3\n")
    assert bench.rows(1) == first


def test_growth_after_planning_does_not_affect_a_replay(bench, tmp_path):
    bench.drain()
    second = bench.rows(2)
    append(tmp_path / "d.txt", "6\n")
    assert bench.rows(2) == second


def test_csv_that_grows_keeps_its_header(tmp_path):
    path = tmp_path / "a.csv"
    write(path, "")
    with pytest.raises(SpoutError, match="no header"):
        Bench(FileSpout(path))
    write(path, "x\n")
    bench = Bench(FileSpout(path))
    assert bench.plan(1) is NOT_READY
    append(path, "1\n")
    assert bench.rows(1) == [("1",)]
    append(path, "2\n")
    assert bench.rows(2) == [("2",)]
