"""Known defects of `txstorm.monitor`."""

from scripts._mutants.mutation import Mutant

_SNAPSHOT = "tests/unit/monitor/test_progress.py::test_a_snapshot_shows_what_the_coordinator_sees"

MUTANTS = (
    Mutant(
        "the_present_rate_is_the_average",
        "_Rate._forget",
        "self._seen[1][0] <= now - WINDOW",
        "False",
        "tests/unit/monitor/test_progress.py::test_the_rate_is_that_of_the_last_ten_seconds",
    ),
    Mutant(
        "a_failure_goes_with_an_earlier_commit",
        "Monitor.committed",
        "self._last_failure.txid <= done[-1].txid",
        "True",
        _SNAPSHOT,
    ),
    Mutant(
        "failures_of_other_causes_count_as_repeated",
        "Monitor.failed",
        "last.cause == cause",
        "True",
        _SNAPSHOT,
    ),
)
