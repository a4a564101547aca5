"""Known defects of `txstorm.clients`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_mark_is_compared_and_moved_in_two_steps",
        "SqlAlchemyBackend._move_mark",
        """
same = [self._marks.c[name] == value for name, value in asdict(expected).items()]
found = connection.execute(sa.update(self._marks).where(self._marks.c.map == self._name, *same).values(**asdict(mark)))
""",
        """
columns = [self._marks.c[name] for name in asdict(mark)]
stored = connection.execute(sa.select(*columns).where(self._marks.c.map == self._name)).one_or_none()
if stored is None or MapMark(*stored) != expected:
    return False
connection.commit()
connection.begin()
found = connection.execute(sa.update(self._marks).where(self._marks.c.map == self._name).values(**asdict(mark)))
""",
        "tests/unit/testing/checks/test_state_checks.py::test_sql_databases_pass_and_many_stores_open_a_new_map_concurrently[sqlite]",
    ),
    Mutant(
        "a_stale_epoch_prepares_and_commits_in_redis",
        "RedisNamespace._run",
        "[action, self._owner, self._epoch, *arguments]",
        "[action, self._owner, '', *arguments]",
        "tests/stateful/test_redis_states.py::test_a_stale_coordinator_changes_nothing",
    ),
    Mutant(
        "properties_are_visible_before_they_are_synced",
        "DeltaHandle.commit",
        "self._commit_entry(commit)",
        "not commit.properties and self._commit_entry(commit)",
        "tests/unit/clients/delta/test_handle.py::test_properties_are_synced_before_readers_see_them",
    ),
    Mutant(
        "directories_that_exist_are_taken_for_durable",
        "secure_directories",
        "sync_names(path.parent, [path])",
        "pass",
        "tests/unit/storage/tables/test_directory.py::test_names_of_directories_are_synced_even_if_they_exist",
    ),
    Mutant(
        "names_are_believed_after_a_failed_sync",
        "sync_names",
        "renew(path)",
        "pass",
        "tests/unit/clients/test_files.py",
    ),
    Mutant(
        "a_file_gets_its_name_before_it_is_synced",
        "write_durably",
        """
write_synced(made, data)
made.replace(path)
""",
        """
made.write_bytes(data)
made.replace(path)
sync_file(path)
""",
        "tests/unit/clients/test_files.py",
    ),
    Mutant(
        "stored_paths_lead_out_of_the_table",
        "checked_path",
        "not isinstance(path, str) or path.startswith('/') or '..' in path.split('/') or _SCHEME.match(path)",
        "not isinstance(path, str) or path.startswith('/') or _SCHEME.match(path)",
        "tests/unit/books/test_stored_paths.py",
    ),
    Mutant(
        "a_replaced_entry_is_still_there",
        "DeltaHandle.still_has",
        "self._own is None or self._own[0] != version or has_inode(entry, self._own[1])",
        "True",
        "tests/unit/storage/tables/test_altered_tables.py",
    ),
    Mutant(
        "young_entries_are_archived",
        "_first_kept",
        "min(next(entries, last), next(checkpoints, last))",
        "next(checkpoints, last)",
        "tests/unit/clients/delta/test_log_retention.py",
    ),
    Mutant(
        "young_checkpoints_are_archived",
        "_first_kept",
        "min(next(entries, last), next(checkpoints, last))",
        "next(entries, last)",
        "tests/unit/clients/delta/test_log_retention.py",
    ),
    Mutant(
        "a_consumer_that_never_closes_blocks_its_task",
        "_Consumer.close",
        "closing.result(CLOSING)",
        "closing.result()",
        "tests/unit/clients/kafka/test_reader.py",
    ),
    Mutant(
        "the_registrys_password_follows_redirects",
        "_Redirects.redirect_request",
        "(before.scheme, before.netloc) != (after.scheme, after.netloc)",
        "False",
        "tests/unit/spouts/kafka/test_kafka_decode.py",
    ),
    Mutant(
        "constraints_of_others_are_ignored",
        "Features._unwritable",
        "name.startswith('delta.constraints.')",
        "False",
        "tests/unit/storage/tables/test_features.py",
    ),
    Mutant(
        "tables_with_deleted_rows_are_written",
        "Features._unwritable",
        "self.properties.get('delta.enableDeletionVectors', '').lower() == 'true'",
        "False",
        "tests/unit/storage/tables/test_features.py",
    ),
    Mutant(
        "checkpoints_are_archived_after_a_minute",
        "CHECKPOINT_SECONDS",
        "3600.0",
        "60.0",
        "tests/unit/clients/delta/test_log_retention.py",
    ),
    Mutant(
        "a_bounded_log_keeps_every_entry",
        "Archiving.steps",
        "archive_entries(handle.path, seconds, now, most=kept)",
        "archive_entries(handle.path, seconds, now)",
        "tests/unit/clients/delta/test_log_retention.py",
    ),
)
