"""Known defects of `txstorm.books`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_failed_write_loses_noted_digests",
        "Books._commit",
        "late = dict(self._late)",
        "late, self._late = (self._late, {})",
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
        "requests_outlive_the_run_they_were_for",
        "Books.raise_epoch",
        "() if self.ledger.get(names.REQUEST) is None else (no_request(None),)",
        "()",
        "tests/recovery/lifecycle/test_life_cycle.py::test_a_request_to_a_run_that_has_ended_does_not_reach_the_next_one",
    ),
    Mutant(
        "ledger_without_epoch_guard",
        "Books.raise_epoch",
        "[Check(names.EPOCH, expect + 1)]",
        "[]",
    ),
    Mutant(
        "the_guard_is_what_is_read_back",
        "Books.raise_epoch",
        "Check(names.EPOCH, expect + 1)",
        "Check(names.EPOCH, self.ledger.get(names.EPOCH).version)",
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
        "superseded_coordinators_make_savepoints",
        "Books.put_if",
        "[*self._guard, *expected, *(self._put(path, one) for path, one in values.items())]",
        "[*expected, *(self._put(path, one) for path, one in values.items())]",
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
        "plans_are_not_durable",
        "Books.write_metas",
        "self._commit(ops)",
        "self._commit(ops, durable=False)",
    ),
    Mutant(
        "passwords_of_the_target_are_stored",
        "origin_of",
        "(_masked(target), os.getcwd())",
        "(target, os.getcwd())",
        "tests/unit/test_masks.py",
    ),
    Mutant(
        "a_pair_of_a_name_and_a_secret_is_stored",
        "_masked",
        "_masked(value[0], value[1])",
        "value[1]",
        "tests/unit/test_masks.py",
    ),
    Mutant(
        "a_rewind_leaves_the_wanted_clock",
        "Books.rewound",
        "Delete(names.WANTED)",
        "Delete(DECIDED)",
        "tests/unit/runtime/test_clock_snapshots.py::test_it_survives_a_restart_and_not_a_rewind",
    ),
)
