"""States of layout ``merge`` in complete runs: kills, truncation, savepoints, rewinds and a lost ledger."""

from itertools import cycle

import pytest
from deltalake import DeltaTable
from recovery_cases import check, content, ended, ends, killed
from scenarios.words import SPOUTS, TXIDS, spout, topology

import txstorm
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import StateError
from txstorm.operations.rebuild_ledger import recover
from txstorm.replay.audit import replay_txid
from txstorm.results.read import read_state

MERGE = ("--layout", "merge")
POINTS = ("p5.staged.after", "p6.after", "p7.1.before", "merge.staged", "p7.1.written", "p7.1.after", "p8.before")


def last_txids(data_dir):
    infos = [entry.info for entry in DeltaHandle.open(data_dir / "state/counts").history()]
    return sorted(info["last"] for info in infos if info["kind"] == "commit")


def plain(data_dir):
    rows = DeltaTable(str(data_dir / "state/counts")).to_pyarrow_table().select(["word", "n"])
    return sorted(rows.to_pylist(), key=lambda row: row["word"])


def words(data_dir, txid=None):
    return read_state(data_dir, "counts", txid).to_pylist()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the content of an undisturbed run in the other layout, which must be equal, and the counts by txid."""
    data_dir = tmp_path_factory.mktemp("undisturbed") / "data"
    ends(data_dir)
    return content(data_dir), {txid: words(data_dir, txid) for txid in range(TXIDS + 1)}


@pytest.mark.parametrize(("point", "kind"), list(zip(POINTS, cycle(SPOUTS))))
def test_killed_and_restarted(undisturbed, data_dir, point, kind):
    argv = [data_dir, "--spout", kind, *MERGE]
    killed(f"{point}:kill:2", *argv)
    ends(*argv)
    check(data_dir, TXIDS)
    assert content(data_dir).states == undisturbed[0].states
    assert plain(data_dir) == undisturbed[1][TXIDS]


def go_on(data_dir, **options):
    made = topology(spout("memory", TXIDS, data_dir), 3, layout="merge")
    settings = {"max_spout_pending": 4, "max_pack_txids": 2, "max_group_txids": 2}
    return ended(made.with_settings(settings), data_dir, **options)


def test_cuts_savepoints_and_rewinds_at_the_ends_of_groups(place, data_dir, undisturbed, command):
    go_on(data_dir, until_txid=5)
    handle = go_on(data_dir)
    after, known = undisturbed[1], last_txids(data_dir)
    inside = next(txid for txid in range(1, TXIDS) if txid not in known)
    end = next(txid for txid in known if 1 < txid < TXIDS)

    assert handle.snapshot(end).state("counts").to_pylist() == after[end]
    handle.savepoint("end", txid=end)
    for refused in (lambda: handle.savepoint("inside", txid=inside), lambda: txstorm.rewind(data_dir, inside)):
        with pytest.raises(StateError, match=f"at the ends of groups only; expected txid .*, got {inside}"):
            refused()
    with pytest.raises(StateError, match="keeps no change rows"):
        replay_txid(topology(spout("memory", TXIDS, data_dir), 3, layout="merge"), data_dir, end)
    assert "ends of groups" in command.refused("state", data_dir, "counts", "--txid", inside)

    txstorm.restore_savepoint(data_dir, "end", place / "copy")
    assert plain(place / "copy") == words(place / "copy") == after[end]
    txstorm.rewind(data_dir, end)
    assert plain(data_dir) == words(data_dir) == after[end]
    (data_dir / "ledger.db").unlink()
    recover(data_dir)
    for directory in (data_dir, place / "copy"):
        go_on(directory)
        assert plain(directory) == words(directory) == after[TXIDS]
