"""File source of Hailstorm topologies: lines as records with offsets, against plain lists."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spouts_recording import Bench

from txstorm.errors import InputError
from txstorm.hailstorm import HailstormFileSource
from txstorm.spouts.files.text_lines import EVERY

LINES = st.lists(st.sampled_from([b"", b"a", b"\xff\x00", b"a b", b"x" * 50]), max_size=12)


def appended(place: Path, name: str, data: bytes) -> Path:
    with open(place / f"{name}.txt", "ab") as file:
        file.write(data)
    return place / f"{name}.txt"


class Files:
    """A source of growing files, read by a new coordinator for each transaction, beside lists of their lines."""

    def __init__(self, place, files, end=b"\n", cyclic=False):
        self.place, self.end, self.cyclic = place, end, cyclic
        self.lines, self.found = {f"part.{n}": [] for n in range(len(files))}, {}
        for name, lines in zip(self.lines, files, strict=True):
            self.append(name, lines)
            self.found[name] = []
        self.documents = {}

    def append(self, name, lines):
        appended(self.place, name, b"".join(line + self.end for line in lines))
        self.lines[name] += lines

    def source(self):
        return HailstormFileSource([self.place / f"{name}.txt" for name in self.lines], self.cyclic)

    def read(self, txid, rows, tasks, upto=None):
        """Plan and emit a transaction; return whether there was one."""
        bench = Bench(self.source().spout(rows), tasks)
        coordinator = bench.spout.coordinator(bench.context(0))
        previous = self.documents.get(txid - 1)
        planned = coordinator.initialize_transaction(txid, previous, upto)
        if not isinstance(planned, dict):
            return False
        bench.documents[txid] = {"meta": planned}
        self.documents[txid] = planned
        emitted = {task: iter(recorder.rows) for task, recorder in enumerate(bench.emit(txid))}
        for number, (name, one) in enumerate(sorted(planned["lines"].items())):
            self.found[name] += [next(emitted[number % tasks])[0] for _ in range(one["count"])]
        assert sum(one["count"] for one in planned["lines"].values()) <= rows
        assert coordinator.clock(planned) == {name: len(found) - 1 for name, found in self.found.items()}
        return True


@settings(max_examples=40)
@given(
    st.lists(LINES, min_size=1, max_size=3),
    st.lists(st.integers(-1, 20), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), LINES), max_size=3),
    st.sampled_from([b"\n", b"\r\n"]),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_every_line_comes_once_in_order_first_up_to_a_clock_as_files_grow(
    tmp_path_factory, lines, wanted, growth, end, rows, tasks
):
    files, txid = Files(tmp_path_factory.mktemp("lines"), lines, end), 1
    upto = dict(zip(files.lines, wanted, strict=False))
    while files.read(txid, rows, tasks, upto):
        txid += 1
    assert {name: len(found) for name, found in files.found.items()} == {
        name: min(len(files.lines[name]), upto[name] + 1) for name in files.lines
    }
    for which, more in [*growth, (0, [])]:
        files.append(f"part.{which % len(lines)}", more)
        while files.read(txid, rows, tasks):
            txid += 1
        assert files.found == files.lines
    coordinator = files.source().spout().coordinator(None)
    assert coordinator.end_clock() == {name: len(found) - 1 for name, found in files.lines.items()}
    last = files.documents.get(txid - 1)
    assert coordinator.caught_up(last)
    # A new data directory goes on at a clock.
    assert txid == 1 or not isinstance(
        coordinator.initialize_transaction(9, coordinator.at_clock(coordinator.clock(last))), dict
    )


@settings(max_examples=40)
@given(LINES.filter(bool), st.integers(1, 9), st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_cyclic_files_go_on_with_their_first_line(tmp_path_factory, lines, rows, offset, count, ended):
    files = Files(tmp_path_factory.mktemp("lines"), [lines, [b"one"]], cyclic=True)
    if not ended:
        appended(files.place, "part.0", b"last")
        files.lines["part.0"].append(b"last")
    for txid in range(1, 8):
        assert files.read(txid, rows, 2)
    assert all(
        one == files.lines[name][n % len(files.lines[name])]
        for name, found in files.found.items()
        for n, one in enumerate(found)
    )
    assert sum(map(len, files.found.values())) == 7 * rows
    every = files.lines["part.0"]
    expected = [(every[n % len(every)], n) for n in range(offset, offset + count)]
    assert files.source().read(offset, count, "part.0") == expected


def test_lines_are_found_by_number(tmp_path):
    path = appended(tmp_path, "many", b"".join(b"%d\n" % n for n in range(3 * EVERY)))
    source = HailstormFileSource(path)
    for offset in (2 * EVERY + 5, 0, EVERY, 3 * EVERY - 1, EVERY - 1, 3 * EVERY, 4 * EVERY):
        assert source.read(offset, 2) == [(b"%d" % n, n) for n in range(offset, min(offset + 2, 3 * EVERY))]
    appended(tmp_path, "many", b"more")
    assert source.read(3 * EVERY, 5, "many") == [(b"more", 3 * EVERY)]
    path.write_bytes(b"one\ntwo\n")
    assert source.read(1, 5) == [(b"two", 1)]


@pytest.mark.parametrize(
    ("changed", "cyclic", "told"),
    [
        (b"a\nb\n", False, r"part.0.txt has changed: it was read up to byte \d+, and has 4 now"),
        (b"a\nb\nX\nd\n", False, "part.0.txt has changed: bytes 2 to 6 are other ones than were read"),
        (b"a\nb\nccc\n", False, "part.0.txt has changed: .* other ones"),
        (b"a\nb\nc\nd\n", True, "part.0.txt has changed: .* must stay as they are"),
        (b"a\nb\nX\n", True, "part.0.txt has changed: .* must stay as they are"),
        (None, False, "part.0.txt cannot be read: No such file"),
    ],
)
def test_a_file_that_shrank_or_changed_is_named(tmp_path, changed, cyclic, told):
    files = Files(tmp_path, [[b"a", b"b", b"c"]], cyclic=cyclic)
    assert files.read(1, 1, 1)
    assert files.read(2, 2, 1)
    path = tmp_path / "part.0.txt"
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    with pytest.raises(InputError, match=told):
        files.read(3, 1, 1)
    if changed == b"a\nb\nc\nd\n":
        return  # the lines of txid 2 are the same
    bench = Bench(files.source().spout(1))
    bench.documents[2] = {"meta": files.documents[2]}
    with pytest.raises(InputError, match=told if changed is None else "part.0.txt has changed"):
        bench.emit(2)


def test_a_last_line_without_end_is_a_record_and_may_get_its_end_but_nothing_else(tmp_path):
    files = Files(tmp_path, [[]])
    appended(tmp_path, "part.0", b"one")
    files.lines["part.0"] = [b"one", b"two"]
    assert files.read(1, 5, 1)
    appended(tmp_path, "part.0", b"\ntw")
    assert not HailstormFileSource(tmp_path / "part.0.txt").spout().coordinator(None).caught_up(files.documents[1])
    appended(tmp_path, "part.0", b"o")
    assert files.read(2, 5, 1)
    assert files.found == files.lines
    appended(tmp_path, "part.0", b"!\n")
    with pytest.raises(InputError, match=r"part.0.txt has changed: it grew inside its last line"):
        files.read(3, 5, 1)


def test_refusals(tmp_path):
    (tmp_path / "b").mkdir()
    path, other = appended(tmp_path, "a", b"x\n"), appended(tmp_path, "b/a", b"")
    for told, act in {
        "have the same name, 'a'": lambda: HailstormFileSource([path, other]),
        "no path given": lambda: HailstormFileSource([]),
        "no partition 'c'; it has a": lambda: HailstormFileSource(path).read(0, 1, "c"),
        "expected an offset and a count of at least 0, got -1": lambda: HailstormFileSource(path).read(-1, 1),
        "max_batch_rows: expected an int of at least 1, got 0": lambda: HailstormFileSource(path).spout(0),
        "b is no file": lambda: HailstormFileSource(tmp_path / "b").spout().check(),
        "the clock has partition 'z'": lambda: HailstormFileSource(path).spout().coordinator(None).at_clock({"z": 1}),
    }.items():
        with pytest.raises(InputError, match=told):
            act()
