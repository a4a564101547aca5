"""A commit target of a kind of the topology's code: killed from P5 to P8, rewound, and started without its code."""

import pytest
from own_target import lines_in
from recovery_cases import ends, fails, killed, lose, open_books
from scenarios.own_kind import TXIDS
from scenarios.words import lines

from txstorm import rewind
from txstorm.errors import InputError
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.status import read_status
from txstorm.results.read import read_sink

pytestmark = pytest.mark.integration

OWN = {"scenario": "own_kind"}
# Table 1 is ``sinks/out``, table 2 the target; in P0 the target comes after the table.
POINTS = ("p5.staged.after", "p5.after", "p6.before", "p6.after", "p7.1.written", "p7.2.before", "p7.2.written",
          "p7.2.after", "p8.before")  # fmt: skip
CRASHES = [
    *([f"{point}:kill:2"] for point in POINTS),
    ["p0.2.raised:kill:1"],
    *(["p6.after:kill:2", f"{point}:kill:1"] for point in ("p0.2.raised", "p7.2.written", "p8.before")),
]


def check_written(data_dir):
    """Check that the target has what the table has, in the same order: every word of the input once."""
    found = lines_in(data_dir.with_name("lines.json"))
    assert found == read_sink(data_dir, "out")["word"].to_pylist()
    assert sorted(found) == sorted(word for line in lines(TXIDS) for word in line.split())


@pytest.mark.parametrize(("number", "crashes"), list(enumerate(CRASHES)))
def test_killed_and_started_again(data_dir, number, crashes):
    argv = [data_dir, "--spout", ("transactional", "opaque")[number % 2]]
    for fault in crashes:
        killed(fault, *argv, **OWN)
    ends(*argv, **OWN)
    check_written(data_dir)


def test_a_start_without_the_code_is_refused_by_name_and_one_with_it_rolls_forward_before_anything_is_planned(data_dir):
    killed("p7.2.before:kill:2", data_dir, **OWN)
    refused = fails(data_dir, "--without", **OWN)
    assert "x-lines 'lines': txids" in refused
    assert "are decided and have rows for it, but the topology no longer declares it" in refused
    assert read_status(data_dir)  # as any command that needs no code
    with open_books(data_dir) as books:
        (intent,) = books.live_intents()
    killed("p1.before:kill:1", data_dir, **OWN)
    with open_books(data_dir) as books:
        assert (books.live_intents(), books.tables()["x-lines/lines"]) == ([], intent.last)
    assert lines_in(data_dir.with_name("lines.json")) == read_sink(data_dir, "out")["word"].to_pylist()
    refused = fails(data_dir, "--without", **OWN)
    assert "x-lines/lines is recorded in the ledger, but not declared by the code" in refused
    ends(data_dir, **OWN)
    check_written(data_dir)


def test_rewound_and_its_ledger_lost(data_dir):
    ends(data_dir, **OWN)
    with pytest.raises(InputError, match="x-lines/lines cannot be taken back, being in another system; with --keep"):
        rewind(data_dir, 2)
    before = lines_in(data_dir.with_name("lines.json"))
    rewind(data_dir, 2, keep=["lines"])
    lose(data_dir)
    recover(data_dir)
    ends(data_dir, **OWN)
    after = read_sink(data_dir, "out")["word"].to_pylist()
    assert sorted(after) == sorted(before)
    found = lines_in(data_dir.with_name("lines.json"))
    assert (found[: len(before)], found[len(before) :]) == (before, after[len(after) - len(found) + len(before) :])
