"""Known defects of `txstorm.operations`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_group_is_abandoned_though_a_table_cannot_be_read",
        "_check_unpublished",
        "unpublished and is_outside(one.uri)",
        "unpublished",
        "tests/recovery/lifecycle/test_repair.py",
    ),
)
