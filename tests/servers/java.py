"""Paths of Java and of the jars of Kafka and ZooKeeper, and the command lines that run them."""

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from servers.process import ServerError

ROOT = Path(__file__).resolve().parents[2]
KAFKA_JARS = ROOT / ".cache" / "kafka-jars"

# Servers log to their standard output, which is redirected to the log file, from level INFO on.
LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %c{1} %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


def java(program: str = "java") -> str:
    """Return the path of the Java tool `program`, found through JAVA_HOME or PATH; raise ServerError if missing."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / program) if home else shutil.which(program)
    if not found:
        raise ServerError(f"{program} is not on PATH: install Java 17 or newer (scripts/test --install does)")
    return found


def spark_jars() -> Path:
    """Return the directory of pyspark's jars, which include ZooKeeper 3.9 and log4j."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerError("pyspark, whose jars hold ZooKeeper, is not installed: pip install -e '.[dev]'")
    return Path(spec.origin).parent / "jars"


def kafka_jars() -> Path:
    """Return the directory of the Kafka jars that `scripts/jars` has downloaded; raise ServerError if it is empty."""
    if not any(KAFKA_JARS.glob("kafka_2.13-*.jar")):
        raise ServerError(f"no Kafka jars in {KAFKA_JARS}: run scripts/jars")
    return KAFKA_JARS


def kafka_classpath() -> str:
    """Return Kafka's class path, with pyspark's log4j because Kafka's dependencies include no logging backend."""
    spark = spark_jars()
    writing = [jar for name in ("slf4j-api", "log4j-slf4j2-impl") for jar in sorted(spark.glob(f"{name}-*.jar"))]
    return os.pathsep.join([*map(str, writing), f"{kafka_jars()}/*"])


def zookeeper_classpath() -> str:
    spark = spark_jars()
    return os.pathsep.join([*map(str, sorted(spark.glob("zookeeper-*.jar"))), f"{spark}/*"])


def java_command(classpath: str, heap: str, logging: Path, call: Sequence[str], *, quick: bool) -> list[str]:
    """Return a command that runs a Java class with a small heap; write its logging configuration to `logging`.

    If `quick`, start-up takes half the CPU time, but each record takes longer, which matters for millions of records.
    """
    logging.write_text(LOGGING, encoding="utf-8")
    options = [f"-Xmx{heap}", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}"]
    if quick:
        options.append("-XX:TieredStopAtLevel=1")
    return [java(), *options, "-cp", classpath, *call]
