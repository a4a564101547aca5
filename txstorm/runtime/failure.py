"""What ends a topology, as an error its user can act on."""

from __future__ import annotations

import shlex
from pathlib import Path

import txstorm.errors
from txstorm.api.attempt import TransactionAttempt
from txstorm.engine.port import LIMIT, ErrorRow
from txstorm.engine.task.error_rows import error_row
from txstorm.errors import InputError, TooManyDeadLetters, TopologyError, TopologyFailed, TxstormError


def batch_failure(attempt: TransactionAttempt, row: ErrorRow, count: int) -> TxstormError:
    """The error a topology ends with after `attempt` failed for the `count`-th time.

    An `InputError` raised in a worker (a file that changed, a wrong emit) stays what it was.
    """
    if row.kind == LIMIT:
        return TooManyDeadLetters(row.message)
    message = (
        f"txid {attempt.txid} (attempt {attempt.attempt_id}) failed {'once' if count == 1 else f'{count} times'}: {row}"
    )
    kind = getattr(txstorm.errors, row.type, None)
    if isinstance(kind, type) and issubclass(kind, InputError) and kind is not TopologyError:
        return kind(message)
    failure = TopologyFailed(message)
    if row.traceback:
        failure.add_note(row.traceback)
    return failure


def letters_command(data_dir: str | Path) -> str:
    """How to see the dead letters of a data directory, in a shell."""
    path, here = Path(data_dir), Path.cwd()
    return f"txstorm dead-letters {shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))}"


def letters_failure(excess: str, data_dir: Path) -> TooManyDeadLetters:
    """The error of a run that has committed all, and left out too much of it."""
    return TooManyDeadLetters(
        f"all is committed, but the dead letters are {excess}; see them: {letters_command(data_dir)}"
    )


def spout_row(error: BaseException, spout: str) -> ErrorRow:
    """The error row of an exception that the spout's coordinator raised while planning."""
    return error_row(f"coordinator of {spout}", 0, 0, error)


def spout_failure(error: BaseException, spout: str, txid: int) -> BaseException:
    """The error a topology ends with when the spout's coordinator raised while planning `txid`."""
    if isinstance(error, TxstormError):
        return error
    failure = TopologyFailed(f"txid {txid}: the coordinator of spout {spout!r} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def system_failure(error: BaseException, data_dir: Path) -> BaseException:
    """What the operating system refused, as an error its user can act on; other errors as they are."""
    if not isinstance(error, OSError):
        return error
    failure = TxstormError(
        f"data directory {data_dir}: {error.filename or 'a file'}: {error.strerror or error}; nothing that was "
        "committed is lost: check disk space and permissions, then start the topology again"
    )
    failure.__cause__ = error
    return failure
