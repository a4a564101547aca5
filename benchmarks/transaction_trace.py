"""Trace of one transaction: which functions of txstorm the driver's process enters for it, thread by thread.

    python -m benchmarks.transaction_trace [--json | --figures]

Runs a word count on the local engine, one transaction at a time. A transaction reaches from the moment at which the
driver learns that the one before it is published to the moment at which it learns the same of this one. The threads of
tasks are left out, as are frames of comprehensions. Of several transactions the one with the fewest calls is shown,
which no work in the background has met.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple

from jobs.word_count import topology
from txstorm import run
from txstorm.runtime.driver import Driver

ROOT = Path(__file__).resolve().parent.parent
WARM, TRACED = 4, 6
"""Transactions before the first one that is traced, and traced ones."""
LINES = 10
TASKS = "txstorm-local"
INNER = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
SETTINGS = {"max_spout_pending": 1, "max_pack_txids": 1, "max_group_txids": 1, "state_max_lag": 3600}


class Frame(NamedTuple):
    """A call: its thread, its depth below other calls of txstorm, its file and its function."""

    thread: str
    depth: int
    file: str
    function: str


class Figures(NamedTuple):
    """Size of the trace of one transaction."""

    functions: int
    files: int
    calls: int


class Tracer:
    """Notes the calls of txstorm on every thread that starts after it, one list per transaction."""

    def __init__(self) -> None:
        self.transactions: list[list[Frame]] = [[]]
        self._places: dict[CodeType, tuple[str, str] | None] = {}
        self._depths = threading.local()

    def start(self) -> None:
        """Trace the calling thread, and all that start from now on."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def stop(self) -> None:
        """Stop tracing."""
        threading.setprofile(None)
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        place = self._places.get(code) or self._place(code)
        if not place[0]:
            return
        depth = getattr(self._depths, "depth", 0)
        if event == "return":
            self._depths.depth = max(0, depth - 1)
            return
        self._depths.depth = depth + 1
        if code.co_name not in INNER and not (thread := threading.current_thread().name).startswith(TASKS):
            self.transactions[-1].append(Frame(thread, depth, *place))

    def _place(self, code: CodeType) -> tuple[str, str]:
        path = Path(code.co_filename)
        ours = path.is_relative_to(ROOT / "txstorm")
        place = (str(path.relative_to(ROOT)), code.co_qualname) if ours else ("", "")
        self._places[code] = place
        return place


def traced() -> list[Frame]:
    """Run the word count; return the calls of one warm transaction."""
    tracer, group_done = Tracer(), Driver.group_done

    def marked(driver: Driver, done: Any) -> None:
        tracer.transactions.append([])
        group_done(driver, done)

    with TemporaryDirectory() as directory:
        lines = Path(directory, "lines.txt")
        lines.write_text("".join(f"the quick fox and {n} dogs\n" for n in range(LINES * (WARM + TRACED + 1))))
        Driver.group_done = marked  # type: ignore[method-assign]
        tracer.start()
        try:
            run(
                topology(lines, max_batch_rows=LINES),
                engine="local",
                data_dir=Path(directory, "data"),
                available_now=True,
                settings=SETTINGS,
            ).awaitTermination()
        finally:
            tracer.stop()
            Driver.group_done = group_done  # type: ignore[method-assign]
    return min(tracer.transactions[WARM : WARM + TRACED], key=len)


def figures(frames: list[Frame]) -> Figures:
    """Count the functions, the files and the calls."""
    functions = {(frame.file, frame.function) for frame in frames}
    return Figures(len(functions), len({file for file, _ in functions}), len(frames))


def page(frames: list[Frame]) -> Iterator[str]:
    """Return the lines of a page: the figures, then the calls of each thread as a tree."""
    yield "# One transaction of a word count, in the driver's process"
    yield ""
    yield "{} functions in {} files, {} calls".format(*figures(frames))
    for thread in dict.fromkeys(frame.thread for frame in frames):
        own = [frame for frame in frames if frame.thread == thread]
        yield ""
        yield "## {}: {} functions in {} files, {} calls".format(thread, *figures(own))
        yield ""
        for frame in own:
            yield f"{'  ' * frame.depth}{frame.function}  ({frame.file.removeprefix('txstorm/')})"


def main() -> None:
    """Trace a transaction, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the calls as JSON")
    forms.add_argument("--figures", action="store_true", help="print functions, files and calls only, as JSON")
    asked, frames = parser.parse_args(), traced()
    if asked.json or asked.figures:
        print(json.dumps(figures(frames)._asdict() if asked.figures else [frame._asdict() for frame in frames]))
    else:
        print("\n".join(page(frames)))


if __name__ == "__main__":
    main()
