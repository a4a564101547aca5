"""Joins two Kafka topics as a configuration file says: by key, within bounds of time, each left row exactly once.

python jobs/stream_join.py --print-example > clicks.toml
python jobs/stream_join.py --config clicks.toml --check
python jobs/stream_join.py --config clicks.toml
txstorm run "jobs.stream_join:topology('clicks.toml')" --standby

Right rows wait in a state of the topology, in Redis, or behind a REST API (txstorm store-server); results go to a Delta
table or a Kafka topic. All errors of a configuration are reported at once, before anything is started. Started again,
it continues. See docs/joins.md.

Exit codes: 0 done, 1 the topology failed, 2 bad input, 3 held by another run, 130 interrupted.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from txstorm import Topology
from txstorm.cli.execute import conclude, execute
from txstorm.cli.output import log_to, report, stderr
from txstorm.joins import JoinService

EXAMPLE = Path(__file__).parent / "data" / "stream_join.toml"


def topology(config: str) -> Topology:
    """Build the topology that the file `config` describes."""
    return JoinService.read(config).topology()


def main(argv: Sequence[str]) -> int:
    """Run the join; return the exit code of `txstorm run`."""
    options = parser().parse_args(argv)
    log_to(stderr(), "warning")
    if options.print_example:
        sys.stdout.write(EXAMPLE.read_text(encoding="utf-8"))
        return 0
    try:
        built = topology(options.config)
        if options.check:
            print(f"{options.config}: no errors")
            return 0
        warnings.filterwarnings("ignore", "Python's hash seed is random")  # no code of this join iterates over a set
        names = ("engine", "data_dir", "available_now", "until_txid", "end_of_input")
        ending = execute(built, **{name: getattr(options, name) for name in names})
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - one way to tell the user
        return report(error, as_json=options.json, debug=False)
    return conclude(ending, as_json=options.json)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    form = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(prog="jobs/stream_join.py", description=__doc__, formatter_class=form)
    what = made.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE", help="the configuration, in TOML")
    what.add_argument("--print-example", action="store_true", help="print a configuration with all options, and end")
    made.add_argument("--check", action="store_true", help="check the configuration; start nothing")
    made.add_argument("--data-dir", metavar="DIR", help="default: ./txstorm-data/<name>")
    made.add_argument("--engine", choices=("spark", "local"), default="spark", help="local: threads, without Java")
    made.add_argument("--available-now", action="store_true", help="end when all records of now are committed")
    made.add_argument("--end-of-input", action="store_true", help="as --available-now, and then end the input")
    made.add_argument("--until-txid", metavar="N", type=int, help="end when this transaction is committed")
    made.add_argument("--json", action="store_true", help="end standard output with one line of JSON")
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
