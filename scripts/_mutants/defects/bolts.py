"""Known defects of `txstorm.bolts`."""

from scripts._mutants.mutation import Mutant

EXPRESSIONS = "tests/unit/bolts/test_bolts_expressions.py"

MUTANTS = (
    Mutant(
        "equal_floats_are_counted_apart",
        "_is_loose",
        "pa.types.is_floating(kind)",
        "False",
        "tests/unit/bolts/test_bolts_count_and_sum.py",
    ),
    Mutant(
        "a_branch_fails_for_rows_that_do_not_need_it",
        "needed",
        "not one.fails or mask.all()",
        "True",
        EXPRESSIONS,
    ),
    Mutant(
        "the_row_of_a_part_is_named_as_that_of_the_batch",
        "needed",
        "int(rows[error.row])",
        "error.row",
        EXPRESSIONS,
    ),
    Mutant(
        "ints_beyond_floats_are_compared_as_floats",
        "comparison",
        "INT in (left.kind, right.kind) and kind == FLOAT and left.constant is None and right.constant is None",
        "False",
        EXPRESSIONS,
    ),
    Mutant(
        "a_quotient_is_rounded_twice",
        "_QUOTIENT",
        "Context(prec=64, rounding=ROUND_05UP)",
        "Context(prec=19)",
        EXPRESSIONS,
    ),
    Mutant(
        "null_is_not_in_a_list",
        "membership",
        "pc.if_else(pc.is_valid(column), pc.is_in(column, known), pa.scalar(None, BOOL))",
        "pc.is_in(column, known)",
        EXPRESSIONS,
    ),
    Mutant(
        "a_filter_keeps_what_expressions_read_as_they_read_it",
        "BoltRun.execute_rows",
        "is_tagged(batch) and not getattr(self.bolt, 'takes_tagged', False)",
        "is_tagged(batch)",
        "tests/unit/bolts/test_bolts_basic.py",
    ),
)
