"""Known defects of `txstorm.monitor`."""

from scripts._mutants.mutation import Mutant

_SNAPSHOT = "tests/unit/monitor/test_progress.py::test_a_snapshot_shows_what_the_coordinator_sees"

MUTANTS = (
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
