"""Exceptions that txstorm raises, or that user code raises to fail a batch.

::

    TxstormError
    ├── InputError                  the caller's input is wrong: exit code 2 on the command line
    │   ├── TopologyError           faults of a topology, all of them at once
    │   ├── ConfigurationError      faults of an operator network's configuration, all of them at once
    │   ├── SettingError            an unknown or impossible setting
    │   ├── SpoutError              a source that is missing, unreadable or has changed since it was planned
    │   ├── MetadataError           spout metadata that cannot be stored as JSON
    │   ├── EmitError               an emit of the wrong arity, type or stream
    │   ├── StateError              a state used against its declaration
    │   ├── NotRunningError         a command for a run, but none is live
    │   ├── AwayError               an external system does not answer: it is down, or its address is wrong
    │   └── DataDirectoryError      a data directory that is foreign, newer, incomplete or corrupt
    │       ├── LedgerCorrupt
    │       └── TableCorrupt
    │           └── TableRefused    a table with a Delta feature that is not supported, but not damaged
    ├── HeldError                   another live run has the lease: exit code 3
    │   └── BusyError               another life-cycle command is under way
    ├── FencedError                 a newer coordinator has taken over: exit code 3
    ├── ConflictError               a compare-and-set lost against another writer
    ├── OrderError                  a txid was used out of the strict txid order
    ├── BlockedError                a decided transaction cannot be published
    ├── TopologyFailed              the topology stopped on an error of user code: exit code 1
    │   └── TooManyDeadLetters      more records were left out than `max_dead_letters` allows: exit code 1
    ├── StoppedError                the run was stopped before the awaited condition became true
    │   └── KilledError             the topology was killed while this run was on standby: exit code 0
    ├── EngineError                 the engine could not run a job (worker death, cancelled)
    ├── SessionLost                 the Spark session has ended, so no job can run
    └── MissingDependency           an optional package is not installed

    FailedException                 raised by *user* code: fail this batch quietly and replay it
    └── ReportedFailedException     the same, and reported

An error that ends a topology while it runs is a `TopologyFailed` in any case: an `EmitError` of a bolt, for example, is
then raised as an object of both classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LEAVE_OUT = ", or leave such records out with on_error='dead_letter'"
"""End of messages about records that such a policy would leave out; see `without_advice`."""


def without_advice(message: str) -> str:
    """Return `message` as it is to be shown under a policy that leaves records out."""
    return message.replace(LEAVE_OUT, "")


class TxstormError(Exception):
    """Base class of all errors that txstorm raises."""

    exit_code = 1


class InputError(TxstormError):
    """An argument, file or message from the caller is wrong; nothing was changed."""

    exit_code = 2


class TopologyError(InputError):
    """A topology has faults; the message lists all of them, each with its remedy.

    Attributes:
        faults: one sentence per fault.
    """

    def __init__(self, topology: str, faults: Sequence[str]) -> None:
        self.topology = topology
        self.faults = tuple(faults)
        lines = "\n".join(f"  - {fault}" for fault in self.faults)
        number = f"{len(self.faults)} fault{'' if len(self.faults) == 1 else 's'}"
        super().__init__(f"topology {topology!r} has {number}:\n{lines}")


class ConfigurationError(InputError):
    """A configuration of an operator network has faults; the message lists all of them, one a line.

    Attributes:
        faults: ``{"line", "column", "message"}`` of each, counted from 1; the first hundred, if there are more.
    """

    def __init__(self, name: str, faults: Sequence[Mapping[str, Any]]) -> None:
        self.faults = [dict(one) for one in faults[:100]]
        lines = [f"{name}:{one['line']}:{one['column']}: {one['message']}" for one in self.faults]
        more = [f"{name}: {len(faults) - 100:,} more"] if len(faults) > 100 else []
        super().__init__("\n".join([*lines, *more]))


class SettingError(InputError):
    """A setting is unknown or its value is out of range."""


class SpoutError(InputError):
    """The source of a spout is missing, unreadable, or has changed since its batch was planned."""


class MetadataError(InputError):
    """Spout metadata that cannot be stored as JSON."""


class EmitError(InputError):
    """A tuple was emitted with the wrong number of values, to an unknown stream, or with a value that cannot be sent.

    Attributes:
        late: whether the fault was found after `emit` had returned, so that the traceback does not show the call.
    """

    late = False


class StateError(InputError):
    """A state was used against its declaration or outside `finish_batch`.

    Attributes:
        rows: the rows of a merged batch that are at fault, if they are known; a ready-made bolt passes them on only if
            they are those of its input.
    """

    rows: Sequence[int] = ()


class NotRunningError(InputError):
    """A command needs a running topology, but no run of it is live."""


class AwayError(InputError):
    """An external system does not respond: it is temporarily down, or its address is wrong.

    If it has answered before, txstorm waits for it.
    """


class DataDirectoryError(InputError):
    """A data directory is foreign or incomplete, or has a format that this version does not know."""


class LedgerCorrupt(DataDirectoryError):
    """The content of the ledger is damaged, or is not a ledger."""


class TableCorrupt(DataDirectoryError):
    """A table or one of its files is damaged."""


class TableRefused(TableCorrupt):
    """A table has a Delta feature that txstorm does not implement; it is not damaged, and nothing was written to it."""


class HeldError(TxstormError):
    """Another live run holds the lease of this topology."""

    exit_code = 3


class BusyError(HeldError):
    """Another life-cycle command for this topology is still pending; the message names it."""


class FencedError(TxstormError):
    """A coordinator with a newer epoch has taken over; this one must stop and write nothing more."""

    exit_code = 3


class ConflictError(TxstormError):
    """A compare-and-set found a version other than the expected one; read again, and retry if still appropriate."""


class OrderError(TxstormError):
    """A txid was used out of the strict txid order: a defect of the caller; nothing was written."""


class BlockedError(TxstormError):
    """A decided transaction cannot be published (table missing, permission refused).

    Resolve the cause and start the topology again: it then rolls the decided transaction forward.
    """


class TopologyFailed(TxstormError):
    """User code raised, and the error policy is to stop."""


class TooManyDeadLetters(TopologyFailed):
    """The run produced more dead letters than the setting `max_dead_letters` allows."""


class DeadLettersWarning(UserWarning):
    """Records were omitted from their transactions; they are stored in the dead-letter table."""


class StoppedError(TxstormError):
    """The run was stopped before the awaited condition became true."""


class KilledError(StoppedError):
    """The topology was ended with ``txstorm kill`` while this run was on standby; not a failure."""

    exit_code = 0


class EngineError(TxstormError):
    """The engine could not complete a job: a worker died, or the job was cancelled."""


class SessionLost(TxstormError):
    """The Spark session was stopped, or its JVM has died: no job can run until there is a new session."""


class MissingDependency(TxstormError):
    """An optional package is not installed; the message contains the install command."""

    exit_code = 2

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        super().__init__(f"{package} is not installed; run: pip install 'txstorm[{extra}]'")


class FailedException(Exception):
    """Raised by a bolt or spout to fail its batch at once; the batch is replayed, with no retry limit or error log."""


class ReportedFailedException(FailedException):
    """A `FailedException` whose cause is also logged and shown in the topology's status."""
