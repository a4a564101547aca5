"""``lag_job.py DATA_DIR [SETTING=VALUE…]``: counts the even and the odd numbers of an endless source until it is killed."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
from watched import Endless

from txstorm import BatchBolt, Committer, KeyedState, TransactionalTopologyBuilder, run


class Kinds(BatchBolt, Committer):
    """Two keys, each of which counts one up in every transaction."""

    state = KeyedState("counts", key={"kind": int}, value={"n": int})

    def prepare(self, context, collector, attempt):
        self.counts, self.kinds = context.state("counts"), Counter()

    def execute(self, tuple):
        self.kinds[tuple["n"] % 2] += 1

    def finish_batch(self):
        self.counts.update_many(self.kinds, lambda old, n: (old or 0) + n)


def topology(**settings: Any) -> Any:
    builder = TransactionalTopologyBuilder("lag", "numbers", Endless())
    builder.set_committer_bolt("counts", Kinds()).global_grouping("numbers")
    return builder.build_topology().with_settings({"max_group_txids": 2, "max_spout_pending": 8, **settings})


def seen(data_dir: Path) -> int:
    """The transaction that a reader of the plain table sees: every version is the state after one."""
    return as_of(deltalake.DeltaTable(data_dir / "state/counts").to_pyarrow_table().to_pylist())


def as_of(rows: list[dict[str, Any]]) -> int:
    """The transaction after which the state has these rows; 0 without any."""
    if not rows:
        return 0
    assert sorted(row["kind"] for row in rows) == [0, 1]
    ((n, txid),) = {(row["n"], row["_txid"]) for row in rows}
    assert n == txid
    return int(txid)


if __name__ == "__main__":
    job = topology(**dict(one.split("=") for one in sys.argv[2:]))
    run(job, engine="local", data_dir=sys.argv[1]).awaitTermination()
