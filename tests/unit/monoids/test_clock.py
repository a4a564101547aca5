"""Vector clocks: comparison, low water marks, and the clocks that spouts give and transactions record."""

import json

import pytest

from txstorm import Clock, CompositeSpout, TransactionalTopologyBuilder, low_water_mark, run
from txstorm.bolts import CountByKey
from txstorm.errors import InputError
from txstorm.operations.rewind import rewind
from txstorm.operations.status import read_status
from txstorm.spouts import FileSpout, MemoryTransactionalSpout


@pytest.mark.parametrize(
    ("a", "b", "greater", "greater_or_equal"),
    [
        ({"p": 2, "q": 2}, {"p": 1, "q": 1}, True, True),
        ({"p": 2, "q": 1}, {"p": 1, "q": 1}, False, True),
        ({"p": 1, "q": 1}, {"q": 1, "p": 1}, False, True),
        ({"p": 2, "q": 0}, {"p": 1, "q": 1}, False, False),
        ({"p": 9}, {"p": 1, "q": 1}, False, False),
        ({"p": 9, "q": 9}, {"p": 1}, False, False),
    ],
)
def test_comparison(a, b, greater, greater_or_equal):
    left, right = Clock(a), Clock(b)
    assert (left > right, left >= right) == (greater, greater_or_equal) == (right < left, right <= left)
    assert (left == right) == (a == b)


def test_json_is_sorted_and_read_back():
    clock = Clock({"t-10": 3, "t-9": -1})
    assert str(clock) == '{"t-10": 3, "t-9": -1}'
    assert Clock.parse(str(clock)) == clock
    assert len({clock, Clock({"t-9": -1, "t-10": 3})}) == 1


@pytest.mark.parametrize("text", ["", "[1]", '{"p": 1.5}', '{"p": true}', '{"p": -2}', '{"p": "1"}', "null"])
def test_what_is_no_clock_is_refused(text):
    with pytest.raises(InputError, match="clock"):
        Clock.parse(text)


def test_the_low_water_mark_is_the_least_of_all_upstreams():
    clocks = [{"p": 5, "q": 1}, {"p": 3, "r": 2}]
    assert low_water_mark(clocks) == Clock({"p": 3, "q": 1, "r": 2})
    mark = low_water_mark(clocks, [["p", "q"], ["p", "q", "r"]])
    assert mark == Clock({"p": 3, "q": -1, "r": 2})
    assert mark.reaches({"p": 3})
    assert not mark.reaches({"p": 4})
    assert not mark.reaches({"s": 0})
    with pytest.raises(InputError, match="one for each"):
        low_water_mark(clocks, [["p"]])


def words(spout):
    builder = TransactionalTopologyBuilder("words", "spout", spout, 2)
    for stream in spout.sources if isinstance(spout, CompositeSpout) else ("default",):
        builder.set_bolt(f"of_{stream}", CountByKey("word", f"n_{stream}"), 2).fields_grouping(
            "spout", stream, ["word"]
        )
    return builder.build_topology()


def run_to(topology, place, txid):
    handle = run(topology, data_dir=place, engine="local", until_txid=txid)
    handle.awaitTermination()
    return handle


def test_a_clock_goes_on_over_restart_and_rewind_and_keeps_what_gives_nothing(command, tmp_path):
    def spout():
        return MemoryTransactionalSpout({0: ["a", "b", "c"], 1: ["d"], 2: []}, "word", take=2)

    run_to(words(spout()), tmp_path, 1)
    handle = run_to(words(spout()), tmp_path, 3)
    clocks = [handle.clock(txid) for txid in (1, 2, 3)]
    assert clocks == [{"0": 1, "1": 0, "2": -1}, {"0": 2, "1": 0, "2": -1}, {"0": 2, "1": 0, "2": -1}]
    assert handle.clock() == clocks[2]
    status = read_status(tmp_path)
    assert status["clock"] == clocks[2] == status["low_water_marks"]["of_default"] == status["low_water_marks"]["spout"]
    rewind(tmp_path, to_clock=clocks[0])
    assert read_status(tmp_path)["clock"] == clocks[0]
    assert run_to(words(spout()), tmp_path, 2).clock() == clocks[1]
    for txid, count in ((1, 1), (2, 1)):
        state = command.json("state", tmp_path, "n_default", "--clock", str(clocks[txid - 1]))
        assert (state["txid"], state["clock"], len(state["rows"])) == (txid, clocks[txid - 1], txid + 2)
        assert {row["n"] for row in state["rows"]} == {count}
    history = command.json("history", tmp_path)["txids"]
    assert [row["clock"] for row in history if row["timeline"] == 1] == clocks[:2]
    with pytest.raises(
        InputError, match=r'no kept .* the clock {"0": 1, "1": 9, "2": -1}; .* {"0": 1, "1": 0, "2": -1} .txid 1'
    ):
        rewind(tmp_path, to_clock={"0": 1, "1": 9, "2": -1})
    assert command("rewind", tmp_path, "--to-clock", '{"0": "a"}', "--yes")[0] == 2
    assert command("state", tmp_path, "n_default", "--txid", "1", "--clock", "{}")[0] == 2
    assert command.json("rewind", tmp_path, "--to-clock", str(clocks[0]), "--yes")["txid"] == 1
    with pytest.raises(InputError, match="txid 9"):
        handle.clock(9)


def test_clocks_of_composite_spouts_name_the_source(tmp_path):
    def memory(*rows):
        return MemoryTransactionalSpout([list(rows)], "word", take=1)

    both = CompositeSpout({"new": memory("a", "b"), "old": memory("c")})
    assert run_to(words(both), tmp_path / "both", 2).clock() == {"new/0": 1, "old/0": 0}


def test_a_source_without_clocks_has_none(tmp_path):
    (tmp_path / "words.jsonl").write_text(json.dumps({"word": "a"}) + "\n")
    spout = FileSpout(tmp_path / "words.jsonl", format="jsonl", fields={"word": str})
    handle = run_to(words(spout), tmp_path / "out", 1)
    assert handle.clock() is None
    both = CompositeSpout({"files": spout, "memory": MemoryTransactionalSpout([["a"]], "word")})
    assert run_to(words(both), tmp_path / "both", 1).clock() is None
    assert (read_status(tmp_path / "out")["clock"], read_status(tmp_path / "out")["low_water_marks"]) == (None, {})
