"""Runs whose ledger is a Delta table: killed at each ledger step, moved to another location, rebuilt."""

import json
from itertools import cycle
from pathlib import Path

import pytest
from recovery_cases import check, content, ends, fails, killed, open_books
from scenarios.words import SPOUTS, TXIDS

from txstorm.errors import DataDirectoryError, HeldError, InputError
from txstorm.ledger.delta.ledger import DeltaLedger
from txstorm.ledger.location import parse_ledger, record_ledger
from txstorm.ledger.open import open_ledger
from txstorm.ledger.sqlite import SqliteLedger
from txstorm.operations.move_ledger import copy_ledger
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.status import read_status

pytestmark = pytest.mark.integration

# Of the ledger: the lease, the identity, the epoch, plans, extents, decisions, completions.
LEDGER = [f"ledger.{step}:kill:{nth}" for nth in (1, 3, 6, 12) for step in ("before", "written")]
OTHERS = ["p0.raised:kill:1", "p6.after:kill:2"]


@pytest.mark.parametrize(("fault", "spout"), list(zip([*LEDGER, *OTHERS], cycle(SPOUTS))))
def test_killed_and_restarted(crash, place, fault, spout):
    crash([fault], "--spout", spout, extra=["--set", f"ledger=delta:{place}/control"])
    assert not (place / "data/ledger.db").exists()


def test_the_directory_remembers_the_ledger(undisturbed, place, data_dir):
    argv = [data_dir, "--set", f"ledger=delta:{data_dir}/control"]
    killed("p8.after:kill:2", *argv)
    data_dir.rename(place / "moved")
    ends(place / "moved")
    assert content(place / "moved") == undisturbed()
    assert read_status(place / "moved")["ledger"] == f"delta:{place}/moved/control"
    output = fails(place / "moved", "--set", f"ledger=sqlite:{place}/x.db")
    assert f"uses the ledger delta:{place}/moved/control, not sqlite:{place}/x.db" in output


def test_a_stopped_topology_is_moved_to_and_fro(ends_as_undisturbed, place, data_dir):
    killed("p6.after:kill:2", data_dir, "--spout", "file")
    found = copy_ledger(str(data_dir), f"delta:{place}/control")
    assert (found["topology"], found["target"]) == ("crash", f"delta:{place}/control")
    killed("p6.after:kill:1", data_dir, "--spout", "file")
    copy_ledger(str(data_dir), f"sqlite:{data_dir}/ledger.db")  # where the old one stands, which was moved away
    ends_as_undisturbed(data_dir, "--spout", "file")


def test_a_moved_topology_cannot_be_started_at_its_old_place(place, data_dir):
    killed("p8.after:kill:2", data_dir)
    old, new = f"sqlite:{data_dir}/ledger.db", f"delta:{place}/control"
    copy_ledger(old, new)  # the directory was not named and does not know
    for argv in ([data_dir], [data_dir, "--set", f"ledger={old}"]):
        assert f"ledger {old} was moved to {new}" in fails(*argv)
    with pytest.raises(DataDirectoryError, match="was moved to"):
        read_status(data_dir)
    ends(data_dir, "--set", f"ledger={new}")
    ends(data_dir)  # it knows now
    check(data_dir, TXIDS)


def test_what_runs_is_not_moved(place, data_dir):
    killed("p8.after:kill:2", data_dir)
    holder = open_ledger(data_dir, create=False)
    holder.acquire("crash")
    try:
        with pytest.raises(HeldError, match="'crash'"):
            copy_ledger(str(data_dir), f"delta:{place}/control")
    finally:
        holder.close()
    assert not (place / "control").exists()


def test_where_something_stands_nothing_is_copied_to(place):
    for name in ("data", "other"):
        killed("p8.after:kill:2", place / name)
    with pytest.raises(InputError, match="expected a new one, got one that is not empty"):
        copy_ledger(str(place / "data"), str(place / "other"))
    with pytest.raises(InputError, match="both source and target"):
        copy_ledger(str(place / "data"), f"sqlite:{place}/data/ledger.db")
    with pytest.raises(DataDirectoryError, match="does not exist"):
        copy_ledger(str(place / "dat"), f"delta:{place}/control")
    ends(place / "data")


@pytest.mark.parametrize("nth", [3, 4])
def test_an_interrupted_copy_starts_over(undisturbed, place, monkeypatch, nth):
    data_dir, commits = place / "data", []
    killed("p6.after:kill:2", data_dir)
    written = DeltaLedger._append

    def fail(ledger, *arguments, **options):
        commits.append(1)
        if len(commits) == nth:
            raise OSError("the machine is switched off")
        return written(ledger, *arguments, **options)

    monkeypatch.setattr(DeltaLedger, "_append", fail)
    with pytest.raises(OSError, match="switched off"):
        copy_ledger(str(data_dir), f"delta:{place}/control")
    monkeypatch.undo()
    with open_books(data_dir) as books:  # the old one is the one in use
        assert isinstance(books.ledger, SqliteLedger)

    copy_ledger(str(data_dir), f"delta:{place}/control")

    ends(data_dir)
    assert content(data_dir) == undisturbed()
    with open_books(data_dir) as books:
        assert isinstance(books.ledger, DeltaLedger)


def test_an_interrupted_ledger_move_is_completed_by_the_same_command(place, data_dir):
    """If a move is killed while the directory still names the old ledger, repeating the command completes it."""
    killed("p8.after:kill:2", data_dir)
    copy_ledger(f"sqlite:{data_dir}/ledger.db", f"delta:{place}/control")
    copy_ledger(str(data_dir), f"delta:{place}/control")
    ends(data_dir)
    check(data_dir, TXIDS)


def test_a_ledger_in_memory_is_rebuilt_elsewhere(ends_as_undisturbed, data_dir: Path):
    killed("p7.2.before:kill:2", data_dir, "--set", "ledger=memory")
    assert "has no ledger (memory)" in fails(data_dir)
    recover(data_dir, f"delta:{data_dir}/control")
    assert json.loads((data_dir / "ledger.json").read_text())["ledger"] == "delta:./control"
    ends_as_undisturbed(data_dir)


def test_moved_to_zookeeper_lost_there_and_rebuilt(ends_as_undisturbed, data_dir, zookeeper_server):
    data_dir, ledger = data_dir, f"zookeeper:{zookeeper_server.new_chroot()}/crash"
    killed("p6.after:kill:2", data_dir, "--spout", "file")
    assert copy_ledger(str(data_dir), ledger)["target"] == ledger
    lost = f"zookeeper:{zookeeper_server.new_chroot()}/other"
    assert read_status(data_dir)["ledger"] == ledger
    record_ledger(data_dir, parse_ledger(lost))  # nothing was ever there
    assert f"has no ledger ({lost})" in fails(data_dir, "--spout", "file")
    recover(data_dir)
    ends_as_undisturbed(data_dir, "--spout", "file")
