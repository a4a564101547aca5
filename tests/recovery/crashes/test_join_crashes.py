"""Joins of two sources that die at any step: each left row once, each pair once, as SQL joins what was read.

The rows of the state variant are also compared with the naive model, txid by txid, from what each committed transaction
has read: an opaque source brings fewer rows after the fault.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from join_model import JoinModel, JoinRules, JoinSide
from join_store_servers import StoreServer
from recovery_cases import long_if
from scenarios.joins import BEFORE, LAG, PARTITIONS, rows
from stateful_cases import FAULTS, SPOUTS, StatefulRuns

from txstorm.results.read import list_states, read_sink, read_state
from txstorm.storage.tables.history import read_history

pytestmark = pytest.mark.integration

POINTS = ("p1.after:3", "p5.after:2", "p6.after:2", "p7.1.written:2")
CELLS = [
    (point, fault, variant, spout)
    for i, point in enumerate(POINTS)
    for j, fault in enumerate(FAULTS)
    for variant, spout in (
        *(("state", one) for one in SPOUTS),
        ("redis", SPOUTS[(i + j) % 2]),
        ("rest", SPOUTS[(i + j + 1) % 2]),
    )
]
"""(fault point, fault, variant, spout): each point and fault with each variant, and both spouts."""
CHOSEN = [cell for number, cell in enumerate(CELLS) if number % 4 == number // 4 % 4]
"""Each point and fault with one of them, by turns."""


@pytest.fixture(scope="module")
def memory_server(tmp_path_factory):
    """A store server that holds its rows in memory."""
    server = StoreServer(tmp_path_factory.mktemp("store-server"), "--store", "memory")
    yield server
    server.close()


@pytest.fixture
def join_runs(request, place):
    """Return a function from a variant to its runs in `place`, over an empty store."""

    def get(variant):
        conf = {}
        if variant == "redis":
            server = request.getfixturevalue("redis_server")
            server.flush()
            conf = {"url": f"redis://{server.address()}/0"}
        elif variant == "rest":
            server = request.getfixturevalue("memory_server")
            server.restart()
            conf = {"url": server.url}
        return StatefulRuns(place, "joins", variant, conf)

    return get


@pytest.mark.parametrize(("point", "fault", "variant", "spout"), long_if(lambda *cell: cell not in CHOSEN, CELLS))
def test_every_left_row_and_every_pair_once_whatever_is_killed(join_runs, point, fault, variant, spout):
    """A7, A13, A20: one restart, and no result is there twice; rows of a dropped attempt have left no trace.

    The rest of the cells takes 45 processor seconds.
    """
    runs = join_runs(variant)
    runs.strike(spout, point, fault)
    last = runs.decided()[0]
    runs.again(spout)
    sizes = [len(left) + len(right) for left, right, end in batches(runs.data_dir) if not end]
    assert set(sizes[:last]) == {8}
    assert set(sizes[last:]) == ({4} if spout == "opaque" else {8})
    check_joins(runs.data_dir, variant)


def test_the_input_has_matched_and_unmatched_rows(join_runs):
    runs = join_runs("state")
    assert runs.run()[0] == 0
    check_joins(runs.data_dir, "state")
    assert all(sql_join())


def batches(data_dir):
    """Return the left and right rows that each committed transaction has read, and whether it was the end of input."""
    found = []
    for extent in read_history(data_dir)["extents"].to_pylist():
        plan = json.loads(extent)
        end = plan.get("facts", {}).get("kind") == "end"
        read = {"l": [], "r": []}
        for side, source in plan["sources"].items():
            for number, (start, count) in sorted(source["meta"].items()) if "skipped" not in source else ():
                read[side] += rows(side, int(number))[start : start + count]
        found.append((read["l"], read["r"], end))
    return found


def sql_join():
    """Return the pairs, the unmatched left ids and the unmatched right ids of all rows, as SQL finds them."""
    left, right = ([row for number in range(PARTITIONS) for row in rows(side, number)] for side in "lr")
    pairs = [
        (one[3], other[3])
        for one in left
        for other in right
        if one[0] is not None and one[0] == other[0] and one[1] - BEFORE <= other[1] <= one[1]
    ]
    unmatched = [sorted({one[3] for one in some} - {pair[i] for pair in pairs}) for i, some in enumerate((left, right))]
    return sorted(pairs), *unmatched


def check_joins(data_dir, variant):
    pairs, left, right = sql_join()
    left_id, right_id = ("l_id", "r_id") if variant == "state" else ("sync_id", "r_id")
    found = read_sink(data_dir, "results").to_pylist()
    results = [(row[left_id], row[right_id], row["_txid"]) for row in found]
    assert Counter(one[:2] for one in results) == Counter([*pairs, *((one, None) for one in left)])
    assert sorted(unmatched(data_dir, "left")) == left
    read = [[row for some in (batch[i] for batch in batches(data_dir)) for row in some] for i in range(2)]
    assert [len(some) for some in read] == [24, 24]
    if variant != "state":
        return
    assert sorted(unmatched(data_dir, "right")) == right
    for name in ("join-left", "join-right"):
        assert name in list_states(data_dir)
        assert read_state(data_dir, name).num_rows == 0
    check_txids(data_dir, results)


def unmatched(data_dir, side):
    return [row["id"] for row in read_sink(data_dir, f"unmatched_{side}").to_pylist()]


def check_txids(data_dir, results):
    """Compare each transaction with the naive model."""
    sides = [JoinSide(LAG, partitions=tuple(f"{side}{number}" for number in range(PARTITIONS))) for side in "lr"]
    model = JoinModel(JoinRules(BEFORE, 0, "left", *sides))
    for txid, (left, right, end) in enumerate(batches(data_dir), start=1):
        outcome = model.transaction(txid, txid, left, right, end=end)
        assert sorted(one[:2] for one in results if one[2] == txid) == sorted(outcome.pairs, key=str)
