"""Tests of the program `scenarios`: every scenario that it lists can be loaded."""

from __future__ import annotations

import pytest
from recovery_cases import ran
from scenarios import SCENARIOS, scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_there(name: str) -> None:
    assert callable(scenario(name))


@pytest.mark.integration
def test_a_scenario_that_is_not_there_is_an_error() -> None:
    status, output = ran(scenario="nowhere")
    assert (status, "KeyError: 'nowhere'" in output) == (1, True)
