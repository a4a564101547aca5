"""Tables written with Spark: the same rows, once, by whoever leads; today by one writer, tomorrow by the other."""

import json
import threading

import pytest
from spark_cases import open_spark_store
from store_cases import INCARNATION, TOPOLOGY, add, commit, intent_of, open_store, record

from txstorm import faults
from txstorm.clients.delta import DeltaHandle
from txstorm.clients.delta_lock import is_shared
from txstorm.clients.delta_spark import SparkDelta
from txstorm.errors import BlockedError, ConflictError, FencedError, TableCorrupt
from txstorm.state.table import DeltaTableState, Owner, TableRef

pytestmark = pytest.mark.spark
OWNER = Owner(TOPOLOGY, INCARNATION)
REF = TableRef("changes", "counts")


@pytest.fixture(autouse=True)
def disarmed():
    yield
    faults.arm("")


@pytest.fixture(scope="module")
def delta(spark):
    return SparkDelta(spark)


def rows(data_dir, uri="changes/counts"):
    return DeltaHandle.open(data_dir / uri).read().sort_by("_txid").to_pylist()


def engines(data_dir, uri="changes/counts"):
    """Who wrote each version, oldest first."""
    entries = sorted((data_dir / uri / "_delta_log").glob("*.json"))
    infos = [json.loads(entry.read_text().splitlines()[0]) for entry in entries]
    return ["spark" if "Spark" in str(info.get("commitInfo", {}).get("engineInfo")) else "direct" for info in infos]


def test_the_same_rows_by_either_writer_in_any_order(tmp_path, delta):
    plan = [{"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 4}, {"a": 5}, {"c": None}]
    for place in ("direct", "mixed"):
        (tmp_path / place).mkdir()
    for txid, counts in enumerate(plan, 1):
        for place in ("direct", "mixed"):
            arguments = {"create": txid == 1, "epoch": txid, "committed": txid - 1}
            opened = open_spark_store if place == "mixed" and txid % 2 == 1 else open_store
            store = opened(tmp_path / place, *([delta] if opened is open_spark_store else []), **arguments)
            commit(store, txid, counts, epoch=txid)
            store.compact()
            store.close()
    for uri in ("changes/counts", "state/counts", "sinks/out", "changes/totals"):
        assert rows(tmp_path / "mixed", uri) == rows(tmp_path / "direct", uri), uri
    assert engines(tmp_path / "mixed").count("spark") == 3
    assert engines(tmp_path / "mixed", "changes/totals").count("spark") == 0
    assert is_shared(tmp_path / "mixed/changes/counts")
    assert not is_shared(tmp_path / "direct/changes/counts")
