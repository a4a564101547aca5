"""Local Spark clusters of real processes: executors that can be killed, each with its Python workers."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from servers.cluster import Cluster
from servers.family import Member
from servers.process import GuardedProcess, free_ports

QUICK = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""JVM options with which executors start in half the time; slower JVM code is acceptable, as Python does the work."""
EXECUTOR = "CoarseGrainedExecutorBackend"
DAEMON = "spark_daemon"


def cluster(place: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return environment variables with which txstorm creates a Spark session with two one-core executors."""
    return {**home(place, settings), "TXSTORM_SPARK_MASTER": "local-cluster[2,1,1024]"}


def home(place: Path, settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Create a Spark home with additional `settings` in `place`; return the environment variables that select it."""
    made = place / "spark"
    made.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        (made / entry.name).symlink_to(entry)
    (made / "conf").mkdir()
    lines = [f"{name} {value}\n" for name, value in {**QUICK, **(settings or {})}.items()]
    (made / "conf" / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    return {"SPARK_HOME": os.fspath(made), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def hosts(place: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a Spark master and two one-core workers, each on a separate host; yield the master's URL.

    The hosts are loopback addresses, which Linux provides without configuration.
    """
    (port,) = free_ports(1)
    url = f"spark://127.0.0.1:{port}"
    calls = [("127.0.0.1", "master.Master", ["--port", str(port)])]
    for host in ("127.0.0.2", "127.0.0.3"):
        work = ["--cores", "1", "--memory", "1g", "--work-dir", os.fspath(place / f"work-{host}"), url]
        calls.append((host, "worker.Worker", work))
    with ExitStack() as ended:
        for host, name, arguments in calls:
            known = [f"{key}={value}" for key, value in {**environment, "SPARK_LOCAL_IP": host}.items()]
            program = [os.path.join(environment["SPARK_HOME"], "bin", "spark-class"), f"org.apache.spark.deploy.{name}"]
            command = ["env", *known, *program, "--host", host, "--webui-port", "0", *arguments]
            server = GuardedProcess(f"Spark {name} on {host}", command, place / f"{host}.log")
            server.start()
            ended.callback(server.kill)
            if name == "master.Master":
                server.wait_ready(lambda: Cluster.listens(port))
        yield url


def is_executor(one: Member, family: Mapping[int, Member]) -> bool:
    return EXECUTOR in one.command


def is_worker(one: Member, family: Mapping[int, Member]) -> bool:
    """Return whether the process `one` is a Python worker, a fork of its executor's PySpark daemon."""
    parent = family.get(one.parent)
    return parent is not None and DAEMON in one.command and DAEMON in parent.command
