"""A file that is named, read by one run after the other: it may grow or go, but not be exchanged."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txstorm import TransactionalTopologyBuilder, run
from txstorm.errors import SpoutError
from txstorm.results.read import read_sink
from txstorm.sinks import DeltaSink
from txstorm.spouts import FileSpout


def write(path, numbers):
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"n": [str(n) for n in numbers]}), path)
    else:
        line = {".txt": "%d\n", ".csv": "%d\n", ".jsonl": '{"n": "%d"}\n'}[path.suffix]
        path.write_text(("n\n" if path.suffix == ".csv" else "") + "".join(line % n for n in numbers))


def go(path, data_dir):
    spout = FileSpout(path, fields=["n"]) if path.suffix == ".txt" else FileSpout(path)
    builder = TransactionalTopologyBuilder("numbers", "rows", spout)
    builder.set_bolt("keep", DeltaSink("numbers", {"n": str})).shuffle_grouping("rows")
    run(builder.build_topology(), engine="local", data_dir=data_dir, available_now=True).awaitTermination()
    return sorted(read_sink(data_dir, "numbers")["n"].to_pylist())


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".jsonl", ".parquet"])
def test_a_longer_file_in_its_place_is_refused_by_name(tmp_path, suffix):
    path, data_dir = tmp_path / f"one{suffix}", tmp_path / "data"
    write(path, range(10, 15))
    assert go(path, data_dir) == ["10", "11", "12", "13", "14"]
    write(path, range(50, 59))
    with pytest.raises(SpoutError, match=f"one{suffix}: range .* changed since its range was planned"):
        go(path, data_dir)
    if suffix != ".parquet":
        write(path, range(10, 17))
        assert go(path, data_dir) == [str(n) for n in range(10, 17)]
