"""SIGKILL at every fault point, then a restart: the result must equal that of an undisturbed run.

test_crash_cells.py covers other kinds of faults, sources that change afterwards, and one transaction at a time.
"""

import re
import shutil
from itertools import cycle, islice

import pytest
from crash_cells import POINTS
from recovery_cases import KILLED, finish, long_if, ran, start, strike
from scenarios.words import SPOUTS, TXIDS
from seeded import seeded

from txstorm import faults

pytestmark = pytest.mark.integration

ALONE = ("--set", "max_group_txids=1")
LONG = 40
"""Transactions after which the logs of tables were shortened."""
# Passed once a start; a later passage of them is one of a later start, and tested as such below.
ONCE = ("p0.", "history.", "sweep.")
CHECKPOINTS = [name for name in faults.POINTS if name.startswith("checkpoint.")]
# Passed elsewhere: ledgers in a Delta table (test_delta_ledger_crashes.py), Kafka sinks (test_kafka_sink_crashes.py),
# what takes more commits than there are here (tests of gathering in tests/unit/state), rewinds (test_rewind.py), the
# layout merge (test_merge_layout.py), the kept history (test_retention.py, test_retention_runs.py), the middle of a
# sweep (test_crash_cells.py), entries that move to the archive of a log (test_log_retention.py), tables that come and go
# (test_dropped_tables.py, test_redefined_tables.py), snapshots (test_snapshot_starts.py), sinks of text files
# (test_hailstorm_topologies.py).
LATE = {"p0.N.dropped", "p0.N.begun", "p0.N.redefined", "sweep.removed", "thin.removed", "archive.moved"}
OTHERS = ("ledger.", "kafka.", "gather.", "rewind.", "merge.", "retain.", "begin.", "snapshot.", "file.", "replica.")
ELSEWHERE = LATE | {name for name in faults.POINTS if name.startswith(OTHERS)}
DELETED = {"ledger.meta", "ledger.intent"}  # of those the ones that a ledger in SQLite passes
DELTA_TABLES = {1: 2, 3: 5}  # a state has two


def points(tables: int) -> list[str]:
    """Return the fault points of a run with `tables` tables and no other features, without those of checkpoints."""
    found = []
    for name in faults.POINTS:
        if name not in CHECKPOINTS and name not in ELSEWHERE:
            count = DELTA_TABLES[tables] if name.startswith("p0.") else tables
            numbers = range(1, count + 1) if ".N." in name else [0]
            found += [name.replace(".N.", f".{number}.") for number in numbers]
    return found


def passages(point: str, tables: int) -> tuple[int, ...]:
    """Return the passages of a point at which to crash: the first, and a later one if every run reaches it."""
    if point.startswith(ONCE) or (point.startswith("compact.") and tables == 1):
        return (1,)
    if tables == 3 and point in CELLS:
        return ()
    return (1, 2) if point.startswith(("p1.", "compact.")) else (1, 3)


CELLS = {name for name, *_ in POINTS.values()}
"""Points at which test_crash_cells.py crashes runs with three tables."""
FAULTS = [(n, f"{point}:kill:{nth}") for n in (1, 3) for point in points(n) for nth in passages(point, n)]
GRID = [(*fault, spout) for fault, spout in zip(FAULTS, cycle(SPOUTS))]
"""(tables, fault, spout): every point and passage, with 1 and 3 tables and alternating spouts."""


def chosen() -> list[tuple[int, str, str]]:
    """Return one cell of each point that is not one of test_crash_cells.py: the first and the last one alternate."""
    by_point: dict[str, list[tuple[int, str, str]]] = {}
    for cell in GRID:
        by_point.setdefault(cell[1].partition(":")[0], []).append(cell)
    left = [some for point, some in by_point.items() if point not in CELLS]
    return [some[-(turn % 2)] for turn, some in enumerate(left)]


CHOSEN = chosen()


@pytest.mark.parametrize(("tables", "fault", "spout"), long_if(lambda *cell: cell not in CHOSEN, GRID))
def test_killed_and_restarted(crash, tables, fault, spout):
    """A run killed at any fault point and restarted equals an undisturbed one (rows T1, T12, T19).

    The long cells are those with the other number of tables, or at another passage (60 processor seconds).
    """
    # A compaction runs beside commits: if the last group was then decided but not complete, the restart completes it,
    # and its intent is removed with the next group only.
    crash([fault], "--spout", spout, "--tables", tables, intents=4 if fault.startswith("compact.") else 3)


RECOVERY = [point for point in points(3) if point.startswith(("p0.", "p7.", "p8.")) and "created" not in point]
ALIKE = {
    *(f"p0.{table}.raised" for table in (1, 2, 4, 5)),
    *("p7.1.written", "p7.1.after", "p7.2.before", "p7.2.after", "p7.3.before", "p7.3.written"),
}
"""Points of the recovery that differ from others in the number of the table only."""


@pytest.mark.parametrize(("point", "spout"), long_if(lambda point, _: point in ALIKE, zip(RECOVERY, cycle(SPOUTS))))
def test_killed_again_while_it_rolls_a_decided_group_forward(crash, point, spout):
    crash(["p6.after:kill:2", f"{point}:kill:1"], "--spout", spout)


def test_a_run_that_is_killed_at_every_start_still_finishes(crash):
    """A run that is killed after every start still finishes, as each start publishes at least one more group."""
    faults = ["p0.2.created:kill:1", *["p6.after:kill:1"] * TXIDS, "compact.staged:kill:2", "sweep.before:kill:1"]
    crash(faults, extra=ALONE, intents=TXIDS)  # only a commit drops old ones


@pytest.mark.parametrize("point", CHECKPOINTS)
def test_killed_while_a_log_is_shortened(crash, point):
    crash([f"{point}:kill:1"], "--txids", LONG, extra=ALONE, txids=LONG)


def test_every_point_is_passed_in_its_order_by_an_undisturbed_run(place):
    trace = place / "trace"
    argv = ["words", place / "data", "--txids", LONG, *ALONE]
    for _ in range(2):  # the second start has nothing to do but to lead
        status, output = finish(start(*argv, TXSTORM_FAULT_TRACE=str(trace)))
        assert status == 0, output

    passed = [re.sub(r"\.[0-9]+\.", ".N.", line) for line in trace.read_text().splitlines()]

    assert set(passed) == set(faults.POINTS) - ELSEWHERE | DELETED
    commit = [name for name in passed if name.startswith(("p5", "p6", "p7", "p8"))]
    staged = ["p5.staged.before", "p5.staged.after"] * 3
    published = ["p7.N.before", "p7.N.written", "p7.N.after"] * 3
    # The tables of a group are staged at once, and published at once: in any order among themselves.
    one = [["p5.before"], ["p5.after"], staged, ["p6.before"], ["p6.after"], published, ["p8.before"], ["p8.after"]]
    left = iter(commit)
    for step in one * LONG:
        assert sorted(islice(left, len(step))) == sorted(step)
    assert not list(left)
    for step in ("p1", "p2", "p3", "p4"):
        assert passed.index(f"{step}.before") < passed.index(f"{step}.after") < passed.index("p5.before")
    lead = ["p0.before", "p0.epoch", *["p0.N.raised"] * 5, "p0.raised", *["p0.N.raised"] * 5, "p0.recorded", "p0.after"]
    assert [name for name in passed if name.startswith("p0.")][-len(lead) :] == lead


def test_every_step_has_a_point_before_and_after():
    steps = {re.match(r"p[0-8](\.N)?", name)[0] for name in faults.POINTS if name.startswith("p")}
    assert steps == {"p0", "p0.N", "p1", "p2", "p3", "p4", "p5", "p6", "p7.N", "p8"}
    for step in steps - {"p0.N"}:
        assert {f"{step}.before", f"{step}.after"} <= set(faults.POINTS)


ENDS = [
    # No point of a compaction: one that falls due during the run ends with it, and its error is not reported.
    *((point, "exception") for point in ("p2.after", "p3.before", "p5.staged.after", "p0.before", "p0.raised")),
    *((point, "exception") for point in ("p0.after", "history.written", "sweep.after")),
    *((point, "hang") for point in ("p0.raised", "p5.staged.after")),
]


@pytest.mark.parametrize(("point", "how"), ENDS)
def test_an_error_or_a_hang_at_a_point_ends_the_run_and_the_next_start_goes_on(ends_as_undisturbed, place, point, how):
    argv = [place / "data", "--spout", "opaque" if how == "exception" else "file"]
    strike(f"{point}:1", how, *argv, again=argv, scenario="words")
    ends_as_undisturbed(*argv)


LEFT_OUT = (
    "p2.before:2",
    "p4.after:1",
    "p5.staged.after:4",
    "p6.before:1",
    "p6.after:1",
    "p7.4.written:1",
    "p8.before:2",
)


@pytest.mark.parametrize(
    ("fault", "spout"), long_if(lambda fault, _: fault in ("p4.after:1", "p6.before:1"), zip(LEFT_OUT, cycle(SPOUTS)))
)
def test_killed_while_dead_letters_are_skipped(crash, undisturbed, fault, spout):
    """After a crash, dead letters are written exactly once, and the records skipped by a decided txid stay skipped."""
    options = ["--spout", spout, "--poison", "moon", "--set", "on_error=dead_letter", "--set", "max_pack_txids=1"]
    crash([fault.replace(":", ":kill:")], *options)
    assert set(undisturbed(*options).letters.values()) == {1}


@pytest.mark.parametrize("spout", long_if(lambda spout: spout != "opaque", SPOUTS))
def test_killed_at_any_moment_again_and_again(ends_as_undisturbed, data_dir, spout):
    chance = seeded()
    argv = [data_dir, "--spout", spout, "--txids", 30]
    statuses, latest = [], 0.8
    for _ in range(15):
        status, output = ran(*argv, kill_after=chance.uniform(0, latest))
        statuses.append(status)
        assert status in (0, KILLED), output
        if status == 0 and KILLED in statuses:
            break
        if status == 0:  # it was over before it was killed
            shutil.rmtree(data_dir)
            latest /= 2
    assert KILLED in statuses
    ends_as_undisturbed(*argv, txids=30, intents=30)
