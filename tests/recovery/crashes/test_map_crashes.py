"""Maps in a user's database: SIGKILL around their puts, and late puts of a stale coordinator."""

from itertools import cycle
from pathlib import Path

import pytest
from recovery_cases import check, ends, finish, killed, open_books, reaches, start
from scenarios.words import SPOUTS, TXIDS, expected_map_rows, map_rows

from txstorm import MapState
from txstorm.clients.sql import SqlAlchemyBackend
from txstorm.state.commit_group import Targets
from txstorm.state.external.maps import StoredMap
from txstorm.storage.tables.identity import TopologyIdentity
from txstorm.storage.tables.intent import STAGED, decode

pytestmark = pytest.mark.integration

# Table 1 is ``changes/counts``, tables 2 and 3 are maps; in P0 they come after ``state/counts``.
PUTS = ["p7.2.before", "p7.2.written", "p7.3.before", "p7.3.written"]
ONCE = ["p5.staged.after", "p6.before", "p6.after", *PUTS, "p8.before"]
CRASHES = [
    ["p0.3.raised:kill:1"],
    *([f"{point}:kill:2"] for point in ONCE),
    # again while maps are rolled forward
    *(["p6.after:kill:2", f"{point}:kill:1"] for point in ("p0.4.raised", "p7.2.written", "p7.3.before", "p8.before")),
    # between two maps every time
    [*["p7.3.before:kill:2"] * 2, "p7.3.before:kill:1"],
]


def killed_and_started_again(place: Path, spout: str, url: str, crashes: list[str]) -> None:
    argv = [place / "data", "--spout", spout, "--tables", 1, "--maps", url]
    for fault in crashes:
        killed(fault, *argv)
    ends(*argv)
    check(place / "data", TXIDS)
    for name in ("words", "lengths"):
        assert len(list((place / "data/maps" / name / STAGED).iterdir())) <= 3  # those of the kept intents
    assert map_rows(url) == expected_map_rows(spout)


@pytest.mark.parametrize(("crashes", "spout"), list(zip(CRASHES, cycle(SPOUTS))))
def test_killed_around_the_puts_and_started_again(place, maps, crashes, spout):
    killed_and_started_again(place, spout, maps, crashes)


@pytest.mark.parametrize("crashes", [["p7.2.written:kill:2"], ["p7.3.before:kill:1", "p7.3.written:kill:1"]])
def test_killed_around_the_puts_into_postgres(place, postgres, crashes):
    schema = "_".join(one.partition(":")[0].replace(".", "_") for one in crashes)
    postgres.sql(f"CREATE SCHEMA {schema}")
    url = f"{postgres.url}?options=-csearch_path%3D{schema}"
    killed_and_started_again(place, "opaque", url, crashes)


def test_a_decided_group_is_rolled_forward_before_anything_is_planned(data_dir, maps):
    argv = [data_dir, "--tables", 1, "--maps", maps]
    killed("p7.2.before:kill:1", *argv)
    with open_books(data_dir) as books:
        (intent,) = books.live_intents()
    assert map_rows(maps) == {"words": {}, "lengths": {}}
    killed("p1.before:kill:1", *argv)
    with open_books(data_dir) as books:
        assert books.live_intents() == []
        assert books.currtx() == intent.last + 1
        found = {name: last for name, last in books.tables().items() if name.startswith("maps/")}
    assert found == {"maps/words": intent.last, "maps/lengths": intent.last}
    assert sum(map_rows(maps)["words"].values()) > 0


def test_no_intent_and_no_staged_file_holds_the_url(place):
    url = f"sqlite:///{place / 'hunter2.db'}"
    ends(place / "data", "--tables", 1, "--maps", url)
    written = [path for path in (place / "data").rglob("*") if path.is_file()]
    assert written
    assert [path for path in written if b"hunter2" in path.read_bytes()] == []


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_late_put_of_a_fenced_coordinator_overwrites_nothing(request, place, maps, store):
    """A put that a stale coordinator resumes after a takeover does not overwrite newer rows."""
    url = request.getfixturevalue("postgres").url if store == "postgres" else maps
    child = start("late-put", place, url)
    try:
        reaches(child, (place / "asleep").exists)
        backend = SqlAlchemyBackend(url, "late")
        owner = TopologyIdentity("late", "incarnation")
        maps = Targets([StoredMap(place, owner, "count", MapState("late", backend))])
        two, three = (decode((place / f"intent-{txid}").read_bytes()) for txid in (2, 3))
        maps.lead(2, 2, {"maps/late": 1}, [two])
        for intent in (two, three):
            maps.roll_forward(intent, 2)
        (place / "awake").touch()
        status, output = finish(child)
        assert status == 0, output
        assert "FencedError: map 'late': a coordinator with epoch 2 has taken over" in output
        assert [row.value for row in backend.multi_get(['"a"', '"b"'])] == [3, 2]
        assert (backend.mark().txid, backend.mark().epoch) == (3, 2)
        backend.dispose()
    finally:
        child.kill()
