"""Known defects of `txstorm.ledger`."""

from scripts._mutants.mutation import Mutant

MUTANTS = (
    Mutant(
        "a_sweep_takes_values_of_later_epochs",
        "sweep_blobs",
        "int(found[1] or 0) <= epoch",
        "True",
        "tests/unit/ledger/test_values.py",
    ),
    Mutant(
        "the_password_goes_where_the_data_directory_says",
        "check_named",
        "not unnamed",
        "True",
        "tests/unit/ledger/test_location.py",
    ),
    Mutant(
        "a_removed_lock_file_is_still_a_lease",
        "FileLease.check",
        "os.fstat(self._file).st_nlink == 0",
        "False",
        "tests/unit/ledger/test_lease.py",
    ),
    Mutant(
        "a_closed_copy_of_the_lock_file_ends_the_lease",
        "_lock",
        "lock_bytes(file, fcntl.F_WRLCK, 0, 0)",
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "tests/unit/ledger/test_lease.py",
    ),
    Mutant(
        "a_forked_copy_of_a_handle_is_used",
        "StoredLedger._check_usable",
        "self._pid != os.getpid()",
        "False",
        "tests/unit/ledger/test_port.py::test_a_copy_of_a_handle_in_a_forked_child_is_void_and_leaves_the_parents_alone[memory]",
    ),
    Mutant(
        "what_another_process_wrote_is_not_read",
        "SqliteLedger._load",
        "seen != self._seen",
        "self._seen is None",
        "tests/unit/ledger/test_sqlite.py::test_every_commit_is_synced_in_wal_mode_to_which_opening_a_ledger_switches_it",
    ),
    Mutant(
        "a_handle_that_put_its_truncated_entry_back_tries_for_ever",
        "DeltaContent._tried",
        "self._reopen()",
        "self.catch_up()",
        "tests/unit/ledger/delta/test_delta_ledger.py::test_a_handle_that_put_its_truncated_entry_back_goes_on_at_the_newest_version",
    ),
)
