"""Known defects of `txstorm.coordinator`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "storms_literal_fail",
        "_failed",
        "return (state, ())",
        """
if 0 <= index < len(state.entries):
    return (state._replace(entries=state.entries[:index] + state.entries[index + 1:]), ())
return (state, ())
""",
    ),
    Mutant(
        "n_plus_1_before_n",
        "_sync",
        "size = _due(state)",
        """
for at, entry in enumerate(state.entries):
    if not state.committing and entry.status is PROCESSED:
        return (state, (Commit((state.currtx + at,), (entry.attempt_id,)),))
size = _due(state)
""",
    ),
    Mutant(
        "ack_of_a_stale_attempt_counts",
        "_processed",
        "_is_current(state, index, event.attempt_id)",
        "0 <= index < len(state.entries)",
    ),
    Mutant(
        "failure_keeps_later_transactions",
        "_cut",
        """
after = state._replace(
    entries=state.entries[:index], committing=min(state.committing, index), void=state.planning is not None
)
""",
        """
dead = dead[:1]
after = state._replace(
    entries=state.entries[:index] + state.entries[index + 1 :],
    committing=min(state.committing, index),
    void=state.planning is not None,
)
""",
    ),
    Mutant(
        "what_is_processed_comes_again_and_counts",
        "_processed",
        "not _is_current(state, index, event.attempt_id) or state.entries[index].status is not PROCESSING",
        "not _is_current(state, index, event.attempt_id)",
    ),
    Mutant(
        "one_more_in_flight",
        "_may_plan",
        "len(state.entries) >= state.config.max_pending",
        "len(state.entries) > state.config.max_pending",
        "tests/unit/coordinator/test_groups.py",
    ),
    Mutant(
        "one_more_in_a_group",
        "_processed_from",
        "index + state.config.max_group",
        "index + state.config.max_group + 1",
    ),
    Mutant(
        "failed_transactions_do_not_wait",
        "_may_plan",
        "txid in state.held or (state.not_ready is not None and state.not_ready <= txid)",
        "state.not_ready is not None and state.not_ready <= txid",
    ),
    Mutant(
        "new_transactions_though_inactive",
        "_may_plan",
        "replay or state.mode is Mode.ACTIVE",
        "True",
    ),
    Mutant(
        "the_rest_of_a_group_begins_before_its_failure_is_told",
        "_committed",
        """
if back:
    commands = ()
else:
    after, commands = _sync(after)
""",
        """
if False:
    commands = ()
else:
    after, commands = _sync(after)
""",
    ),
)
