"""Disks that fail once or break: neither the same run nor the next start relies on data whose sync failed.

The system calls fail below Python, SQLite and delta-rs, and unsynced data is lost (`failing_disk.c`).
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from recovery_cases import check, committed_versions, content, ended, environment, long_if
from scenarios.disk import FEW, FROM, NUMBERS, topology

from txstorm.errors import TxstormError

TXIDS = len(FEW) // 2
SEED = int(os.environ.get("TXSTORM_SEED") or random.SystemRandom().randrange(1 << 32))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path_factory.mktemp("library") / "failing_disk.so"
    source = Path(__file__).parent / "failing_disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, source, "-ldl", "-lpthread"], check=True)
    return made


def reports(library: Path, *arguments: object) -> list[dict]:
    """Run a scenario with the preloaded library; return the lines of JSON that it prints."""
    # An interpreter of its own: only a process that begins with it has the library.
    command = [sys.executable, "-m", "scenarios", *arguments]
    done = subprocess.run(
        command, env=environment(LD_PRELOAD=str(library)), stdout=PIPE, stderr=STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def swept(home: Path, library: Path, ledger: str, calls: list[str]) -> list[dict]:
    """Run the topology once for each system call in `calls`, with that call failing; return the reports of the runs."""
    told = reports(library, "failing-disk", home, ledger, *calls)
    assert [one["call"] for one in told] == calls
    return told


def lost_names(calls: Path) -> set[str]:
    """Return existing files that a failed sync of their directory left unsynced, unless they were created again."""
    fresh: dict[str, set[str]] = defaultdict(set)
    lost: dict[str, set[str]] = defaultdict(set)
    for line in calls.read_text().splitlines():
        what, path = line[0], line[2:]
        parent, name = os.path.split(path)
        if what == "N":
            fresh[parent].add(name)
            lost[parent].discard(name)
        elif what == "S":
            fresh.pop(path, None)
        elif what == "F":
            lost[path] |= fresh.pop(path, set())
    return {
        f"{parent}/{name}" for parent, names in lost.items() for name in names if os.path.exists(f"{parent}/{name}")
    }


def verified(home: Path, told: list[dict], expected) -> None:
    """Check that every run finished with each record counted once, and reported the failure if it ended early."""
    faults = {one["call"]: fault for one in told if (fault := _fault(home / one["call"], one, expected))}
    assert not faults, json.dumps(faults, indent=1)


def _fault(place: Path, told: dict, expected) -> str:
    failed = [line for line in (place / "calls").read_text().splitlines() if line[0] in "FW"]
    kind, number = told["call"].split(":")
    made, said = told[f"{kind}s"], told["said"]
    try:
        # Upkeep takes more or fewer steps from run to run, so that the last calls of one may be missing in another.
        assert len(failed) == (made > int(number)), f"{len(failed)} calls have failed, of {made}"
        assert said[-1] == "", f"it does not come to its end: {said}"
        assert all(str(place / "disk") in one for one in said[:-1] if one), f"it does not say which file: {said}"
        check(place / "disk/data", TXIDS, intents=TXIDS)  # what rolls a group forward leaves old ones to the next group
        assert content(place / "disk/data") == expected, "other content"
        # SQLite syncs the directory of its log, and ignores the answer; the ledger's handle syncs it once more.
        assert lost_names(place / "calls") <= {str(place / "disk/data/ledger.db-wal")}, "names are lost"
    except (AssertionError, TxstormError) as error:
        return f"{failed}: {type(error).__name__}: {error}"
    return ""


def counted(home: Path, library: Path, ledger: str) -> tuple[list[str], object]:
    """Return the system calls of an undisturbed run that can be made to fail, and the content of its tables."""
    [well] = swept(home, library, ledger, ["sync:999999"])
    assert set(well["said"]) == {""}, well
    calls = [f"sync:{number}" for number in range(well["syncs"])] + [f"write:{at}" for at in range(well["writes"])]
    return calls, content(home / "sync:999999/disk/data")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("ledger", "number"),
    long_if(lambda _, number: number is None, [("sqlite", 4), ("sqlite", None), ("delta", 2), ("delta", None)]),
)
def test_a_call_that_fails_once_is_not_believed_later(tmp_path, library, ledger, number):
    """Some calls, or in long runs all of them."""
    calls, expected = counted(tmp_path, library, ledger)
    print(f"TXSTORM_SEED={SEED}")
    some = calls if number is None else random.Random(SEED).sample(calls, number)
    verified(tmp_path, swept(tmp_path, library, ledger, some), expected)


POINTS = ["p1.before", "p5.before", "p6.before", "p7.2.before", "p8.before"]
"""The next sync is that of the ledger, a staged file, the ledger, a log, the ledger."""


@pytest.mark.integration
def test_syncs_that_fail_end_the_run_and_nothing_is_lost(place, library):
    """On a disk on which every sync fails no txid is falsely reported as committed, and the next start recovers."""
    (place / "well").mkdir()
    ended(topology(place / "well", NUMBERS), place / "well/data")
    told = reports(library, "broken-disk", place, *POINTS)
    assert [one["point"] for one in told] == POINTS
    for one in told:
        home = place / one["point"]
        assert str(home / "data") in one["said"], one
        assert one["committed"] in (FROM - 1, FROM), one
        assert set(range(1, one["committed"] + 1)) <= set(committed_versions(home / "data")), one
        ended(topology(home, NUMBERS), home / "data")
        check(home / "data", len(NUMBERS) // 2)
        assert content(home / "data") == content(place / "well/data"), one
