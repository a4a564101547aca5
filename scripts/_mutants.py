"""Mutation tests: deliberate defects, each put into a copy of the package, that the simulation must detect.

Defects in code that the simulation does not run (stores of maps) must be detected by a named test instead.

Arguments: ``[--schedules N] [--seed S] [--part K/N] [NAME...]``. One mutant per processor is tried at a time. The last
line is ``killed K of N``; exit code 1 when one survives. A mutant whose test is skipped, for example because
redis-server is missing, is not tried. ``--part 2/3`` tries the second of three equal parts, every third mutant from the
second on.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RUN = """
import sys
from txstorm.simulation import simulate
report = simulate(int(sys.argv[1]), int(sys.argv[2]), stop_at=1)
print(report.schedules, report.found[0].what if report.found else "")
"""
SURVIVES, NOT_TRIED = "SURVIVES", "not tried"


class Mutant(NamedTuple):
    """A defect: an expression of a function, or consecutive statements, replaced by others.

    The code is located by comparing syntax trees, so that a mutant still applies after a move or reformatting.

    Attributes:
        function: name of the function, with its class, if any; it may be in any module of the package.
        old: code that occurs once in that function.
        new: the replacement.
        test: the test that must detect the defect; if empty, the simulation must.
    """

    name: str
    function: str
    old: str
    new: str
    test: str = ""


MUTANTS = (
    Mutant(
        "storms_literal_fail",
        "_failed",
        "return (state, ())",
        """
if 0 <= index < len(state.entries):
    return (state._replace(entries=state.entries[:index] + state.entries[index + 1:]), ())
return (state, ())
""",
    ),
    Mutant(
        "opaque_rule_without_going_back_to_prev",
        "base",
        "return row.prev if is_applied(row, txid) else row.value",
        """
is_applied(row, txid)
return row.value
""",
    ),
    Mutant(
        "previous_is_the_nearest_committed",
        "Planning.plan",
        "self.metas.get(txid - 1)",
        "self.metas.get(min([t for t in self.metas if t < txid], default=0))",
    ),
    Mutant(
        "metadata_deleted_before_commit",
        "Planning.outlived",
        "[Delete(names.meta_path(txid)) for txid in list(self.metas) if txid < last]",
        "[Delete(names.meta_path(txid)) for txid in list(self.metas) if txid <= last + 1]",
    ),
    Mutant(
        "n_plus_1_before_n",
        "_sync",
        "size = _due(state)",
        """
for at, entry in enumerate(state.entries):
    if not state.committing and entry.status is PROCESSED:
        return (state, (Commit((state.currtx + at,), (entry.attempt_id,)),))
size = _due(state)
""",
    ),
    Mutant(
        "currtx_before_the_last_table",
        "Publisher.conclude",
        "versions = self._decide_and_publish(intent, milliseconds)",
        """
if intent.tables:
    self._books.decide(intent)
self._books.complete(intent.last, {**self._tables, **{t.uri: intent.last for t in intent.tables}}, [])
versions = self._publish(intent)
""",
    ),
    Mutant(
        "intent_after_the_first_table",
        "Publisher._decide_and_publish",
        """
with self._timed(milliseconds, 'decide'):
    self._books.decide(intent)
""",
        """
from dataclasses import replace
self._store.publish(replace(intent, tables=intent.tables[:1]), self._books.epoch)
with self._timed(milliseconds, 'decide'):
    self._books.decide(intent)
""",
    ),
    Mutant(
        "no_epoch_check",
        "TransactionalTable._check_epoch",
        "found > epoch",
        "found > epoch + 1000",
    ),
    Mutant(
        "blind_retry_after_a_lost_answer",
        "TransactionalTable.publish",
        """
self._lost = True
version = self._published(table, intent, epoch)
""",
        "pass",
    ),
    Mutant(
        "lost_race_without_reading_again",
        "TransactionalTable._try",
        """
try:
    if written:
        version = self.commit_group(commit)
    else:
        self._log.commit(commit)
        version = self._log.version
except ConflictError:
    self._log.refresh()
    return None
except TableCorrupt as cause:
    self._after_failure(cause)
    return None
""",
        """
try:
    if written:
        version = self.commit_group(commit)
    else:
        self._log.commit(commit)
        version = self._log.version
except ConflictError:
    return None
except TableCorrupt as cause:
    self._after_failure(cause)
    return None
""",
    ),
    Mutant(
        "clean_up_before_completion",
        "Books.complete",
        """
for ops in in_commits([done, *beside]) if beside else (done,):
    self._commit(ops)
""",
        """
self._commit(list(remove))
for ops in in_commits([done, *beside]) if beside else (done,):
    self._commit(ops)
""",
    ),
    Mutant(
        "naive_group_commit",
        "TransactionalTable._commit",
        "first, last = (table.previous + 1, intent.last)",
        "first = last = intent.last",
    ),
    Mutant(
        "ack_of_a_stale_attempt_counts",
        "_processed",
        "_is_current(state, index, event.attempt_id)",
        "0 <= index < len(state.entries)",
    ),
    Mutant(
        "compaction_without_looking_again",
        "TransactionalTable.exchange",
        "files.base not in (None, last) or len(leaving) < len(leaves)",
        "False",
    ),
    Mutant(
        "compaction_leaves_the_old_files",
        "TransactionalTable._exchanging",
        "Commit(apps, info, files.adds, leaving, files.now, label, data_change=change)",
        "Commit(apps, info, files.adds, (), files.now, label, data_change=change)",
    ),
    Mutant(
        "recovery_completes_without_publishing",
        "roll_tables_forward",
        "roll_forward(where, intent, books.epoch)",
        "{table.uri: 0 for table in intent.tables}",
    ),
    Mutant(
        "recovery_does_not_complete",
        "roll_tables_forward",
        "complete(books, intent, versions)",
        "pass",
    ),
    Mutant(
        "recovery_drops_what_is_decided",
        "roll_tables_forward",
        "versions = roll_forward(where, intent, books.epoch)",
        """
books.abandon([intent])
continue
""",
    ),
    Mutant(
        "nobody_raises_the_tables_epoch",
        "TransactionalTable.raise_epoch",
        "self._check_epoch(epoch) == epoch",
        "self._check_epoch(epoch) <= epoch",
    ),
    Mutant(
        "ledger_without_epoch_guard",
        "Books.raise_epoch",
        "[Check(names.EPOCH, expect + 1)]",
        "[]",
    ),
    Mutant(
        "metadata_is_not_stored_before_processing",
        "Planning.save",
        "self._books.write_metas(self._unsaved)",
        "pass",
    ),
    Mutant(
        "transactional_replay_is_planned_anew",
        "Planning.plan",
        "replay and (not self.planner.opaque) and (txid in self.metas)",
        "False",
    ),
    Mutant(
        "rewind_moves_the_ledger_first",
        "carry_out",
        """
for number, table in enumerate(rewind.tables, start=1):
    books.check_lease()
    restore_table(place, rewind, table, books.epoch, now)
    faults.point(f'rewind.{number}.restored')
""",
        """
books.rewound(rewind, dict.fromkeys(books.tables(), rewind.txid))
if books.rewind() is None and clock() * 1000000 % 3 == 0:
    return
for number, table in enumerate(rewind.tables, start=1):
    books.check_lease()
    restore_table(place, rewind, table, books.epoch, now)
    faults.point(f'rewind.{number}.restored')
""",
    ),
    Mutant(
        "rewind_is_finished_with_an_old_epoch",
        "finish_rewind",
        "books.raise_epoch()",
        "pass",
    ),
    Mutant(
        "rewind_keeps_one_transaction_too_many",
        "planned",
        "[path for path, (_, last) in spans.items() if last > txid]",
        "[path for path, (_, last) in spans.items() if last > txid + 1]",
    ),
    Mutant(
        "rewind_forgets_files_that_go_on",
        "planned",
        "rows.kept(cut, txid) if cut else ()",
        "()",
    ),
    Mutant(
        "sweeper_takes_files_of_newer_coordinators",
        "_unneeded",
        "by is not None and by <= epoch",
        "by is not None",
    ),
    Mutant(
        "sweeper_ignores_older_versions",
        "orphans",
        "log.logged_paths()",
        "{file.path for file in log.files()}",
    ),
    Mutant(
        "the_guard_is_what_is_read_back",
        "Books.raise_epoch",
        "Check(names.EPOCH, expect + 1)",
        "Check(names.EPOCH, self.ledger.get(names.EPOCH).version)",
    ),
    Mutant(
        "opaque_metadata_is_kept_over_a_restart",
        "Planning.open",
        "not self.planner.opaque",
        "True",
    ),
    Mutant(
        "failure_keeps_later_transactions",
        "_cut",
        """
after = state._replace(
    entries=state.entries[:index], committing=min(state.committing, index), void=state.planning is not None
)
""",
        """
dead = dead[:1]
after = state._replace(
    entries=state.entries[:index] + state.entries[index + 1 :],
    committing=min(state.committing, index),
    void=state.planning is not None,
)
""",
    ),
    Mutant(
        "tables_are_not_recorded",
        "Publisher.conclude",
        "self._tables.update(dict.fromkeys(touched, last))",
        "list(touched)",
    ),
    Mutant(
        "publishes_with_the_epoch_of_who_decided",
        "TransactionalTable._commit",
        "{self._txid_app: last, self._epoch_app: epoch}",
        "{self._txid_app: last, self._epoch_app: intent.epoch}",
    ),
    Mutant(
        "compaction_without_epoch_check",
        "TransactionalTable.exchange",
        "self._check_epoch(epoch)",
        "pass",
    ),
    Mutant(
        "compacted_state_is_said_to_be_newer",
        "TransactionalTable._exchanging",
        "(files.as_of, f'txstorm state as of txid {files.as_of}')",
        "(files.as_of + 1, f'txstorm state as of txid {files.as_of}')",
    ),
    Mutant(
        "rewind_leaves_later_metadata",
        "Books.rewound",
        "(names.META, names.INTENTS, names.HISTORY, names.FAILURES)",
        "(names.INTENTS, names.HISTORY, names.FAILURES)",
    ),
    Mutant(
        "rewind_leaves_intents",
        "Books.rewound",
        "(names.META, names.INTENTS, names.HISTORY, names.FAILURES)",
        "(names.META, names.HISTORY, names.FAILURES)",
    ),
    Mutant(
        "sweeper_ignores_intents",
        "kept_by",
        "{staged.path for table in tables for staged in table.files}",
        "set() & {table.uri for table in tables}",
    ),
    Mutant(
        "what_is_processed_comes_again_and_counts",
        "_processed",
        "not _is_current(state, index, event.attempt_id) or state.entries[index].status is not PROCESSING",
        "not _is_current(state, index, event.attempt_id)",
    ),
    Mutant(
        "one_more_in_flight",
        "_may_plan",
        "len(state.entries) >= state.config.max_pending",
        "len(state.entries) > state.config.max_pending",
    ),
    Mutant(
        "one_more_in_a_group",
        "_processed_from",
        "index + state.config.max_group",
        "index + state.config.max_group + 1",
    ),
    Mutant(
        "failed_transactions_do_not_wait",
        "_may_plan",
        "txid in state.held or (state.not_ready is not None and state.not_ready <= txid)",
        "state.not_ready is not None and state.not_ready <= txid",
    ),
    Mutant(
        "new_transactions_though_inactive",
        "_may_plan",
        "replay or state.mode is Mode.ACTIVE",
        "True",
    ),
    Mutant(
        "the_rest_of_a_group_begins_before_its_failure_is_told",
        "_committed",
        """
if back:
    commands = ()
else:
    after, commands = _sync(after)
""",
        """
if False:
    commands = ()
else:
    after, commands = _sync(after)
""",
    ),
    Mutant(
        "times_go_back_with_the_clock",
        "Planning._plan",
        "max(self._clock(), 0 if previous is None else previous.stamp)",
        "self._clock()",
    ),
    Mutant(
        "heartbeats_repeat_the_last_batch",
        "Planning.plan_system",
        "self.planner.skip(self.document(txid - 1))",
        "self.document(txid - 1) or self.planner.skip(None)",
    ),
    Mutant(
        "what_was_read_is_not_kept",
        "Planning.processed",
        "self._books.note_metas(changed)",
        "pass",
    ),
    Mutant(
        "another_batch_than_the_first_time",
        "Planning._check",
        "before != digest",
        "False",
    ),
    Mutant(
        "a_database_is_changed_before_it_is_known_what_was_read",
        "Planning.processed",
        "self.planner.task_planned or self._external",
        "self.planner.task_planned",
    ),
    Mutant(
        "metadata_stays_for_good",
        "Planning.outlived",
        "[Delete(names.meta_path(txid)) for txid in list(self.metas) if txid < last]",
        "[Delete(names.meta_path(txid)) for txid in list(self.metas) if txid < last - 1]",
    ),
    Mutant(
        "one_intent_fewer_is_kept",
        "Publisher._old_intents",
        "(self._kept[:-self._keep], self._kept[-self._keep:])",
        "(self._kept[:1 - self._keep], self._kept[1 - self._keep:])",
    ),
    Mutant(
        "what_is_decided_is_published_only_once",
        "Publisher._publish",
        "self._sleep(pause_after(attempt))",
        "not self._sleep(pause_after(attempt))",
    ),
    Mutant(
        "the_history_names_no_versions",
        "history_rows",
        "dict(versions)",
        "{}",
    ),
    Mutant(
        "recovery_forgets_other_tables",
        "complete",
        "{**known, **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
        "{**dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
    ),
    Mutant(
        "a_start_does_not_compare_ledger_and_tables",
        "check_tables",
        "_check_txid(table, recorded, live)",
        "pass",
    ),
    Mutant(
        "a_start_does_not_look_for_staged_files",
        "check",
        "check_kept(where, standing.intents)",
        "pass",
    ),
    Mutant(
        "other_peoples_tables_are_taken",
        "check_owner",
        "properties[INCARNATION] != owner.incarnation",
        "False",
    ),
    Mutant(
        "entries_that_are_lost_do_not_show",
        "check_tiles",
        "last is not None and expected is not None and (expected != last)",
        "False",
    ),
    Mutant(
        "what_is_published_is_not_durable",
        "TransactionalTable.publish",
        "self._make_durable(version)",
        "pass",
    ),
    Mutant(
        "what_dead_coordinators_committed_is_not_durable",
        "TransactionalTable.raise_epoch",
        "self._durable, self._doubted = (self._known_durable(completed), True)",
        "pass",
    ),
    Mutant(
        "a_failed_sync_is_tried_again_and_believed",
        "TransactionalTable._make_durable",
        "again, self._doubted = (self._doubted, True)",
        "again = False",
    ),
    Mutant(
        "a_failed_sync_of_an_earlier_coordinator_is_believed",
        "TransactionalTable.raise_epoch",
        "self._durable, self._doubted = (self._known_durable(completed), True)",
        "self._durable = self._known_durable(completed)",
    ),
    Mutant(
        "superseded_coordinators_make_savepoints",
        "Books.put_if",
        "[*self._guard, *expected, *(self._put(path, one) for path, one in values.items())]",
        "[*expected, *(self._put(path, one) for path, one in values.items())]",
    ),
    Mutant(
        "a_rewind_leaves_history_out",
        "carry_out",
        "place.append_history([row for rows in books.history().values() for row in rows])",
        "pass",
    ),
    Mutant(
        "states_that_a_rewind_made_are_passed_over",
        "staying",
        "(COMPACTED, COMMITTED, *WHOLE)",
        "(COMPACTED, COMMITTED, CREATED)",
    ),
    Mutant(
        "states_go_back_further_than_they_have_to",
        "staying",
        "(COMPACTED, COMMITTED, *WHOLE)",
        "(COMMITTED, CREATED, RESTORED)",
    ),
    Mutant(
        "what_a_state_was_does_not_come_back",
        "_state",
        "tuple((file for path, file in sorted(then.items()) if path not in now))",
        "()",
    ),
    Mutant(
        "a_table_is_created_without_asking_who_leads",
        "TableDirectory.create",
        "self._check_leads()",
        "pass",
    ),
    Mutant(
        "history_is_appended_without_asking_who_leads",
        "TableDirectory.append_history",
        "self._check_leads()",
        "pass",
    ),
    Mutant(
        "what_a_fenced_coordinator_left_is_not_taken_over",
        "TransactionalTable._raising",
        "return self._beginning(begins, epoch)",
        "pass",
    ),
    Mutant(
        "a_rewind_does_not_expect_what_a_fenced_coordinator_left",
        "planned",
        "table.ref.kind == STATE and (not left)",
        "table.ref.kind == STATE",
        "tests/recovery/takeover/test_fenced_starts.py::"
        "test_a_rewind_and_a_rebuilt_ledger_accept_what_a_fenced_start_left",
    ),
    Mutant(
        "the_table_of_a_state_is_not_taken_over",
        "raise_epochs",
        "table.raise_epoch(epoch, recorded.get(ref.uri))",
        """
if ref.kind != "state":
    table.raise_epoch(epoch, recorded.get(ref.uri))
""",
    ),
    Mutant(
        "where_tables_stand_after_recovery_is_not_recorded",
        "complete",
        "{**known, **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
        "{**known}",
    ),
    Mutant(
        "metadata_stays_after_recovery",
        "complete",
        "books.complete(intent.last, tables, history_rows(intent, versions), old)",
        "books.complete(intent.last, tables, history_rows(intent, versions))",
    ),
    Mutant(
        "that_there_is_a_table_is_not_recorded",
        "Books.write_tables",
        "self._commit(ops)",
        "pass",
    ),
    Mutant(
        "epochs_are_raised_whatever_stands_there",
        "Books.raise_epoch",
        "self._put(names.EPOCH, epoch, expect)",
        "self._put(names.EPOCH, epoch)",
    ),
    Mutant(
        "a_compaction_gives_up_at_once",
        "TransactionalTable.exchange",
        "files.base not in (None, last)",
        "files.as_of is not None",
    ),
    Mutant(
        "who_slept_through_a_rewind_goes_on_before_it",
        "take_over",
        "_check_not_rewound(books, identity)",
        "pass",
    ),
    Mutant(
        "recorded_tables_are_left_out_silently",
        "undeclared_tables",
        "books.tables().keys() | live",
        "live",
    ),
    Mutant(
        "a_dropped_table_shows_as_current",
        "mark_dropped",
        "place.table(owner, ref).drop(dropped[uri], epoch)",
        "place.table(owner, ref)",
    ),
    Mutant(
        "an_interrupted_drop_is_not_finished",
        "take_over",
        "mark_dropped(where, books.dropped().tables, owner, epoch)",
        "pass",
    ),
    Mutant(
        "the_table_of_a_dropped_state_shows_as_current",
        "mark_dropped",
        "{ref: uri for uri in dropped for ref in tables_of([uri])}",
        "{table_ref(uri): uri for uri in dropped}",
    ),
    Mutant(
        "dropped_tables_stay_recorded",
        "Roster.dropped",
        "{**before.tables, **dict.fromkeys(self.tables, committed)}",
        "before.tables",
    ),
    Mutant(
        "a_rewind_ignores_the_beginning_of_a_table",
        "_commit",
        "min(table.since(), rewind.txid)",
        "table.since()",
    ),
    Mutant(
        "a_rewind_takes_dropped_tables_for_current_ones",
        "planned",
        "txid = min(txid, until)",
        "pass",
    ),
    Mutant(
        "a_table_begins_where_a_killed_start_has_made_it",
        "TransactionalTable._beginning",
        "{self._txid_app: txid, self._epoch_app: epoch, self.owner.since_app: txid}",
        "{self._txid_app: txid, self._epoch_app: epoch}",
    ),
    Mutant(
        "rows_that_are_gathered_are_said_to_be_new",
        "TransactionalTable._exchanging",
        "files.as_of is not None or files.floor is not None",
        "True",
    ),
    Mutant(
        "metadata_is_handed_out_live",
        "_meta",
        "copied(document['meta'])",
        "document['meta']",
    ),
    Mutant(
        "what_a_coordinator_returned_is_kept_itself",
        "_DriverPlanner.plan",
        "storable(meta, f'spout {self._component!r}, txid {txid}')",
        "meta",
    ),
    Mutant(
        "a_mark_is_compared_and_moved_in_two_steps",
        "SqlAlchemyBackend._move_mark",
        """
same = [self._marks.c[name] == value for name, value in asdict(expected).items()]
found = connection.execute(sa.update(self._marks).where(self._marks.c.map == self._name, *same).values(**asdict(mark)))
""",
        """
columns = [self._marks.c[name] for name in asdict(mark)]
stored = connection.execute(sa.select(*columns).where(self._marks.c.map == self._name)).one_or_none()
if stored is None or MapMark(*stored) != expected:
    return False
connection.commit()
connection.begin()
found = connection.execute(sa.update(self._marks).where(self._marks.c.map == self._name).values(**asdict(mark)))
""",
        "tests/unit/testing/checks/test_state_checks.py::test_sqlite_passes",
    ),
    Mutant(
        "a_store_in_memory_moves_its_mark_outside_its_lock",
        "MemoryBackend.put_marked",
        """
with self._lock:
    if self._mark != expected:
        return False
    self._put(rows)
    self._mark = mark
    return True
""",
        """
if self._mark != expected:
    return False
with self._lock:
    self._put(rows)
    self._mark = mark
    return True
""",
        "tests/unit/testing/checks/test_state_checks.py::test_stores_in_memory_pass",
    ),
    Mutant(
        "files_of_versions_that_stay_are_superseded",
        "Versions.decide",
        "(path for path in removes if path not in self._files)",
        "removes",
    ),
    Mutant(
        "a_rewind_takes_a_version_that_does_not_stay",
        "staying",
        """
if entry.info.get(STAYS, True):
    yield (entry, as_of(entry.info))
if BASE in entry.info:
    below = int(entry.info[BASE][0])
    break
""",
        "yield (entry, as_of(entry.info))",
    ),
    Mutant(
        "lateness_by_the_watermark_of_the_batch",
        "WindowCommitter._rows",
        "late(times, moment.passed, plan.form)",
        "late(times, moment.reached, plan.form)",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "a_watermark_per_task",
        "WindowCommitter._advanced",
        "context = self._context",
        """
context = self._context
self._newest = {(one.number, part): time for one in self._chunks for part, time in one.newest.items()}
""",
        "tests/windows/test_windows_on_tables.py",
    ),
    Mutant(
        "watermark_of_a_failed_attempt_is_kept",
        "ComponentRecord.text",
        "progress = self.progress",
        """
ComponentRecord.kept = max(getattr(ComponentRecord, "kept", 0), self.progress.watermark or 0)
progress = replace(self.progress, watermark=ComponentRecord.kept or None)
""",
        "tests/windows/test_windowed_bolts.py::test_late_tuples_of_a_failed_attempt_are_not_reported",
    ),
    Mutant(
        "a_scan_that_stops_before_its_last_tuple",
        "Units._slide",
        "(position(rows, unit.covered), position(rows, limit))",
        "(position(rows, unit.covered), max(position(rows, limit) - 1, position(rows, unit.covered)))",
        "tests/windows/test_windows_on_tables.py",
    ),
    Mutant(
        "tuples_in_no_window_never_expire",
        "parts_of",
        "(window.old_low, window.low)",
        "(window.old_low, min(window.low, max(window.old_low, window.old_high)))",
        "tests/windows/test_windows_on_tables.py",
    ),
    Mutant(
        "eviction_before_windows_are_read",
        "WindowCommitter.finish_batch",
        """
if fired:
    self._call(buffer, fired)
units.save()
""",
        """
units.save()
if fired:
    self._call(buffer, fired)
""",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "tuples_are_evicted_before_the_decision",
        "CollectionGroup._together",
        "return None if changes is None else EndedChanges(txid, changes)",
        """
if changes is not None:
    evicted = PublishedRows(tombstones=changes.tombstones, bound=changes.bound)
    self._index.apply([evicted], self._index.last_txid)
return None if changes is None else EndedChanges(txid, changes)
""",
        "tests/windows/test_windows_on_tables.py",
    ),
    Mutant(
        "no_heartbeat_after_a_start",
        "SystemTransactions.open",
        "0 if currtx > 1 else None",
        "None",
        "tests/unit/runtime/batches/test_system.py",
    ),
    Mutant(
        "a_prepared_state_is_committed_after_a_rollback",
        "StoredKeyValueState.rollback",
        "self._store.rollback()",
        "self._place is not None and self._store.commit(self._place)",
        "tests/unit/stateful/test_state_providers.py::test_states_in_memory_keep_all_rules",
    ),
    Mutant(
        "a_tuple_at_a_fired_end_is_not_new",
        "behind",
        "(txid + 1) << ARRIVAL_BITS",
        "(txid + 2) << ARRIVAL_BITS",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "a_tuple_at_the_watermark_is_on_time",
        "late",
        "next_end >= watermark + form.span",
        "next_end > watermark + form.span",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "sessions_end_with_their_last_tuple",
        "merge_sessions",
        "starts[1:] >= reach[:-1]",
        "starts[1:] >= stops[:-1]",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "a_key_without_content_is_kept",
        "_time_ranges",
        "last.last_end != end - step",
        "last.last_end is None",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "keys_are_looked_at_with_new_tuples_only",
        "Units._visited",
        "(FIRE, reached)",
        "(FIRE, None)",
        "tests/windows/test_windows_on_tables.py",
    ),
    Mutant(
        "the_last_input_with_data_is_idle",
        "WatermarkRule._active",
        "at is not None and at == latest",
        "at is not None and at == self.lag",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "a_timer_per_window_is_not_set",
        "Units.next_end",
        "None if record is None else record.due",
        "None",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "a_stale_epoch_prepares_and_commits_in_redis",
        "RedisNamespace._run",
        "[action, self._owner, self._epoch, *arguments]",
        "[action, self._owner, '', *arguments]",
        "tests/stateful/test_redis_states.py::test_a_stale_coordinator_changes_nothing",
    ),
    Mutant(
        "what_is_prepared_and_not_decided_stays_prepared",
        "StatefulTarget.lead",
        "prepared is not None and prepared not in decided",
        "False",
        "tests/stateful/test_stateful_topologies.py::test_what_an_earlier_run_has_prepared_is_rolled_back",
    ),
    Mutant(
        "a_discarded_attempt_leaves_its_state_prepared",
        "StatefulTarget._clean",
        "self._states[index].rollback()",
        "pass",
        "tests/stateful/test_stateful_topologies.py::test_a_discarded_attempt_is_rolled_back_and_replayed",
    ),
    Mutant(
        "a_commit_is_repeated_after_a_crash",
        "StatefulTarget._is_done",
        "last is not None and last >= txid",
        "False",
        "tests/stateful/test_stateful_topologies.py::test_what_is_committed_is_not_committed_again_after_a_crash",
    ),
    Mutant(
        "a_failed_prepare_is_sent_again",
        "CheckpointMachine.fail",
        "self._recovering = True",
        "pass",
        "tests/unit/stateful/test_checkpoints.py",
    ),
    Mutant(
        "the_second_preparation_of_a_txid_replaces_the_first",
        "StoredKeyValueState.prepare_commit",
        "self._store.prepare(place, changes)",
        "self._store.prepare(place, self._written)",
        "tests/unit/stateful/test_state_providers.py::test_states_in_memory_keep_all_rules",
    ),
    Mutant(
        "a_pane_counted_twice_after_a_replay",
        "AggregateCommitter._rows",
        "rows = pa.concat_tables([one.rows for one in self._arrived])",
        """
left = vars(AggregateCommitter).get("left", {})
rows = pa.concat_tables([one.rows for one in self._arrived] + left.get(self._attempt.txid, []))
AggregateCommitter.left = {self._attempt.txid: [rows]}
""",
        "tests/unit/windows/test_aggregate_values.py::test_a_pane_of_a_transaction_that_is_replayed_counts_once[committing]",
    ),
    Mutant(
        "panes_are_late_by_the_watermark_of_the_batch",
        "OpenPanes.add",
        "panes.needed(passed)",
        "panes.needed(passed if reached is None else reached)",
        "tests/unit/windows/test_aggregates_against_model.py",
    ),
    Mutant(
        "panes_are_evicted_one_too_early",
        "OpenPanes._keep",
        "self._panes.needed(reached)",
        "self._panes.needed(reached) + self._panes.size",
        "tests/unit/windows/test_aggregates_against_model.py",
    ),
    Mutant(
        "a_session_that_has_grown_is_kept_twice",
        "OpenSessions._live",
        "alive.all()",
        "True",
        "tests/unit/windows/test_aggregate_values.py::test_rows_of_a_session_that_grows_for_long_are_few",
    ),
    Mutant(
        "sessions_that_touch_are_one",
        "_overlapping",
        "starts[1:] >= latest[:-1]",
        "starts[1:] > latest[:-1]",
        "tests/unit/windows/test_aggregate_values.py",
    ),
    Mutant(
        "a_replaced_result_stays",
        "ResultRows.replace",
        "self._handle.remove_many(keys, at, at)",
        "None",
        "tests/unit/windows/test_aggregates_against_model.py",
    ),
    Mutant(
        "the_frontier_ignores_the_allowed_lateness",
        "AggregateCommitter.finish_batch",
        "reached if reached == END else reached - plan.lateness",
        "reached",
        "tests/unit/windows/test_aggregates_against_model.py",
    ),
    Mutant(
        "the_position_of_the_newest_partition",
        "WatermarkRule._position",
        "min(times)",
        "max(times)",
        "tests/unit/joins/test_joins_against_model.py::test_the_rules_join_what_the_model_joins",
    ),
    Mutant(
        "left_rows_released_at_the_right_position",
        "Bounds.released",
        "position - self.after",
        "position - self.after + 1",
        "tests/unit/joins/test_joins_against_model.py::test_the_rules_join_what_the_model_joins",
    ),
    Mutant(
        "right_rows_expire_although_pending_rows_need_them",
        "Bounds.expired",
        "left if oldest is None else min(left, oldest)",
        "left",
        "tests/unit/joins/test_joins_against_model.py::test_the_rules_join_what_the_model_joins",
    ),
    Mutant(
        "right_rows_expire_by_released_rows_only",
        "IntervalJoinCommitter._joined",
        "bounds.expired(left_reached, oldest)",
        "bounds.expired(int(freed.times.max()) if len(freed) else None, oldest)",
        "tests/joins/test_golden_joins.py",
    ),
    Mutant(
        "a_matched_flag_of_a_failed_attempt_is_kept",
        "RightWindow.marked",
        "old.matched.copy()",
        "old.matched",
        "tests/unit/joins/test_joins_against_model.py::test_random_schedules_with_failures_join_what_the_model_joins",
    ),
    Mutant(
        "the_position_of_a_failed_attempt_is_kept",
        "PositionRule.after",
        "newest = {(0, partition): time for partition, time in arrivals.newest.items()}",
        """
kept = self.__dict__.setdefault("kept", {})
for partition, time in arrivals.newest.items():
    kept[partition] = max(time, kept.get(partition, time))
newest = {(0, partition): time for partition, time in kept.items()}
""",
        "tests/unit/joins/test_joins_against_model.py::test_random_schedules_with_failures_join_what_the_model_joins",
    ),
    Mutant(
        "rows_are_put_before_the_decision",
        "FeedGroup.end_txid",
        "self._ended[txid] = sorted(feeds, key=lambda one: one.task)",
        """
self._ended[txid] = sorted(feeds, key=lambda one: one.task)
self._use.store.put_many([row for feed in self._ended[txid] for row in feed.rows])
""",
        "tests/joins/test_store_joins.py",
    ),
    Mutant(
        "a_put_overwrites_the_first_row",
        "MemoryStore.put_many",
        "if id_ in ids: continue",
        "of_key[:] = [one for one in of_key if key_bytes(one.id, 'id') != id_]",
        "tests/joins/test_join_stores.py",
    ),
    Mutant(
        "a_caught_up_consumer_is_as_old_as_its_last_record",
        "collect",
        "consumed_time: float | None = now",
        "consumed_time: float | None = min(times.values(), default=now)",
        "tests/unit/joins/test_data_delay.py",
    ),
    Mutant(
        "a_pinned_value_is_read_again_at_a_replay",
        "Planning.plan",
        "if replay and not self.planner.opaque and txid in self.metas: return True",
        """
if replay and not self.planner.opaque and txid in self.metas:
    self._plan(txid, self.metas[txid].document)
    return True
""",
        "tests/joins/test_store_join_topologies.py::test_a_report_is_pinned_so_a_replay_has_the_same_one",
    ),
    Mutant(
        "a_frontier_that_later_results_may_reach",
        "Bounds.frontier",
        "low if low == END else low - 1",
        "low",
        "tests/joins/test_rules_around_joins.py",
    ),
    Mutant(
        "a_row_that_expires_on_arrival_matches_nothing",
        "RightWindow.pairs",
        "floor if number < new else lows",
        "floor",
        "tests/unit/joins/test_joins_against_model.py::test_the_rules_join_what_the_model_joins",
    ),
)


def mutated(mutant: Mutant, package: Path) -> tuple[Path, str]:
    """Return the module of `package` that `mutant` changes, and its text with the defect, or raise `LookupError`."""
    old, new = _parsed(mutant.old), _parsed(mutant.new)
    found = []
    for module in sorted(package.rglob("*.py")):
        text = module.read_text(encoding="utf-8")
        if f"def {mutant.function.rpartition('.')[2]}(" in text:
            tree = ast.parse(text)
            places = [place for name, one in _functions(tree) if name == mutant.function for place in _places(one, old)]
            found += [(module, tree, place) for place in places]
    if len(found) != 1:
        msg = f"mutant {mutant.name}: expected its place once in a function {mutant.function}, found it {len(found)}x"
        raise LookupError(msg)
    ((module, tree, replace),) = found
    replace(new)
    return module, ast.unparse(ast.fix_missing_locations(tree))


def _parsed(code: str) -> list[ast.stmt]:
    return ast.parse(code.strip()).body


def _functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        inner = within
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{within}{child.name}."
            yield inner[:-1], child
        yield from _functions(child, inner)


def _places(function: ast.AST, old: list[ast.stmt]) -> list[Callable[[list[ast.stmt]], None]]:
    """Return one function per occurrence of `old` (statements, or an expression) that replaces it by other code."""
    wanted = [ast.dump(statement) for statement in old]
    places: list[Callable[[list[ast.stmt]], None]] = []
    for node in ast.walk(function):
        for _, body in ast.iter_fields(node):
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                dumped = [ast.dump(statement) for statement in body]
                starts = (at for at in range(len(body)) if dumped[at : at + len(old)] == wanted)
                places += [partial(body.__setitem__, slice(at, at + len(old))) for at in starts]
    if places or len(old) != 1 or not isinstance(old[0], ast.Expr):
        return places
    wanted = [ast.dump(old[0].value)]
    for node in ast.walk(function):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                at = [
                    number
                    for number, item in enumerate(value)
                    if isinstance(item, ast.expr) and [ast.dump(item)] == wanted
                ]
                places += [partial(_put_expression, value.__setitem__, number) for number in at]
            elif isinstance(value, ast.expr) and [ast.dump(value)] == wanted:
                places.append(partial(_put_expression, partial(setattr, node), field))
    return places


def _put_expression(put: Callable[[Any, ast.expr], None], where: Any, new: list[ast.stmt]) -> None:
    (statement,) = new
    assert isinstance(statement, ast.Expr)
    put(where, statement.value)


def tried(mutant: Mutant, schedules: int, seed: int) -> tuple[str, str]:
    """Run the simulation, or its test, on a mutant; return the outcome, and the violation or why it was not tried."""
    with tempfile.TemporaryDirectory(prefix="txstorm-mutant-") as place:
        shutil.copytree(ROOT / "txstorm", Path(place) / "txstorm")  # with compiled files: most stay valid
        try:
            module, text = mutated(mutant, Path(place) / "txstorm")
        except LookupError as error:
            sys.exit(str(error))
        module.write_text(text, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", RUN, str(schedules), str(seed)]
        if mutant.test:
            return _tested(mutant.test, environment)
        made = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"mutant {mutant.name}: the simulation did not run:\n{made.stderr}")
        count, _, what = made.stdout.strip().partition(" ")
        return (f"schedule {count}", what) if what else (SURVIVES, "")


def _tested(test: str, environment: dict[str, str]) -> tuple[str, str]:
    """Run a test on a mutant, as `tried`. -P: import the package from the copy."""
    options = ["-qx", "-rfEs", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    command = [sys.executable, "-P", "-m", "pytest", *options, test]
    made = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode not in (0, 1):
        sys.exit(f"test {test} did not run:\n{made.stdout}{made.stderr}")
    lines = made.stdout.splitlines()
    if made.returncode:
        return "schedule 1", next(line for line in lines if line.startswith(("FAILED", "ERROR")))
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    return (NOT_TRIED, skipped[0]) if skipped and " passed" not in lines[-1] else (SURVIVES, "")


def _part(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        msg = f"expected K/N with K from 1 to N, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(number), int(parts)


def main() -> int:
    """Try the mutants named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N")
    chosen = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"no mutant {unknown[0]!r}; there are {', '.join(known)}")
    number, parts = chosen.part
    mutants = [known[name] for name in chosen.names] or MUTANTS[number - 1 :: parts]
    width, outcomes = max(len(mutant.name) for mutant in mutants), list[str]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each thread waits for its own process
        results = pool.map(partial(tried, schedules=chosen.schedules, seed=chosen.seed), mutants)
        for mutant, (outcome, what) in zip(mutants, results, strict=True):
            outcomes.append(outcome)
            print(f"{mutant.name:{width}}  {outcome:>14}  {what[:110]}", flush=True)
    survivors, skipped = map(outcomes.count, (SURVIVES, NOT_TRIED))
    rest = f", {skipped} not tried" if skipped else ""
    print(f"killed {len(mutants) - survivors - skipped} of {len(mutants)}{rest}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
