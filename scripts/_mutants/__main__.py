"""Puts known defects into the code, one at a time; a simulated world or a test has to find each.

Every mutant first meets the schedule or test that killed it when `--record` was last run (killers.json). If it
survives that, it is looked for: without a test in simulated worlds, otherwise in the test or file of tests that it
names. All this happens in forks of one process that has txstorm and the tests loaded: the function is changed in the
fork. A survivor is tried again by a new interpreter with a changed copy of the package. A mutant counts as killed
only if its changed code was executed.

One line per mutant says what killed it: a schedule, a test, or a test in a changed copy. The last line is `killed K of
N`; exit code 1 when one survives. A mutant whose test is skipped, for example because redis-server is missing, is not
tried.

A new mutant: add it to the file of its room in scripts/_mutants/defects, then `scripts/mutants --record NAME`. The same
without names after a change of the simulation: killers that still kill are kept, others are looked for. Remove
killers.json first to look for all of them.

  scripts/mutants                                       all of them, as scripts/test does
  scripts/mutants naive_group_commit                    one
  scripts/mutants --record                              after a change of the simulation or of tests
  scripts/mutants --copies                              all in changed copies, as scripts/test-long does
  scripts/mutants --killers                             what is recorded, and which tests scripts/test --fast has
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from scripts._mutants.defects import mutants
from scripts._mutants.mutation import ROOT, Mutant
from scripts._mutants.trial import BROKEN, KILLED, NOT_TRIED, SURVIVES, Killer, Outcome, Trials

KILLERS = Path(__file__).with_name("killers.json")
LONG = 10
"""Seconds from which a trial is begun before all others, so that no process is left with it at the end."""
OPTIONS = ["-s", "-qq", "--no-header", "--no-summary", "-p", "no:cacheprovider"]


def main() -> int:
    """Try the mutants named on the command line, or all."""
    known = mutants()
    options = _options(known)
    chosen = [known[name] for name in options.names] or list(known.values())
    killers = json.loads(KILLERS.read_text(encoding="utf-8")) if KILLERS.exists() else {}
    if options.killers:
        return _show(chosen, killers)
    command = Command(options, chosen, killers)
    files = _files(chosen, killers)
    arguments = [*OPTIONS, "--hypothesis-seed=0", *files]
    with tempfile.TemporaryDirectory(prefix="txstorm-mutants-") as examples:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = examples  # not those of other runs, nor for them
        if not files:
            command.run({})
        elif code := pytest.main(arguments, [command]):
            sys.exit(f"error: pytest could not collect {', '.join(files)} (exit code {int(code)})")
    return command.conclude()


def _options(known: Collection[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "scripts/mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try; all by default")
    parser.add_argument("--record", action="store_true", help="store what kills each mutant in killers.json")
    parser.add_argument("--copies", action="store_true", help="use only changed copies and new interpreters")
    parser.add_argument("--killers", action="store_true", help="print what is recorded; run nothing")
    parser.add_argument("--schedules", type=int, default=10_000, metavar="N", help="schedules of a search (10000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of a search (0)")
    parser.add_argument(
        "--processes",
        type=int,
        default=(os.cpu_count() or 1) + 1,
        metavar="N",
        help="one more than there are processors by default, as some tests wait",
    )
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no mutant {unknown[0]!r}; there are {', '.join(known)}")
    return options


def _files(chosen: Iterable[Mutant], killers: Mapping[str, Killer]) -> list[str]:
    """Return the files of the tests that may be needed."""
    named = [mutant.test for mutant in chosen]
    named += [killers.get(mutant.name, {}).get("test", "") for mutant in chosen]
    files = sorted({test.partition("::")[0] for test in named if test})
    for mutant in chosen:
        if mutant.test and not (ROOT / mutant.test.partition("::")[0]).exists():
            sys.exit(f"error: mutant {mutant.name}: no file {mutant.test.partition('::')[0]}")
    return [file for file in files if (ROOT / file).exists()]


def _show(chosen: Sequence[Mutant], killers: Mapping[str, Killer]) -> int:
    """Print what is recorded, and count the tests among it that `scripts/test --fast` runs.

    Schedules do not count: after a change of the simulation, one that was recorded earlier is played as its explicit
    choices, but its seed and index draw others.
    """
    fast = FastTests()
    if files := _files(chosen, killers):
        pytest.main([*OPTIONS, *files], [fast])
    found = [mutant.name for mutant in chosen if killers.get(mutant.name, {}).get("test") in fast.ids]
    for mutant in chosen:
        print(f"{mutant.name}  {_kind(killers.get(mutant.name))}{', fast' if mutant.name in found else ''}")
    print(f"{len(found)} of {len(chosen)} are killed by a test of scripts/test --fast")
    return 0


class FastTests:
    """Pytest plugin that lists the tests of ``--fast`` instead of running the collected ones."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        selection = session.config.pluginmanager.get_plugin("fast")
        self.ids = {item.nodeid for item in session.items if selection.selects(item)}
        return True


class Command:
    """Pytest plugin that tries mutants instead of running the collected tests."""

    def __init__(self, options: argparse.Namespace, chosen: Sequence[Mutant], killers: dict[str, Killer]) -> None:
        self._options, self._chosen, self._killers = options, chosen, killers
        self._verdicts, self._kinds = Counter[str](), Counter[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.run({item.nodeid: item for item in session.items})
        return True

    def run(self, items: Mapping[str, pytest.Item]) -> None:
        """Try the mutants, with the collected tests by id, and print the outcomes; those that take long come first."""
        width = max(len(mutant.name) for mutant in self._chosen)
        chosen = sorted(self._chosen, key=lambda one: -self._killers.get(one.name, {}).get("seconds", 0))
        self._trials = Trials(items, self._killers, self._options.schedules, self._options.seed)
        pool = multiprocessing.get_context("fork").Pool(self._options.processes, _begin, [self])
        for mutant, (outcome, seconds) in zip(chosen, pool.imap(_tried, chosen), strict=True):
            self._verdicts[outcome.verdict] += 1
            kind = _kind(outcome.killer) if outcome.verdict == KILLED else outcome.verdict
            if outcome.verdict == KILLED:
                self._kinds[kind] += 1
            print(f"{mutant.name:{width}}  {kind:>10}  {_shown(outcome.what)}", flush=True)
            if outcome.verdict == BROKEN:
                print(outcome.what)
            if self._options.record and outcome.verdict == KILLED and outcome.killer:
                killer = {key: value for key, value in outcome.killer.items() if key != "seconds"}
                self._killers[mutant.name] = {**killer, "seconds": round(seconds)} if seconds >= LONG else killer
                self._write()
        pool.close()
        pool.join()

    def conclude(self) -> int:
        """Print the counts; return the exit code."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        seconds = sum(one.ru_utime + one.ru_stime for one in used)
        print(f"{seconds:.0f} s of CPU time; {', '.join(f'{kind}: {count}' for kind, count in self._kinds.items())}")
        rest = f", {self._verdicts[NOT_TRIED]} not tried" if self._verdicts[NOT_TRIED] else ""
        print(f"killed {self._verdicts[KILLED]} of {len(self._chosen)}{rest}")
        return 1 if self._verdicts[SURVIVES] or self._verdicts[BROKEN] else 0

    def tried(self, mutant: Mutant) -> Outcome:
        """Try one mutant, in a process of the pool."""
        if self._options.record:
            return self._trials.recorded(mutant)
        return self._trials.tried(mutant, self._options.copies)

    def _write(self) -> None:
        known = [name for name in mutants() if name in self._killers]
        lines = [f"{json.dumps(name)}: {json.dumps(self._killers[name])}" for name in known]
        KILLERS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


_command: Command
"""The command of a process of the pool; it cannot be sent there, only be forked with it."""


def _begin(command: Command) -> None:
    global _command
    _command = command


def _tried(mutant: Mutant) -> tuple[Outcome, float]:
    start = time.monotonic()
    return _command.tried(mutant), time.monotonic() - start


def _shown(what: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in what[:110])


def _kind(killer: Killer | None) -> str:
    if killer is None:
        return "unrecorded"
    if killer.get("copy"):
        return "copy"
    if killer.get("processes"):
        return "processes"
    return "test" if "test" in killer else "schedule"


if __name__ == "__main__":
    sys.exit(main())
