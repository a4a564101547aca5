"""Helpers of the recovery tests: child processes to kill, and checks of a data directory by txstorm's own readers."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import Program, loaded
from runs import ended as ended
from table_ranges import TableRange, table_ranges

from txstorm.books.books import Books
from txstorm.clients.delta.handle import DeltaHandle
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import Ledger
from txstorm.results.read import list_sinks, list_states, read_letters, read_sink, read_state, rows_json
from txstorm.storage.tables.history import read_history
from txstorm.storage.tables.intent import STAGED
from txstorm.storage.upkeep.sweep import kept_by

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KILLED = -signal.SIGKILL


def environment(**more: str) -> dict[str, str]:
    """Return the environment of child processes, whose Python path includes txstorm and the test modules."""
    rooms = sorted(str(path) for path in HERE.iterdir() if path.is_dir() and not (path / "__init__.py").exists())
    tests = [str(HERE), *rooms, str(HERE.parent), str(HERE.parent / "helpers")]
    path = [str(ROOT), *tests, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}


def start(scenario: str, *argv: Any, fault: str = "", **more: str) -> Program:
    """Start one of `scenarios` as a child process; its standard error is merged into its standard output."""
    return loaded().start("-m", "scenarios", scenario, *argv, env=environment(TXSTORM_FAULT=fault, **more), merged=True)


def finish(child: Program, timeout: float = 600) -> tuple[int, str]:
    """Wait until a child process ends; return its exit status (negative for a signal) and output."""
    try:
        output, _ = child.communicate(timeout=timeout)
    finally:
        child.kill()
    return child.returncode, output


def ran(*argv: Any, fault: str = "", scenario: str = "words", kill_after: float | None = None) -> tuple[int, str]:
    """Run a scenario, killed after `kill_after` seconds; return its exit status, negative for a signal, and its output."""
    child = start(scenario, *argv, fault=fault)
    if kill_after is not None:
        with suppress(subprocess.TimeoutExpired):
            child.wait(kill_after)
        child.kill()
    return finish(child)


def killed(fault: str, *argv: Any, scenario: str = "words") -> None:
    status, output = ran(*argv, fault=fault, scenario=scenario)
    assert status == KILLED, f"{fault} was not reached: {output}"


def ends(*argv: Any, scenario: str = "words") -> str:
    status, output = ran(*argv, scenario=scenario)
    assert status == 0, output
    return output


def fails(*argv: Any, fault: str = "", scenario: str = "words") -> str:
    """Run a scenario that ends with an error, which is the injected one if `fault` raises one; return its output."""
    status, output = ran(*argv, fault=fault, scenario=scenario)
    assert status == 1, output
    assert f"injected at {fault.partition(':')[0]}" in output or ":raise:" not in fault, output
    return output


def reaches(child: Program, condition: Callable[[], Any]) -> Program:
    """Wait until a condition is true; fails if the child process, which is returned, ends before."""
    eventually(lambda: child.poll() is not None or condition())
    assert child.poll() is None, f"{child.args} has ended: {child.printed}{child.complained}"
    return child


def stands(fault: str, *argv: Any, scenario: str = "words", hook: str = "") -> Program:
    """Start a run that is frozen, or one of whose threads hangs, at a fault point; return it once it is there.

    `hook`: the point that the scenario passes and then hangs by itself, if nothing is armed.
    """
    point, action, nth = (f"{hook}:hang:1" if hook else fault).split(":")
    trace = Path(f"{argv[0]}.trace")
    trace.write_text("")
    child = start(scenario, *argv, fault=fault, TXSTORM_FAULT_TRACE=str(trace))

    def there() -> bool:
        return is_frozen(child.pid) if action == "freeze" else trace.read_text().split("\n").count(point) >= int(nth)

    return reaches(child, there)


def strike(fault: str, how: str, *argv: Any, again: Sequence[Any], scenario: str, hook: str = "") -> None:
    """Run until a fault ends the run: ``kill``, ``exception``, or ``hang``, while which the start `again` is refused.

    `fault` is a fault point and its passage; empty if the scenario fails by itself, at `hook` (see `stands`).
    """
    armed = fault and fault.replace(":", {"kill": ":kill:", "exception": ":raise:", "hang": ":hang:"}[how])
    if how == "hang":
        standing = stands(armed, *argv, scenario=scenario, hook=hook)
        assert "HeldError" in fails(*again, scenario=scenario)
        standing.kill()
        assert finish(standing)[0] == KILLED
    elif how == "kill":
        killed(armed, *argv, scenario=scenario)
    else:
        assert "injected" in fails(*argv, fault=armed, scenario=scenario)


def long_if(condition: Callable[..., bool], cells: Iterable[Any]) -> list[Any]:
    """Return the cells of a grid as parameters of a test; those that meet the condition are tested in long runs only."""
    values = [cell if isinstance(cell, tuple) else (cell,) for cell in cells]
    return [pytest.param(*value, marks=pytest.mark.long if condition(*value) else ()) for value in values]


def one_published(group: int) -> str:
    """Return the fault that ends a run when only the first of three concurrent tables has published `group`."""
    return f"p7.2.before:hang:{group},p7.3.before:hang:{group},p7.1.after:kill:{group}"


def lose(data_dir: Path) -> None:
    """Delete the ledger of a data directory, with its intents."""
    for path in data_dir.glob("ledger.db*"):
        path.unlink()
    shutil.rmtree(data_dir / "intents", ignore_errors=True)


def eventually(condition: Callable[[], Any], seconds: float = 180) -> Any:
    """Wait until `condition` is true; return its value. Fails after `seconds`."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"not true after {seconds} s"
        time.sleep(0.02)
    return value


def is_frozen(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat[stat.rindex(")") + 2] == "T"


@dataclass(frozen=True)
class Content:
    """The part of a data directory's content that must be the same with and without crashes."""

    states: Mapping[str, str]
    sinks: Mapping[str, Counter[str]]
    letters: Counter[str]
    batches: tuple[tuple[int, str], ...]


def content(data_dir: Path) -> Content:
    """Read states byte for byte, sinks as multisets of rows with their txids, and the extents that every txid read."""
    history = read_history(data_dir)
    letters = read_letters(data_dir)
    extents = [extent.replace(str(data_dir.parent), "") for extent in history["extents"].to_pylist()]
    return Content(
        states={name: rows_json(read_state(data_dir, name)) for name in list_states(data_dir)},
        sinks={
            name: Counter(json.dumps(row, sort_keys=True) for row in read_sink(data_dir, name).to_pylist())
            for name in list_sinks(data_dir)
        },
        letters=Counter(_letter(row) for row in (() if letters is None else letters.to_pylist())),
        batches=tuple(zip(history["txid"].to_pylist(), extents, strict=True)),
    )


def _letter(row: dict[str, Any]) -> str:
    """Return a dead letter without the parts that differ between runs."""
    return json.dumps({name: value for name, value in row.items() if name not in ("attempt", "stamp")}, sort_keys=True)


def committed_versions(data_dir: Path) -> list[int]:
    return [record.txid for group in table_ranges(data_dir)["changes/seen"] for record in group.txids]


def sums(data_dir: Path) -> dict[int, int]:
    return {row["n"]: row["times"] for row in read_state(data_dir, "seen").to_pylist()}


@contextmanager
def open_books(data_dir: Path, *, write: bool = False) -> Iterator[Books]:
    """Open the books of a directory, during its run or after it."""
    ledger = open_ledger(data_dir, create=False, read_only=not write)
    try:
        yield Books(ledger, data_dir / "intents")
    finally:
        ledger.close()


def last_decided(data_dir: Path) -> int:
    """Return the last decided txid of a directory: it is committed, or rolled forward by the next start."""
    with open_books(data_dir) as books:
        return max([books.currtx() - 1, *(intent.last for intent in books.intents())])


def wait_free(data_dir: Path, seconds: float = 600) -> None:
    """Wait until the lease can be acquired: after a kill, a lease in ZooKeeper lasts until its session expires."""
    ledger = open_ledger(data_dir, create=False, read_only=True)
    try:
        assert ledger.wait_free(seconds)
    finally:
        ledger.close()


def check(data_dir: Path, txids: int, intents: int = 3, *, thinned: bool = False) -> None:
    """Check a directory whose run has ended cleanly after `txids` transactions.

    `thinned`: whether files of superseded versions may be gone; only after a jump of the clock are they old enough.
    """
    check_ledger(data_dir, txids, intents, check_tiling(data_dir, txids))
    _check_files(data_dir, thinned=thinned)


Ranges = Mapping[str, Sequence[TableRange]]


def check_tiling(data_dir: Path, txids: int) -> Ranges:
    """Check that each table's ranges, which are returned, cover the history, which is complete and has their attempts."""
    attempts: dict[int, set[tuple[int, str]]] = {txid: set() for txid in range(1, txids + 1)}
    found_ranges = table_ranges(data_dir)  # raises where they leave a gap or overlap
    for uri, ranges in found_ranges.items():
        if txids == 0:  # ended before the first commit
            assert not ranges, uri
            continue
        assert ranges[0].first == 1, uri
        assert ranges[-1].last <= txids, uri
        for group in ranges:
            assert all(group.first <= record.txid <= group.last for record in group.txids), uri
            for record in group.txids:
                attempts[record.txid].add((record.attempt_id, record.digest))
    assert {txid: len(found) for txid, found in attempts.items() if len(found) > 1} == {}
    history = read_history(data_dir)
    assert history["txid"].to_pylist() == list(range(1, txids + 1))
    for txid, attempt in zip(history["txid"].to_pylist(), history["attempt"].to_pylist(), strict=True):
        assert {found for found, _ in attempts[txid]} <= {attempt}
    stamps = history["stamp"].to_pylist()
    assert stamps == sorted(stamps)
    return found_ranges


def check_ledger(data_dir: Path, txids: int, intents: int, ranges: Ranges | None = None) -> None:
    """Check the ledger of a directory whose run has ended after `txids` txids, with at most `intents` intents.

    `ranges`: those of its tables, if they are known.
    """
    ranges = table_ranges(data_dir) if ranges is None else ranges
    with open_books(data_dir) as books:
        assert books.currtx() == txids + 1
        assert books.live_intents() == []
        assert books.failures() == {}
        assert books.history() == {}
        assert list(books.metas()) == [txids]
        tables = {name: last for name, last in books.tables().items() if not name.startswith(("maps/", "outlets/"))}
        assert {name: found[-1].last for name, found in ranges.items()} == tables
        assert len(books.intents()) <= intents
        assert books.ledger.holder() is None


def _check_files(data_dir: Path, *, thinned: bool) -> None:
    """Check that every file beside a table is referenced by its log or by a retained intent."""
    with open_books(data_dir) as books:
        intents = books.intents()
    for kind in ("changes", "state", "sinks"):
        for table in (data_dir / kind).glob("*"):
            found = {f"{STAGED}/{file.name}" for file in (table / STAGED).iterdir()}
            handle = DeltaHandle.open(table)
            logged = handle.logged_paths()
            assert ({file.path for file in handle.files()} if thinned else logged) <= found, table
            assert found <= logged | kept_by(intents, f"{kind}/{table.name}"), table
    assert list((data_dir / "spill").iterdir()) == []
    assert list((data_dir / "intents").iterdir()) == []


def logs(data_dir: Path) -> dict[str, str]:
    """Return the digest of every entry of every log."""
    return {
        str(path.relative_to(data_dir)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in data_dir.glob("**/_delta_log/*.json")
    }


def ledger_entries(data_dir: Path) -> dict[str, tuple[bytes, int]]:
    with open_books(data_dir) as books:
        return dict(_below(books.ledger, ""))


def _below(ledger: Ledger, path: str) -> Iterator[tuple[str, tuple[bytes, int]]]:
    for name in ledger.children(path):
        child = f"{path}/{name}" if path else name
        if (entry := ledger.get(child)) is not None:
            yield child, (entry.value, entry.version)
        yield from _below(ledger, child)
