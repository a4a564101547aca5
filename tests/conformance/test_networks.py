"""Equality of the engines: threads and Spark emit the same tuples in the same order, and write identical tables."""

from collections.abc import Callable

import pytest

from txstorm.engine.local import LocalEngine
from txstorm.engine.port import Engine
from txstorm.plan.stages import compile_plan
from txstorm.testing import check_engine
from txstorm.testing.checks.engines import check_network
from txstorm.testing.checks.networks import NETWORKS, build, random_network

Factory = Callable[[], Engine]


@pytest.mark.parametrize("name", NETWORKS)
def test_same_tuples_in_the_same_order(name: str, make_engine: Factory) -> None:
    """T20: every grouping, with parallelism per bolt; items 36 to 41 in a single graph."""
    check_network(NETWORKS[name], make_engine)


def test_check_engine_accepts_it(make_engine: Factory) -> None:
    check_engine(make_engine, networks=["one-task-everywhere"])


def test_the_deep_network_is_deep() -> None:
    assert len(compile_plan(build(NETWORKS["deep-with-edges-that-skip"])).stages) >= 6
    crossing = [edge for edge in compile_plan(build(NETWORKS["local-edges-over-levels"])).edges if edge.local]
    assert len(crossing) >= 5


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_in_packs_as_one_by_one(seed: int) -> None:
    text = random_network(seed)
    print(text)
    check_network(text, LocalEngine)


@pytest.mark.parametrize("seed", range(12, 17))
def test_random_networks_on_both_engines(seed: int, make_engine: Factory) -> None:
    text = random_network(seed)
    print(text)
    check_network(text, make_engine)


@pytest.mark.parametrize(
    "settings", [{"cargo_bytes": 300, "spill_bytes": 0}, {"cargo_bytes": 1, "spill_bytes": 100}], ids=str
)
def test_small_pieces_and_spilled_files_change_nothing(settings, make_engine: Factory) -> None:
    check_network(NETWORKS["deep-with-edges-that-skip"], make_engine, **settings)
