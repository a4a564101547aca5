"""Storm's own tests and worked examples, replayed on the test driver (storm.md; the files name the items)."""

from pathlib import Path

import pytest
import storm_topologies as storm

from txstorm.testing import run_transcript

GOLDEN = Path(__file__).parents[1] / "golden"
TRANSCRIPTS = {
    "storm_transactional_topology": storm.transactional_topology,  # item 80
    "storm_opaque_transactional_topology": storm.opaque_topology,  # item 54
    "storm_transactional_topology_restart": storm.restart_topology,  # item 62
    "storm_source_document": storm.source_document,  # item 77
    "storm_stale_failure": storm.stale_failure,  # item 81
    "storm_late_commit": storm.late_commit,  # item 82
    "storm_no_phantom_batch": storm.no_phantom_batch,  # item 83
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str) -> None:
    run_transcript(GOLDEN / f"{name}.json", TRANSCRIPTS[name]())
