"""Known defects of `txstorm.joins`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
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
        "after = self.watermark.after(progress, arrivals.newest, stamp, arrivals.facts)",
        """
kept = self.__dict__.setdefault("kept", {})
for place, time in arrivals.newest.items():
    kept[place] = max(time, kept.get(place, time))
after = self.watermark.after(progress, kept, stamp, arrivals.facts)
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
    Mutant(
        "pending_rows_are_released_at_the_position",
        "Pending.released",
        "np.searchsorted(one.times, limit)",
        "np.searchsorted(one.times, limit, 'right')",
        "tests/unit/joins/test_joins_against_model.py::test_random_schedules_with_failures_join_what_the_model_joins",
    ),
    Mutant(
        "expiry_goes_back",
        "RightWindow.expire",
        "max(bound, self.bound)",
        "bound",
        "tests/unit/joins/test_right_window.py",
    ),
    Mutant(
        "the_last_row_of_a_block_expires_early",
        "RightWindow.expire",
        "block.most >= bound",
        "block.most > bound",
        "tests/unit/joins/test_joins_against_model.py::test_the_rules_join_what_the_model_joins",
    ),
    Mutant(
        "rows_at_the_bound_expire",
        "Block.expiring",
        "self.times < high",
        "self.times <= high",
        "tests/unit/joins/test_joins_against_model.py::test_the_rules_join_what_the_model_joins",
    ),
    Mutant(
        "a_merge_drops_rows_at_the_bound",
        "Block.merged",
        "one.times >= bound",
        "one.times > bound",
        "tests/unit/joins/test_right_window.py",
    ),
    Mutant(
        "rows_at_the_upper_bound_do_not_match",
        "Block.ranges",
        "high[found] + 1",
        "high[found]",
        "tests/unit/joins/test_right_window.py",
    ),
    Mutant(
        "keys_of_equal_hash_are_equal",
        "RightWindow.pairs",
        "not self.exact or block.stored.column(KEY).null_count",
        "block.stored.column(KEY).null_count",
        "tests/unit/joins/test_right_window.py",
    ),
    Mutant(
        "a_consumer_is_never_at_the_end",
        "_at_end",
        "(-1 if offset is None else offset) + 1 >= end",
        "(-1 if offset is None else offset) + 1 > end",
        "tests/unit/joins/test_data_delay.py",
    ),
    Mutant(
        "consumed_up_to_the_last_record_only",
        "collect",
        "found += [previous.now] if one in previous.caught_up and one in behind else []",
        "pass",
        "tests/unit/joins/test_data_delay.py",
    ),
    Mutant(
        "a_rewound_consumer_keeps_its_time",
        "_reached",
        "offset >= before",
        "True",
        "tests/unit/joins/test_data_delay.py",
    ),
    Mutant(
        "one_record_fewer_is_looked_back_at",
        "_times",
        "(offset or 0) - look_back - 1",
        "(offset or 0) - look_back",
        "tests/unit/joins/test_data_delay.py",
    ),
    Mutant(
        "a_range_in_a_store_excludes_its_end",
        "MemoryStore.get_many",
        "bisect_right(of_key, end, key=_TIME)",
        "bisect_left(of_key, end, key=_TIME)",
        "tests/joins/test_join_stores.py",
    ),
    Mutant(
        "rows_put_late_never_expire",
        "MemoryStore.put_many",
        "not of_key or time < of_key[0].time",
        "not of_key",
        "tests/joins/test_join_stores.py",
    ),
    Mutant(
        "ids_of_expired_rows_stay_known",
        "MemoryStore.expire",
        "ids.difference_update(key_bytes(row.id, 'id') for row in of_key[:count])",
        "pass",
        "tests/joins/test_join_stores.py",
    ),
    Mutant(
        "a_mark_is_replaced_whatever_it_is",
        "MemoryStore.replace_mark",
        "self._mark != expected",
        "False",
        "tests/joins/test_join_stores.py",
    ),
    Mutant(
        "the_offset_after_a_time_is_the_first",
        "first_at_or_after",
        "time < wanted",
        "time <= wanted",
        "tests/unit/joins/test_offsets.py",
    ),
    Mutant(
        "times_of_numpy_are_no_times",
        "_is_time",
        "isinstance(value, Real)",
        "isinstance(value, int | float)",
        "tests/unit/joins/test_offsets.py",
    ),
    Mutant(
        "null_keys_match_in_a_look_up",
        "LookupTable.find",
        "times[none] = 0",
        "pass",
        "tests/unit/joins/test_lookup_table.py",
    ),
    Mutant(
        "the_table_used_last_is_dropped_first",
        "_Cache.get",
        "self._tables.move_to_end(content)",
        "pass",
        "tests/unit/joins/test_lookup_table.py",
    ),
    Mutant(
        "escaped_characters_of_a_uri_stay_escaped",
        "_directory",
        "unquote(text.removeprefix('file:').lstrip('/'))",
        "text.removeprefix('file:').lstrip('/')",
        "tests/joins/test_lookup_joins.py",
    ),
)
