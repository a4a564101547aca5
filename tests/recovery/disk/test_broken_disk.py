"""A disk on which every sync fails: no txid is falsely reported as committed, and the next start recovers."""

from __future__ import annotations

import json

import pytest
from recovery_cases import check, committed_versions, content, ends
from scenarios.disk import FROM, NUMBERS, topology

from txstorm import run

POINTS = ["p1.before", "p5.before", "p6.before", "p7.2.before", "p8.before"]
"""The next sync is that of the ledger, a staged file, the ledger, a log, the ledger."""


def go_on(home) -> None:
    run(topology(home, NUMBERS), engine="local", data_dir=home / "data", available_now=True).awaitTermination()


@pytest.mark.integration
def test_syncs_that_fail_end_the_run_and_nothing_is_lost(place):
    (place / "well").mkdir()
    go_on(place / "well")
    expected, txids = content(place / "well" / "data"), len(NUMBERS) // 2
    output = ends(place, *POINTS, scenario="broken-disk")
    told = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert sorted(one["point"] for one in told) == sorted(POINTS), output
    for one in told:
        data_dir = place / one["point"] / "data"
        assert str(data_dir) in one["said"], one
        assert one["committed"] in (FROM - 1, FROM), one
        assert set(range(1, one["committed"] + 1)) <= set(committed_versions(data_dir)), one
        go_on(data_dir.parent)
        check(data_dir, txids)
        assert content(data_dir) == expected, one
