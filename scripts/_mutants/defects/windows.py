"""Known defects of `txstorm.windows`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
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
        "a_repeated_watermark_restarts_the_interval",
        "WatermarkRule.after",
        "reached <= old_watermark",
        "reached < old_watermark",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "the_end_of_input_waits_for_the_interval",
        "WatermarkRule.after",
        "waits and reached != END",
        "waits",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "the_newest_time_goes_back",
        "WatermarkRule.after",
        "Newest(time if old is None else max(old.time, time), stamp)",
        "Newest(time, stamp)",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "an_input_is_idle_at_the_present_stamp_again",
        "WatermarkRule.next_idle",
        "when > stamp",
        "when >= stamp",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "partitions_without_data_hold_nothing_back",
        "WatermarkRule._position",
        "len(times) == len(newest)",
        "True",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "inputs_without_data_hold_nothing_back",
        "WatermarkRule.reached",
        "len(known) < len(positions) or not known",
        "not known",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "idle_one_microsecond_late",
        "WatermarkRule._active",
        "stamp - self._since(at, progress) < self.idle",
        "stamp - self._since(at, progress) <= self.idle",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "times_below_the_range_are_taken",
        "_outside",
        "low <= least and greatest <= high",
        "greatest <= high",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "all_windows_of_the_first_transaction_are_first",
        "_time_ranges",
        "last.last_end is None",
        "unit.last_end is None",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "counts_of_earlier_transactions_are_forgotten",
        "_by_count",
        "(unit.counted + len(times)) % slide",
        "len(times) % slide",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "tuples_kept_for_a_count_are_forgotten",
        "_counted_windows",
        "left = kept + len(rows.times) - (firsts[-1] if firsts else 0)",
        "left = len(rows.times) - (firsts[-1] if firsts else 0)",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "a_session_without_new_tuples_is_reported_early_again",
        "early",
        "one.changed > since",
        "one.changed >= since",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "expired_before_the_first_early_result",
        "early",
        "unit.covered if form.span > form.step or end is None else before(end + 1)",
        "unit.covered",
        "tests/unit/windows/test_firing_against_model.py",
    ),
    Mutant(
        "early_results_are_due_at_the_end_of_input",
        "Units.early",
        "if self._moment.reached == END: return []",
        "pass",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "late_tuples_are_counted_at_a_key",
        "WindowCommitter._count_late",
        "unit_of_task(task) if self.plan.key is None else f'task {task}'",
        "unit_of_task(task)",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "stored_tuples_forget_the_order_of_inputs",
        "TupleBuffer.columns",
        "self._inputs.numbers[chunk.number] << TASK_BITS",
        "chunk.number << TASK_BITS",
        "tests/windows/test_window_starts.py",
    ),
    Mutant(
        "late_tuples_forget_the_order_of_inputs",
        "WindowCommitter._count_late",
        "inputs.numbers[one.chunk.number]",
        "one.chunk.number",
        "tests/windows/test_window_starts.py",
    ),
    Mutant(
        "keys_live_one_microsecond_longer",
        "Units._drop_expired",
        "self._stamp - self._known[name].stamp >= ttl",
        "self._stamp - self._known[name].stamp > ttl",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "every_task_takes_over_all_queued_keys",
        "Units.adopt",
        "self._plan.owner(unit) == self._task",
        "True",
        "tests/unit/windows/test_units.py",
    ),
    Mutant(
        "tuples_of_a_stamp_fall_behind_an_end_that_has_fired",
        "WindowCommitter._stamped",
        "max(self._context.stamp, end + 1)",
        "self._context.stamp",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "batches_of_a_transaction_arrive_at_the_same_places",
        "WindowCommitter._rows",
        "number += size",
        "pass",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "partitions_are_at_1970_at_least",
        "_newest",
        "np.full(len(encoded.dictionary), EARLIEST)",
        "np.zeros(len(encoded.dictionary), np.int64)",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "the_last_batch_has_the_newest_time",
        "NewestTimes._add",
        "max(time, self._newest.get(part, time))",
        "time",
        "tests/unit/windows/test_event_time.py",
    ),
    Mutant(
        "early_results_one_transaction_late",
        "WindowCommitter.finish_batch",
        "context.stamp - early_stamp >= plan.early",
        "context.stamp - early_stamp > plan.early",
        "tests/windows/test_windowed_bolts.py",
    ),
    Mutant(
        "a_stream_of_other_fields_gets_the_late_tuples",
        "_late_faults",
        "own is None or own.fields == plan.union",
        "True",
        "tests/bad_input/test_bad_lookups.py",
    ),
)
