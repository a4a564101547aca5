"""Known defects of `txstorm.dadstorm`."""

from scripts._mutants.mutation import Mutant

DRIVER = "tests/unit/dadstorm/test_network_driver.py"
MODEL = "tests/unit/dadstorm/test_networks_against_model.py"

MUTANTS = (
    Mutant(
        "late_answers_count_though_the_tuple_was_handed_back",
        "Turn._every",
        "id in self._back",
        "False",
        f"{DRIVER}::test_a_late_answer_for_tuples_that_were_handed_back_counts_nothing",
    ),
    Mutant(
        "a_late_delivery_that_breaks_is_sent_once_more",
        "Turn._renew",
        "was_late or not left",
        "not left",
        f"{DRIVER}::test_a_delivery_has_one_that_stands_for_it",
    ),
    Mutant(
        "what_waits_for_a_buffer_is_lost_with_the_replica",
        "Turn.dead",
        "self._readdress(replica)",
        "pass",
        f"{DRIVER}::test_a_replica_has_at_most_so_many_deliveries_as_its_buffer",
    ),
    Mutant(
        "at_least_once_sends_only_what_is_not_answered",
        "Turn._renew",
        "self.semantics == AT_LEAST_ONCE",
        "False",
        f"{DRIVER}::test_a_delivery_has_one_that_stands_for_it",
    ),
    Mutant(
        "a_frozen_sibling_gets_what_another_one_left",
        "Crew.substitute",
        "((operator.id, one) in self.frozen, one == replica)",
        "one == replica",
        f"{DRIVER}::test_a_delivery_has_one_that_stands_for_it",
    ),
    Mutant(
        "the_time_without_an_answer_is_not_doubled",
        "Turn._renew",
        "2 * one.limit",
        "one.limit",
        f"{DRIVER}::test_the_time_without_an_answer_is_doubled_at_each_resend",
    ),
    Mutant(
        "late_deliveries_fill_the_buffer_for_ever",
        "Turn._send",
        "len(open_) >= self._buffer and late is not None",
        "False",
        f"{DRIVER}::test_a_replica_has_at_most_so_many_deliveries_as_its_buffer",
    ),
    Mutant(
        "open_deliveries_are_not_withdrawn_when_the_turn_is_over",
        "Turn._send",
        "return self.abandon()",
        "return []",
        f"{DRIVER}::test_the_time_without_an_answer_is_doubled_at_each_resend",
    ),
    Mutant(
        "a_held_tuple_that_is_held_again_becomes_young",
        "_Transaction._hold",
        "next(self._ages) if before is None else before.at",
        "next(self._ages)",
        MODEL,
    ),
    Mutant(
        "held_tuples_are_released_around_one_that_stays",
        "_Transaction._hold",
        "at not in stay or one.at < last.get(one.replica, 0)",
        "at not in stay",
        f"{DRIVER}::test_released_tuples_are_the_oldest_of_each_replica",
    ),
    Mutant(
        "the_part_of_a_dead_replica_is_routed",
        "_Transaction._arrive",
        "part = live[0] if live and part != UNROUTED and part not in live else part",
        "pass",
        MODEL,
    ),
    Mutant(
        "a_replica_that_dies_stays_frozen",
        "Conditions.died",
        "self.frozen - {one}",
        "self.frozen",
        f"{DRIVER}::test_commands_and_their_refusals",
    ),
    Mutant(
        "a_restarted_master_plans_the_open_transaction_anew",
        "NetworkTestDriver.restart",
        "self._carried = False",
        "self._carried, self._plan = False, None",
        f"{DRIVER}::test_silence",
    ),
    Mutant(
        "a_data_file_that_shrank_is_read_on",
        "FileParts._continued",
        "found.st_size < (stop := (read.stop or end))",
        "(stop := (read.stop or end)) < 0",
        "tests/unit/dadstorm/test_network_files.py::test_a_file_that_shrank_or_changed_is_named",
    ),
)
