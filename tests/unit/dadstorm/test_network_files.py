"""Data files of operator networks: how they are divided among replicas, followed and checked, against plain lists."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spouts_recording import Bench

from txstorm.api.spout import NOT_READY
from txstorm.dadstorm.configuration import parse
from txstorm.dadstorm.source import FileParts, FilesSpout, Part, Room, Rows, TopicSpout
from txstorm.errors import InputError, SpoutError

LINES = st.lists(st.sampled_from(["a", "b, c", '"d, e"', "% no", "", "  "]), max_size=12)


def configured(place, *replicas, file="in.data"):
    return parse(
        "".join(
            f"OP{n} input_ops {file} rep_fact {number} routing random address {','.join(['tcp://h:1/op'] * number)} "
            "operator_spec DUP\n"
            for n, number in enumerate(replicas, 1)
        ),
        directory=place,
    )


def bench(place, *replicas, rows=1000, tasks=1, file="in.data"):
    return Bench(FilesSpout(configured(place, *replicas, file=file), rows, Rows()), tasks)


class Model:
    """The lines of a file, and which of them each replica of each operator should read."""

    def __init__(self, place, replicas, lines, end):
        self.path, self.end, self.lines = place / "in.data", end, []
        self.add(lines)
        share = {number: len(self.lines) // number for number in replicas}
        self.cuts = {n: [share[number] * k for k in range(number)] for n, number in enumerate(replicas, 1)}

    def add(self, lines):
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.writelines(line + self.end for line in lines)
        every = self.path.read_text(encoding="utf-8").splitlines()
        self.lines = [(f"in.data:{n}", line) for n, line in enumerate(every, 1) if line.strip() and line[0] != "%"]

    def parts(self):
        return {
            (f"OP{n}", k): self.lines[start:stop]
            for n, cuts in self.cuts.items()
            for k, (start, stop) in enumerate(zip(cuts, [*cuts[1:], None], strict=True))
        }


@settings(max_examples=40)
@given(
    LINES,
    st.lists(LINES, max_size=2),
    st.lists(st.integers(1, 3), min_size=1, max_size=2),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_each_replica_reads_its_part_and_the_last_one_what_is_appended(
    tmp_path_factory, lines, growth, replicas, end, rows, tasks
):
    place = tmp_path_factory.mktemp("files")
    model, documents, txid, found = Model(place, replicas, lines, end), {}, 1, {}
    for more in [[], *growth]:
        if documents or not more:
            model.add(more)
        else:
            model = Model(place, replicas, more, end)  # nothing was planned yet
        while True:  # a new coordinator for each transaction, as after a restart
            reader = bench(place, *replicas, rows=rows, tasks=tasks)
            reader.documents = documents
            files = reader.spout.files
            before = documents.get(txid - 1, {}).get("meta")
            is_over = files.reached(before, files.marks())
            if reader.plan(txid) is NOT_READY:
                break
            assert not is_over
            read = [row for recorder in reader.emit(txid) for row in recorder.rows]
            assert 0 < len(read) <= rows
            for operator, replica, id, line in read:
                found.setdefault((operator, replica), []).append((id, line))
            txid += 1
        assert is_over
        assert {key: one for key, one in model.parts().items() if one} == found


def test_parts_have_room_of_their_own_or_share_it(tmp_path):
    (tmp_path / "in.data").write_text("".join(f"{n}\n" for n in range(10)), encoding="utf-8")
    files, shared = FileParts(configured(tmp_path, 2)), Room(3)
    parts = [Part("OP1", "in.data", replica) for replica in (0, 1)]
    numbers = []
    for limits in ({}, dict.fromkeys(parts, shared), {parts[1]: Room(9), parts[0]: Room(0)}, None):
        planned = files.plan(1, numbers[-1][1] if numbers else None, 100, limits)
        numbers += [] if planned is None else [([one["tuples"] for one in planned["parts"]["OP1"]["in.data"]], planned)]
    assert [one for one, _ in numbers] == [[3, 0], [0, 5], [2, 0]]
    assert shared.left == 0


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (b"a\nb\n", "in.data has changed: it was divided up to byte 8, and has 4 now"),
        (b"X\nb\nc\nd\ne\nf\n", "in.data has changed: bytes 0 to 2 are other ones than were read"),
        (b"a\nb\nc\nd\ne\nf\ng", None),
        (None, "in.data cannot be read: No such file"),
    ],
)
def test_a_file_that_shrank_or_changed_is_named(tmp_path, changed, expected):
    path = tmp_path / "in.data"
    path.write_bytes(b"a\nb\nc\nd\ne\nf\n")
    reader = bench(tmp_path, 3, rows=2)
    reader.rows(1)
    reader.rows(2)
    path.unlink()
    if changed is not None:
        path.write_bytes(changed)
    if expected is None:
        reader.plan(3)
    else:
        with pytest.raises(SpoutError, match=expected):
            reader.plan(3)


def test_a_planned_line_that_changed_is_not_emitted(tmp_path):
    path = tmp_path / "in.data"
    path.write_bytes(b"% no\na\nb\n")
    reader = bench(tmp_path, 1)
    reader.plan(1)
    path.write_bytes(b"% no\na\nX\n")
    with pytest.raises(SpoutError, match=r"in.data has changed: lines 1 to 3 are other ones than were planned"):
        reader.emit(1)


def test_a_line_that_is_not_utf_8_is_refused_with_its_number(tmp_path):
    (tmp_path / "in.data").write_bytes(b"\xef\xbb\xbf% no\na\n\xff b\n\xc3\xa9\n")
    reader, refused = bench(tmp_path, 1), []
    reader.plan(1)
    with pytest.raises(SpoutError, match=r"^in.data:3: the line is not UTF-8: invalid start byte at its byte 1"):
        reader.emit(1)

    def leaving_out(recorder):
        recorder.refuse = lambda error, record: refused.append(record)
        return recorder

    [recorder] = reader.emit(1, wrap=leaving_out)
    assert [row[2:] for row in recorder.rows] == [("in.data:2", "a"), ("in.data:4", "é")]
    assert refused == [{"id": "in.data:3", "text": "\\xff b"}]


def test_the_last_line_may_lack_its_end_and_get_it_later(tmp_path):
    path = tmp_path / "in.data"
    path.write_bytes(b"a\nb")
    reader = bench(tmp_path, 1)
    assert [row[2] for row in reader.rows(1)] == ["in.data:1", "in.data:2"]
    path.write_bytes(b"a\nb\nc")
    assert [row[2:] for row in reader.rows(2)] == [("in.data:3", "c")]
    path.write_bytes(b"a\nb\ncc")
    with pytest.raises(SpoutError, match="it grew inside its last line"):
        reader.plan(3)


def test_refusals(tmp_path):
    (tmp_path / "in.data").write_bytes(b"a\nb\n")
    reader = bench(tmp_path, 1)
    reader.rows(1)
    other = bench(tmp_path, 2)
    other.documents = reader.documents
    with pytest.raises(SpoutError, match=r"operator OP1 reads in.data with another number of replicas than before"):
        other.plan(2)
    reader.documents[1]["meta"]["v"] = 2
    with pytest.raises(SpoutError, match="metadata of format 2, this txstorm knows 1"):
        reader.plan(2)
    with pytest.raises(SpoutError, match=r"missing.data cannot be read: No such file"):
        bench(tmp_path, 1, file="missing.data").spout.check()
    with pytest.raises(SpoutError, match=rf"{os.fspath(tmp_path)} is no file"):
        bench(tmp_path, 1, file="./").spout.check()
    with pytest.raises(InputError, match="expected kafka://HOST:PORT/TOPIC"):
        TopicSpout("kafka://host:1", "OP1", 1, 10, Rows())
