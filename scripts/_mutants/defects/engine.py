"""Known defects of `txstorm.engine`."""

from scripts._mutants.mutation import Mutant

_RECORDS = "tests/recovery/failures/test_one_bad_record.py"
_ONE = f"{_RECORDS}::test_one_bad_record_is_one_letter_and_costs_no_result"

_ORDER = "tests/conformance/test_source_order.py::test_each_transaction_begins_where_the_last_one_ended"

_BEHIND = "tests/windows/test_window_progress.py::test_time_behind_counts_for_what_live_sources_feed"

_ARROW = "tests/unit/engine/test_arrow.py"

MUTANTS = (
    Mutant(
        "a_text_beside_bytes_becomes_bytes",
        "as_columns",
        "_check_types(values)",
        "None",
        f"{_ARROW}::test_no_value_of_a_column_changes_because_of_its_neighbours",
    ),
    Mutant(
        "a_text_beside_others_may_be_no_unicode",
        "_column",
        "isinstance(value, str) and not value.isascii()",
        "False",
        f"{_ARROW}::test_texts_that_are_not_unicode_are_refused_beside_any_value[1]",
    ),
    Mutant(
        "a_dictionary_may_have_one_key_twice",
        "_simple",
        "kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind)",
        "kinds.is_run_end_encoded(kind)",
        "tests/joins/test_keys_everywhere.py::test_keys_in_columns_of_all_forms_are_the_same_keys[repeated]",
    ),
    Mutant(
        "views_of_lists_are_converted_by_arrow",
        "_simplified",
        '"list_view<" not in str(column.type)',
        "True",
        f"{_ARROW}::test_columns_of_all_forms_are_sent_as_the_values_that_they_stand_for",
    ),
    Mutant(
        "a_letter_names_the_column_of_the_first_one",
        "Letters.refuse",
        "refusals.columns",
        "[refusals.columns[0]] * len(refusals.columns)",
        "tests/recovery/failures/test_letter_limit.py::test_records_with_other_faults_do_not_count_as_values_of_a_column",
    ),
    Mutant(
        "old_data_is_behind",
        "ComponentRun._report",
        "self.spec.id not in self.phase.program.live",
        "False",
        _BEHIND,
    ),
    Mutant(
        "every_source_counts_as_live_if_one_is",
        "is_live",
        "is_live(one, stream) and stream in spout.streams_of(name).values()",
        "is_live(one, stream)",
        _BEHIND,
    ),
    Mutant(
        "rows_that_were_read_count_again_in_each_stage",
        "LocalEngine._stages",
        "stage.level == 0 and cargo.kind is Kind.RESULT",
        "cargo.kind is Kind.RESULT",
        "tests/unit/engine/test_local.py::test_a_pack_says_how_far_it_is",
    ),
    Mutant(
        "rows_come_in_the_order_of_the_tasks_that_read_them",
        "Cargo.order",
        "(self.edge, self.partition, self.source, self.sequence)",
        "(self.edge, 0, self.source, self.sequence)",
        f"{_ORDER}[partitions-2]",
    ),
    Mutant(
        "bad_records_are_left_out_by_a_replay",
        "TxidRun._emit",
        "self.program.leaves_out",
        "False",
        "tests/recovery/failures/test_refused_records.py::test_one_bad_value_of_a_csv_file_is_left_out_alone",
    ),
    Mutant(
        "a_half_is_thought_bad_because_the_other_is_good",
        "DeadLetterRun._found",
        "fits = sift(rows[:half], kept) and kept is not None",
        "fits = sift(rows[:half], kept)",
        "tests/recovery/failures/test_one_bad_record.py",
    ),
    Mutant(
        "a_bad_record_takes_the_input_of_a_ready_made_bolt_along",
        "DeadLetterRun.run",
        "self._found(component, bolt, arrivals, error)",
        "None",
        f"{_ONE}[Identity]",
    ),
    Mutant(
        "a_value_that_cannot_be_sent_takes_the_input_along",
        "DeadLetterRun._begin",
        "collector.divert = self.records(component)",
        "pass",
        f"{_ONE}[Map of what cannot be sent]",
    ),
    Mutant(
        "floats_beside_ints_make_them_floats",
        "DeadLetterRun.run",
        "_of_one_type(arrival)",
        "[arrival]",
        f"{_RECORDS}::test_the_first_record_is_left_out_with_which_it_fails",
    ),
    Mutant(
        "records_are_judged_by_themselves_only",
        "DeadLetterRun._found",
        "sift(rest, [])",
        "pass",
        f"{_RECORDS}::test_records_that_fail_only_together_are_told_apart[5000-43]",
    ),
)
