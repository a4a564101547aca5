"""A Spark cluster of real processes on this machine: executors that can be killed, each with its Python workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pyspark

from servers.family import Member

QUICK = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Executors start in half the time; what they compute is Python's work."""
EXECUTOR = "CoarseGrainedExecutorBackend"
DAEMON = "spark_daemon"


def cluster(place: Path, settings: Mapping[str, str] | None = None, *, executors: int = 2) -> dict[str, str]:
    """The environment in which txstorm makes a session with so many executors of one core; `place` is a directory.

    `settings` are Spark's. Its home is in `place`: that is where it keeps the work of executors.
    """
    home = place / "spark"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (home / entry.name).symlink_to(entry)
    (home / "conf").mkdir()
    lines = [f"{name} {value}\n" for name, value in {**QUICK, **(settings or {})}.items()]
    (home / "conf" / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return {
        "SPARK_HOME": os.fspath(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TXSTORM_SPARK_MASTER": f"local-cluster[{executors},1,1024]",
    }


def is_executor(one: Member, family: Mapping[int, Member]) -> bool:
    """Whether a process is an executor."""
    return EXECUTOR in one.command


def is_worker(one: Member, family: Mapping[int, Member]) -> bool:
    """Whether a process is one in which Python tasks run: a fork of the daemon of its executor."""
    parent = family.get(one.parent)
    return parent is not None and DAEMON in one.command and DAEMON in parent.command
