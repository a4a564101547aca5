"""The crash grid: a fault at every step of a transaction, then one restart; an independent verifier checks the result.

A cell is a fault point, a kind of fault, a change of the source, and a number of transactions in flight; see
`crash_cells`. Its id repeats it: ``pytest -k before-p6-kill-grows-4``.

- *kill*: SIGKILL.
- *exception*: raised at the point; the run ends with it.
- *hang*: the thread blocks there forever. With SQLite there is no takeover until the process has ended; with ZooKeeper
  the whole process is frozen, another one takes over, and then the first one resumes.
"""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crash_cells import AFTER, ALL, BEFORE, END_TO_END, FOURTH, PARTITIONS, SHORT, Cell, expected, word
from grid_tables import check_extents, check_sent, produce, verify
from programs import Program
from recovery_cases import (
    check_ledger,
    ends,
    fails,
    finish,
    last_decided,
    ledger_entries,
    logs,
    long_if,
    stands,
    strike,
    wait_free,
)
from servers.running import Kafka, ZooKeeper

pytestmark = pytest.mark.integration

SESSION = "zookeeper_session_timeout=1.5"


def cells(some: list[Any]) -> Callable[..., Any]:
    return pytest.mark.parametrize("cell", some, ids=lambda cell: cell.id)


@cells(long_if(lambda cell: cell not in SHORT, ALL))
def test_grid(data_dir: Path, cell: Cell) -> None:
    """The quick grid; in long runs the whole one (170 processor seconds)."""
    before, after = ([data_dir, cell.source, when, cell.depth] for when in ("before", "after"))
    leave_files(before, cell)
    strike(cell.passage, cell.fault, *before, again=after, scenario="grid")
    known = decided(data_dir, cell)
    ends(*after, scenario="grid")
    check_cell(data_dir, cell, known)


@pytest.mark.long
@cells(FOURTH)
def test_grid_on_zookeeper(data_dir: Path, zookeeper_server: ZooKeeper, cell: Cell) -> None:
    ledger = ["--set", f"ledger=zookeeper:{zookeeper_server.new_chroot()}"]
    before, after = ([data_dir, cell.source, when, cell.depth, *ledger] for when in ("before", "after"))
    leave_files(before, cell)
    hung = None
    first = [*before, "--set", SESSION]
    if cell.fault == "hang":
        hung = stands(cell.armed("freeze"), *first, scenario="grid")
    else:
        strike(cell.passage, cell.fault, *first, again=(), scenario="grid")
    if cell.fault != "exception":
        wait_free(data_dir)
    known = decided(data_dir, cell)
    ends(*after, scenario="grid")
    check_cell(data_dir, cell, known)
    assert not (data_dir / "ledger.db").exists()
    if hung is not None:
        changes_nothing(hung, data_dir, cell)
        check_cell(data_dir, cell, known, swept=False)


def leave_files(argv: list[Any], cell: Cell) -> None:
    """Create unreferenced files for the vacuum to remove, by a run that ends before its first decision."""
    if cell.point == "amid-sweep":
        fails(*argv, fault="p6.before:raise:1", scenario="grid")


def decided(data_dir: Path, cell: Cell) -> int:
    """Return the last decided txid, which recovery must keep; known exactly if transactions run one at a time."""
    last = last_decided(data_dir)
    assert cell.depth > 1 or last == cell.decided
    return last


def check_cell(data_dir: Path, cell: Cell, known: int, *, swept: bool = True) -> None:
    """Check after a restart that decided transactions are unchanged, and all others have the source's new content."""
    batches = expected(cell.source, known)
    tables = verify(data_dir, swept=swept)
    assert tables.batches() == batches
    for rows in tables.rows.values():
        assert all(kept == word(*place) for *place, kept in rows)
    check_extents(tables.history, batches)
    assert tables.epochs == ({1, 2, 3} if cell.point == "amid-sweep" else {1, 2})
    if swept:
        check_ledger(data_dir, len(batches), intents=1)


def changes_nothing(hung: Program, data_dir: Path, cell: Cell) -> None:
    """Resume a run that was taken over while frozen; check that it is fenced, and adds only unreferenced files.

    If it was frozen in its sweep, it has committed everything and has nothing left to write: it ends normally.
    """
    before = logs(data_dir), ledger_entries(data_dir)
    hung.send_signal(signal.SIGCONT)
    status, output = finish(hung)
    assert (status, "FencedError" in output) == ((0, False) if cell.point == "amid-sweep" else (1, True)), output
    assert (logs(data_dir), ledger_entries(data_dir)) == before


@pytest.mark.long
@pytest.mark.spark
@cells(END_TO_END)
def test_grid_with_spark_and_kafka(data_dir: Path, kafka_broker: Kafka, cell: Cell) -> None:
    after = AFTER[cell.source]
    topic, target = kafka_broker.make_topic(partitions=2), kafka_broker.make_topic(partitions=3)
    produce(kafka_broker, topic, range(BEFORE.size))
    options = [cell.depth, "--kafka", kafka_broker.bootstrap, topic, target]
    first, again = ([data_dir, cell.source, when, *options] for when in ("before", "after"))
    leave_files([*first, "--engine", "local"], cell)
    # In a task it would strike a worker, again and again, and not the driver.
    strike(cell.passage.replace("p3.after:3", "p2.after:2"), cell.fault, *first, again=again, scenario="grid")
    produce(kafka_broker, topic, range(BEFORE.size, after.size))
    ends(*again, scenario="grid")
    rows = verify(data_dir).rows
    kept = sorted((*place, kept) for some in rows.values() for *place, kept in some)
    assert kept == sorted((p, offset, 0, word(p, offset, 0)) for p in PARTITIONS for offset in range(after.size))
    check_sent(kafka_broker.bootstrap, target, rows)
    check_ledger(data_dir, len(rows), intents=1)
