"""Known defects of `txstorm.hailstorm`."""

from scripts._mutants.mutation import Mutant

NEGOTIATOR, COMPANION = "tests/unit/hailstorm/test_negotiator.py", "tests/unit/hailstorm/test_companion.py"

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
)
