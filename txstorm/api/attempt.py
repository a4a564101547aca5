"""Transaction attempt: the pair (txid, attempt id) that every tuple carries."""

from __future__ import annotations

from typing import NamedTuple

FIRST_TXID = 1


class TransactionAttempt(NamedTuple):
    """One attempt at one transaction, that is, one emission of its batch; Storm's class of the same name.

    Attributes:
        txid: the transaction, numbered from 1 without gaps; every replay of its batch has the same one.
        attempt_id: different for every emission of the batch, also across restarts.
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
