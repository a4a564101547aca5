"""Spout checks: they accept correct spouts and reject faulty ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
import spouts_to_check as spouts

from txstorm.errors import InputError
from txstorm.spouts import FileSpout, MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from txstorm.testing import CheckFailed, check_opaque_spout, check_transactional_spout

EXPECTED = [*range(8), *range(10, 15)]


@pytest.fixture
def source(tmp_path: Path) -> spouts.Source:
    return spouts.Source(tmp_path / "source.json")


def passes(kind, source: spouts.Source, seed: int) -> None:
    opaque = getattr(kind, "opaque", False) or issubclass(kind, spouts.Opaque)
    check = check_opaque_spout if opaque else check_transactional_spout
    check(lambda: kind(source), expected=EXPECTED, grow=source.grow, seeds=[seed])


@pytest.mark.parametrize("kind", [spouts.Plain, spouts.Slow, spouts.Partitioned, spouts.OpaquePlain, spouts.Opaque])
def test_user_defined_spouts_pass(kind, source: spouts.Source) -> None:
    passes(kind, source, 1)


UNAVAILABLE = (
    *("SeldomReady", "FailsToEmit", "PartitionedAway", "PartitionedFails"),
    *("OpaqueAway", "OpaqueFails", "OpaqueSeldomReady"),
)


@pytest.mark.parametrize("chance", range(2))
@pytest.mark.parametrize("kind", UNAVAILABLE)
def test_a_frequently_unavailable_source_is_not_a_fault(kind, chance: int, source: spouts.Source) -> None:
    spouts.CHANCE.seed(chance)
    passes(getattr(spouts, kind), source, chance)


def test_memory_and_file_spouts_pass(tmp_path: Path) -> None:
    rows = {0: [("a", 1), ("b", 2), ("c", 3)], 2: [("d", 4)] * 5}
    expected = [row for partition in rows.values() for row in partition]
    for check, kind in (
        (check_transactional_spout, MemoryTransactionalSpout),
        (check_opaque_spout, OpaqueMemoryTransactionalSpout),
    ):
        check(lambda kind=kind: kind(rows, ["word", "n"], take=2), expected=expected, seeds=[1])
    for name in ("one", "two"):
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(7)))
    check_transactional_spout(lambda: FileSpout(str(tmp_path / "*.txt"), max_batch_rows=3), seeds=[1])


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            spouts.PositionInMemory,
            r"every tuple once, with failures and restarts \(seed 0\): committed: .* too many: .*; likely cause: the position is kept in the object, so that a restart",
        ),
        (spouts.ReadsOn, "another batch|every attempt at a txid emits the same"),
        (spouts.EveryTaskEmitsAll, "the same tuples with 3 tasks as with 1: expected 13 .* got 39.*: every task emits"),
        (spouts.LeavesOutTasks, "the same tuples with 3 tasks as with 1: expected 13 .*: no task emits some records"),
        (spouts.EndsByChance, "emits the same .* likely cause: the batch depends on something besides its metadata"),
        (spouts.Unstorable, "MetadataError: spout 'spout', txid 1: metadata .* cannot be stored"),
        (
            spouts.SkipsOne,
            r"gives its whole source: expected 13 tuples, got 11; missing: \(3,\), \(13,\); .* a batch begins after",
        ),
        (spouts.ReplaysTooLittle, "another batch|every attempt at a txid emits the same"),
    ],
)
def test_faulty_transactional_spouts_are_rejected(kind, says: str, source: spouts.Source) -> None:
    with pytest.raises(CheckFailed, match=says):
        check_transactional_spout(lambda: kind(source), expected=EXPECTED, grow=source.grow)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (spouts.Consumes, r"restarts \(seed 0\): committed: expected 13 .* likely cause: .* takes records out"),
        (spouts.Overlaps, "runs dry: .*likely cause: a batch does not begin where"),
        (spouts.ForgetsThePosition, "MetadataError: .*tuples were emitted but no metadata returned"),
        (spouts.OpaquePositionInMemory, "too many|missing"),
    ],
)
def test_faulty_opaque_spouts_are_rejected(kind, says: str, source: spouts.Source) -> None:
    with pytest.raises(CheckFailed, match=says):
        check_opaque_spout(lambda: kind(source), expected=EXPECTED)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda source: check_transactional_spout(lambda: spouts.Opaque(source)), "this spout is opaque"),
        (lambda source: check_opaque_spout(lambda: spouts.Plain(source)), "this spout is not opaque"),
        (lambda source: check_opaque_spout(lambda: spouts.Opaque(source), tasks=[0]), "at least 1"),
        (
            lambda source: check_transactional_spout(lambda: MemoryTransactionalSpout([[1]], ["n"])),
            r"gave tuples in 1 transaction, expected at least 2",
        ),
    ],
)
def test_spouts_that_cannot_be_checked_are_reported(call: Callable, says: str, source: spouts.Source) -> None:
    with pytest.raises(InputError, match=says):
        call(source)
