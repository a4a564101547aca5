"""Known defects of `txstorm.hailstorm`, and of directories that begin with a snapshot."""

from scripts._mutants.mutation import Mutant

NEGOTIATOR, COMPANION = "tests/unit/hailstorm/test_negotiator.py", "tests/unit/hailstorm/test_companion.py"
STORES, RESTORES = "tests/unit/hailstorm/test_stores.py", "tests/unit/hailstorm/test_restores.py"

MUTANTS = (
    Mutant(
        "a_lost_processor_stays_registered",
        "step",
        "replace(_enter(state, INITIALIZE), there=frozenset())",
        "_enter(state, INITIALIZE)",
        NEGOTIATOR,
    ),
    Mutant("a_clock_that_only_one_bolt_has_is_taken", "_loaded", "all", "any", NEGOTIATOR),
    Mutant(
        "snapshots_are_taken_although_the_clock_stays",
        "HailstormCompanion.look",
        "(None, self._seen)",
        "()",
        f"{COMPANION}::test_the_path_of_a_run_to_its_first_snapshot",
    ),
    Mutant(
        "a_snapshot_goes_on_before_the_store_has_it",
        "HailstormCompanion._complete",
        "self._saver is None or not self._saver.busy",
        "True",
        f"{COMPANION}::test_a_store_that_is_slow_and_fails_holds_up_no_transaction_and_is_said",
    ),
    Mutant(
        "a_state_of_the_same_clock_is_kept_twice", "_EntryStore.save_entries", "one.clock == clock", "False", STORES
    ),
    Mutant(
        "damaged_snapshots_are_restored",
        "DirectoryStore._read",
        "_digest(data) != name[2]",
        "False",
        f"{STORES}::test_leftovers_and_damaged_files_are_passed_over_and_named",
    ),
    Mutant(
        "former_instances_lack_a_clock",
        "save_states",
        "range(max((number for number, _ in made), default=-1) + 1, len(known[one.bolt]))",
        "()",
        f"{RESTORES}::test_the_newest_is_what_was_saved_last_and_former_instances_count_nothing",
    ),
    Mutant(
        "a_key_in_two_instances_replaces_its_state",
        "BoltStates.rows",
        "len(parts) > 1",
        "False",
        f"{RESTORES}::test_a_store_of_your_own",
    ),
    Mutant(
        "a_new_directory_reads_the_record_of_the_clock_again",
        "_MemoryCoordinator.at_clock",
        "[offset + 1, 0]",
        "[max(offset, 0), 0]",
        f"{RESTORES}::test_sources_begin_at_a_clock",
    ),
    Mutant(
        "replays_of_the_first_txid_look_for_a_transaction_before_it",
        "Recording.document_before",
        "self._recorded(txid - 1)",
        "self.of(txid - 1)",
        f"{RESTORES}::test_rewinds_replays_and_lost_ledgers_of_a_directory_that_began_with_a_snapshot",
    ),
    Mutant(
        "states_without_a_clock_are_counted_again",
        "begin",
        "name in rows or table.log.files()",
        "name in rows",
        "tests/unit/hailstorm/test_restores.py::"
        "test_states_of_a_start_that_ended_before_its_clock_was_recorded_count_nothing",
    ),
)
