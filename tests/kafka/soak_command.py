"""Command line of `scripts/soak`."""

from __future__ import annotations

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
A topology runs on real servers for some minutes, and something of it is killed every few seconds:

  Kafka → three states and a sink in Delta tables, on Spark (local-cluster: two executors), its ledger in ZooKeeper,
  two drivers, of which one leads and one stands by.

SIGKILL goes to the driver that leads, to executors, to their Python workers, to the broker and to ZooKeeper; servers
are started again after 0.2 to 2 seconds, drivers at once. Then all that is left is read, and a verifier that shares no
code with txstorm compares the records of the topic with the tables.
"""
EPILOG = """\
The last line of the output is one JSON object:
  minutes, seed        as given, or drawn
  faults               how many of each kind
  records, txids       what was read, in how many transactions
  lost, twice          records missing, and records too many, added up over the four tables
  problems             what else is wrong: ranges with gaps, tables that do not have the same transactions, values that
                       do not follow from those before, keys whose records came in another order, drivers that ended
                       otherwise than killed or taken over from
  recovery_p50_s, …99  seconds from a kill to the next commit
  fresh_p50_s, …99     seconds from a kill to the first commit of a transaction that was planned after it
  fresh_p50_s_of,      the same by what was killed; the longest of each
  fresh_max_s_of

Exit code: 0 when nothing is lost, nothing counts twice, and there are no problems; 1 otherwise; 2 for wrong arguments.
The seed decides what is killed and when; the machine decides what it meets. Linux only.

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
    parser.add_argument("--minutes", type=float, required=True, metavar="M", help="how long faults are made")
    parser.add_argument("--seed", type=int, metavar="S", help="what is killed and when (drawn)")
    parser.add_argument("--rate", type=int, default=6000, metavar="N", help="records a second (%(default)s)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="an empty directory for everything; it is kept")
    parser.add_argument("--json", action="store_true", help="nothing but the last line to standard output")
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
