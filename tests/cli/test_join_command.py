"""``txstorm join``: positions, what holds a join back, and the history of a key: why was this pair not joined?"""

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import readings
from commands import Commands
from runs import ended

from txstorm import CompositeSpout, Duration, TransactionalTopologyBuilder
from txstorm.joins import DataDelaySync, IntervalJoin, MemoryStore, Side, StoreFeed
from txstorm.operations.rewind import rewind
from txstorm.results.joins import ComponentJoin
from txstorm.results.key_history import KeyHistory
from txstorm.results.read import read_sink
from txstorm.results.views import StateView
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout
from txstorm.topology.graph import Topology

FIELDS = ("id", "key", "ts", "part")
Row = tuple[Any, Any, int, str]
LEFT = [("l1", "a", 10, "l0"), ("l2", "a", 30, "l0"), ("l3", "b", 40, "l0"), ("l4", "a", 200, "l0")]
RIGHT = [(f"r{number}", "a", time, "r0") for number, time in enumerate((5, 25, 60, 28, 205), 1)]
COMMON = {"key": "key", "time": "ts", "id": "id", "partition": "part"}


def spout_of(left: Sequence[Any], right: Sequence[Any], left_take: int, right_take: int) -> CompositeSpout:
    """Return a spout of two lists of rows, of which each transaction takes so many."""
    sides = {"l": (left, left_take), "r": (right, right_take)}
    return CompositeSpout(
        {name: MemoryTransactionalSpout([list(rows)], FIELDS, take=take) for name, (rows, take) in sides.items()}
    )


def topology(left: Sequence[Row], right: Sequence[Row], take: int = 1, tasks: int = 1, **options: Any) -> Topology:
    """Build a left join of two lists of rows, `take` of each per transaction, with sinks for pairs and unmatched rows."""
    builder = TransactionalTopologyBuilder("joins", "feed", spout_of(left, right, take, take))
    common = {**COMMON, "idle": options.pop("idle", None)}
    left_side = Side("feed", "l", partitions=options.pop("left_partitions", None), **common)
    right_side = Side("feed", "r", partitions=options.pop("partitions", None), **common)
    join = IntervalJoin(left_side, right_side, select=["l:id", "r:id"], **{"before": Duration(10), **options})
    builder.set_bolt("join", join, tasks).fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    builder.set_bolt("pairs", DeltaSink("pairs", {"l_id": str, "r_id": str})).global_grouping("join")
    return builder.build_topology()


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    ended(topology(LEFT, RIGHT, how="inner"), tmp_path / "clicks")
    return tmp_path / "clicks"


def at(millis: int) -> str:
    return f"1970-01-01T00:00:00.{millis * 1000:06d}+00:00"


def test_positions_and_counts(clicks: Path, command: Commands):
    shown = command.json("join", clicks, "join")
    assert (shown["txid"], shown["how"], shown["before"], shown["after"]) == (5, "inner", 0.01, 0)
    assert (shown["position"], shown["bound"], shown["oldest_pending"]) == (at(205), at(190), None)
    assert (shown["left"]["position"], shown["left"]["partitions"]) == (at(200), {"l0": at(200)})
    counts = {name: shown[name] for name in ("pending", "buffered", "stragglers", "late", "released", "joined")}
    assert counts == {"pending": 0, "buffered": 1, "stragglers": 1, "late": 0, "released": 4, "joined": 2}
    assert (shown["unmatched_left"], shown["unmatched_right"]) == (2, 2)
    shown = command.json("join", clicks, "join", "--txid", 2)
    assert (shown["position"], shown["pending"], shown["oldest_pending"]) == (at(25), 1, at(30))
    out = command.printed("join", clicks, "join", "--txid", 2)
    assert "pending     1 left row, the oldest at " + at(30) in out


def test_partition_that_holds_the_join_back(tmp_path: Path, command: Commands):
    """The announced partition without data is named, and how long it has had none, in command and progress."""
    handle = ended(topology(LEFT, RIGHT, partitions=["r0", "r1"]), tmp_path / "held", until_txid=3)
    held = command.json("join", tmp_path / "held", "join")["right"]["held_back_by"]
    assert (held["partition"], held["newest"], held["silent"] > 0) == ("r1", None, True)
    out = command.printed("join", tmp_path / "held", "join")
    assert "position undefined; held back by partition 'r1', which has had no data, for " in out
    progress = handle.progress.windows["join"]
    assert (progress.held_back_by.partition, progress.held_back_by.component) == ("r1", "feed")
    assert "join join: right position undefined" in handle._repr_html_().replace("</th><td>", ": ")
    assert str(progress).endswith(f"held back by {str(progress.held_back_by).removeprefix('held back by ')}")
    why = KeyHistory.read(ComponentJoin(tmp_path / "held", "join"), ["a"]).to_json()["rows"][1]["why"]
    assert why[0].startswith(f"pending until the right position is after {at(10)}; it is undefined")
    assert why[1].startswith("the right side is held back by partition 'r1', which has had no data, for ")


def test_left_partition_that_keeps_right_rows_is_named(tmp_path: Path, command: Commands):
    """A left partition without data keeps B undefined, so that no right row expires."""
    ended(topology(LEFT, RIGHT, left_partitions=["l0", "l1"]), tmp_path / "left", until_txid=3)
    shown = command.json("join", tmp_path / "left", "join")
    assert (shown["left"]["held_back_by"]["partition"], shown["bound"], shown["buffered"]) == ("l1", None, 3)
    out = command.printed("join", tmp_path / "left", "join")
    assert "feed/l, position undefined; held back by partition 'l1', which has had no data, for " in out


def test_idle_partitions_hold_nothing_back(tmp_path: Path, command: Commands):
    """A partition that is left out as idle is not named, neither by the command nor in the progress of a run."""
    idle = timedelta(microseconds=1)
    built = topology(LEFT, RIGHT, partitions=["r0", "r1"], left_partitions=["l0", "l1"], idle=idle)
    handle = ended(built, tmp_path / "idle", until_txid=4)
    shown = command.json("join", tmp_path / "idle", "join")
    named = [shown[side]["held_back_by"]["partition"] for side in ("left", "right")]
    assert (named, shown["position"]) == (["l0", "r0"], at(60))
    assert handle.progress.windows["join"].held_back_by.partition == "r0"


def test_key_with_none(tmp_path: Path, command: Commands):
    """Rows without a key are released unmatched; a question for one is answered by what becomes of them."""
    left, right = [("l1", None, 10, "l0")], [("r1", None, 8, "r0"), ("r2", "a", 90, "r0")]
    ended(topology(left, right), tmp_path / "none")
    message = command.refused("join", tmp_path / "none", "join", "--key", "None")
    assert "no row of key 'None' has arrived up to txid 2; rows with None in their key match nothing" in message


def test_pending_row_and_row_outside_the_bounds(clicks: Path, command: Commands):
    """As of txid 1, l1 waits for the right position; as of the end, r5 is named as outside the bounds of l4."""
    shown = command.json("join", clicks, "join", "--txid", 1, "--key", "a")
    (left,) = (row for row in shown["rows"] if row["side"] == "left")
    assert left["why"][0] == f"pending until the right position is after {at(10)}; it is {at(5)}"
    assert f"right row r1 at {at(5)} is joined with left row l1 when that is released" in left["why"]
    out = command.printed("join", clicks, "join", "--key", "a")
    assert f"right row r5 at {at(205)} is outside the bounds of left row l4" in out


def test_join_that_is_no_longer_held_back_names_no_partition(tmp_path: Path):
    handle = ended(topology(LEFT, RIGHT), tmp_path / "ended", end_of_input=True)
    assert handle.progress.windows["join"].held_back_by is None
    assert "held_back_by" not in handle.progress.windows["join"].to_json()


def test_history_of_a_key(clicks: Path, command: Commands):
    shown = command.json("join", clicks, "join", "--key", "a")
    rows = {row["id"]: row for row in shown["rows"]}
    fates = {id: (row["added"], row.get("released", row.get("expired")), row["matched"]) for id, row in rows.items()}
    assert fates == {
        "l1": (1, 2, 2),
        "l2": (2, 3, 3),
        "l4": (4, 5, None),
        "r1": (1, 2, 2),
        "r2": (2, 3, 3),
        "r3": (3, 4, None),
        "r4": (4, 4, None),
        "r5": (5, None, None),
    }
    straggler = f"right row r4 at {at(28)} arrived in txid 4, after left row l2 was released in txid 3 (straggler)"
    assert rows["l2"]["why"] == ["joined with right row r2 in txid 3", straggler]
    assert rows["r4"]["why"][-1] == straggler
    fate, nearest, *_ = rows["l4"]["why"]
    assert fate == f"released in txid 5 without a match; its bounds are {at(190)} to {at(200)}"
    assert nearest == f"right row r5 at {at(205)} is outside the bounds of left row l4"
    assert [step["txid"] for step in shown["positions"]] == [1, 2, 3, 4, 5]
    positions = {"left": at(40), "right": at(60), "released_before": at(60), "expired_before": at(30)}
    assert shown["positions"][2] == {"txid": 3, **positions}
    text = command.printed("join", clicks, "join", "--key", "a")
    assert f"left l2: joined with right row r2 in txid 3; {straggler}" in text
    shown = command.json("join", clicks, "join", "--key", "b")
    assert [(row["id"], row["added"], row["released"]) for row in shown["rows"]] == [("l3", 3, 3)]
    assert shown["rows"][0]["why"][1] == "no right row of this key has arrived up to txid 5"


def test_left_row_that_came_late(tmp_path: Path, command: Commands):
    """A right row that had expired before a late left row came is named as the reason."""
    left = [("l1", "a", 10, "l0"), ("l2", "a", 90, "l0"), ("l3", "a", 12, "l0")]
    right = [("r1", "a", 11, "r0"), ("r2", "a", 95, "r0"), ("r3", "a", 99, "r0")]
    ended(topology(left, right), tmp_path / "late")
    rows = {row["id"]: row for row in command.json("join", tmp_path / "late", "join", "--key", "a")["rows"]}
    expected = f"right row r1 at {at(11)} expired in txid 2, before left row l3 came in txid 3 (late)"
    assert expected in rows["l3"]["why"]


@pytest.mark.parametrize("seed", range(6))
def test_history_agrees_with_the_results(seed: int, tmp_path: Path):
    """The matches of all histories are the pairs that were emitted, each in the txid that emitted it."""
    rng = random.Random(seed)
    parts, keys = rng.randint(1, 2), ["a", "b", 7, "7"][: rng.randint(1, 4)]
    names = {str(one) for one in keys}

    def rows(prefix: str) -> list[Row]:
        drift, made = 0, []
        for number in range(40):
            drift += rng.randint(0, 6)
            part = f"{prefix}{rng.randrange(parts)}"
            made.append((f"{prefix}{number}", rng.choice(keys), drift + rng.randint(0, 15), part))
        return made

    tasks = rng.randint(1, 2)
    built = topology(rows("l"), rows("r"), rng.randint(1, 7), tasks, after=Duration(rng.randint(0, 8)), how="inner")
    ended(built, tmp_path / "data")
    emitted = {(row["l_id"], row["r_id"], row["_txid"]) for row in read_sink(tmp_path / "data", "pairs").to_pylist()}
    join = ComponentJoin(tmp_path / "data", "join")
    found, seen = set(), 0
    for key in names:
        shown = KeyHistory.read(join, [key]).to_json()
        seen += len(shown["rows"])
        for row in shown["rows"]:
            if row["side"] == "left":
                found |= {(row["id"], match["id"], match["txid"]) for match in row["matches"]}
    assert found == emitted, f"seed {seed}"
    assert seen == 80, f"seed {seed}"
    assert emitted, f"seed {seed}: nothing joined"


def test_keys_of_several_fields_and_declared_types(tmp_path: Path, command: Commands):
    """Typed columns, and sides without id: a row is named by its txid and position."""
    fields = ("id", "key", "part", "ts")
    spout = CompositeSpout(
        {
            "l": MemoryTransactionalSpout([[("007", "[a", 1, 10), ("008", "[a", 2, 12)]], fields),
            "r": MemoryTransactionalSpout([[("r1", "[a", 1, 9), ("r2", "[a", 1, 90)]], fields, take=1),
        }
    )
    builder = TransactionalTopologyBuilder("typed", "feed", spout)
    columns = {"key": str, "part": int, "id": str}
    left = Side("feed", "l", key=["key", "part"], time="ts", id="id", columns={"id": str})
    right = Side("feed", "r", key=["key", "part"], time="ts")
    join = builder.set_bolt("join", IntervalJoin(left, right, before=Duration(10)))
    join.global_grouping("feed", "l").global_grouping("feed", "r")
    typed = [Side("feed", one, key="key", time="ts", id="id", partition="part", columns=columns) for one in "lr"]
    single = builder.set_bolt("single", IntervalJoin(*typed, before=Duration(10)))
    single.fields_grouping("feed", "l", ["key"]).fields_grouping("feed", "r", ["key"])
    ended(builder.build_topology(), tmp_path / "typed")
    shown = command.json("join", tmp_path / "typed", "join", "--key", "[a", "--key", "1")
    assert [(row["side"], row["id"]) for row in shown["rows"]] == [("right", "1/2"), ("left", "007"), ("right", "2/0")]
    assert shown["rows"][1]["matches"] == [{"id": "1/2", "txid": 2}]
    rows = command.json("join", tmp_path / "typed", "single", "--key", "[a")["rows"]
    assert [(row["id"], row["partition"]) for row in rows if row["side"] == "left"] == [("007", "1"), ("008", "2")]


def test_bad_command_lines(clicks: Path, command: Commands):
    refused = {
        ("nowhere", "join"): "nowhere",
        (clicks, "joint"): "no join 'joint' (did you mean 'join'?); there are join",
        (clicks, "join", "--txid", 9): "txid 9",
        (clicks, "join", "--key", "z"): "join: no row of key 'z' has arrived up to txid 5; rows with None",
        (clicks, "join", "--key", "a", "--key", "b"): "join: expected a key of key, got 2 values",
    }
    for arguments, what in refused.items():
        assert what in command.refused("join", *arguments, "--json")


def test_history_after_a_rewind_and_of_kept_changes_only(tmp_path: Path, command: Commands):
    """A rewound row is in the history as it came again; what is older than the kept changes has the oldest kept txid."""
    data_dir = tmp_path / "rewound"
    asked = ["join", data_dir, "join", "--key", "a"]
    ended(topology(LEFT, RIGHT), data_dir, until_txid=3)
    before = command.json(*asked)
    rewind(data_dir, 1)
    assert [row["id"] for row in command.json(*asked)["rows"]] == ["r1", "l1"]
    ended(topology(LEFT, RIGHT), data_dir, until_txid=3)
    assert command.json(*asked) == before
    for txid in (4, 5):
        ended(topology(LEFT, RIGHT).with_settings({"history_retention": 0.0001}), data_dir, until_txid=txid)
    shown = command.json(*asked)
    rows = {row["id"]: row for row in shown["rows"]}
    assert shown["kept_after"] > 0
    assert rows["r5"]["added"] == 5
    assert f"up to txid {shown['kept_after']} is no longer kept" in command.printed(*asked)


def test_parts_of_a_join_over_a_store(tmp_path: Path, command: Commands):
    builder = TransactionalTopologyBuilder("parts", "feed", spout_of(LEFT, RIGHT[:3], len(LEFT), 1))
    feed = StoreFeed(Side("feed", "r", **COMMON), MemoryStore(), retain=Duration(50))
    builder.set_bolt("fill", feed).fields_grouping("feed", "r", ["key"])
    sync = builder.set_bolt("sync", DataDelaySync(Side("feed", "l", **COMMON)))
    sync.fields_grouping("feed", "l", ["key"]).all_grouping("fill", "position")
    builder.set_bolt("keep", DeltaSink("rows", {"id": str, "key": str, "ts": int, "part": str})).global_grouping("sync")
    data_dir = tmp_path / "parts"
    ended(builder.build_topology(), data_dir)
    shown = command.json("join", data_dir, "fill")
    assert (shown["position"], shown["partitions"], shown["retain"]) == (at(60), {"r0": at(60)}, 0.05)
    assert command.json("windows", data_dir)["components"] == []
    assert "no windows of a component 'sync'" in command.refused("windows", data_dir, "sync")
    shown = command.json("join", data_dir, "sync")
    assert (shown["consumed_time"], shown["pending"], shown["oldest_pending"]) == (at(60), 1, at(200))
    assert command.json("join", data_dir, "sync", "--txid", 1)["pending"] == 4
    assert f"1 left row, the oldest at {at(200)}" in command.printed("join", data_dir, "sync")
    assert "rows kept for" in command.printed("join", data_dir, "fill")
    message = command.refused("join", data_dir, "sync", "--key", "a")
    assert "sync: a part of a join over a store, expected an interval join" in message


@pytest.mark.parametrize("tasks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_rows_that_come_and_go_in_large_transactions(tasks: int, tmp_path: Path, command: Commands):
    """Left rows released at once, and right rows that expire on arrival, are in the history, however many there are."""
    left = [(f"l{number}", number % 7, 40_000 + number, "l0") for number in range(6_000)]
    right = [(f"r{number}", number % 7, 100_000 + number, "r0") for number in range(3_000)]
    right += [(f"r{number}", number % 7, 20_000 + number, "r0") for number in range(3_000, 6_000)]
    ended(topology(left, right, 3_000, tasks), tmp_path / "many")
    asked = ["join", tmp_path / "many", "join"]
    shown = command.json(*asked)
    assert (shown["unmatched_left"], shown["unmatched_right"], shown["pending"]) == (6_000, 3_000, 0)
    assert StateView(tmp_path / "many", "join-left", 1).to_arrow().num_rows == 0
    rows = command.json(*asked, "--key", 3)["rows"]
    seen = {(row["id"], row["added"], row.get("released", row.get("expired"))) for row in rows}
    came = {(f"{side}{number}", 1 + number // 3_000) for side in "lr" for number in range(6_000) if number % 7 == 3}
    assert seen == {(id, txid, txid if (id[0], txid) != ("r", 1) else None) for id, txid in came}
    first = command.json(*asked, "--txid", 1, "--key", 3)["rows"]
    assert {row["id"] for row in first} == {id for id, txid in came if txid == 1}
    # The state has the rows of the last transaction only.
    assert set(StateView(tmp_path / "many", "join-passing").to_arrow()["txid"].to_pylist()) == {2}


def test_directory_without_joins(tmp_path: Path, command: Commands):
    ended(readings.plain, tmp_path / "w")
    assert "no component of it is a join" in command.refused("join", tmp_path / "w", "join")
