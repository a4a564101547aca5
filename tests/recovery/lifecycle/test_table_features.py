"""A Delta feature enabled during a run: reported with table and remedy; the run continues when it is disabled."""

import pytest
from deltalake import DeltaTable
from recovery_cases import check_tiling, eventually

from txstorm import TransactionalTopologyBuilder, run
from txstorm.bolts import CountByKey
from txstorm.errors import InputError
from txstorm.results.read import read_sink, read_state
from txstorm.sinks import DeltaSink
from txstorm.spouts import MemoryTransactionalSpout


def topology(spout):
    builder = TransactionalTopologyBuilder("featured", "words", spout)
    builder.set_committer_bolt("counts", CountByKey("word", table="counts")).fields_grouping("words", ["word"])
    builder.set_committer_bolt("out", DeltaSink("out", {"word": str})).shuffle_grouping("words")
    return builder.build_topology().with_settings({"min_interval": 0.05})


@pytest.mark.parametrize("uri", ["sinks/out", "changes/counts"])
def test_a_constraint_blocks_a_run_until_it_is_dropped(tmp_path, uri):
    words = [f"w{n % 7}" for n in range(60)]
    taken = {"most": 0}
    spout = MemoryTransactionalSpout({0: words}, ["word"], take=lambda _: taken["most"])
    data_dir = tmp_path / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("txstorm.runtime.commit.publisher.Publisher.TRIES", 10_000)
        handle = run(topology(spout), engine="local", data_dir=data_dir)
        eventually(lambda: handle.progress.committed > 0)
        DeltaTable(str(data_dir / uri)).alter.add_constraint({"little": "_txid < 100000"})
        taken["most"] = 3
        eventually(lambda: "BLOCKED" in handle.status["message"])
        message = handle.status["message"]
        assert uri in message
        assert "CHECK constraint little (_txid < 100000)" in message
        assert "DROP CONSTRAINT little" in message
        DeltaTable(str(data_dir / uri)).alter.drop_constraint("little")
        eventually(
            lambda: "BLOCKED" not in handle.status["message"] and read_sink(data_dir, "out").num_rows == len(words)
        )
        handle.stop()
    check_tiling(data_dir, handle.progress.committed)
    assert sum(read_state(data_dir, "counts")["n"].to_pylist()) == 60
    assert sorted(read_sink(data_dir, "out")["word"].to_pylist()) == sorted(words)
    DeltaTable(str(data_dir / uri)).alter.add_constraint({"little": "_txid < 100000"})
    with pytest.raises(InputError, match="CHECK constraint little"):
        run(topology(spout), engine="local", data_dir=data_dir)
