"""Look-ups in a Delta table of 10^6 rows: the rows, their results by numpy, and the topology of txstorm.

The left rows of a join whose keys are a million: 80 % of them are in the table. A result row is the id of a left row
and the number that the table has for its key, so that digests are those of the other joins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.joins import rows
from benchmarks.joins.results import NONE, digest
from benchmarks.joins.rows import LEFT, Column
from benchmarks.suite.job import Job

if TYPE_CHECKING:
    from txstorm.topology.graph import Topology

KIND, FORM = "lookup", "join-1e6"
"""Kind of the jobs, and the form of their rows."""
KEYS = rows.FORMS[FORM].keys


def number_of(keys: Column) -> Column:
    """Return the numbers of keys in the table, NONE for those that are not there."""
    return np.where(keys < KEYS, (keys.astype(np.int64) * 7919 + 13) % KEYS, NONE)


@contextmanager
def stored(count: int) -> Iterator[Mapping[str, Any]]:
    """Write `count` left rows and the table for the block; return what sides need to read them."""
    from deltalake import write_deltalake

    with rows.stored(FORM, 2 * count) as source:
        keys = np.arange(KEYS)
        write_deltalake(table_of(source), pa.table({"key": keys, "number": number_of(keys)}))
        yield source


def table_of(source: Mapping[str, Any]) -> str:
    """Return the directory of the table."""
    return str(Path(source["directory"]) / "table")


def expected(directory: str, count: int) -> list[int]:
    """Return the digest of the results of the first `count` left rows."""
    keys, _ = rows.read({"directory": directory}, LEFT, range(count))
    return digest(np.arange(count), number_of(keys))


def topology_of(job: Job) -> Topology:
    """Build the topology of a job: the rows, the look-up, and a sink for its results."""
    from benchmarks.joins.topologies import RESULTS, SideRows
    from txstorm.joins import LookupJoin
    from txstorm.sinks.delta import DeltaSink
    from txstorm.topology.builder import TransactionalTopologyBuilder

    builder = TransactionalTopologyBuilder("bench", "rows", SideRows(job.source, LEFT, job.last, job.tuples), 2)
    lookup = LookupJoin("rows", table_of(job.source), on="key", how="left", select=["left:id", "table:number"])
    builder.set_bolt("lookup", lookup, 2).local_or_shuffle_grouping("rows")
    builder.set_committer_bolt("keep", DeltaSink(RESULTS, {"id": int, "number": int})).global_grouping("lookup")
    return builder.build_topology()


def digest_of(data: Path) -> list[int]:
    """Return the digest of the results in a data directory."""
    from benchmarks.joins.topologies import RESULTS
    from txstorm.results.read import read_sink

    found = read_sink(data, RESULTS)
    return digest(found["id"].to_numpy(), found["number"].fill_null(NONE).to_numpy())
