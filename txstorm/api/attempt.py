"""Transaction attempt: the pair (txid, attempt id) that every tuple carries."""

from __future__ import annotations

from typing import NamedTuple

FIRST_TXID = 1
EPOCH_BITS = 32
"""Number of low bits of an attempt id that count within a run; the others are the epoch of the run."""


class TransactionAttempt(NamedTuple):
    """One attempt at one transaction, that is, one emission of its batch; Storm's class of the same name.

    Attributes:
        txid: the number of the transaction, from 1 without gaps; the same for every replay of its batch.
        attempt_id: unique to each emission of the batch, even across restarts.
    """

    txid: int
    attempt_id: int

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt_id}"

    def getTransactionId(self) -> int:  # noqa: N802 - Storm's name
        """Storm's spelling of `txid`."""
        return self.txid

    def getAttemptId(self) -> int:  # noqa: N802 - Storm's name
        """Storm's spelling of `attempt_id`."""
        return self.attempt_id
