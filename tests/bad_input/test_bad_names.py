"""Names that look like paths: rejected for topologies, components, tables and savepoints, and by all readers."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_input_cases import Keep, go, topology, unchanged, write_words
from seeded import seeded

from txstorm import KeyedState, SinkTable, TransactionalTopologyBuilder
from txstorm.api.names import name_fault
from txstorm.errors import InputError, TxstormError
from txstorm.operations.restore import restore_savepoint
from txstorm.operations.savepoints import create_savepoint, delete_savepoint
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.spouts import MemoryTransactionalSpout

COUNT = 100_000
PARTS = [
    "..", ".", "/", "//", "\\", "\0", "%2e", "%2F", "%00", "~", "$HOME", "${PWD}", "\u2025", "\uff0e", "\u2215", "C:",
    "nul", " ", "\n", "\t", "'", '"', ";", "`id`", "a", "Z", "9", "_", "-", "é", "\u202e", "\ud800", "K", "\u212a", "x" * 64,
    "_delta_log", "ledger.db", "state", "format.json", "counts", "*", "?", "[a]", "{b}", ":", "|", "&", "#", "=",
]  # fmt: skip


def fuzzed(rng: random.Random) -> str:
    return "".join(rng.choices(PARTS, k=rng.randint(0, 6)))


def test_a_name_that_is_taken_is_one_step_down_whatever_it_is_made_of(tmp_path):
    rng, taken = seeded(), 0
    root = os.path.realpath(tmp_path)
    for _ in range(COUNT):
        name = fuzzed(rng)
        if name_fault("table", name) is None:
            taken += 1
            assert os.path.dirname(os.path.realpath(os.path.join(root, name))) == root, ascii(name)
            assert name.isascii() and name.isprintable() and len(name) <= 64, ascii(name)
    assert COUNT / 100 < taken < COUNT / 2


def named(topology_id="words", spout="lines", bolt="keep", state="counts", sink="out") -> None:
    class Named(Keep):
        pass

    Named.state = KeyedState(state, key={"word": str}, value={"n": int})
    Named.sink = SinkTable(sink, {"line": str})
    builder = TransactionalTopologyBuilder(topology_id, spout, MemoryTransactionalSpout([["a"]], "line"))
    builder.set_bolt(bolt, Named()).global_grouping(spout)
    builder.build_topology()


PLACES = ["topology_id", "spout", "bolt", "state", "sink"]


@pytest.mark.parametrize("place", PLACES)
def test_no_other_name_is_built(place, in_tmp):
    rng = seeded()
    for _ in range(200):
        name = fuzzed(rng)
        if name_fault("table", name) is not None:
            with pytest.raises(TxstormError):
                named(**{place: name})
    assert list(in_tmp.iterdir()) == []


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory) -> Path:
    """Return two sibling directories with the same tables; readers of the first must not see the second."""
    home = tmp_path_factory.mktemp("neighbours")
    source = write_words(home / "words.txt", ["a", "b"])
    for name in ("mine", "other"):
        go(topology(source), home / name)
    return home


def refuse() -> None:
    raise InputError("a savepoint may have this name")


READERS: dict[str, Callable[[Path, str], object]] = {
    "state": read_state,
    "changes": lambda data_dir, name: read_changes(data_dir, name, 1, 1),
    "sink": read_sink,
    "savepoint": lambda data_dir, name: create_savepoint(data_dir, name) if name_fault("", name) else refuse(),
    "deleted savepoint": delete_savepoint,
    "restore": lambda data_dir, name: restore_savepoint(data_dir, name, data_dir.parent / "restored"),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_follows_a_path(reader, neighbours):
    rng = seeded()
    names = ["../../other/state/counts", "../../other/sinks/lines", str(neighbours / "other/state/counts"), "..", ""]
    names += [name for name in (fuzzed(rng) for _ in range(50)) if name not in ("counts", "lines")]
    with unchanged(neighbours):
        for name in names:
            with pytest.raises(TxstormError):
                READERS[reader](neighbours / "mine", name)
