"""The same networks on threads and on Spark: the same tuples in the same order, the same tables, byte for byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from probe_nets import Seen, build, check, observe

from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine
from txstorm.plan.stages import compile_plan

SIZES = (13, 0, 7, 1)
PACKED = {"max_spout_pending": 8, "max_jobs": 2}
NETS = {
    "groupings": """
        numbers spout 3
        shuffled basic 2 : numbers shuffle
        keyed batch 3 : numbers fields
        one batch* 2 : shuffled global
        every basic* 3 : shuffled all
        none batch 4 : numbers none
        directed batch 3 : keyed/aimed direct
        local basic 3 : keyed local_or_shuffle
        partly batch* 4 : numbers partial_key
        own basic 3 : shuffled custom
        """,
    "one-task-everywhere": """
        numbers spout 1
        a basic 1 : numbers shuffle
        b batch 1 : a fields
        c batch* 1 : b global, a all, numbers shuffle
        """,
    "parallelism-all-different": """
        numbers spout* 4
        a basic 1 : numbers shuffle
        b basic* 3 : a all
        c batch 2 : b fields
        d batch* 4 : c shuffle
        """,
    "several-streams": """
        numbers spout 2
        split batch 2 : numbers/even fields, numbers/odd all, numbers shuffle
        low basic 2 : split/low shuffle
        high batch* 3 : split/high fields, split/low shuffle
        aimed batch 2 : split/to direct, numbers/to direct
        """,
    "diamond": """
        numbers spout 2
        left basic 2 : numbers shuffle
        right batch 3 : numbers fields
        join batch 2 : left fields, right fields
        sum commit 2 : join fields, left fields
        """,
    "deep-with-edges-that-skip": """
        numbers spout 2
        a basic 3 : numbers shuffle
        b batch 2 : a fields
        c basic 3 : b shuffle
        d batch* 2 : c fields, numbers fields
        e basic 4 : d shuffle, a all
        f batch 2 : e fields, b local_or_shuffle, numbers local_or_shuffle
        g commit 2 : f fields, a fields, numbers fields
        """,
    "local-edges-over-levels": """
        numbers spout 3
        a basic 3 : numbers local_or_shuffle
        far batch 3 : numbers fields
        b batch 3 : a local_or_shuffle, far local_or_shuffle
        c batch* 3 : b local_or_shuffle, a local_or_shuffle
        d basic 2 : c local_or_shuffle
        e batch 2 : d local_or_shuffle, a shuffle
        """,
    "committers-in-the-middle": """
        numbers spout 2
        a batch 2 : numbers shuffle
        b commit 2 : a fields
        c batch 3 : a fields, b fields
        d commit 2 : c fields
        e basic 2 : d local_or_shuffle, a shuffle
        f batch* 2 : e shuffle, b/aimed direct
        """,
    "committers-first": """
        numbers spout* 2
        a commit* 3 : numbers fields
        b commit 2 : a shuffle, numbers all
        c basic* 2 : b partial_key
        d commit 1 : c global, a custom
        """,
    "basic-only": """
        numbers spout 2
        a basic 2 : numbers local_or_shuffle
        b basic* 3 : a shuffle
        c basic 3 : b local_or_shuffle
        """,
}
Factory = Callable[[], Engine]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Seen]:
    """What a network shows on threads, one transaction at a time: what every other run of it is compared with."""
    known: dict[str, Seen] = {}

    def get(text: str) -> Seen:
        if text not in known:
            topology = build(text, SIZES, max_spout_pending=1)
            known[text] = observe(topology, LocalEngine(), tmp_path_factory.mktemp("alone"))
        return known[text]

    return get


def compare(text: str, alone: Callable[[str], Seen], make_engine: Factory, data_dir: Path) -> None:
    seen = observe(build(text, SIZES, **PACKED), make_engine(), data_dir)
    check(text, SIZES, seen)
    assert seen.log == alone(text).log
    assert seen.totals == alone(text).totals


@pytest.mark.parametrize("name", NETS)
def test_same_tuples_in_the_same_order(name: str, alone, make_engine: Factory, tmp_path: Path) -> None:
    compare(NETS[name], alone, make_engine, tmp_path)


def test_the_deep_network_is_deep() -> None:
    plan = compile_plan(build(NETS["deep-with-edges-that-skip"], SIZES))
    assert len(plan.stages) >= 6
    crossing = [edge for edge in compile_plan(build(NETS["local-edges-over-levels"], SIZES)).edges if edge.local]
    assert len(crossing) >= 5


GROUPINGS = ("shuffle", "fields", "global", "all", "none", "local_or_shuffle", "partial_key", "custom")


def random_network(seed: int) -> str:
    """A network of up to seven components with any kinds, groupings, streams and parallelism."""
    rng = random.Random(seed)
    lines = [f"c0 {rng.choice(('spout', 'spout*'))} {rng.randint(1, 4)}"]
    for index in range(1, rng.randint(4, 7)):
        kind = rng.choice(("basic", "basic*", "batch", "batch*", "commit", "commit*"))
        inputs = {}
        for _ in range(rng.randint(1, 3)):
            source = f"c{rng.randrange(max(0, index - 3), index)}"
            stream = rng.choice(("", "", "/more", "/aimed"))
            inputs[source + stream] = "direct" if stream == "/aimed" else rng.choice(GROUPINGS)
        subscriptions = ", ".join(f"{source} {grouping}" for source, grouping in inputs.items())
        lines.append(f"c{index} {kind} {rng.randint(1, 4)} : {subscriptions}")
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_in_packs_as_one_by_one(seed: int, alone, tmp_path: Path) -> None:
    text = random_network(seed)
    print(text)
    compare(text, alone, LocalEngine, tmp_path)


@pytest.mark.parametrize("seed", range(12, 17))
def test_random_networks_on_both_engines(seed: int, alone, make_engine: Factory, tmp_path: Path) -> None:
    text = random_network(seed)
    print(text)
    compare(text, alone, make_engine, tmp_path)


@pytest.mark.parametrize(
    "settings", [{"cargo_bytes": 300, "spill_bytes": 0}, {"cargo_bytes": 1, "spill_bytes": 100}], ids=str
)
def test_small_pieces_and_spilled_files_change_nothing(settings, alone, make_engine: Factory, tmp_path: Path) -> None:
    text = NETS["deep-with-edges-that-skip"]
    seen = observe(build(text, SIZES, **PACKED, **settings), make_engine(), tmp_path)
    assert seen == alone(text)
    assert not list((tmp_path / "spill").iterdir())
