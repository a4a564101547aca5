"""Known defects of the modules that every room may import, such as `txstorm.keys`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "minus_zero_is_another_key",
        "plain_decimal",
        "if not kept: return Decimal(0)",
        "pass",
        "tests/unit/engine/task/test_equal_keys.py::test_known_representations_of_one_value_hash_alike",
    ),
    Mutant(
        "a_negative_zero_is_another_key",
        "_float_bytes",
        "value + 0.0",
        "value",
        "tests/unit/test_keys.py",
    ),
)
