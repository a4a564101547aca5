"""SIGKILL at every point of staging, publishing and compaction: the next coordinator recovers to the same result."""

import pytest
from recovery_cases import killed, ran
from store_cases import OUT, JsonLedger, run, staged_files
from table_ranges import table_ranges

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.results.read import list_states, read_sink, read_state, rows_json

POINTS = [
    *(f"p5.staged.{when}:kill:{nth}" for when in ("before", "after") for nth in (1, 3, 4)),
    *(f"p7.{table}.{when}:kill:2" for table in (1, 2, 3) for when in ("before", "written", "after")),
    "p7.1.written:kill:1",
    "p7.3.written:kill:3",
    *(f"compact.{when}:kill:{nth}" for when in ("before", "staged", "after") for nth in (1, 4)),
]


def tables(data_dir):
    states = [rows_json(read_state(data_dir, name)) for name in list_states(data_dir)]
    return [*states, read_sink(data_dir, OUT.name).to_pylist()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("undisturbed")
    run(data_dir)
    return tables(data_dir)


@pytest.mark.integration
@pytest.mark.parametrize("fault", POINTS)
def test_killed_and_restarted(tmp_path, undisturbed, fault):
    killed(fault, tmp_path, scenario="tables")

    store = run(tmp_path)

    assert tables(tmp_path) == undisturbed
    for ranges in table_ranges(tmp_path).values():
        assert ranges[0].first == 1
        assert ranges[-1].last == 4
    store.sweep([])
    logged = {
        f"{table.parent.name}/{table.name}/{path}"
        for kind in ("changes", "state", "sinks")
        for table in (tmp_path / kind).iterdir()
        for path in DeltaHandle.open(table).logged_paths()
    }
    assert set(staged_files(tmp_path)) == logged


@pytest.mark.integration
def test_a_file_that_was_staged_but_never_decided_is_swept_and_leaves_no_trace(tmp_path, undisturbed):
    fault = "p7.2.before:hang:1,p7.3.before:hang:1,p7.1.before:kill:1"  # tables are published concurrently
    ran(tmp_path, fault=fault, scenario="tables")
    decided = staged_files(tmp_path)
    assert len(decided) == 3
    ledger = JsonLedger(tmp_path / "ledger.json")
    ledger.write(intent=None)  # as if killed just before the decision
    run(tmp_path)
    assert not set(decided) & set(staged_files(tmp_path))
    assert tables(tmp_path) == undisturbed
