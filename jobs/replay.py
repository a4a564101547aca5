"""Replays committed transactions: an audit, or with --into a backfill of new tables with changed code.

python jobs/replay.py --data-dir DIR --topology jobs.word_count
python jobs/replay.py --data-dir DIR --topology jobs.word_count --from-txid 10 --to-txid 20 --engine local
spark-submit --master 'local[4]' jobs/replay.py --data-dir DIR --topology jobs.word_count --into NEW_DIR

An audit replays each txid from its recorded extents on the state as of the txid before, and lists those whose rows and
digests differ from the committed ones. It changes nothing and works beside a live run. A backfill starts at txid 1,
commits the recorded batches into new tables, and leaves a data directory in which the topology can continue.

The last line of standard output is one JSON object. Exit codes: 0 success, 1 something differs or the code failed, 2
bad input.
"""

import argparse
import sys
from collections.abc import Sequence

from txstorm.cli.commands.replay_batch import BatchRequest, replay_batch


def main(argv: Sequence[str]) -> int:
    """Replay the transactions; return the exit code."""
    options = vars(parser().parse_args(argv))
    del options["json"]
    return replay_batch(BatchRequest(**options))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog="jobs/replay.py", description=__doc__, formatter_class=form)
    made.add_argument("--data-dir", metavar="DIR", required=True, help="the data directory of the topology")
    made.add_argument("--from-txid", metavar="A", type=int, help="the first transaction; default: 1")
    made.add_argument("--to-txid", metavar="B", type=int, help="the last transaction; default: the last committed")
    made.add_argument("--into", metavar="NEW_DIR", help="backfill into this new data directory")
    made.add_argument(
        "--topology",
        metavar="MODULE:ATTRIBUTE",
        help="the code, as for txstorm run; default: the recorded code, after a confirmation at a terminal",
    )
    made.add_argument("--dry-run", action="store_true", help="check code, source, tables and range; run nothing")
    made.add_argument("--json", action="store_true", help="no effect: the last line is always JSON")
    made.add_argument("--engine", choices=("spark", "local"), default="spark", help="local: threads, without Java")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
