"""Complete runs of topologies."""

from pathlib import Path
from typing import Any

from txstorm import run
from txstorm.runtime.handle import RunHandle
from txstorm.topology.graph import Topology


def ended(topology: Topology, data_dir: Path, engine: Any = "local", **options: Any) -> RunHandle:
    """Run a topology to the end of what its source holds now, or as the options of `run` say; raises what ended it."""
    limit = {} if options.keys() & {"until_txid", "end_of_input"} else {"available_now": True}
    handle = run(topology, engine=engine, data_dir=data_dir, **limit, **options)
    assert handle.awaitTermination(600)
    return handle
