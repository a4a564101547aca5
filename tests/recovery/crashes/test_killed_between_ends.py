"""Window ends that fire in several transactions: the process is killed between them, and none fires twice or never."""

import signal

from programs import loaded
from recovery_cases import ended, environment
from scenarios.ends import topology


def contents(handle):
    return sorted((row["end"], row["ids"]) for row in handle.sink("contents").to_pylist())


def test_killed_twice_within_a_series_of_ends(tmp_path):
    expected = contents(ended(topology("none"), tmp_path / "at once"))
    assert len(expected) > 100
    for point in ("p1.after", "p5.staged.after", "p6.before", "p6.after", "p7.1.written", "p8.before"):
        data_dir = tmp_path / point
        for passage in (3, 2):  # within the series, and again soon after the next start
            fault = f"{point}:kill:{passage}"
            program = loaded().start("-m", "scenarios.ends", data_dir, env=environment(TXSTORM_FAULT=fault))
            assert program.wait(120) == -signal.SIGKILL, (point, program.complained)
        handle = ended(topology(15), data_dir)
        assert contents(handle) == expected, point
        assert max(one.txid for one in handle.recentProgress) >= 7
