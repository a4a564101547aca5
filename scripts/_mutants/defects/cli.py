"""Known defects of `txstorm.cli`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "line_ends_in_values_break_lines",
        "escaped",
        "_UNSAFE_IN_LINE if one_line else _UNSAFE",
        "_UNSAFE",
        "tests/unit/cli/test_terminal_escapes.py",
    ),
)
