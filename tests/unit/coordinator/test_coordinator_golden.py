"""Storm's own coordinator test, replayed from a data file (conformance items 1 to 13)."""

import json
from pathlib import Path

from coordinator_bench import Bench

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "storm_coordinator.json").read_text(encoding="utf-8"))


def play(bench: Bench, step: dict) -> list[str]:
    bench.value = step["value"]
    emitted = []
    for action in step["do"]:
        verb, _, txid = action.partition(" ")
        emitted += bench.wake() if verb == "wake" else getattr(bench, verb)(int(txid))
    return emitted


def test_items_1_to_13_transcript_and_unique_attempts():
    """Items 1 to 13: Storm's transcript (T2, T13, T38, T39); every emission has a new, unique attempt id (T3)."""
    bench = Bench(GOLDEN["max_pending"])
    got = [{**step, "emits": play(bench, step)} for step in GOLDEN["steps"]]
    assert got == GOLDEN["steps"]
    # For each Process and Commit, the bench checks that the attempt is the last one planned for that txid.
    batches = sum(emitted.startswith("batch") for step in got for emitted in step["emits"])
    assert batches == len(bench.used) == len(set(bench.used)) > 0
