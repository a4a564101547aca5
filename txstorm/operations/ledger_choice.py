"""Ledger addresses given by the operator: check them against the data directory, and confirm hosts to get secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from txstorm.ledger.credentials import ask_with, named_ledger


def check_ledger(data_dir: str | Path, address: str) -> None:
    """Check that the topology in `data_dir` uses the ledger at `address`; then secrets may be sent to its hosts.

    Raises:
        InputError: `data_dir` uses another ledger, or an argument is malformed.
    """
    from txstorm.ledger.open import chosen_ledger, local_directory  # every command imports this module

    named_ledger(address)
    chosen_ledger(local_directory(data_dir), address)


def set_confirmation(confirm: Callable[[str], bool]) -> None:
    """Set the callback that asks the operator before a secret is sent to a host named only by a data directory.

    `confirm` is called with the question and returns whether the answer is yes. Without a callback, the answer is no.
    """
    ask_with(confirm)
