"""Known defects of `txstorm.storage`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "newer_facts_are_not_recorded",
        "due",
        "name == FIXED",
        "False",
        "tests/conformance/test_declarations.py::test_a_table_of_before_gets_the_facts_that_it_lacks",
    ),
    Mutant(
        "a_torn_creation_of_the_history_is_damage",
        "has_history",
        "is_table(path) and _torn(path) is None",
        "is_table(path)",
        "tests/unit/storage/tables/test_history.py::test_a_table_whose_creation_a_power_failure_tore_is_created_again",
    ),
    Mutant(
        "the_history_begins_before_its_creation_is_durable",
        "_open_or_create",
        "secure_history(handle)",
        "pass",
        "tests/unit/storage/tables/test_history.py::test_the_first_log_entry_is_durable_before_the_next_one_is_written",
    ),
    Mutant(
        "a_torn_creation_is_kept",
        "Directory.discard_torn",
        "entry.unlink()",
        "pass",
        "tests/unit/storage/tables/test_directory.py::test_a_table_whose_creation_a_power_failure_tore_is_created_again",
    ),
    Mutant(
        "a_torn_creation_is_removed_with_what_was_staged",
        "Directory.discard_torn",
        "(entry := torn_creation(path / LOG)) is None or any((path / STAGED).glob('*'))",
        "(entry := torn_creation(path / LOG)) is None",
        "tests/unit/storage/tables/test_directory.py::test_a_table_whose_creation_a_power_failure_tore_is_created_again",
    ),
    Mutant(
        "opaque_rule_without_going_back_to_prev",
        "base",
        "return row.prev if is_applied(row, txid) else row.value",
        """
is_applied(row, txid)
return row.value
""",
    ),
    Mutant(
        "no_epoch_check",
        "TransactionalTable._check_epoch",
        "found > epoch",
        "found > epoch + 1000",
    ),
    Mutant(
        "blind_retry_after_a_lost_answer",
        "TransactionalTable.publish",
        """
self._lost = True
version = self._published(table, intent, epoch)
""",
        "pass",
    ),
    Mutant(
        "lost_race_without_reading_again",
        "TransactionalTable._try",
        """
try:
    if written:
        version = self.commit_group(commit)
    else:
        self._log.commit(commit)
        version = self._log.version
except ConflictError:
    self._log.refresh()
    return None
except TableCorrupt as cause:
    self._after_failure(cause)
    return None
""",
        """
try:
    if written:
        version = self.commit_group(commit)
    else:
        self._log.commit(commit)
        version = self._log.version
except ConflictError:
    return None
except TableCorrupt as cause:
    self._after_failure(cause)
    return None
""",
    ),
    Mutant(
        "naive_group_commit",
        "TransactionalTable._commit",
        "first, last = (table.previous + 1, intent.last)",
        "first = last = intent.last",
    ),
    Mutant(
        "compaction_without_looking_again",
        "TransactionalTable.exchange",
        "files.base not in (None, last) or len(leaving) < len(leaves)",
        "False",
        "tests/unit/storage/upkeep/test_compaction.py",
    ),
    Mutant(
        "compaction_leaves_the_old_files",
        "TransactionalTable._exchanging",
        "Commit(apps, info, files.adds, leaving, files.now, label, data_change=change)",
        "Commit(apps, info, files.adds, (), files.now, label, data_change=change)",
    ),
    Mutant(
        "nobody_raises_the_tables_epoch",
        "TransactionalTable.raise_epoch",
        "self._check_epoch(epoch) == epoch",
        "self._check_epoch(epoch) <= epoch",
    ),
    Mutant(
        "sweeper_takes_files_of_newer_coordinators",
        "_unneeded",
        "by is not None and by <= epoch",
        "by is not None",
        "tests/unit/storage/upkeep/test_retention.py::test_files_of_a_newer_coordinator_or_with_foreign_names_are_kept",
    ),
    Mutant(
        "sweeper_ignores_older_versions",
        "orphans",
        "log.logged_paths()",
        "{file.path for file in log.files()}",
    ),
    Mutant(
        "publishes_with_the_epoch_of_who_decided",
        "TransactionalTable._commit",
        "{self._txid_app: last, self._epoch_app: epoch}",
        "{self._txid_app: last, self._epoch_app: intent.epoch}",
    ),
    Mutant(
        "compaction_without_epoch_check",
        "TransactionalTable.exchange",
        "self._check_epoch(epoch)",
        "pass",
    ),
    Mutant(
        "compacted_state_is_said_to_be_newer",
        "TransactionalTable._exchanging",
        "(files.as_of, f'txstorm state as of txid {files.as_of}')",
        "(files.as_of + 1, f'txstorm state as of txid {files.as_of}')",
    ),
    Mutant(
        "sweeper_ignores_intents",
        "kept_by",
        "{staged.path for table in tables for staged in table.files}",
        "set() & {table.uri for table in tables}",
    ),
    Mutant(
        "the_history_names_no_versions",
        "history_rows",
        "dict(versions)",
        "{}",
    ),
    Mutant(
        "other_peoples_tables_are_taken",
        "check_owner",
        "properties[INCARNATION] != owner.incarnation",
        "False",
    ),
    Mutant(
        "entries_that_are_lost_do_not_show",
        "check_tiles",
        "last is not None and expected is not None and (expected != last)",
        "False",
    ),
    Mutant(
        "what_is_published_is_not_durable",
        "TransactionalTable.publish",
        "self._make_durable(version)",
        "pass",
    ),
    Mutant(
        "what_dead_coordinators_committed_is_not_durable",
        "TransactionalTable.raise_epoch",
        "self._durable, self._doubted = (self._known_durable(completed), True)",
        "pass",
    ),
    Mutant(
        "a_failed_sync_is_tried_again_and_believed",
        "TransactionalTable._make_durable",
        "again, self._doubted = (self._doubted, True)",
        "again = False",
    ),
    Mutant(
        "a_failed_sync_of_an_earlier_coordinator_is_believed",
        "TransactionalTable.raise_epoch",
        "self._durable, self._doubted = (self._known_durable(completed), True)",
        "self._durable = self._known_durable(completed)",
    ),
    Mutant(
        "states_that_a_rewind_made_are_passed_over",
        "staying",
        "(COMPACTED, COMMITTED, *WHOLE)",
        "(COMPACTED, COMMITTED, CREATED)",
    ),
    Mutant(
        "states_go_back_further_than_they_have_to",
        "staying",
        "(COMPACTED, COMMITTED, *WHOLE)",
        "(COMMITTED, CREATED, RESTORED)",
    ),
    Mutant(
        "a_compaction_gives_up_at_once",
        "TransactionalTable.exchange",
        "files.base not in (None, last)",
        "files.as_of is not None",
    ),
    Mutant(
        "a_table_begins_where_a_killed_start_has_made_it",
        "TransactionalTable._beginning",
        "{self._txid_app: txid, self._epoch_app: epoch, self.owner.since_app: txid}",
        "{self._txid_app: txid, self._epoch_app: epoch}",
    ),
    Mutant(
        "rows_that_are_gathered_are_said_to_be_new",
        "TransactionalTable._exchanging",
        "files.as_of is not None or files.floor is not None",
        "True",
    ),
    Mutant(
        "files_of_versions_that_stay_are_superseded",
        "Versions.decide",
        "(path for path in removes if path not in self._files)",
        "removes",
    ),
    Mutant(
        "a_rewind_takes_a_version_that_does_not_stay",
        "staying",
        """
if entry.info.get(STAYS, True):
    yield (entry, as_of(entry.info))
if BASE in entry.info:
    below = int(entry.info[BASE][0])
    break
""",
        "yield (entry, as_of(entry.info))",
    ),
    Mutant(
        "a_version_follows_one_that_is_not_durable",
        "TransactionalTable._try",
        "if self._durable < self._log.version: self._make_durable(self._log.version)",
        "pass",
    ),
    Mutant(
        "a_table_that_another_start_made_is_not_durable",
        "TableDirectory.create",
        "self.secure_names(owner, ref)",
        "pass",
    ),
    Mutant(
        "a_table_of_before_gets_other_texts_of_keys",
        "DeclaredTable.stored",
        "int(found.handle.properties[FORMAT])",
        "texts.form",
        "tests/recovery/lifecycle/test_key_migration.py",
    ),
    Mutant(
        "a_bounded_log_promises_a_day",
        "bounded_log",
        '{**log_properties(), LOG_RETENTION: LOWERED, LOG_BOUND: f"{most} entries, {math.ceil(seconds)} seconds"}',
        '{**log_properties(), LOG_BOUND: f"{most} entries, {math.ceil(seconds)} seconds"}',
        "tests/unit/storage/tables/test_properties.py",
    ),
)
