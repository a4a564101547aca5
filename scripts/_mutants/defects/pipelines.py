"""Known defects of `txstorm.pipelines`, and of the programs that it prints."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_part_reads_a_sink",
        "_Reading.read",
        "self._streams.get(name) is known",
        "False",
        "tests/unit/pipelines/test_pipeline_faults.py",
    ),
    Mutant(
        "keywords_of_sql_are_not_quoted",
        "quoted",
        "parsed(name).field == name",
        "name.isidentifier()",
        "tests/unit/pipelines/test_pipeline_faults.py",
    ),
    Mutant(
        "a_file_name_ends_the_docstring_of_its_program",
        "Program.python",
        """summary.replace("\\\\", "\\\\\\\\").replace('"', '\\\\"')""",
        "summary",
        "tests/unit/pipelines/test_pipeline_faults.py",
    ),
    Mutant(
        "a_cast_holds_any_expression",
        "_cast",
        "isinstance(value, str) and not _CAST.fullmatch(value.strip())",
        "False",
        "tests/unit/pipelines/test_pipeline_faults.py",
    ),
)
