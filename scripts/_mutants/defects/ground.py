"""Known defects of `txstorm.ground`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "minus_zero_is_another_key",
        "plain_decimal",
        "if not kept: return Decimal(0)",
        "pass",
        "tests/unit/engine/task/test_equal_keys.py",
    ),
    Mutant(
        "a_negative_zero_is_another_key",
        "_float_bytes",
        "value + 0.0",
        "value",
        "tests/unit/engine/task/test_equal_keys.py",
    ),
)
