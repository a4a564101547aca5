"""Drills of operator networks: the script of faults, the comparison, and a short one with real processes."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from txstorm.cli.main import execute
from txstorm.dadstorm.configuration import parse
from txstorm.dadstorm.master.drill import KINDS, differences, fault_script, kept, key_field

SEMANTICS = ("at-most-once", "at-least-once", "exactly-once")
NETWORK = """
Semantics exactly-once
A input_ops numbers.data rep_fact 2 routing primary address tcp://localhost:1/a, tcp://localhost:2/a operator_spec DUP
B input_ops A rep_fact 2 routing random address tcp://localhost:3/a, tcp://localhost:4/a operator_spec UNIQ 2
C input_ops B rep_fact 1 routing primary address tcp://localhost:5/a operator_spec DUP
D input_ops A rep_fact 1 routing primary address tcp://localhost:6/a operator_spec DUP
Interval B 300
Start A
Start B
Start C
Start D
Crash B 0
Freeze A 1
"""


def test_the_same_seed_gives_the_same_script() -> None:
    configuration = parse(NETWORK)
    one, same, other = (list(islice(fault_script(configuration, seed), 200)) for seed in (7, 7, 8))
    assert one == same != other
    assert {fault.kind for fault in one} == set(KINDS)
    assert {(fault.operator, fault.replica) for fault in one} == {(op, r) for op in "AB" for r in (0, 1)} | {
        ("C", 0),
        ("D", 0),
    }


@pytest.mark.parametrize(
    ("found", "missing", "extra", "keep"),
    [
        ("aab", 0, 0, "at-most-once at-least-once exactly-once"),
        ("ab", 1, 0, "at-most-once"),
        ("aaab", 0, 1, "at-least-once"),
        ("aac", 1, 1, ""),
    ],
)
def test_tuples_are_compared_as_multisets(found: str, missing: int, extra: int, keep: str) -> None:
    tuples = [{"X": Counter((one,) for one in text)} for text in ("baa", found)]
    assert differences(*tuples) == (missing, extra)
    assert [one for one in SEMANTICS if kept(one, missing, extra)] == keep.split()
    assert differences(tuples[0], {}) == (3, 0)


def test_of_what_depends_on_the_order_only_the_key_is_compared() -> None:
    assert {id: key_field(parse(NETWORK), id) for id in "ABCD"} == {"A": None, "B": 2, "C": 2, "D": None}


def network(place: Path, semantics: str = "exactly-once") -> list[str]:
    """Write a network whose data is in the directory above it; return the command that drills it."""
    (place / "net").mkdir()
    text = NETWORK.replace("exactly-once", semantics).replace("numbers.data", "../numbers.data")
    (place / "net" / "net.cfg").write_text(text)
    (place / "numbers.data").write_text("\n".join(f"{number}, {number % 150}" for number in range(200)))
    return ["dadstorm", "drill", str(place / "net" / "net.cfg"), "--seed", "1", "--json"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "semantics", [pytest.param(one, marks=() if one == "exactly-once" else pytest.mark.long) for one in SEMANTICS]
)
def test_a_network_keeps_its_semantics_under_faults(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], semantics: str
) -> None:
    faults = 2 if semantics == "exactly-once" else 1
    assert execute([*network(tmp_path, semantics), "--faults", f"{faults}"]) == 0
    done = json.loads(capfd.readouterr().out)
    assert sum(done.pop("faults").values()) == faults
    missing, extra = done.pop("missing"), done.pop("extra")
    assert done == {"seed": 1, "semantics": semantics, "kept": True}
    assert kept(semantics, missing, extra)
    assert [one.name for one in (tmp_path / "net").iterdir()] == ["net.cfg"]
