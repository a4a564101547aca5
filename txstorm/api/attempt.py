"""The attempt at a transaction: which batch, and which emission of it."""

from __future__ import annotations

from typing import NamedTuple

FIRST_TXID = 1


class TransactionAttempt(NamedTuple):
    """One emission of one batch; Storm's `TransactionAttempt`.

    Attributes:
        txid: the transaction, from 1 without gaps; the same however often the batch is replayed.
        attempt_id: unique for every emission of the batch, restarts included.
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
