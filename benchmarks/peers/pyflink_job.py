"""PyFlink: words by key, counted in keyed state with exactly-once checkpoints. Runs in a separate environment."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import CheckpointingMode, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.state import ValueStateDescriptor

from benchmarks.suite.exact import leave
from benchmarks.suite.job import Job, Outcome
from benchmarks.suite.meter import Meter
from benchmarks.suite.serve import Work, serve

TASKS = 2
NEVER = (1 << 63) - 2
"""An event time that only the end of the input reaches."""
EVERY = 500
"""Words between two reports of a task's progress."""
TUNED = {
    "python.fn-execution.bundle.size": "100000",
    "python.fn-execution.bundle.time": "1000",
    "python.state.cache-size": "100000",
    "taskmanager.memory.process.size": "2g",
    "state.backend.type": "hashmap",
    "execution.checkpointing.interval": "1 s",
    "rest.port": "0",
    "restart-strategy.type": "none",  # report failures instead of retrying for ever
}


class Count(KeyedProcessFunction):
    """Counts a key and emits the count at the end of the input; writes its task's progress to a file."""

    def __init__(self, notes: str) -> None:
        self.notes = notes
        self.seen = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))
        self.note = Path(self.notes) / uuid.uuid4().hex  # the number of the task is unknown in thread mode

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        n = self.n.value()
        if n is None:
            n = 0
            ctx.timer_service().register_event_time_timer(NEVER)
        self.n.update(n + 1)
        self.seen += 1
        if self.seen % EVERY == 0:
            self.note.write_text(str(self.seen))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), self.n.value()


def worker(mode: str) -> Work:
    """Return a function that runs jobs in ``process`` or ``thread`` mode."""

    def work(job: Job) -> Outcome:
        place = Path(job.directory)
        for name in ("input", "notes", "checkpoints"):
            (place / name).mkdir()
        for txid in range(1, job.last + 1):
            words = [""] * job.size(txid) if job.kind == "total" else job.words(txid).to_pylist()
            (place / "input" / f"{txid:08d}.txt").write_text("".join(f"w{word}\n" for word in words))
        meter = Meter(job)
        with _watched(job, place / "notes", meter):
            found = _counts(mode, place)
        rows = pa.table({"word": [word[1:] for word, _ in found], "n": pa.array([n for _, n in found], pa.int64())})
        leave(job, rows.select(["n"]) if job.kind == "total" else rows)
        return meter.outcome()

    return work


def _counts(mode: str, place: Path) -> list[tuple[str, int]]:
    settings = Configuration()
    for key, value in {**TUNED, "python.execution-mode": mode, "python.executable": sys.executable}.items():
        settings.set_string(key, value)
    settings.set_string("execution.checkpointing.dir", (place / "checkpoints").as_uri())
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    environment.set_parallelism(TASKS)
    environment.get_checkpoint_config().set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), (place / "input").as_uri()).build()
    lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "words")
    kept = lines.key_by(lambda word: word, key_type=Types.STRING()).process(
        Count(str(place / "notes")), output_type=Types.TUPLE([Types.STRING(), Types.LONG()])
    )
    with kept.execute_and_collect() as results:
        return [(one[0], one[1]) for one in results]


@contextmanager
def _watched(job: Job, notes: Path, meter: Meter) -> Iterator[None]:
    """Report to the meter when the warm-up, and when everything, is counted, with a resolution of 1,000 words."""
    sizes = {txid: job.size(txid) for txid in range(1, job.last + 1)}
    marks = {job.start: sum(sizes[txid] for txid in range(1, job.start + 1)), job.last: sum(sizes.values())}
    over = threading.Event()

    def watch() -> None:
        for txid, wanted in marks.items():
            while sum(int(note.read_text() or 0) for note in notes.iterdir()) < wanted - EVERY * TASKS:
                if over.wait(0.005):
                    return
            meter.committed(txid, 0.0, [])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    # In thread mode, the interpreter inside the JVM does not find this environment by itself.
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), sysconfig.get_path("purelib")])
    serve(worker(sys.argv[1]))
