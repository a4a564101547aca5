"""Known defects of `txstorm.monoids`, and of the clocks of sources."""

from scripts._mutants.mutation import Mutant

MONOIDS, CLOCKS = "tests/unit/monoids/test_monoids.py", "tests/unit/monoids/test_clock.py"

MUTANTS = (
    Mutant(
        "a_number_out_of_range_is_merged",
        "MonoidPlan.state_of",
        "_number_fault(kind, state)",
        "misfit(kind, state)",
        f"{MONOIDS}::test_all_ways_store_or_refuse_the_same",
    ),
    Mutant("a_sum_of_nones_is_none", "ColumnCommitter._counted", "empty is None", "True", MONOIDS),
    Mutant(
        "a_monoid_of_another_field_goes_on",
        "MonoidPlan.state",
        '", ".join(self.reads)',
        "''",
        "tests/conformance/test_declarations.py::test_another_declaration_is_refused_and_changes_nothing",
    ),
    Mutant("sparse_sketches_keep_the_order_of_their_values", "HyperLogLog._bytes", "np.sort", "np.array", MONOIDS),
    Mutant("dense_sketches_keep_an_estimate_of_one_order", "HyperLogLog._bytes", "bytes(8)", "data[_HIP]", MONOIDS),
    Mutant("theta_sketches_are_not_trimmed", "Theta._bytes", "sketch.trim()", "None", MONOIDS),
    Mutant(
        "running_totals_of_a_key_are_added_up",
        "TopN.merge",
        "max(count, a.get(key, count))",
        "count + a.get(key, 0)",
        MONOIDS,
    ),
    Mutant("partial_states_replace_the_state", "PartialsCommitter.finish_batch", "key in old", "False", MONOIDS),
    Mutant(
        "states_of_former_tasks_are_lost",
        "MonoidCommitter._take_over",
        "reduce(monoid.merge, gone.values(), own)",
        "own",
        MONOIDS,
    ),
    Mutant("a_number_of_another_type_is_merged", "MonoidPlan.state_of", "kind is not None", "False", MONOIDS),
    Mutant("a_key_of_another_type_is_merged", "MonoidPlan.key_of", "kind is not None", "False", MONOIDS),
    Mutant(
        "merges_that_change_their_arguments_pass",
        "broken_law",
        "[stored(monoid, one) for one in states] != before",
        "False",
        MONOIDS,
    ),
    Mutant("a_clock_is_one_ahead", "_MemoryCoordinator.clock", "end - 1", "end", CLOCKS),
    Mutant("clocks_of_other_partitions_are_compared", "Clock.__ge__", "self.keys() == other.keys()", "True", CLOCKS),
    Mutant(
        "a_missing_partition_counts_as_reached",
        "Clock.reaches",
        "name in self and self[name] >= offset",
        "self.get(name, offset) >= offset",
        CLOCKS,
    ),
    Mutant(
        "a_source_without_clocks_hides_in_others", "CompositePlanner.clock", "None in clocks.values()", "False", CLOCKS
    ),
)
