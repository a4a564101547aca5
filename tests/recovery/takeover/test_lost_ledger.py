"""The ledger is lost after a crash: `txstorm recover` rebuilds it from the tables, and the run continues."""

import json
import shutil
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from recovery_cases import check, ends, fails, killed, lose, one_published, open_books
from scenarios.words import SPOUTS, TXIDS, expected_map_rows, lines, map_rows
from servers.kafka_reading import committed_records

from txstorm.errors import DataDirectoryError, InputError, TableCorrupt
from txstorm.operations.rebuild_ledger import recover
from txstorm.operations.savepoints import create_savepoint, delete_savepoint, list_savepoints
from txstorm.storage.tables.intent import STAGED

pytestmark = pytest.mark.integration

FAULTS = (
    *("p0.2.created:1", "p4.after:2", "p5.staged.after:5", "p6.after:2", "p7.1.written:2", "p7.2.before:3"),
    *("p7.3.written:3", "p8.after:3", "history.written:1", "sweep.before:1"),
)


def lost(fault: str, data_dir: Path, *options: Any) -> None:
    """Run until `fault` kills the run, then lose its ledger."""
    killed(fault, data_dir, *options)
    lose(data_dir)


@pytest.mark.parametrize(("fault", "spout"), list(zip(FAULTS, cycle(SPOUTS))))
def test_killed_and_its_ledger_is_lost(ends_as_undisturbed, data_dir, fault, spout):
    lost(fault.replace(":", ":kill:"), data_dir, "--spout", spout)
    output = fails(data_dir, "--spout", spout)
    assert "has no ledger (ledger.db)" in output
    assert f"txstorm recover {data_dir}" in output

    recover(data_dir)

    ends_as_undisturbed(data_dir, "--spout", spout)


def test_lost_again_after_it_was_rebuilt(ends_as_undisturbed, data_dir):
    """The ledger is rebuilt with a group published to only some tables, and lost again before its roll-forward."""
    killed("p7.3.before:hang:2,p7.2.after:kill:2", data_dir)
    for fault in ("p0.before:kill:1", "p7.3.before:kill:1", "p8.before:kill:1"):
        lose(data_dir)
        found = recover(data_dir)
        killed(fault, data_dir)
    assert found["rolled_forward"] is not None
    lose(data_dir)
    recover(data_dir)
    ends_as_undisturbed(data_dir)


def test_a_dry_run_writes_nothing_and_shows_what_it_would(data_dir):
    lost(one_published(2), data_dir, "--spout", "file")
    before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}

    shown = recover(data_dir, dry_run=True)

    assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before
    written = recover(data_dir)
    assert {**written, "written": False} == shown
    first, last = written["rolled_forward"]
    assert written["currtx"] == first
    with open_books(data_dir) as books:
        (intent,) = books.live_intents()
        assert (intent.first, intent.last) == (first, last)
        assert books.currtx() == first
        assert list(books.metas()) == [last]
    json.dumps(shown)


def test_after_a_clean_end_the_ledger_is_rebuilt_from_history_and_tables(ends_as_undisturbed, data_dir):
    ends(data_dir, "--spout", "file")
    lose(data_dir)
    found = recover(data_dir)
    assert (found["committed_txid"], found["rolled_forward"], found["history"]) == (TXIDS, None, 0)
    ends_as_undisturbed(data_dir, "--spout", "file")


# Table 1 is ``changes/counts``, 2 and 3 are the maps.
MAP_FAULTS = (
    *("p5.staged.after:5", "p6.after:2", "p7.1.written:2", "p7.2.before:2", "p7.2.written:2", "p7.3.before:2"),
    *("p7.3.written:2", "p8.before:2", "p8.after:3"),
)


def ends_with_maps(data_dir: Path, spout: str, maps: str) -> None:
    ends(data_dir, "--spout", spout, "--tables", 1, "--maps", maps)
    assert map_rows(maps) == expected_map_rows(spout)
    check(data_dir, TXIDS)


@pytest.mark.parametrize(("fault", "spout"), list(zip(MAP_FAULTS, cycle(SPOUTS))))
def test_killed_around_the_puts_into_maps_and_its_ledger_is_lost(data_dir, maps, fault, spout):
    lost(fault.replace(":", ":kill:"), data_dir, "--spout", spout, "--tables", 1, "--maps", maps)
    recover(data_dir)
    ends_with_maps(data_dir, spout, maps)


def test_lost_again_while_the_rebuilt_intent_is_put_into_maps(data_dir, maps):
    options = ["--tables", 1, "--maps", maps]
    lost("p7.2.before:kill:2", data_dir, "--spout", "opaque", *options)
    for fault in ("p0.before:kill:1", "p7.2.written:kill:1", "p7.3.before:kill:1", "p8.before:kill:1"):
        assert recover(data_dir)["rolled_forward"] is not None
        lost(fault, data_dir, "--spout", "opaque", *options)
    recover(data_dir)
    ends_with_maps(data_dir, "opaque", maps)


@pytest.mark.parametrize("fault", ["p7.2.before:kill:2", "p7.3.before:kill:2"])
def test_a_map_position_is_read_from_its_commit_mark_without_staged_files(data_dir, maps, fault):
    """If no staged file records a map's position, recovery reads it from the commit mark in the database."""
    lost(fault, data_dir, "--tables", 1, "--maps", maps)
    last = recover(data_dir, dry_run=True)["rolled_forward"][1]
    old = [file for file in data_dir.glob(f"maps/*/{STAGED}/*") if int(file.name.split("-")[1]) < last]
    assert old
    for file in old:
        file.unlink()
    recover(data_dir)
    ends_with_maps(data_dir, "memory", maps)


@pytest.mark.parametrize("fault", ["p7.2.before:kill:2", "p7.2.written:kill:2"])
def test_rows_for_kafka_that_were_decided_are_sent_once_though_the_ledger_was_lost(data_dir, kafka_broker, fault):
    data_dir, topic = data_dir, kafka_broker.make_topic(partitions=2)
    options = ["--tables", 1, "--kafka", kafka_broker.bootstrap, topic]
    lost(fault, data_dir, *options)
    recover(data_dir)
    ends(data_dir, "--spout", "memory", *options)
    sent = Counter(record.key for record in committed_records(kafka_broker.bootstrap, topic))
    assert sent == Counter(word for line in lines(TXIDS) for word in line.split())


@pytest.fixture
def ended(place: Path) -> Path:
    """Return a data directory, including its ledger, whose run was killed after a few groups."""
    killed("p8.after:kill:3", place / "data")
    return place / "data"


def test_a_ledger_that_is_there_is_not_rebuilt(ended):
    for new in ((), (f"delta:{ended}/control",)):
        with pytest.raises(InputError, match=r"its ledger sqlite:.*ledger\.db exists"):
            recover(ended, *new)


def test_without_tables_there_is_nothing_to_rebuild_from(place):
    (place / "empty").mkdir()
    with pytest.raises(DataDirectoryError, match="expected tables to rebuild its ledger from, found none"):
        recover(place / "empty")


def test_tables_of_two_topologies(ended, place):
    ends(place / "other", "--tables", 1)
    lose(ended)
    for folder in ("changes", "state"):
        shutil.rmtree(ended / folder / "counts")
        shutil.copytree(place / "other" / folder / "counts", ended / folder / "counts")
    with pytest.raises(DataDirectoryError, match=r"table .*: belongs to topology .*expected tables of one topology"):
        recover(ended)


def test_tables_of_which_one_lacks_its_other_half(ended):
    lose(ended)
    shutil.rmtree(ended / "state/counts")
    with pytest.raises(TableCorrupt, match="there is a table changes/counts, but none state/counts"):
        recover(ended)


def test_tables_with_different_attempts_of_a_txid_are_refused(ended, place):
    """Two copies of a directory continue with equal txids but other attempts; a table is swapped between them."""
    shutil.copytree(ended, place / "twin")
    for data_dir, fault in ((ended, one_published(1)), (place / "twin", "p5.after:kill:1")):
        killed(fault, data_dir)
    killed("p8.after:kill:1", place / "twin")
    lose(ended)
    shutil.rmtree(ended / "sinks/words")
    shutil.copytree(place / "twin/sinks/words", ended / "sinks/words")
    with pytest.raises(TableCorrupt, match="disagree on the group that ends with txid"):
        recover(ended)


def test_a_table_from_an_older_copy(data_dir):
    ends(data_dir)
    lose(data_dir)
    for entry in (data_dir / "sinks/words/_delta_log").glob("*.json"):
        if int(entry.stem) > 3:
            entry.unlink()
    with pytest.raises(TableCorrupt, match=r"table sinks/words: the history knows it at version \d+, found it at"):
        recover(data_dir)


def test_a_damaged_staged_file_of_the_last_group(data_dir):
    lost(one_published(2), data_dir)
    last = recover(data_dir, dry_run=True)["rolled_forward"][1]
    staged = list(data_dir.glob(f"*/*/{STAGED}/*-{last}-*.parquet"))
    assert staged
    for file in staged:
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(TableCorrupt, match=r"staged file .*cannot be read"):
        recover(data_dir)


def test_lost_savepoints_are_named(ended):
    for name, txid in (("noon", 2), ("evening", 3), ("dropped", 1)):
        create_savepoint(ended, name, txid)
    delete_savepoint(ended, "dropped")
    lose(ended)
    dry = recover(ended, dry_run=True)["lost_savepoints"]
    assert [one.partition(", made")[0] for one in dry] == ["evening (after txid 3", "noon (after txid 2"]
    (ended / "savepoints" / "noon.json").write_bytes(b"{")
    assert recover(ended)["lost_savepoints"] == [dry[0], "noon (its note cannot be read)"]
    assert list_savepoints(ended) == []
    create_savepoint(ended, "night", 3)
    lose(ended)
    [found] = recover(ended)["lost_savepoints"]
    assert found.startswith("night (after txid 3, made 20")
