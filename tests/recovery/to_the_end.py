"""A run of a job to the end of what its source holds now, as crash tests start it again and again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txstorm import run


def to_the_end(topology: Any, data_dir: Path, settings: Mapping[str, Any], engine: str) -> dict[str, int]:
    """Run `topology`; what a job prints in the end."""
    handle = run(topology, engine=engine, data_dir=data_dir, settings=settings, available_now=True)
    handle.awaitTermination()
    now = handle.progress
    return {"committed": now.committed, "txids": now.txids, "replays": now.replays}
