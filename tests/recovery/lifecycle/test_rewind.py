"""Rewinds to every txid, with kills at every step; runs then continue as if later transactions had never existed."""

import json
import shutil
from itertools import cycle

import pytest
from recovery_cases import content, ends, killed, long_if, open_books
from scenarios.words import SPOUTS, TXIDS
from seeded import seeded
from watched import ShelfSpout

import txstorm
from txstorm import faults, rewind
from txstorm.books.rewind import Rewind
from txstorm.errors import DataDirectoryError, HeldError, InputError, StateError
from txstorm.ledger.paths import REWIND
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.status import read_status

TABLES = 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return data directories of completed runs, by spout; computed once, to be copied."""
    known = {}

    def get(spout, *options):
        if (spout, *options) not in known:
            known[spout, *options] = tmp_path_factory.mktemp("finished") / "data"
            ends(known[spout, *options], "--spout", spout, *options)
        return known[spout, *options]

    return get


@pytest.fixture
def copied(finished, place):
    """Return a function that copies the data directory of a completed run, and returns the copy and its content."""

    def copy(spout="memory", *options):
        if spout == "file":  # which remembers the path of the file
            ends(place / "data", "--spout", spout, *options)
            return place / "data", content(place / "data")
        source = finished(spout, *options)
        shutil.copytree(source.parent, place, dirs_exist_ok=True)
        return place / "data", content(source)

    return copy


def ends_like(data_dir, spout, expected, *options):
    """Start again; check that the tables are byte for byte as they were before the rewind."""
    ends(data_dir, "--spout", spout, *options)
    found = content(data_dir)
    assert (found.states, found.sinks, found.letters) == (expected.states, expected.sinks, expected.letters)
    latest = dict(found.batches)  # rows come by timeline: of a txid that was committed twice the later one stays
    assert tuple(sorted(latest.items())) == expected.batches


def cut(data_dir, txid=None):
    return {name: rows.to_pylist() for name, rows in txstorm.snapshot(data_dir, txid).to_arrow().items()}


def timeline(data_dir):
    with open_books(data_dir) as books:
        assert books.rewind() is None
        return books.identity().timeline


@pytest.mark.parametrize(("txid", "spout"), list(zip((0, 3, 4, 6, 7), cycle(SPOUTS))))
def test_to_any_txid(copied, txid, spout):
    """A rewind can go to any txid, within a group or between groups, with every kind of spout."""
    data_dir, expected = copied(spout)
    then = cut(data_dir, txid)
    found = rewind(data_dir, to_txid=txid)
    assert (found["taken_back"], found["timeline"], found["kept"]) == ([txid + 1, TXIDS], 1, [])
    assert cut(data_dir) == then
    ends_like(data_dir, spout, expected)
    assert cut(data_dir, txid) == then
    assert timeline(data_dir) == 1


STEPS = [
    name.replace(".N.", f".{number}.")
    for name in faults.POINTS
    if name.startswith("rewind.")
    for number in (range(1, TABLES + 1) if ".N." in name else [0])
]
ALIKE = {*(f"rewind.{table}.staged" for table in (2, 3, 5)), *(f"rewind.{table}.restored" for table in (1, 3, 4))}
"""Steps that differ from others in the number of the table only."""


@pytest.mark.parametrize(
    ("point", "spout", "again"),
    long_if(lambda point, *_: point in ALIKE, zip(STEPS, cycle(SPOUTS), cycle([False, True]))),
)
def test_killed_at_every_step(copied, point, spout, again):
    """A rewind killed at any step is completed by a normal start, or by another rewind to an earlier txid."""
    data_dir, expected = copied(spout)
    then = {txid: cut(data_dir, txid) for txid in (2, 5)}
    killed(f"{point}:kill:1", data_dir, "--rewind", 5)
    decided = point.endswith(("decided", "restored", "history", "after"))
    assert txstorm.snapshot(data_dir).txid == read_status(data_dir)["committed_txid"] == (5 if decided else TXIDS)
    assert cut(data_dir, 5) == then[5]  # also in the middle of it
    if again:
        ends(data_dir, "--rewind", 2)
        assert cut(data_dir) == then[2]
    ends_like(data_dir, spout, expected)
    assert timeline(data_dir) == decided + again


@pytest.mark.parametrize("point", ["rewind.2.restored", "rewind.history"])
def test_killed_again_while_the_next_start_carries_it_out(copied, point):
    data_dir, expected = copied()
    killed("rewind.decided:kill:1", data_dir, "--rewind", 3)
    killed(f"{point}:kill:1", data_dir)
    ends_like(data_dir, "memory", expected)


def test_decided_groups_are_published_first(copied, place):
    data_dir, expected = copied()
    shutil.rmtree(data_dir)
    killed("p6.after:kill:4", data_dir, "--set", "max_group_txids=1")
    assert rewind(data_dir, to_txid=3)["taken_back"] == [4, 4]
    ends_like(data_dir, "memory", expected)


def test_a_rewind_includes_tables_created_by_a_killed_start(data_dir):
    ends(data_dir, "--tables", 1)
    killed("p0.2.created:kill:1", data_dir, "--tables", 3)
    assert "changes/totals" in rewind(data_dir, to_txid=3)["tables"]
    ends(data_dir, "--tables", 3)
    assert [row["txid"] for row in cut(data_dir)["state/totals"]] == [TXIDS]
    assert {row["_txid"] for row in cut(data_dir)["sinks/words"]} == set(range(4, TXIDS + 1))


def test_random_rewinds_of_a_changing_opaque_source(data_dir, watch, shelf):
    """Random rewinds of an opaque source with changing rows give the content of a model in plain Python."""
    chance = seeded()
    rows = [chance.randrange(10) for _ in range(10)]
    for timeline_ in range(3):
        watch.ends(ShelfSpout(shelf.write(rows)))
        for txid in range(len(rows) // 2 + 1):
            found = [row["n"] for row in cut(data_dir, txid)["sinks/numbers"]]
            assert sorted(found) == sorted(rows[: 2 * txid]), (timeline_, txid)
        assert cut(data_dir)["state/total"] == [{"n": sum(rows)}]
        back = chance.randrange(len(rows) // 2)
        rewind(data_dir, to_txid=back)
        rows = rows[: 2 * back] + [chance.randrange(10) for _ in range(2 * chance.randrange(1, 5))]


def test_a_rewound_directory_whose_ledger_is_lost_can_be_recovered(copied):
    data_dir, expected = copied("file")
    rewind(data_dir, to_txid=5)
    (data_dir / "ledger.db").unlink()
    found = recover(data_dir)
    assert (found["committed_txid"], found["values"]["identity"]["timeline"]) == (5, 1)
    ends_like(data_dir, "file", expected)


def test_savepoints_of_what_was_taken_back_stay(copied, place):
    data_dir, expected = copied()
    then = cut(data_dir, 6)
    txstorm.create_savepoint(data_dir, "six", txid=6)
    rewind(data_dir, to_txid=2)
    with pytest.raises(StateError, match="txid 3 is not committed; the last one is 2"):
        txstorm.create_savepoint(data_dir, "three", txid=3)
    assert txstorm.create_savepoint(data_dir, "one", txid=1).timeline == 1
    ends_like(data_dir, "memory", expected)
    txstorm.restore_savepoint(data_dir, "six", place / "copy")
    assert cut(place / "copy") == then
    ends = txstorm.restore_savepoint(data_dir, "one", place / "other")
    assert (ends["txid"], cut(place / "other")) == (1, cut(data_dir, 1))


def test_maps_must_be_kept_by_name(data_dir, maps):
    maps = ["--maps", maps]
    ends(data_dir, *maps)
    expected = content(data_dir)
    for keep in ([], ["words"]):
        with pytest.raises(InputError, match=r"maps/lengths.* cannot be taken back, being in another system"):
            rewind(data_dir, 4, keep)
    with pytest.raises(InputError, match="no map or outlet 'word' to keep; there are lengths, words"):
        rewind(data_dir, 4, ["word"])
    assert timeline(data_dir) == 0
    assert rewind(data_dir, 4, ["words", "lengths"])["kept"] == ["maps/lengths", "maps/words"]
    ends_like(data_dir, "memory", expected, *maps)
    ends(data_dir, *maps, "--txids", TXIDS + 2)


def test_what_is_refused(copied, place):
    data_dir, _ = copied()
    for txid, message in ((TXIDS, "is the last committed one: there is nothing"), (99, "is not committed; expected")):
        with pytest.raises(InputError, match=message):
            rewind(data_dir, txid)
    with open_books(data_dir, write=True) as books:
        books.ledger.acquire("a run")
        with pytest.raises(HeldError, match="a run"):
            rewind(data_dir, 3)
    txstorm.create_savepoint(data_dir, "four", txid=4)
    txstorm.restore_savepoint(data_dir, "four", place / "copy")
    with pytest.raises(DataDirectoryError, match="the history does not record what the source delivered for txid 3"):
        rewind(place / "copy", 3)
    assert timeline(data_dir) == timeline(place / "copy") == 0


def test_a_pending_rewind_is_shown(copied, command):
    data_dir, _ = copied()
    assert command.json("inspect", data_dir)["rewind"] is None
    killed("rewind.2.restored:kill:1", data_dir, "--rewind", 5)
    found = command.json("inspect", data_dir)["rewind"]
    assert (found["txid"], found["timeline"]) == (5, 1)
    assert [one["restored"] for one in found["tables"]] == [True] * 2 + [False] * (TABLES - 2)
    assert "is not restored yet" in command.printed("inspect", data_dir)


def test_the_form_in_the_ledger(copied):
    data_dir, _ = copied()
    killed("rewind.decided:kill:1", data_dir, "--rewind", 5)
    with open_books(data_dir, write=True) as books:
        decided = books.rewind()
        document = json.loads(json.dumps(decided.to_json()))
        assert (document["format"], document["version"], document["txid"]) == ("txstorm-rewind", 1, 5)
        assert Rewind.from_json(document) == decided
        assert books.put_if([], {f"{REWIND}/decided": {**document, "version": 2}})
    with pytest.raises(DataDirectoryError, match="format version 2 is newer than 1"):
        rewind(data_dir, 3)


def test_the_command(copied, command):
    data_dir, _ = copied()
    refused = command("rewind", data_dir, "--to-txid", 5)
    assert (refused.code, "nothing was undone; add --yes" in refused.err) == (2, True)
    said = command.printed("rewind", data_dir, "--to-txid", 5, "--yes")
    assert said == "crash: txids 6-8 are undone; the next start continues with 6\n"
    found = command.json("rewind", data_dir, "--to-txid", 4, "--yes")
    assert (found["taken_back"], found["timeline"], len(found["tables"])) == ([5, 5], 2, TABLES)
