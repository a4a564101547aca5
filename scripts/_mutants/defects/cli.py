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
    Mutant(
        "a_file_of_client_settings_loads_code",
        "_settings",
        "code_faults(settings)",
        "[]",
        "tests/unit/joins/test_join_configurations.py",
    ),
)
