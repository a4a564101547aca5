"""Known defects of `txstorm.runtime`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_commit_that_is_over_is_at_work",
        "Turn.how_far",
        "since is None or attempt is None or seconds < longer",
        "attempt is None",
        "tests/unit/runtime/test_runs.py::test_work_that_takes_long_shows_how_far_it_is",
    ),
    Mutant(
        "previous_is_the_nearest_committed",
        "Planning.plan",
        "self.metas.get(txid - 1)",
        "self.metas.get(min([t for t in self.metas if t < txid], default=0))",
    ),
    Mutant(
        "metadata_deleted_before_commit",
        "Flow.outlived",
        "(Delete(names.meta_path(txid)) for txid in list(self.planning.metas) if txid < last)",
        "(Delete(names.meta_path(txid)) for txid in list(self.planning.metas) if txid <= last + 1)",
    ),
    Mutant(
        "currtx_before_the_last_table",
        "Publisher.conclude",
        """
with turn.timed('publish'):
    versions = self._publish(intent)
""",
        """
books.complete(last, {**self._tables, **{table.uri: last for table in tables}}, [])
versions = self._publish(intent)
""",
    ),
    Mutant(
        "intent_after_the_first_table",
        "Publisher.conclude",
        """
with turn.timed('decide'):
    books.decide(intent)
""",
        """
from dataclasses import replace
self._store.publish(replace(intent, tables=intent.tables[:1]), books.epoch)
books.decide(intent)
""",
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
        "replay and self.is_fixed(txid)",
        "False",
    ),
    Mutant(
        "opaque_metadata_is_kept_over_a_restart",
        "Planning.open",
        "not self.planner.opaque",
        "True",
    ),
    Mutant(
        "tables_are_not_recorded",
        "Publisher.conclude",
        "self._tables.update({table.uri: last for table in tables if table.uri in self._tables})",
        "pass",
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
        "Flow.outlived",
        "(Delete(names.meta_path(txid)) for txid in list(self.planning.metas) if txid < last)",
        "(Delete(names.meta_path(txid)) for txid in list(self.planning.metas) if txid < last - 1)",
    ),
    Mutant(
        "one_intent_fewer_is_kept",
        "Publisher.conclude",
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
        "no_heartbeat_after_a_start",
        "Flow.open",
        "0 if currtx > 1 else None",
        "None",
        "tests/unit/runtime/batches/test_system.py",
    ),
    Mutant(
        "a_pinned_value_is_read_again_at_a_replay",
        "Planning.plan",
        "if replay and self.is_fixed(txid): return True",
        """
if replay and self.is_fixed(txid):
    self._plan(txid, self.metas[txid].document)
    return True
""",
        "tests/joins/test_store_joins.py::test_a_report_is_pinned_so_a_replay_has_the_same_one",
    ),
    Mutant(
        "jobs_begin_beyond_the_limit_of_bytes",
        "Flow.submit",
        "not self.full",
        "True",
        "tests/unit/runtime/batches/test_planning.py",
    ),
    Mutant(
        "finished_jobs_are_in_a_reference_cycle",
        "Flow.submit",
        "partial(self._report, job.number)",
        "lambda _: self._report(job.number, _)",
        "tests/unit/runtime/batches/test_planning.py",
    ),
    Mutant(
        "upkeep_begins_with_the_run",
        "Upkeep.look",
        "now < max(self._not_before, self._opening_until)",
        "now < self._not_before",
        "tests/unit/runtime/test_maintenance.py",
    ),
    Mutant(
        "a_stand_by_leads_without_the_lease",
        "_Watch._taken",
        "ledger.acquire(self._owner)",
        "pass",
        "tests/recovery/takeover/test_standby.py::test_a_ledger_that_is_away_for_a_while_is_waited_for",
    ),
    Mutant(
        "a_stand_by_leads_although_the_run_was_killed",
        "_Watch.wait",
        "self._check_killed()",
        "pass",
    ),
    Mutant(
        "a_job_that_ends_does_not_wake_the_driver",
        "Driver.open",
        "lambda job: self._loop.put(lambda: self._job_done(job))",
        "lambda job: self._loop.timers.later(0.0, lambda: self._job_done(job))",
    ),
    Mutant(
        "a_commit_that_ends_does_not_wake_the_driver",
        "Driver.__init__",
        "self._line.open(self._loop.put, self.group_done, self._failed_early)",
        """
self._line.open(
    lambda call: self._loop.timers.later(0.0, call), self.group_done, self._failed_early
)
""",
    ),
    Mutant(
        "a_txid_finishes_early_behind_a_gap",
        "CommitLine.finish_early",
        "txid != self.reached + 1",
        "txid <= self.reached",
        "tests/unit/runtime/commit/test_line.py",
    ),
    Mutant(
        "rows_of_other_attempts_that_finished_early_stay",
        "CommitLine.finish",
        "turn.tables.drop_from(min([*tried, txns[0].input.attempt]).txid)",
        "pass",
        "tests/unit/runtime/commit/test_line.py",
    ),
    Mutant(
        "an_abandoned_thread_goes_on_with_its_turn",
        "Turn._check",
        "self._abandoned",
        "False",
    ),
    Mutant(
        "a_jump_of_the_clock_holds_nothing",
        "Flow.plan",
        "self._clock.holds() and not fixed",
        "bool(self._clock.holds()) and False",
        "tests/recovery/failures/test_clock_jumps.py",
    ),
    Mutant(
        "stamps_follow_a_jump_at_once",
        "StampClock.now",
        "ahead if ahead <= self._ahead + self._limit else self._ahead",
        "ahead",
        "tests/unit/runtime/batches/test_wall_clock.py",
    ),
    Mutant(
        "a_suspended_machine_counts_as_a_jump",
        "StampClock._read",
        "self._lanes.boot()",
        "self._lanes.monotonic()",
        "tests/unit/runtime/batches/test_wall_clock.py",
    ),
    Mutant(
        "a_start_on_a_doubted_clock_is_a_sign_of_life",
        "StampClock.seen",
        "self.now() if self._doubt is None and self.settled else self._last",
        "self._lanes.now()",
        "tests/unit/runtime/batches/test_wall_clock.py",
    ),
    Mutant(
        "a_start_before_the_last_stamp_goes_on",
        "_claim",
        "check_not_behind(now, stamps, books.currtx() - 1, data_dir, accepted=start.options.accept_clock)",
        "pass",
        "tests/recovery/failures/test_clock_jumps.py",
    ),
    Mutant(
        "half_of_the_rows_is_too_much",
        "LetterLimit._judged",
        "2 * tally.letters > tally.rows",
        "2 * tally.letters >= tally.rows",
        "tests/recovery/failures/test_letter_limit.py::test_by_default_more_than_half_of_a_component_is_too_much",
    ),
    Mutant(
        "a_type_that_no_value_fits_is_a_fault_of_the_records",
        "Tally.unfitting",
        "kept <= 0",
        "False",
        "tests/recovery/failures/test_letter_limit.py::test_a_type_that_no_value_fits_is_a_fault_of_the_declaration",
    ),
    Mutant(
        "an_input_that_does_not_fit_is_hidden_by_others",
        "Tally.unfitting",
        "of in self.kept and times >= SAMPLE",
        "False",
        "tests/recovery/failures/test_letter_limit.py::test_an_input_to_whose_type_no_value_fits_ends_the_run",
    ),
    Mutant(
        "the_bound_of_a_state_with_the_layout_merge_ends_with_the_plan",
        "Planning.bound",
        "self.upto is None or self.holds",
        "self.upto is None",
        "tests/recovery/lifecycle/test_wanted_clocks.py::test_with_the_layout_merge_its_transaction_ends_a_group",
    ),
    Mutant(
        "what_was_committed_before_the_start_is_waited_for",
        "Snapshots._take_up",
        "committed is not None and committed != left.clock and committed.reaches(left.clock)",
        "False",
        "tests/recovery/lifecycle/test_wanted_clocks.py::test_a_crash_after_it_was_committed",
    ),
    Mutant(
        "a_plan_that_is_to_be_made_anew_counts_as_data",
        "Snapshots.last_planned",
        "self._planning.planner.opaque",
        "False",
        "tests/unit/runtime/test_clock_snapshots.py::test_an_opaque_replay_whose_partition_stays_away_is_given_up",
    ),
    Mutant(
        "a_clock_that_is_complete_stays_wanted",
        "Snapshots._beside",
        "[Delete(WANTED)] if chosen.txid is None else []",
        "[]",
        "tests/recovery/lifecycle/test_wanted_clocks.py::test_with_the_layout_merge_its_transaction_ends_a_group",
    ),
)
