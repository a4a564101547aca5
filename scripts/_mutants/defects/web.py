"""Known defects of `txstorm.web`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "any_host_name_comes_in",
        "checked_door",
        "frozenset(name.lower() for name in names)",
        "None",
        "tests/unit/joins/test_doors.py",
    ),
    Mutant(
        "pages_of_other_sites_come_in",
        "Guard._refusal",
        'scheme, _, site = origin.lower().partition("://")',
        "continue",
        "tests/unit/joins/test_doors.py",
    ),
    Mutant(
        "bodies_of_any_type_come_in",
        "Guard._refusal",
        'kinds != ["application/json"]',
        "False",
        "tests/unit/joins/test_doors.py",
    ),
    Mutant(
        "a_live_name_gives_way",
        "delay_app",
        "clock() - reports[longest][1] <= DAY",
        "False",
        "tests/unit/joins/test_doors.py",
    ),
)
