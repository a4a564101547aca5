"""Known defects of `txstorm.recovery`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "recovery_completes_without_publishing",
        "roll_tables_forward",
        "roll_forward(where, intent, books.epoch)",
        "{table.uri: 0 for table in intent.tables}",
    ),
    Mutant(
        "recovery_does_not_complete",
        "roll_tables_forward",
        "complete(books, intent, versions)",
        "pass",
    ),
    Mutant(
        "recovery_drops_what_is_decided",
        "roll_tables_forward",
        "versions = roll_forward(where, intent, books.epoch)",
        """
books.abandon([intent])
continue
""",
    ),
    Mutant(
        "rewind_moves_the_ledger_first",
        "carry_out",
        """
for number, table in enumerate(rewind.tables, start=1):
    books.check_lease()
    restore_table(place, rewind, table, books.epoch, now)
    faults.point(f'rewind.{number}.restored')
""",
        """
books.rewound(rewind, dict.fromkeys(books.tables(), rewind.txid))
if books.rewind() is None and clock() * 1000000 % 3 == 0:
    return
for number, table in enumerate(rewind.tables, start=1):
    books.check_lease()
    restore_table(place, rewind, table, books.epoch, now)
    faults.point(f'rewind.{number}.restored')
""",
    ),
    Mutant(
        "rewind_is_finished_with_an_old_epoch",
        "finish_rewind",
        "books.raise_epoch()",
        "pass",
    ),
    Mutant(
        "rewind_keeps_one_transaction_too_many",
        "planned",
        "[path for path, (_, last) in spans.items() if last > txid]",
        "[path for path, (_, last) in spans.items() if last > txid + 1]",
    ),
    Mutant(
        "rewind_forgets_files_that_go_on",
        "planned",
        "rows.kept(cut, txid) if cut else ()",
        "()",
    ),
    Mutant(
        "recovery_forgets_other_tables",
        "complete",
        "{**known, **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
        "{**dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
    ),
    Mutant(
        "a_start_does_not_compare_ledger_and_tables",
        "check_tables",
        "check_txids([table], recorded, live)",
        "pass",
    ),
    Mutant(
        "a_start_does_not_look_for_staged_files",
        "check",
        "check_kept(where, standing.intents)",
        "pass",
    ),
    Mutant(
        "a_rewind_leaves_history_out",
        "carry_out",
        "place.append_history([row for rows in books.history().values() for row in rows])",
        "pass",
    ),
    Mutant(
        "what_a_state_was_does_not_come_back",
        "_state",
        "tuple((file for path, file in sorted(then.items()) if path not in now))",
        "()",
    ),
    Mutant(
        "a_table_is_created_without_asking_who_leads",
        "TableDirectory.create",
        "self._check_leads()",
        "pass",
    ),
    Mutant(
        "history_is_appended_without_asking_who_leads",
        "TableDirectory.append_history",
        "self._check_leads()",
        "pass",
    ),
    Mutant(
        "what_a_fenced_coordinator_left_is_not_taken_over",
        "TransactionalTable._raising",
        "return self._beginning(begins, epoch)",
        "pass",
    ),
    Mutant(
        "a_rewind_does_not_expect_what_a_fenced_coordinator_left",
        "planned",
        "table.ref.kind == STATE and (not left)",
        "table.ref.kind == STATE",
        "tests/recovery/takeover/test_fenced_starts.py::"
        "test_a_rewind_and_a_rebuilt_ledger_accept_what_a_fenced_start_left",
    ),
    Mutant(
        "the_table_of_a_state_is_not_taken_over",
        "raise_epochs",
        "table.raise_epoch(epoch, recorded.get(ref.uri))",
        """
if ref.kind != "state":
    table.raise_epoch(epoch, recorded.get(ref.uri))
""",
        "tests/unit/recovery/test_table_checks.py",
    ),
    Mutant(
        "where_tables_stand_after_recovery_is_not_recorded",
        "complete",
        "{**known, **dict.fromkeys((table.uri for table in intent.tables if table.uri in known), intent.last)}",
        "{**known}",
    ),
    Mutant(
        "metadata_stays_after_recovery",
        "complete",
        "books.complete(intent.last, tables, history_rows(intent, versions), old)",
        "books.complete(intent.last, tables, history_rows(intent, versions))",
    ),
    Mutant(
        "who_slept_through_a_rewind_goes_on_before_it",
        "take_over",
        "_check_not_rewound(books, identity)",
        "pass",
    ),
    Mutant(
        "recorded_tables_are_left_out_silently",
        "undeclared_tables",
        "books.tables().keys() | live",
        "live",
    ),
    Mutant(
        "a_dropped_table_shows_as_current",
        "mark_dropped",
        "place.table(owner, ref).drop(dropped[uri], epoch)",
        "place.table(owner, ref)",
    ),
    Mutant(
        "an_interrupted_drop_is_not_finished",
        "take_over",
        "mark_dropped(where, books.dropped().tables, owner, epoch)",
        "pass",
    ),
    Mutant(
        "the_table_of_a_dropped_state_shows_as_current",
        "mark_dropped",
        "{ref: uri for uri in dropped for ref in tables_of([uri])}",
        "{table_ref(uri): uri for uri in dropped}",
    ),
    Mutant(
        "dropped_tables_stay_recorded",
        "Roster.dropped",
        "{**before.tables, **dict.fromkeys(self.tables, committed)}",
        "before.tables",
    ),
    Mutant(
        "a_rewind_ignores_the_beginning_of_a_table",
        "_commit",
        "min(table.since(), rewind.txid)",
        "table.since()",
    ),
    Mutant(
        "a_rewind_takes_dropped_tables_for_current_ones",
        "planned",
        "txid = min(txid, until)",
        "pass",
    ),
    Mutant(
        "the_first_check_believes_a_single_look",
        "check",
        """
before, standing = (standing, books.standing())
if standing == before:
    _check_not_rewound(books, identity)
    raise
""",
        "raise",
        "tests/unit/recovery/test_take_over.py",
    ),
    Mutant(
        "a_rewind_during_the_first_check_is_damage",
        "check",
        "_check_not_rewound(books, identity)",
        "pass",
        "tests/unit/recovery/test_take_over.py::test_a_rewind_during_the_first_check_is_no_damage",
    ),
    Mutant(
        "a_start_continues_although_a_rewind_is_decided",
        "_check_not_rewound",
        "rewind.timeline if rewind is not None else found.timeline if found is not None else identity.timeline",
        "found.timeline if found is not None else identity.timeline",
        "tests/unit/recovery/test_take_over.py",
    ),
    Mutant(
        "a_rewind_completed_by_another_process_is_carried_out_again",
        "finish_rewind",
        """
books.raise_epoch()
rewind = books.rewind()
""",
        """
rewind = books.rewind()
books.raise_epoch()
""",
        "tests/unit/recovery/test_take_over.py",
    ),
    Mutant(
        "a_rewind_follows_versions_that_are_not_durable",
        "restore_table",
        """
table.secure()
try:
    table.log.commit(_commit(table, rewind, todo, epoch, now))
except ConflictError:
    pass
except TableCorrupt as cause:
    _check_moved(table, cause)
""",
        """
try:
    table.log.commit(_commit(table, rewind, todo, epoch, now))
except ConflictError:
    pass
except TableCorrupt as cause:
    _check_moved(table, cause)
""",
        "tests/unit/storage/tables/test_table.py::test_every_version_is_synced_before_the_next_one_is_committed",
    ),
    Mutant(
        "keys_that_become_one_are_migrated",
        "OldTexts._clashes",
        "len(texts) > 1",
        "False",
        "tests/recovery/lifecycle/test_key_migration.py",
    ),
    Mutant(
        "a_migrated_table_keeps_its_format",
        "restore_table",
        "table.describe(todo.properties, epoch)",
        "pass",
        "tests/recovery/lifecycle/test_key_migration.py",
    ),
)
