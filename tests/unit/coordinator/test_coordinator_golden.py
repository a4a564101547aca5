"""Storm's own test-coordinator, from a data file (conformance items 1-13)."""

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


def test_items_1_to_12_transcript():
    """T38, T39: emit on the batch stream, commit in order. Also T13, T2."""
    bench = Bench(GOLDEN["max_pending"])
    got = [{**step, "emits": play(bench, step)} for step in GOLDEN["steps"]]
    assert got == GOLDEN["steps"]


def test_item_13_every_emission_carries_an_attempt_of_its_own():
    # The bench checks at each Process and Commit that the attempt is the one planned last for that txid.
    """Row T3."""
    bench = Bench(GOLDEN["max_pending"])
    batches = sum(emitted.startswith("batch") for step in GOLDEN["steps"] for emitted in play(bench, step))
    assert batches == len(bench.used) == len(set(bench.used)) > 0
