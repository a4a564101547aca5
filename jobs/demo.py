"""The demo: `jobs.word_count` over the King James Bible, on Spark, with live progress and its ten most frequent words.

python -m jobs.demo [--json] [--data-dir DIR] [--engine spark|local] [--keep]

If it is killed, the next run continues where it stopped. If it finished, the next run starts in an empty directory.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from jobs.word_count import topology
from txstorm import StateView
from txstorm.cli.execute import Ending, conclude, execute
from txstorm.cli.output import report
from txstorm.errors import InputError

FINISHED = "demo-finished"
TOP = 10


def main(argv: Sequence[str]) -> int:
    """Run the demo; return the exit code of `txstorm run`."""
    as_json = "--json" in argv
    try:
        options = parser().parse_args(argv)
        begin(options.data_dir, keep=options.keep)
        target = "jobs.word_count"
        ending = execute(
            topology(), engine=options.engine, data_dir=options.data_dir, available_now=True, target=target
        )
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - one way to tell the user
        return report(error, as_json=as_json, debug=False)
    if ending.error is None:
        (options.data_dir / FINISHED).touch()
        found = counts(ending)
        ranked = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
        ending = replace(ending, document={**ending.document, "top": [list(pair) for pair in ranked[:TOP]]})
        if not as_json:
            tell(ending, found)
            return 0
    return conclude(ending, as_json=as_json)


def begin(data_dir: Path, *, keep: bool) -> None:
    """Prepare the data directory: clear it after a finished demo, keep it after a killed one."""
    if not (data_dir / FINISHED).exists():
        return
    for entry in [] if keep else data_dir.iterdir():
        # The mark is removed last: if this is killed in between, the next run deletes the rest.
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != FINISHED:
            entry.unlink()
    (data_dir / FINISHED).unlink()


def counts(ending: Ending, *, before: bool = False) -> dict[str, int]:
    """Read the count of each word; with `before`, as of the end of the previous run."""
    txid = ending.document["committed_txid"] - (ending.document["txids"] if before else 0)
    if txid == 0:
        return {}
    rows = StateView(ending.data_dir, "counts", txid).to_arrow()
    return dict(zip(rows["word"].to_pylist(), rows["n"].to_pylist(), strict=True))


def tell(ending: Ending, found: dict[str, int]) -> None:
    """Print the result, statistics of the run, and commands to inspect the tables."""
    done, total = ending.document, sum(found.values())
    words = total - sum(counts(ending, before=True).values())
    print(f"King James Bible: {total:,} words, {len(found):,} distinct ones. The most frequent:\n")
    for word, n in done["top"]:
        print(f"  {word:<8}{n:>8,}")
    print(
        f"\nCommitted txid {done['committed_txid']}. This run: {done['txids']} transactions with {words:,} words in "
        f"{done['seconds']:.1f} s, {words / done['seconds']:,.0f} words/s on average; replays: {done['replays']}.\n"
        "Run it again to start over. If you kill it before it ends, the next run continues where it stopped.\n"
    )
    program, place = shown(Path(sys.executable).with_name("txstorm")), shown(ending.data_dir)
    print("Look at the tables:")
    print(f"  {program} state {place} counts             # the counts")
    print(f"  {program} state {place} counts --txid 20   # the counts as of transaction 20")
    print(f"  {program} history {place}                  # what each transaction read and wrote")
    print(f"Any reader of Delta can open {place}/state/counts")


def shown(path: Path) -> str:
    """Return `path` relative to the current directory if it is below it, else unchanged."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


class Parser(argparse.ArgumentParser):
    """Argument parser that raises `InputError` instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise `InputError` instead of exiting."""
        raise InputError(f"{message}\n{self.format_usage()}")


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(prog="scripts/demo", description=(__doc__ or "").split("\n\npython")[0])
    made.add_argument("--json", action="store_true", help="end standard output with one line of JSON")
    made.add_argument("--data-dir", type=Path, default=Path("txstorm-data/demo"), help="default: ./txstorm-data/demo")
    made.add_argument("--engine", choices=("spark", "local"), default="spark", help="local: threads, without Java")
    made.add_argument(
        "--keep", action="store_true", help="do not empty the directory of a finished demo: show it again"
    )
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
