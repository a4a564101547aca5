"""A coordinator that is frozen while it sweeps: ``frozen_sweep.py DATA_DIR LEDGER``.

It writes a long value and drops it again, so that the value's file is one to remove, and stops at that.
"""

from __future__ import annotations

import sys
from pathlib import Path

from txstorm import faults
from txstorm.books.books import Books
from txstorm.books.records import Meta
from txstorm.ledger.location import parse_ledger
from txstorm.ledger.open import open_ledger
from txstorm.ledger.port import MAX_VALUE
from txstorm.topology.settings import Settings

LONG = Meta({"lines": ["x" * MAX_VALUE]}, 1)


def lead(data_dir: Path, ledger: str) -> Books:
    """The books of the topology, taken over."""
    settings = Settings(zookeeper_session_timeout=1.5)
    opened = open_ledger(data_dir, create=True, ledger=parse_ledger(ledger), settings=settings)
    assert opened.wait_free(60)
    opened.acquire("sweeper")
    (data_dir / "intents").mkdir(exist_ok=True)
    books = Books(opened, data_dir / "intents")
    books.raise_epoch()
    return books


if __name__ == "__main__":
    led = lead(Path(sys.argv[1]), sys.argv[2])
    led.write_metas({1: LONG})
    led.write_metas({}, remove=[1])
    faults.arm("sweep.values:freeze:1")
    led.sweep()
    led.ledger.close()
