"""Delta table features enabled by other writers, before or during a run: supported, or rejected without data loss."""

import json
import re
from itertools import cycle

import pytest
from deltalake import DeltaTable, TableFeatures
from recovery_cases import long_if
from store_cases import COUNTS, TOTALS, commit, open_store
from table_steps import decided, history_row, words_read
from upkeep_cases import keep_up, small

from txstorm.clients.delta.handle import DeltaHandle
from txstorm.errors import BlockedError, TableRefused
from txstorm.recovery.rewind import plan_table
from txstorm.recovery.take_over import check_tables, raise_epochs, roll_forward
from txstorm.results.read import read_changes, read_sink, read_state
from txstorm.storage.tables.directory import Directory
from txstorm.storage.tables.history import append_history, check_history, read_history
from txstorm.storage.tables.identity import TableRef, TopologyIdentity

MERGED = {"count": [type(COUNTS)("counts", COUNTS.key, COUNTS.value, layout="merge"), TOTALS]}
OWNER = TopologyIdentity("words", "0a1b2c")


def log_of(path):
    return {file.name: file.read_bytes() for file in (path / "_delta_log").iterdir()}


def write_entry(path, *actions):
    """Append an entry with these actions to a table's log, as another Delta writer would."""
    version = max(int(one.name[:20]) for one in (path / "_delta_log").glob("*.json")) + 1
    lines = [{"commitInfo": {"operation": "ALTER TABLE"}}, *actions]
    (path / "_delta_log" / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def metadata_of(path):
    lines = [line for file in sorted((path / "_delta_log").glob("*.json")) for line in file.read_text().splitlines()]
    return [json.loads(line)["metaData"] for line in lines if '"metaData"' in line[:12]][-1]


def listed(*features, reader=1, **properties):
    """Return a pair of functions that enable protocol features on a table, and disable them again."""
    of_readers = {"readerFeatures": list(features)} if reader == 3 else {}
    protocol = {"minReaderVersion": reader, "minWriterVersion": 7, "writerFeatures": list(features), **of_readers}

    def on(path):
        meta = metadata_of(path)
        configuration = {**meta["configuration"], **properties}
        write_entry(path, {"protocol": protocol}, {"metaData": {**meta, "configuration": configuration}})

    def off(path):
        meta = metadata_of(path)
        configuration = {name: text for name, text in meta["configuration"].items() if name not in properties}
        plain = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
        write_entry(path, plain, {"metaData": {**meta, "configuration": configuration}})

    return on, off


def column(**about):
    """Return a pair of functions that change the metadata of a table's first column, and restore it."""

    def change(path, found):
        meta = metadata_of(path)
        schema = json.loads(meta["schemaString"])
        schema["fields"][0] |= found
        write_entry(path, {"metaData": {**meta, "schemaString": json.dumps(schema)}})

    return lambda path: change(path, about), lambda path: change(path, {"nullable": True, "metadata": {}})


def began(data_dir, uri):
    """Return the declared states, whose layout lets them have the table `uri`, and a store that counted one word."""
    states = MERGED if uri.startswith("state/") else {"count": [COUNTS, TOTALS]}
    store = open_store(data_dir, create=True, states=states)
    commit(store, 1, {"a": 1})
    return states, store


KINDS = ["sinks/out", "changes/counts", "state/counts"]
REFUSED = {
    "CHECK constraint positive": (
        lambda path: DeltaTable(str(path)).alter.add_constraint({"positive": "_txid > 0"}),
        lambda path: DeltaTable(str(path)).alter.drop_constraint("positive"),
    ),
    "feature rowTracking": listed("rowTracking", "domainMetadata"),
    "feature inCommitTimestamp": listed("inCommitTimestamp"),
    "feature typeWidening": listed("typeWidening", reader=3),
    "feature clustering": listed("clustering"),
    "feature identityColumns": listed("identityColumns"),
    "feature checkpointProtection": listed("checkpointProtection"),
    "feature whatever-comes": listed("whatever-comes", reader=3),
    "property delta.enableDeletionVectors": listed(
        "deletionVectors", reader=3, **{"delta.enableDeletionVectors": "true"}
    ),
    "column 'word' is NOT NULL": column(nullable=False),
    "column 'word' has an invariant": column(metadata={"delta.invariants": "{}"}),
    "column 'word' has an expression": column(metadata={"delta.generationExpression": "'x'"}),
    "feature columnMapping has given column 'word'": column(metadata={"delta.columnMapping.physicalName": "col-1"}),
    "column 'word' has a widened type": column(metadata={"delta.typeChanges": []}),
}


@pytest.mark.parametrize(("what", "uri"), list(zip(REFUSED, cycle(KINDS))))
def test_a_feature_enabled_between_runs_is_rejected_before_any_write(tmp_path, what, uri):
    on, off = REFUSED[what]
    merged, store = began(tmp_path, uri)
    recorded = store.last_txids()
    on(tmp_path / uri)
    before = {one: log_of(tmp_path / one) for one in recorded}
    for start in (
        lambda: open_store(tmp_path, states=merged, epoch=2),
        lambda: check_tables(tmp_path, recorded, "0a1b2c", []),
        lambda: raise_epochs(tmp_path, {uri: 1}, OWNER, 2),
    ):
        with pytest.raises((TableRefused, BlockedError), match=f"{uri}.*{re.escape(what)}") as refused:
            start()
        assert "nothing was written to it; " in str(refused.value)
        assert {one: log_of(tmp_path / one) for one in recorded} == before
    off(tmp_path / uri)
    again = open_store(tmp_path, states=merged, epoch=2)
    commit(again, 2, {"a": 1}, epoch=2)
    assert words_read(tmp_path) == {"a": 2}


@pytest.mark.parametrize(("what", "uri"), list(zip(REFUSED, cycle(KINDS[1:] + KINDS[:1]))))
def test_a_feature_enabled_during_a_run_loses_nothing_and_the_run_continues_once_disabled(tmp_path, what, uri):
    on, off = REFUSED[what]
    _, store = began(tmp_path, uri)
    group, intent = decided(store, 2, {"a": 1})
    on(tmp_path / uri)
    before = log_of(tmp_path / uri)
    publish = lambda: store.publish(intent, 1)  # noqa: E731
    for attempt in (publish, publish, lambda: roll_forward(tmp_path, intent, 1)):
        with pytest.raises((TableRefused, BlockedError), match=f"{uri}.*{re.escape(what)}"):
            attempt()
    assert log_of(tmp_path / uri) == before
    off(tmp_path / uri)
    publish()
    group.apply(2)
    commit(store, 3, {"a": 1})
    assert words_read(tmp_path) == {"a": 3}
    assert read_sink(tmp_path, "out").to_pylist() == [{"word": "a", "n": 1, "_txid": txid} for txid in (1, 2, 3)]


@pytest.mark.parametrize("what", REFUSED)
def test_rows_can_be_read_unless_the_feature_affects_readers(tmp_path, what):
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    for uri in ("sinks/out", "changes/counts", "state/counts"):
        REFUSED[what][0](tmp_path / uri)
    reads = [lambda: read_sink(tmp_path, "out"), lambda: read_state(tmp_path, "counts"),
             lambda: read_changes(tmp_path, "counts", 1, 1)]  # fmt: skip
    of_readers = ("typeWidening", "whatever-comes", "columnMapping", "widened")
    for read in reads:
        if any(one in what for one in of_readers):
            with pytest.raises(TableRefused, match=re.escape(what)):
                read()
        else:
            assert read().num_rows == 1


ALLOWED = {
    "data feed": lambda path: DeltaTable(str(path)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
    "features": listed("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns")[0],
    "v2 checkpoints": listed("v2Checkpoint", reader=3)[0],
    "vectors that no file has": listed("deletionVectors", reader=3)[0],
    "column mapping": column(metadata={"delta.columnMapping.physicalName": "word"})[0],
    "legacy": lambda path: DeltaTable(str(path)).alter.add_feature(
        TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True
    ),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_supported_features_do_not_stop_a_run(tmp_path, what, monkeypatch):
    small(monkeypatch.setattr)
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1, "b": 1})
    for uri in ("sinks/out", "changes/counts", "state/counts"):
        ALLOWED[what](tmp_path / uri)
    for txid in range(2, 8):
        commit(store, txid, {"a": 1, f"w{txid}": 1})
    assert set(keep_up(store)) >= {"state/counts", "changes/counts", "sinks/out"}
    store.sweep([])
    store.close()
    again = open_store(tmp_path, epoch=2)
    commit(again, 8, {"a": 1}, epoch=2)
    assert read_state(tmp_path, "counts").to_pylist()[0] == {"word": "a", "n": 8}
    assert read_sink(tmp_path, "out").num_rows == 2 * 7 + 1


def append_only(path, value="true"):
    DeltaTable(str(path)).alter.set_table_properties({"delta.appendOnly": value})


def test_an_append_only_table_accepts_appends_and_rejects_removals(tmp_path, monkeypatch):
    small(monkeypatch.setattr)
    store = open_store(tmp_path, create=True)
    commit(store, 1, {"a": 1})
    for uri in ("sinks/out", "changes/counts"):
        append_only(tmp_path / uri)
    for txid in range(2, 8):
        commit(store, txid, {"a": 1})
    assert "sinks/out" in keep_up(store)  # the same rows in other files
    store.close()
    open_store(tmp_path, epoch=2)
    before = log_of(tmp_path / "sinks/out")
    with pytest.raises(TableRefused, match=r"sinks/out: its property delta\.appendOnly forbids removing or replacing"):
        plan_table(Directory(tmp_path), OWNER, TableRef("sink", "out"), 3, 2, 1)
    assert log_of(tmp_path / "sinks/out") == before
    append_only(tmp_path / "sinks/out", "false")
    assert plan_table(Directory(tmp_path), OWNER, TableRef("sink", "out"), 3, 2, 1).removes
    append_only(tmp_path / "state/counts")
    with pytest.raises(TableRefused, match=r"state/counts: its property delta\.appendOnly"):
        open_store(tmp_path, epoch=3)


def test_the_history_table_is_checked_too(tmp_path):
    append_history(tmp_path, [history_row(1)])
    on, off = REFUSED["feature rowTracking"]
    on(tmp_path / "history")
    with pytest.raises(TableRefused, match="history: its feature rowTracking"):
        check_history(tmp_path)
    off(tmp_path / "history")
    check_history(tmp_path)
    assert read_history(tmp_path).num_rows == 1


SPARK = {
    "dv": (["SET TBLPROPERTIES ('delta.enableDeletionVectors'='true')", "DELETE WHERE word = 'w1'"],
           "deletionVectors", ["SET TBLPROPERTIES ('delta.enableDeletionVectors'='false')", "PURGE"]),
    "tracked": (["SET TBLPROPERTIES ('delta.enableRowTracking'='true')"], "feature (domainMetadata|rowTracking)",
                ["DROP FEATURE rowTracking", "DROP FEATURE domainMetadata"]),
    "timed": (["SET TBLPROPERTIES ('delta.enableInCommitTimestamps'='true')"], "feature inCommitTimestamp",
              ["DROP FEATURE inCommitTimestamp"]),
    "widened": (["SET TBLPROPERTIES ('delta.enableTypeWidening'='true')"], "feature typeWidening", None),
    "checked": (["ADD CONSTRAINT small CHECK (n < 1000)"], "CHECK constraint small", ["DROP CONSTRAINT small"]),
    "readded": (["SET TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
                 "'delta.minWriterVersion'='5')", "DROP COLUMN n", "ADD COLUMN n BIGINT"], "given column 'n'", None),
    "mapped": (["SET TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
                "'delta.minWriterVersion'='5')"], "", []),
    "v2": (["SET TBLPROPERTIES ('delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='1')",
            "INSERT VALUES ('z', 7L, 1L)"], "", []),
    "feed": (["SET TBLPROPERTIES ('delta.enableChangeDataFeed'='true')", "UPDATE SET n = 9 WHERE word = 'w1'"], "",
             []),
    "only": (["SET TBLPROPERTIES ('delta.appendOnly'='true')"], "", []),
}  # fmt: skip


def ask(spark, path, text):
    table = f"delta.`{path}`"
    verb, _, rest = text.partition(" ")
    whole = {"DELETE": f"DELETE FROM {table} {rest}", "INSERT": f"INSERT INTO {table} {rest}",
             "UPDATE": f"UPDATE {table} {rest}", "PURGE": f"REORG TABLE {table} APPLY (PURGE)"}  # fmt: skip
    spark.sql(whole.get(verb, f"ALTER TABLE {table} {text}")).collect()


def counted_in(spark, path):
    return sorted(map(tuple, spark.sql(f"SELECT word, n FROM delta.`{path}`").collect()))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    # Rejected, supported, and disabled again. The log entries of the other features are tested above, without Spark.
    long_if(lambda name: name != "dv", SPARK),
)
def test_features_enabled_by_spark(tmp_path, spark, monkeypatch, name):
    """A feature that Spark enables on a sink, during a run and before the next one, loses or adds no committed rows."""
    small(monkeypatch.setattr)
    on, refused, off = SPARK[name]
    data_dir = tmp_path / name
    store = open_store(data_dir, create=True)
    for txid in range(1, 6):
        commit(store, txid, {"a": 1, f"w{txid}": 2})
    path = data_dir / "sinks/out"
    gathering = store.upkeep.begin("sinks/out", 1)  # in progress when the feature is enabled
    assert list(gathering.steps())
    for text in on:
        ask(spark, path, text)
    expected = counted_in(spark, path)
    group, intent = decided(store, 6, {"a": 1})
    if refused:
        for attempt in (lambda: store.upkeep.finish(gathering, 1), lambda: store.publish(intent, 1)):
            with pytest.raises((TableRefused, BlockedError), match=refused):
                attempt()
        with pytest.raises(TableRefused, match=refused):
            open_store(data_dir, epoch=2)
        assert counted_in(spark, path) == expected, name
    else:
        store.upkeep.finish(gathering, 1)
    if off is None:
        return
    for text in off:
        ask(spark, path, text)
    store.publish(intent, 1)
    group.apply(6)
    store.sweep([])
    keep_up(store)
    again = open_store(data_dir, epoch=2)
    commit(again, 7, {"b": 3}, epoch=2)
    DeltaHandle.open(path).checkpoint(1)
    assert counted_in(spark, path) == sorted([*expected, ("a", 1), ("b", 3)]), name
    assert read_state(data_dir, "counts").to_pylist()[0] == {"word": "a", "n": 6}
