"""Bad records in files: processor time of a run that leaves out one record in a hundred, against one with good ones."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.machine import cpu_seconds
from txstorm.runtime.run import run
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout
from txstorm.topology.builder import TransactionalTopologyBuilder

ROWS, EVERY = 200_000, 100
"""Records of a file, and how many of them there are for one that is bad."""
_BOTH: Mapping[str, type] = {"n": int, "s": str}
_JSON, _PLAIN, _QUOTED = b'{"n": %d, "s": "text of %d"}\n', b"%d,text of %d\n", b'%d,"text, of %d"\n'
KINDS: Mapping[str, tuple[str, bytes, bytes, Any]] = {
    "JSON, broken": ("jsonl", _JSON, b'{"n": %d, "s": "text of %d"\n', None),
    "typed JSON, broken": ("jsonl", _JSON, b'{"n": %d, "s": "text of %d"\n', _BOTH),
    "typed JSON, a text as an int": ("jsonl", _JSON, b'{"n": "%d", "s": "text of %d"}\n', _BOTH),
    "typed JSON, an int out of range": ("jsonl", _JSON, b'{"n": %d00000000000000000000, "s": "text of %d"}\n', _BOTH),
    "CSV, a text as an int": ("csv", _PLAIN, b"x%d,text of %d\n", {"n": int}),
    "CSV, another number of values": ("csv", _PLAIN, b"%d,text, of %d\n", {"n": int}),
    "CSV, not UTF-8": ("csv", _PLAIN, b"%d,text \xff of %d\n", {"n": int}),
    "quoted CSV, a text as an int": ("csv", _QUOTED, b'x%d,"text, of %d"\n', {"n": int}),
    "text, not UTF-8": ("txt", b"text of %d %d\n", b"text \xff of %d %d\n", None),
    "Parquet, a time that Python does not have": ("parquet", b"", b"", None),
}
"""Kind of a bad record → extension, a good record, a bad one, and the types that are declared."""


def measure(options: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the ratios of processor time for each kind of bad records, in turns, after a round that does not count."""
    ratios: dict[str, list[float]] = {}
    for number, kind in enumerate(KINDS):
        place = Path(options["directory"]) / str(number)
        place.mkdir(parents=True)
        files = [_write(place, kind, options.get("rows", ROWS), bad=bad) for bad in (False, True)]
        rounds = [[_seconds(file, kind, place / "data") for file in files] for _ in range(options["rounds"] + 1)]
        ratios[kind] = [bad / good for good, bad in rounds[1:]]
        shutil.rmtree(place)
    return ratios


def _write(place: Path, kind: str, rows: int, *, bad: bool) -> Path:
    extension, good, wrong, _ = KINDS[kind]
    path = place / f"{'bad' if bad else 'good'}.{extension}"
    if extension == "parquet":
        times = np.arange(rows)
        times[EVERY // 2 :: EVERY] = 1 << 62 if bad else 0
        pq.write_table(pa.table({"n": np.arange(rows), "s": pa.array(times).view(pa.timestamp("us", "UTC"))}), path)
        return path
    lines = [(wrong if bad and n % EVERY == EVERY // 2 else good) % (n, n) for n in range(rows)]
    path.write_bytes(b"".join([b"n,s\n" if extension == "csv" else b"", *lines]))
    return path


def _seconds(path: Path, kind: str, directory: Path) -> float:
    extension, *_, types = KINDS[kind]
    columns: Any = {"txt": {"line": str}, "parquet": {"n": int, "s": datetime}}.get(extension, _BOTH)
    builder = TransactionalTopologyBuilder("bad-records", "files", FileSpout(path, types=types), 2)
    builder.set_bolt("keep", DeltaSink("rows", columns), 2).shuffle_grouping("files")
    builder.set_settings({"on_error": "dead_letter"})
    before = sum(cpu_seconds())
    run(builder.build_topology(), engine="local", data_dir=directory, available_now=True).awaitTermination()
    seconds = sum(cpu_seconds()) - before
    shutil.rmtree(directory)
    return seconds


def main() -> None:
    """Print the median ratio of each kind."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="txstorm-bench-") as place:
        for kind, ratios in measure({"directory": place, "rounds": 5}).items():
            print(f"{kind:45} {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
