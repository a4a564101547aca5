"""Command line of `scripts/soak`."""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from programs import close_loaded
from servers.family import PROC
from soak import Soak, SoakFailed

DESCRIPTION = """\
Run a topology on real servers for some minutes, kill one of its processes every few seconds, and verify the results:

  Kafka → three states and a sink in Delta tables, on Spark (local-cluster: two executors), its ledger in ZooKeeper,
  two drivers, of which one leads and one stands by.

The leading driver, executors, their Python workers, the broker and ZooKeeper are killed with SIGKILL; servers are
restarted after 0.2 to 2 seconds, drivers at once. Then the rest of the topic is read, and a verifier that shares no
code with txstorm compares the records of the topic with the tables.
"""
EPILOG = """\
The last line of the output is one JSON object:
  minutes, seed        as given, or chosen at random
  faults               number of faults of each kind
  records, txids       number of records read, and of transactions
  lost, twice          records missing, and records counted twice, summed over the four tables
  problems             other faults found: ranges with gaps, tables whose transactions differ, values that do not follow
                       from the previous ones, keys whose records came in another order, drivers that ended for another
                       reason than a kill or a take-over
  recovery_p50_s, …99  seconds from a kill to the next commit
  fresh_p50_s, …99     seconds from a kill to the first commit of a transaction that was planned after it
  fresh_p50_s_of,      the same for each kind of process killed: median, maximum
  fresh_max_s_of

Exit code: 0 if no record is lost or counted twice and there are no other problems; 1 otherwise; 2 for wrong arguments.
The seed determines which process is killed and when, not what that process is doing at the time. Linux only.

  scripts/soak --minutes 5
  scripts/soak --minutes 60 --seed 7 --json > report.json
"""


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments `given` (None: those of the process); invalid ones exit the program with code 2."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--minutes", type=float, required=True, metavar="M", help="minutes during which faults are injected"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="seed that determines the faults (default: random)")
    parser.add_argument("--rate", type=int, default=6000, metavar="N", help="records per second (%(default)s)")
    directory_help = "an empty directory for all data and logs, which is kept (default: a temporary one)"
    parser.add_argument("--directory", type=Path, metavar="DIR", help=directory_help)
    parser.add_argument("--json", action="store_true", help="print only the last line, the JSON result")
    found = parser.parse_args(given)
    if not 0 < found.minutes <= 7 * 24 * 60:
        parser.error(f"--minutes is {found.minutes:g}, expected more than 0 and at most a week")
    if not 0 < found.rate <= 1_000_000:
        parser.error(f"--rate is {found.rate}, expected 1 to 1000000")
    if found.directory is not None and found.directory.exists() and any(found.directory.iterdir()):
        parser.error(f"--directory {found.directory} is not empty; choose another one, or delete it")
    if not PROC.is_dir():
        parser.error("the processes of Spark are found by /proc, which is not here: a soak needs Linux")
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Run a soak test with the arguments `given` (None: those of the process); return the exit code."""
    options = arguments(given)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    place = (options.directory or Path(tempfile.mkdtemp(prefix="txstorm-soak-"))).resolve()
    place.mkdir(parents=True, exist_ok=True)
    began, out = time.monotonic(), sys.stderr if options.json else sys.stdout

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {line}", file=out, flush=True)

    say(f"seed {seed}, in {place}")
    try:
        report = Soak(place, seed, say, options.rate).run(options.minutes)
    except SoakFailed as error:
        print(f"error: {error}\neverything is in {place}", file=sys.stderr)
        return 1
    finally:
        close_loaded()
    bad = bool(report["lost"] or report["twice"] or report["problems"])
    if bad:
        print(f"error: {'; '.join(report['problems']) or 'records are lost or twice'}; see {place}", file=sys.stderr)
    elif options.directory is None:
        shutil.rmtree(place)
    print(json.dumps(report), flush=True)
    return int(bad)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
