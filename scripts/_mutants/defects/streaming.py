"""Known defects of `txstorm.streaming`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_query_is_adopted_wherever_it_began",
        "judge",
        "batch.early",
        "False",
        "tests/unit/streaming/test_batches.py",
    ),
    Mutant(
        "another_batch_with_a_decided_number_is_skipped",
        "_judge_committed",
        "committed['offsets'] != batch.offsets",
        "False",
        "tests/unit/streaming/test_batches.py",
    ),
)
