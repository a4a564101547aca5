"""Known defects of the modules that every room may import, such as `txstorm.keys`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "attributes_of_what_is_no_component_are_read",
        "inspect",
        "declaration.object if usable else None",
        "declaration.object",
        "tests/bad_input/test_bad_arguments.py",
    ),
    Mutant(
        "decimals_wrap_when_they_are_rescaled",
        "_check_narrowed",
        "digits < given.precision - given.scale",
        "False",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "times_that_python_does_not_have_are_stored",
        "_in_range",
        "ends['min'] < bounds[0] or ends['max'] > bounds[1]",
        "False",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "times_in_lists_are_not_looked_at",
        "_has",
        "return any(_has(is_wanted, kind.field(i).type) for i in range(kind.num_fields))",
        "return False",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "floats_become_infinite_when_they_are_narrowed",
        "_check_narrowed",
        "kind.bit_width < given.bit_width",
        "False",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "decimals_in_texts_wrap",
        "decimals_of",
        "pc.all(pc.match_substring_regex(texts, plain)).as_py() is not False",
        "True",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "exact_decimals_are_refused_as_arrow_divides_them",
        "of_values",
        "_short_decimals(values, kind, exact=True)",
        "_short_decimals(values, kind, exact=False)",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "decimals_of_many_digits_wrap",
        "_short_decimals",
        "[Clamped, Overflow, Rounded, Subnormal]",
        "[Clamped, Overflow, Subnormal]",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "decimals_are_rounded_as_arrow_divides_them",
        "nearest",
        "_lost(column, short) * 2 >= Decimal(1).scaleb(-kind.scale)",
        "False",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "one_value_of_another_type_is_cast",
        "fits",
        "return (one, other) in _WIDENED",
        "return True",
        "tests/unit/test_typed.py",
    ),
    Mutant(
        "minus_zero_is_another_key",
        "plain_decimal",
        "if not kept: return Decimal(0)",
        "pass",
        "tests/unit/engine/task/test_equal_keys.py::test_known_representations_of_one_value_hash_alike",
    ),
    Mutant(
        "a_negative_zero_is_another_key",
        "_plain_float",
        "float.__float__(value) + 0.0",
        "float.__float__(value)",
        "tests/joins/test_keys_everywhere.py::test_equal_keys_have_one_text_and_one_hash",
    ),
    Mutant(
        "subclasses_are_other_keys",
        "plain",
        "next((make for base, make in _PLAIN.items() if isinstance(value, base)), None)",
        "None",
        "tests/joins/test_keys_everywhere.py::test_equal_keys_have_one_text_and_one_hash",
    ),
    Mutant(
        "small_exponents_are_written_out",
        "decimal_digits",
        "max(len(digits), len(digits) + exponent, -exponent)",
        "max(len(digits), len(digits) + exponent)",
        "tests/joins/test_keys_everywhere.py::test_bytes_and_hashes_of_up_to_400_digits_are_those_of_commit_08151c43",
    ),
)
