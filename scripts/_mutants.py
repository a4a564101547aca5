"""Deliberate defects of the shipped protocol: each is put into a copy of the package, and the simulation looks for it.

For defects of code that the simulation does not run (stores of maps), a named test looks instead.

Arguments: ``[--schedules N] [--seed S] [NAME...]``. As many are tried at once as there are processors. The last line is
``killed K of N``; exit code 1 when one survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RUN = """
import sys
from txstorm.testing.simulation import simulate
report = simulate(int(sys.argv[1]), int(sys.argv[2]), stop_at=1)
print(report.schedules, report.found[0].what if report.found else "")
"""


class Mutant(NamedTuple):
    """A defect: in `file`, `old`, which is there once, becomes `new`; `test` looks for it, or else the simulation."""

    name: str
    file: str
    old: str
    new: str
    test: str = ""


MACHINE, PLANNING, BOOKS = "coordinator/machine.py", "runtime/planning.py", "runtime/books.py"
CONCLUDING, LEADING, LOGGED = "runtime/concluding.py", "runtime/leading.py", "state/logged.py"
REWINDING, EXECUTORS = "runtime/rewinding.py", "spouts/executors.py"
STATE_CHECKS = "tests/unit/testing/test_state_checks.py"
ROSTER, RECOVERY = "runtime/roster.py", "state/recovery.py"

MUTANTS = (
    Mutant(
        "storms_literal_fail",
        MACHINE,
        """    if not _is_current(state, index, event.attempt_id):
        return state, ()
    after, discard = _cut(state, index)""",
        """    if not _is_current(state, index, event.attempt_id):
        if 0 <= index < len(state.entries):
            return state._replace(entries=state.entries[:index] + state.entries[index + 1 :]), ()
        return state, ()
    after, discard = _cut(state, index)""",
    ),
    Mutant(
        "opaque_rule_without_going_back_to_prev",
        "state/semantics.py",
        "    return row.prev if is_applied(row, txid) else row.value\n",
        "    is_applied(row, txid)\n    return row.value\n",
    ),
    Mutant(
        "previous_is_the_nearest_committed",
        PLANNING,
        "        previous = self.metas.get(txid - 1)\n",
        "        previous = self.metas.get(min([t for t in self.metas if t < txid], default=0))\n",
    ),
    Mutant(
        "metadata_deleted_before_commit",
        PLANNING,
        "for txid in list(self.metas) if txid < last]",
        "for txid in list(self.metas) if txid <= last + 1]",
    ),
    Mutant(
        "n_plus_1_before_n",
        MACHINE,
        "    size = _due(state)\n    if not size:",
        """    for at, entry in enumerate(state.entries):
        if not state.committing and entry.status is PROCESSED:
            return state, (Commit((state.currtx + at,), (entry.attempt_id,)),)
    size = _due(state)
    if not size:""",
    ),
    Mutant(
        "currtx_before_the_last_table",
        CONCLUDING,
        "        versions = self._decide_and_publish(intent, milliseconds)\n",
        """        if intent.tables:
            self._books.decide(intent)
        self._books.complete(intent.last, {**self._tables, **{t.uri: intent.last for t in intent.tables}}, [])
        versions = self._publish(intent)
""",
    ),
    Mutant(
        "intent_after_the_first_table",
        CONCLUDING,
        """        with timed(milliseconds, "decide"):
""",
        """        from dataclasses import replace
        self._store.publish(replace(intent, tables=intent.tables[:1]), self._books.epoch)
        with timed(milliseconds, "decide"):
""",
    ),
    Mutant("no_epoch_check", LOGGED, "        if found > epoch:\n", "        if found > epoch + 1000:\n"),
    Mutant(
        "blind_retry_after_a_lost_answer",
        LOGGED,
        "                self._lost = True\n                version = self._published(table, intent, epoch)\n",
        "",
    ),
    Mutant(
        "lost_race_without_reading_again",
        LOGGED,
        "        except ConflictError:\n            self._log.refresh()\n",
        "        except ConflictError:\n",
    ),
    Mutant(
        "clean_up_before_completion",
        BOOKS,
        """        for ops in in_commits([done, *beside]) if beside else (done,):
            self._commit(ops)
""",
        """        self._commit(list(remove))
        for ops in in_commits([done, *beside]) if beside else (done,):
            self._commit(ops)
""",
    ),
    Mutant(
        "naive_group_commit",
        LOGGED,
        "        first, last = table.previous + 1, intent.last\n",
        "        first = last = intent.last\n",
    ),
    Mutant(
        "ack_of_a_stale_attempt_counts",
        MACHINE,
        "    if not _is_current(state, index, event.attempt_id) or state.entries[index].status is not PROCESSING:",
        "    if not 0 <= index < len(state.entries) or state.entries[index].status is not PROCESSING:",
    ),
    Mutant(
        "compaction_without_looking_again",
        LOGGED,
        "            if files.base not in (None, last) or len(leaving) < len(leaves):\n",
        "            if False:\n",
    ),
    Mutant(
        "compaction_leaves_the_old_files",
        LOGGED,
        "return Commit(apps, info, files.adds, leaving, files.now,",
        "return Commit(apps, info, files.adds, (), files.now,",
    ),
    Mutant(
        "recovery_completes_without_publishing",
        LEADING,
        "        versions = roll_forward(where, intent, books.epoch)\n",
        "        versions = {table.uri: 0 for table in intent.tables}\n",
    ),
    Mutant(
        "recovery_does_not_complete",
        LEADING,
        "            complete(books, intent, versions)\n",
        "            pass\n",
    ),
    Mutant(
        "recovery_drops_what_is_decided",
        LEADING,
        "        versions = roll_forward(where, intent, books.epoch)\n",
        "        books.abandon([intent])\n        continue\n",
    ),
    Mutant(
        "nobody_raises_the_tables_epoch",
        LOGGED,
        "            if self._check_epoch(epoch) == epoch and not fresh:\n",
        "            if self._check_epoch(epoch) <= epoch and not fresh:\n",
    ),
    Mutant(
        "ledger_without_epoch_guard",
        BOOKS,
        "        self._guard = [Check(names.EPOCH, expect + 1)]",
        "        self._guard = []",
    ),
    Mutant(
        "metadata_is_not_stored_before_processing",
        PLANNING,
        "            self._books.write_metas(self._unsaved)\n            self._unsaved = {}\n",
        "            self._unsaved = {}\n",
    ),
    Mutant(
        "transactional_replay_is_planned_anew",
        PLANNING,
        "        if replay and not self.planner.opaque and txid in self.metas:\n",
        "        if False:\n",
    ),
    Mutant(
        "rewind_moves_the_ledger_first",
        REWINDING,
        "    place, now = placed(where), int(clock() * 1000)\n",
        "    place, now = placed(where), int(clock() * 1000)\n"
        "    books.rewound(rewind, dict.fromkeys(books.tables(), rewind.txid))\n"
        "    if books.rewind() is None and clock() * 1_000_000 % 3 == 0:\n        return\n",
    ),
    Mutant(
        "rewind_is_finished_with_an_old_epoch",
        REWINDING,
        "    books.raise_epoch()\n",
        "",
    ),
    Mutant(
        "rewind_keeps_one_transaction_too_many",
        "state/rewind.py",
        "    removes = [path for path, (_, last) in spans.items() if last > txid]\n",
        "    removes = [path for path, (_, last) in spans.items() if last > txid + 1]\n",
    ),
    Mutant(
        "rewind_forgets_files_that_go_on",
        "state/rewind.py",
        "rows.kept(cut, txid) if cut else ())",
        "())",
    ),
    Mutant(
        "sweeper_takes_files_of_newer_coordinators",
        "state/sweep.py",
        "    return written is not None and written <= epoch\n",
        "    return written is not None\n",
    ),
    Mutant(
        "sweeper_ignores_older_versions",
        "state/sweep.py",
        "        logged = log.logged_paths()\n",
        "        logged = {file.path for file in log.files()}\n",
    ),
    Mutant(
        "the_guard_is_what_is_read_back",
        BOOKS,
        "        self._guard = [Check(names.EPOCH, expect + 1)]",
        "        self._guard = [Check(names.EPOCH, self.ledger.get(names.EPOCH).version)]",
    ),
    Mutant(
        "opaque_metadata_is_kept_over_a_restart",
        PLANNING,
        "        if not self.planner.opaque:\n            return stored\n",
        "        if True:\n            return stored\n",
    ),
    Mutant(
        "failure_keeps_later_transactions",
        MACHINE,
        "    after = state._replace(\n        entries=state.entries[:index], committing",
        "    dead = dead[:1]\n    after = state._replace(\n"
        "        entries=state.entries[:index] + state.entries[index + 1 :], committing",
    ),
    Mutant(
        "tables_are_not_recorded",
        CONCLUDING,
        "        self._tables.update(dict.fromkeys(touched, last))\n",
        "        list(touched)\n",
    ),
    Mutant(
        "publishes_with_the_epoch_of_who_decided",
        LOGGED,
        "        apps = {self._txid_app: last, self._epoch_app: epoch}\n",
        "        apps = {self._txid_app: last, self._epoch_app: intent.epoch}\n",
    ),
    Mutant(
        "compaction_without_epoch_check",
        LOGGED,
        "            self._check_epoch(epoch)\n            last, leaves = ",
        "            last, leaves = ",
    ),
    Mutant(
        "compacted_state_is_said_to_be_newer",
        LOGGED,
        "            txid, label = files.as_of, ",
        "            txid, label = files.as_of + 1, ",
    ),
    Mutant(
        "rewind_leaves_later_metadata",
        BOOKS,
        "        old = (names.META, names.INTENTS, names.HISTORY, names.FAILURES)\n",
        "        old = (names.INTENTS, names.HISTORY, names.FAILURES)\n",
    ),
    Mutant(
        "rewind_leaves_intents",
        BOOKS,
        "        old = (names.META, names.INTENTS, names.HISTORY, names.FAILURES)\n",
        "        old = (names.META, names.HISTORY, names.FAILURES)\n",
    ),
    Mutant(
        "sweeper_ignores_intents",
        "state/sweep.py",
        "    return {staged.path for table in tables for staged in table.files}\n",
        "    return set() & {table.uri for table in tables}\n",
    ),
    Mutant(
        "what_is_processed_comes_again_and_counts",
        MACHINE,
        "    if not _is_current(state, index, event.attempt_id) or state.entries[index].status is not PROCESSING:",
        "    if not _is_current(state, index, event.attempt_id):",
    ),
    Mutant(
        "one_more_in_flight",
        MACHINE,
        "len(state.entries) >= state.config.max_pending",
        "len(state.entries) > state.config.max_pending",
    ),
    Mutant(
        "one_more_in_a_group",
        MACHINE,
        "islice(state.entries, index, index + state.config.max_group)",
        "islice(state.entries, index, index + state.config.max_group + 1)",
    ),
    Mutant(
        "failed_transactions_do_not_wait",
        MACHINE,
        "    if txid in state.held or (",
        "    if (",
    ),
    Mutant(
        "new_transactions_though_inactive",
        MACHINE,
        "    return replay or state.mode is Mode.ACTIVE\n",
        "    return True\n",
    ),
    Mutant(
        "the_rest_of_a_group_begins_before_its_failure_is_told",
        MACHINE,
        "    elif back:\n",
        "    elif False:\n",
    ),
    Mutant(
        "times_go_back_with_the_clock",
        PLANNING,
        "        stamp = max(self._clock(), 0 if previous is None else previous.stamp)\n",
        "        stamp = self._clock()\n",
    ),
    Mutant(
        "what_was_read_is_not_kept",
        PLANNING,
        "                self._books.note_metas(changed)\n",
        "                pass\n",
    ),
    Mutant(
        "another_batch_than_the_first_time",
        PLANNING,
        "            if before != digest:\n",
        "            if False:\n",
    ),
    Mutant(
        "a_database_is_changed_before_it_is_known_what_was_read",
        PLANNING,
        "            if self.planner.task_planned or self._external:\n",
        "            if self.planner.task_planned:\n",
    ),
    Mutant(
        "metadata_stays_for_good",
        PLANNING,
        "        return [Delete(names.meta_path(txid)) for txid in list(self.metas) if txid < last]\n",
        "        return [Delete(names.meta_path(txid)) for txid in list(self.metas) if txid < last - 1]\n",
    ),
    Mutant(
        "one_intent_fewer_is_kept",
        CONCLUDING,
        "        old, self._kept = self._kept[: -self._keep], self._kept[-self._keep :]\n",
        "        old, self._kept = self._kept[: 1 - self._keep], self._kept[1 - self._keep :]\n",
    ),
    Mutant(
        "what_is_decided_is_published_only_once",
        CONCLUDING,
        "            if self._sleep(pause_after(attempt)):\n",
        "            if not self._sleep(pause_after(attempt)):\n",
    ),
    Mutant(
        "the_history_names_no_versions",
        "runtime/outcome.py",
        '            "versions": dict(versions),\n',
        '            "versions": {},\n',
    ),
    Mutant(
        "recovery_forgets_other_tables",
        LEADING,
        "    tables = {**known, **dict",
        "    tables = {**dict",
    ),
    Mutant(
        "a_start_does_not_compare_ledger_and_tables",
        "state/recovery.py",
        "        table.check_writable()\n        _check_txid(table, recorded, live)\n",
        "        table.check_writable()\n",
    ),
    Mutant(
        "a_start_does_not_look_for_staged_files",
        LEADING,
        "    check_kept(where, standing.intents)\n",
        "",
    ),
    Mutant(
        "other_peoples_tables_are_taken",
        "state/owner.py",
        '    if properties["txstorm.incarnation"] != owner.incarnation:\n',
        "    if False:\n",
    ),
    Mutant(
        "entries_that_are_lost_do_not_show",
        "state/tiling.py",
        "        if last is not None and expected is not None and expected != last:\n",
        "        if False:\n",
    ),
    Mutant(
        "what_is_published_is_not_durable",
        LOGGED,
        '                self._make_durable(version)\n                faults.point(f"p7.{number}.after")\n',
        '                faults.point(f"p7.{number}.after")\n',
    ),
    Mutant(
        "what_dead_coordinators_committed_is_not_durable",
        LOGGED,
        "            self._durable, self._doubted = self._known_durable(completed), True\n",
        "            pass\n",
    ),
    Mutant(
        "a_failed_sync_is_tried_again_and_believed",
        LOGGED,
        "        again, self._doubted = self._doubted, True\n",
        "        again = False\n",
    ),
    Mutant(
        "a_failed_sync_of_an_earlier_coordinator_is_believed",
        LOGGED,
        "            self._durable, self._doubted = self._known_durable(completed), True\n",
        "            self._durable = self._known_durable(completed)\n",
    ),
    Mutant(
        "superseded_coordinators_make_savepoints",
        BOOKS,
        "self.ledger.commit([*self._guard, *expected, ",
        "self.ledger.commit([*expected, ",
    ),
    Mutant(
        "a_rewind_leaves_history_out",
        REWINDING,
        "    place.append_history([row for rows in books.history().values() for row in rows])\n",
        "",
    ),
    Mutant(
        "states_that_a_rewind_made_are_passed_over",
        "state/versions.py",
        "not in (COMPACTED, COMMITTED, *_WHOLE)",
        "not in (COMPACTED, COMMITTED, CREATED)",
    ),
    Mutant(
        "states_go_back_further_than_they_have_to",
        "state/versions.py",
        "not in (COMPACTED, COMMITTED, *_WHOLE)",
        "not in (COMMITTED, CREATED, RESTORED)",
    ),
    Mutant(
        "what_a_state_was_does_not_come_back",
        "state/rewind.py",
        "    adds = tuple(file for path, file in sorted(then.items()) if path not in now)\n",
        "    adds = ()\n",
    ),
    Mutant(
        "the_table_of_a_state_is_not_taken_over",
        "state/recovery.py",
        "        table.raise_epoch(epoch, recorded.get(ref.uri))\n",
        "        if ref.kind != STATE:\n            table.raise_epoch(epoch, recorded.get(ref.uri))\n",
    ),
    Mutant(
        "where_tables_stand_after_recovery_is_not_recorded",
        LEADING,
        ", **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
        "}",
    ),
    Mutant(
        "metadata_stays_after_recovery",
        LEADING,
        "history_rows(intent, versions), old)",
        "history_rows(intent, versions))",
    ),
    Mutant(
        "that_there_is_a_table_is_not_recorded",
        BOOKS,
        "            ops.append(self._put(names.DROPPED, after.to_json()))\n        self._commit(ops)\n",
        "            ops.append(self._put(names.DROPPED, after.to_json()))\n",
    ),
    Mutant(
        "epochs_are_raised_whatever_stands_there",
        BOOKS,
        "self._put(names.EPOCH, epoch, expect)",
        "self._put(names.EPOCH, epoch)",
    ),
    Mutant(
        "a_compaction_gives_up_at_once",
        LOGGED,
        "            if files.base not in (None, last) or len(leaving) < len(leaves):\n",
        "            if files.as_of is not None or len(leaving) < len(leaves):\n",
    ),
    Mutant(
        "who_slept_through_a_rewind_goes_on_before_it",
        LEADING,
        "    _check_not_rewound(books, identity)\n",
        "",
    ),
    Mutant(
        "recorded_tables_are_left_out_silently",
        ROSTER,
        "    return (books.tables().keys() | live) - declared.keys()\n",
        "    return live - declared.keys()\n",
    ),
    Mutant(
        "a_dropped_table_shows_as_current",
        RECOVERY,
        "            place.table(owner, ref).drop(dropped[uri], epoch)\n",
        "            place.table(owner, ref)\n",
    ),
    Mutant(
        "an_interrupted_drop_is_not_finished",
        LEADING,
        "    mark_dropped(where, books.dropped().tables, owner, epoch)\n",
        "",
    ),
    Mutant(
        "the_table_of_a_dropped_state_shows_as_current",
        RECOVERY,
        "    recorded = {ref: uri for uri in dropped for ref in tables_of([uri])}\n",
        "    recorded = {table_ref(uri): uri for uri in dropped}\n",
    ),
    Mutant(
        "dropped_tables_stay_recorded",
        ROSTER,
        "            {**before.tables, **dict.fromkeys(self.tables, committed)},\n",
        "            before.tables,\n",
    ),
    Mutant(
        "a_rewind_ignores_the_beginning_of_a_table",
        "state/rewind.py",
        "    since, until = min(table.since(), rewind.txid), table.until()\n",
        "    since, until = table.since(), table.until()\n",
    ),
    Mutant(
        "a_rewind_takes_dropped_tables_for_current_ones",
        "state/rewind.py",
        "        txid = min(txid, until)\n",
        "        pass\n",
    ),
    Mutant(
        "a_table_begins_where_a_killed_start_has_made_it",
        LOGGED,
        "self._epoch_app: epoch, self.owner.since_app: txid}, info)",
        "self._epoch_app: epoch}, info)",
    ),
    Mutant(
        "rows_that_are_gathered_are_said_to_be_new",
        LOGGED,
        "        change = files.as_of is not None or files.floor is not None\n",
        "        change = True\n",
    ),
    Mutant(
        "metadata_is_handed_out_live",
        EXECUTORS,
        'return None if document is None else copied(document["meta"])',
        'return None if document is None else document["meta"]',
    ),
    Mutant(
        "what_a_coordinator_returned_is_kept_itself",
        EXECUTORS,
        """{"meta": storable(meta, f"spout {self._component!r}, txid {txid}")}""",
        """{"meta": meta}""",
    ),
    Mutant(
        "a_mark_is_compared_and_moved_in_two_steps",
        "clients/sql.py",
        """        same = [self._marks.c[name] == value for name, value in asdict(expected).items()]
        found = connection.execute(
            sa.update(self._marks).where(self._marks.c.map == self._name, *same).values(**asdict(mark))
        )
""",
        """        columns = [self._marks.c[name] for name in asdict(mark)]
        stored = connection.execute(sa.select(*columns).where(self._marks.c.map == self._name)).one_or_none()
        if stored is None or MapMark(*stored) != expected:
            return False
        connection.commit()
        connection.begin()
        found = connection.execute(
            sa.update(self._marks).where(self._marks.c.map == self._name).values(**asdict(mark))
        )
""",
        test=f"{STATE_CHECKS}::test_sqlite_passes",
    ),
    Mutant(
        "a_store_in_memory_moves_its_mark_outside_its_lock",
        "state/memory.py",
        """        with self._lock:
            if self._mark != expected:
                return False
            self._put(rows)
            self._mark = mark
            return True
""",
        """        if self._mark != expected:
            return False
        with self._lock:
            self._put(rows)
            self._mark = mark
            return True
""",
        test=f"{STATE_CHECKS}::test_stores_in_memory_pass",
    ),
    Mutant(
        "files_of_versions_that_stay_are_superseded",
        "state/versions.py",
        "sorted(path for path in removes if path not in self._files)",
        "sorted(removes)",
    ),
    Mutant(
        "a_rewind_takes_a_version_that_does_not_stay",
        "state/versions.py",
        """            if entry.info.get(STAYS, True):
                yield entry, as_of(entry.info)
            if BASE in entry.info:
                below = int(entry.info[BASE][0])
                break
""",
        "            yield entry, as_of(entry.info)\n",
    ),
)


def killed(mutant: Mutant, schedules: int, seed: int) -> tuple[int, str]:
    """How many schedules it took, and what was found; nothing when the mutant survives."""
    with tempfile.TemporaryDirectory(prefix="txstorm-mutant-") as place:
        shutil.copytree(ROOT / "txstorm", Path(place) / "txstorm")  # compiled files too: most stay as they are
        file = Path(place) / "txstorm" / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            sys.exit(
                f"mutant {mutant.name}: expected its place once in {mutant.file}, found it {text.count(mutant.old)}x"
            )
        file.write_text(text.replace(mutant.old, mutant.new))
        environment = {**os.environ, "PYTHONPATH": place, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", RUN, str(schedules), str(seed)]
        if mutant.test:
            return _tested(mutant.test, environment)
        made = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, check=False)
        if made.returncode:
            sys.exit(f"mutant {mutant.name}: the simulation did not run:\n{made.stderr}")
        count, _, what = made.stdout.strip().partition(" ")
        return int(count), what


def _tested(test: str, environment: dict[str, str]) -> tuple[int, str]:
    """As `killed`, by a test, which counts as one schedule; -P: the package comes from the copy, not from here."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", test]
    made = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode not in (0, 1):
        sys.exit(f"test {test} did not run:\n{made.stdout}{made.stderr}")
    found = [line for line in made.stdout.splitlines() if line.startswith("FAILED")]
    return 1, found[0] if found else ""


def main() -> int:
    """Try the mutants that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := [name for name in chosen.names if name not in known]:
        parser.error(f"no mutant {unknown[0]!r}; there are {', '.join(known)}")
    mutants = [known[name] for name in chosen.names] or MUTANTS
    width, survivors = max(len(mutant.name) for mutant in mutants), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each of them waits for a process of its own
        tried = pool.map(partial(killed, schedules=chosen.schedules, seed=chosen.seed), mutants)
        for mutant, (count, what) in zip(mutants, tried, strict=True):
            survivors += not what
            print(f"{mutant.name:{width}}  {f'schedule {count}' if what else 'SURVIVES':>14}  {what[:110]}", flush=True)
    print(f"killed {len(mutants) - survivors} of {len(mutants)}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
