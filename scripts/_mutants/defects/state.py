"""Known defects of `txstorm.state`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_store_in_memory_moves_its_mark_outside_its_lock",
        "MemoryBackend.put_marked",
        """
with self._lock:
    if self._mark != expected:
        return False
    self._put(rows)
    self._mark = mark
    return True
""",
        """
if self._mark != expected:
    return False
with self._lock:
    self._put(rows)
    self._mark = mark
    return True
""",
        "tests/unit/testing/checks/test_state_checks.py::test_a_store_in_memory_compares_its_mark_under_its_lock",
    ),
    Mutant(
        "tuples_are_evicted_before_the_decision",
        "CollectionGroup._together",
        "return combined(txid, list(written.values()), known, self._bound(list(tasks.values())))",
        """
changes = combined(txid, list(written.values()), known, self._bound(list(tasks.values())))
if changes is not None:
    evicted = PublishedRows(tombstones=changes.tombstones, bound=changes.bound)
    self._index.apply([evicted], self._index.last_txid)
return changes
""",
        "tests/windows/test_windows_on_tables.py",
    ),
    Mutant(
        "a_group_follows_one_that_was_dropped",
        "Target.drop_from",
        "self._lasts = [self._lasts[0], *(one for one in self._lasts[1:] if one < txid)]",
        "pass",
        "tests/unit/state/test_targets.py",
    ),
    Mutant(
        "a_kind_of_the_topologys_code_is_taken_for_damage",
        "check_place",
        "uri != expected",
        "uri != expected or kind.startswith('x-')",
        "tests/unit/state/test_targets.py",
    ),
)
